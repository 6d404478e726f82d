"""Reports an error with 4 KB of terminal commands, markup and reversed text.

It is shown on one line, escaped and cut; it is not parsed.
"""

from grader.runner import serve
from grader.wire import Reply, Status

TEXT = "\x1b[2J\x1b[32maccepted\x1b[0m \u202edetpecca\u202c [bold green]right[/] [/x] \x00\r\n"
send_reply = serve.send_reply


def softmax(x, out):
    serve.send_reply = lambda sock, reply: send_reply(
        sock, Reply(reply.sequence, Status.RUNTIME_ERROR, text=TEXT * 100)
    )
