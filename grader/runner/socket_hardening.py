"""What a submission's sockets may not be told, so that the judge is not held up by them.

One that lingers makes whoever closes it last wait until its peer has taken what was sent, for years
if it was told so; and a descriptor that is sent to the judge may end as the judge's to close,
without ever having become one of his. So this is given up before anything is loaded, and for good,
by a system call filter; and with it, to refuse the judge's own descriptors, and sockets of families
that know no network namespace, or are slow to close as well.
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
"""Architecture as a filter is told it; io_uring_setup, whose rings pass by filters; socket,
socketpair, setsockopt."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_X32 = 0x40000000
"""x86_64's second set of system call numbers begins here."""
_LOAD, _EQUAL, _AT_LEAST, _ANSWER = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2


def harden_sockets() -> None:
    """Let neither this process nor any that it starts set ``SO_LINGER`` or ``SO_PASSRIGHTS``, or
    make sockets that are neither local nor of the Internet; OSError where the kernel takes no
    filter."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return
    architecture, io_uring_setup, one, pair, setsockopt = numbers
    deny = (_ANSWER, 0, 0, _FAIL | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        deny,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 15, 0, _X32),
        (_EQUAL, 14, 0, io_uring_setup),
        (_EQUAL, 1, 0, one),
        (_EQUAL, 0, 6, pair),
        (_LOAD, 0, 0, _ARGUMENTS),  # an int each, so the lower half is all
        *((_EQUAL, 11 - i, 0, int(family)) for i, family in enumerate(_FAMILIES)),
        (_ANSWER, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_EQUAL, 0, 6, setsockopt),
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_EQUAL, 0, 4, socket.SOL_SOCKET),
        (_LOAD, 0, 0, _ARGUMENTS + 16),
        (_EQUAL, 1, 0, socket.SO_LINGER),
        (_EQUAL, 0, 1, SO_PASSRIGHTS),
        deny,
        (_ANSWER, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(header))


def _prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    filled = [*arguments, 0, 0, 0, 0][:4]
    wrapped = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in filled]
    if libc.prctl(option, *wrapped) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no system call filter can be set: {os.strerror(number)}")
