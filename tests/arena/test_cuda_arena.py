"""The CUDA arena: one block of device memory in two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.cuda

OTHER_SIDE = """
import array, socket, sys, torch
sock = socket.socket(fileno=int(sys.argv[1]))
_, control, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(4))
fd = array.array("i", control[0][2])[0]
from grader.arena.cuda_arena import CudaArena
arena = CudaArena.attach(fd, 1 << 20)
arena.buffer[1] = arena.buffer[0] + 1
torch.cuda.synchronize()
sock.send(b"done")
"""


def test_a_block_lent_by_descriptor_is_shared_memory() -> None:
    from grader.arena.cuda_arena import CudaArena

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


def test_close_frees_memory_and_descriptor() -> None:
    from grader.arena.cuda_arena import CudaArena

    CudaArena.create(1 << 20).close()
    torch.cuda.synchronize()
    free_bytes, descriptors = torch.cuda.mem_get_info()[0], len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        CudaArena.create(1 << 30).close()
    assert torch.cuda.mem_get_info()[0] == free_bytes
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_after_end_call_work_depends_on_no_kernel() -> None:
    from cuda.bindings import driver

    from grader.arena.cuda_arena import end_call

    stream, x = torch.cuda.Stream(), torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(3):
            x.add_(1)
            end_call(stream)
    raw = graph.raw_cuda_graph()
    nodes = driver.cuGraphGetNodes(raw, driver.cuGraphGetNodes(raw)[-1])[1]
    before = sorted((_kind(node), _kinds_before(node)) for node in nodes)
    kernel, empty = "CU_GRAPH_NODE_TYPE_KERNEL", "CU_GRAPH_NODE_TYPE_EMPTY"
    assert before == [(empty, [kernel])] * 3 + [(kernel, []), (kernel, [empty]), (kernel, [empty])]
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [3.0] * 64


def _kind(node: Any) -> str:
    from cuda.bindings import driver

    return str(driver.cuGraphNodeGetType(node)[1].name)


def _kinds_before(node: Any) -> list[str]:
    """The kinds of the nodes that a graph's node depends on."""
    from cuda.bindings import driver

    count = driver.cuGraphNodeGetDependencies(node)[-1]
    return list(map(_kind, driver.cuGraphNodeGetDependencies(node, count)[1])) if count else []
