"""A lent block in host memory: a sealed memory file, mapped on both sides."""

from __future__ import annotations

import fcntl
import mmap
import os

import torch


class HostArena:
    """A block of `nbytes` bytes. `buffer` is a uint8 tensor over all of it; `fd` may be lent.

    The file is sealed against growing and shrinking, so nobody who holds the descriptor can take
    pages away under the judge's mapping (which would kill the judge with SIGBUS).
    """

    device = "cpu"

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.buffer = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)

    @classmethod
    def create(cls, nbytes: int) -> HostArena:
        """Judge's side. Raises OSError when memory is short."""
        fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> HostArena:
        """Runner's side: map a lent descriptor, and own it."""
        return cls(fd, nbytes)

    def close(self) -> None:
        """Give the descriptor back; the mapping ends with the last tensor over it."""
        self.buffer = torch.empty(0, dtype=torch.uint8)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
