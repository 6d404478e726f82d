"""`python -m grader.runner (--fd N | --connect PATH) [--device cpu|cuda|none]`: serve one judge.

The process forks at once, and the child serves. The parent only reaps: as PID 1 of a sandbox it
collects orphans and exits with the child's status, which ends every other process there. It exits
too when its lifeline closes, since the judge is then gone; only ``--connect`` has one, and with
``--fd`` the sandbox's launcher does the same. With device ``none`` the child only compiles.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys

from grader.runner.socket_hardening import forbid_tracing, harden_sockets
from grader.wire import connect_to_judge, exit_with

COMPILER_NICENESS = 10
"""Of a runner that only compiles: it gives way to those that run beside it."""
USAGE = "usage: python -m grader.runner (--fd N | --connect PATH) [--device cpu|cuda|none]"


def main(arguments: list[str]) -> int:
    lifeline = None
    match arguments:
        case ["--fd", number, *rest]:
            sock = socket.socket(fileno=int(number))
        case ["--connect", path, *rest]:
            sock, lifeline = connect_to_judge(path)
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    match rest:
        case [] | ["--device", "cpu"]:
            device = "cpu"
        case ["--device", "cuda" | "none" as device]:
            pass
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    if device == "none":
        os.nice(COMPILER_NICENESS)
    harden_sockets()
    child = os.fork()
    if child:
        sock.close()
        if lifeline is not None:
            # Otherwise the submission, of the same user, could stop this process.
            forbid_tracing()
            exit_with(lifeline)
        return _reap_until(child)
    if lifeline is not None:
        lifeline.close()
    if device == "none":
        from grader.runner import compiler

        compiler.serve(sock)
    else:
        # Of the 1.1 s that importing torch takes, collections of what stays alive take 0.2 s.
        gc.disable()
        from grader.runner.serve import Server, serve

        gc.enable()
        serve(sock, Server(device))
    return 0


def _reap_until(child: int) -> int:
    """Reap every child until `child` exits; return its status, or die of its signal."""
    while True:
        pid, status = os.wait()
        if pid != child:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
            os.kill(os.getpid(), -code)
            return 128 - code  # only reached as PID 1, which its own signal does not kill
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
