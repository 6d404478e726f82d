"""A lent block in host memory: a memfd, mapped on both sides."""

from __future__ import annotations

import mmap
import os

import torch

from grader.wire import fixed_size_memfd


class HostArena:
    """A block of `nbytes` bytes. `buffer` is a uint8 tensor over all of it; `fd` may be lent.

    The memfd's size is sealed: if the runner could shrink it, reading the mapping would kill the
    judge with SIGBUS.
    """

    device = "cpu"

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.buffer = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)

    @classmethod
    def create(cls, nbytes: int) -> HostArena:
        """Judge's side. Raises OSError when memory is short."""
        fd = fixed_size_memfd("arena", nbytes)
        try:
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> HostArena:
        """Runner's side: map a lent descriptor and take ownership of it."""
        return cls(fd, nbytes)

    def close(self) -> None:
        """Close the descriptor; the mapping lasts until the last tensor over it is freed."""
        self.buffer = torch.empty(0, dtype=torch.uint8)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
