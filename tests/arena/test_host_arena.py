"""The host arena: one block on both sides, which the runner cannot shrink."""

from __future__ import annotations

import os

import pytest
import torch

from grader.arena.host_arena import HostArena


def test_both_sides_see_the_same_bytes() -> None:
    arena = HostArena.create(4096)
    other = HostArena.attach(os.dup(arena.fd), 4096)
    arena.buffer[10] = 77
    assert int(other.buffer[10]) == 77
    other.buffer[11] = 78
    assert int(arena.buffer[11]) == 78
    arena.close()
    other.close()


def test_the_block_can_neither_shrink_nor_grow() -> None:
    arena = HostArena.create(8192)
    for size in (0, 4096, 16384):
        with pytest.raises(OSError):
            os.ftruncate(arena.fd, size)
    arena.close()


def test_no_seal_can_be_added() -> None:
    import fcntl

    arena = HostArena.create(4096)
    with pytest.raises(OSError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    arena.close()


def test_close_is_idempotent_and_frees_the_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    arena = HostArena.create(4096)
    arena.close()
    arena.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    assert arena.buffer.dtype == torch.uint8
