"""A seccomp filter on socket calls, so that a submission's sockets cannot block the judge.

Closing a socket with ``SO_LINGER`` waits until its peer has read everything, for years if so
configured. A submission could send such a socket to the judge, which then closes the last copy even
if it never received it. The filter is installed before the submission is loaded, and cannot be
removed. It also denies refusing the judge's descriptors (``SO_PASSRIGHTS``), and
socket families that ignore network namespaces or are slow to close.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct

from grader.wire import SO_PASSRIGHTS

_NUMBERS = {"x86_64": (0xC000003E, 425, 41, 53, 54), "aarch64": (0xC00000B7, 425, 198, 199, 208)}
"""Machine → the AUDIT_ARCH value, and the numbers of io_uring_setup (whose operations bypass the
filter), socket, socketpair and setsockopt."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_X32 = 0x40000000
"""First system call number of the x32 ABI of x86_64."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 4, 22, 38, 2


def harden_sockets() -> None:
    """Deny ``SO_LINGER``, ``SO_PASSRIGHTS`` and all but local and Internet sockets.

    Applies to this process and its children, for good. Raises OSError when the kernel rejects the
    filter.
    """
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return
    architecture, io_uring_setup, one, pair, setsockopt = numbers
    deny = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        deny,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 15, 0, _X32),
        (_EQUAL, 14, 0, io_uring_setup),
        (_EQUAL, 1, 0, one),
        (_EQUAL, 0, 6, pair),
        (_LOAD, 0, 0, _ARGUMENTS),  # an int, so the lower half is enough
        *((_EQUAL, 11 - i, 0, int(family)) for i, family in enumerate(_FAMILIES)),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_EQUAL, 0, 6, setsockopt),
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_EQUAL, 0, 4, socket.SOL_SOCKET),
        (_LOAD, 0, 0, _ARGUMENTS + 16),
        (_EQUAL, 1, 0, socket.SO_LINGER),
        (_EQUAL, 0, 1, SO_PASSRIGHTS),
        deny,
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(header))


def forbid_tracing() -> None:
    """Deny other processes of this user to trace this one, and to read or take what it holds."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    filled = [*arguments, 0, 0, 0, 0][:4]
    wrapped = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in filled]
    if libc.prctl(option, *wrapped) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the runner cannot be confined: {os.strerror(number)}")
