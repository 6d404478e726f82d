"""The CUDA arena: one block of device memory in two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.cuda

OTHER_SIDE = """
import array, socket, sys, torch
sock = socket.socket(fileno=int(sys.argv[1]))
_, control, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(4))
fd = array.array("i", control[0][2])[0]
from grader.arena.cuda import CudaArena
arena = CudaArena.attach(fd, 1 << 20)
arena.buffer[1] = arena.buffer[0] + 1
torch.cuda.synchronize()
sock.send(b"done")
"""


def test_a_block_lent_by_descriptor_is_the_same_memory() -> None:
    from grader.arena.cuda import CudaArena

    arena = CudaArena.create(1 << 20)
    arena.buffer.zero_()
    arena.buffer[0] = 41
    torch.cuda.synchronize()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", OTHER_SIDE, str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as other:
        socket.send_fds(ours, [b"x"], [arena.fd])
        ours.settimeout(60)
        assert ours.recv(10) == b"done"
        other.wait(60)
    assert arena.buffer[:2].tolist() == [41, 42]
    arena.close()


def test_closing_gives_the_memory_and_the_descriptor_back() -> None:
    from grader.arena.cuda import CudaArena

    CudaArena.create(1 << 20).close()
    torch.cuda.synchronize()
    free_bytes, descriptors = torch.cuda.mem_get_info()[0], len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        CudaArena.create(1 << 30).close()
    assert torch.cuda.mem_get_info()[0] == free_bytes
    assert len(os.listdir("/proc/self/fd")) == descriptors
