"""`python -m grader.runner (--fd N | --connect PATH) [--device cpu|cuda|none]`: serve one judge.

The process forks at once, and the child serves. The parent only reaps: as PID 1 of a sandbox it
collects orphans and exits with the child's status, which ends every other process there. With
device ``none`` the child only compiles.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys

from grader.runner.socket_hardening import harden_sockets

USAGE = "usage: python -m grader.runner (--fd N | --connect PATH) [--device cpu|cuda|none]"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--fd", number, *rest]:
            sock = socket.socket(fileno=int(number))
        case ["--connect", path, *rest]:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(path)
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
    harden_sockets()
    child = os.fork()
    if child:
        sock.close()
        return _reap_until(child)
    if device == "none":
        from grader.runner import compiler

        compiler.serve(sock)
    else:
        from grader.runner.serve import Server, serve

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
