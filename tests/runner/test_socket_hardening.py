"""Socket calls that are denied to a submission."""

from __future__ import annotations

import subprocess
import sys

TRIES = """
import ctypes, errno, os, socket, struct
from grader.runner.socket_hardening import harden_sockets

def linger(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))

def take_no_descriptors(sock):
    try:
        sock.setsockopt(socket.SOL_SOCKET, 83, 1)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise

def refused(function, *arguments):
    try:
        function(*arguments)
    except PermissionError:
        return True
    return False

plain, unix = socket.socket(), socket.socket(socket.AF_UNIX)
assert not refused(linger, plain) and not refused(linger, unix)
assert not refused(take_no_descriptors, unix)
{forbid}
assert refused(linger, plain) == refused(linger, unix) == {is_refused}
assert refused(take_no_descriptors, unix) == {is_refused}
for family in range(2, 46):
    for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW:
        try:
            socket.socket(family, kind).close()
        except OSError as error:
            if {is_refused} and family not in (2, 10, 16):
                assert error.errno == errno.EAFNOSUPPORT, (family, error)
        else:
            assert family in (2, 10, 16) or not {is_refused}, family
socket.socketpair()[0].close()
socket.socket(socket.AF_INET6).close()
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
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


def test_sockets_are_restricted_in_this_process_and_its_children() -> None:
    for forbid, is_refused in ("", False), ("harden_sockets()", True):
        program = TRIES.format(forbid=forbid, is_refused=is_refused)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
