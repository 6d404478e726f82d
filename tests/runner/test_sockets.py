"""What a submission can no longer ask of a socket."""

from __future__ import annotations

import subprocess
import sys

TRIES = """
import ctypes, errno, os, socket, struct
from grader.runner.sockets import forbid_lingering

def linger(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))

def refused(function, *arguments):
    try:
        function(*arguments)
    except PermissionError:
        return True
    return False

plain, unix = socket.socket(), socket.socket(socket.AF_UNIX)
assert not refused(linger, plain) and not refused(linger, unix)
{forbid}
assert refused(linger, plain) == refused(linger, unix) == {is_refused}
plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # the number of SO_LINGER
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 0, 0)
assert (ctypes.get_errno() == errno.EPERM) >= {is_refused}
child = os.fork()
if child == 0:
    os._exit(refused(linger, socket.socket()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {is_refused}
"""


def test_no_socket_lingers_from_then_on_here_or_in_what_is_started() -> None:
    for forbid, is_refused in ("", False), ("forbid_lingering()", True):
        program = TRIES.format(forbid=forbid, is_refused=is_refused)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
