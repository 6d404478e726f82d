"""Tries to take the lent memory away from the judge: shrink, grow, seal, lease, lock, reopen.

The file is sealed, so each attempt fails. The rest of the call is honest.
"""

import fcntl
import os

import torch

F_ADD_SEALS, F_SEAL_WRITE = 1033, 8


def attempts(fd):
    yield lambda: os.ftruncate(fd, 0)
    yield lambda: os.ftruncate(fd, 1 << 40)
    yield lambda: fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)
    yield lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield lambda: os.fchmod(fd, 0)
    yield lambda: os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC))


def softmax(x, out):
    for name in os.listdir("/proc/self/fd"):
        try:
            if "arena" in os.readlink(f"/proc/self/fd/{name}"):
                for attempt in attempts(int(name)):
                    try:
                        attempt()
                    except OSError:
                        pass
        except OSError:
            pass
    out.copy_(torch.softmax(x.float(), dim=-1))
