"""Compile a Triton submission's kernels for all cases at once, in processes beside the runner.

Triton compiles on a kernel's first call with new types and block sizes, a few tenths of a second
each time, one after the other. Here some processes, forked before the device was touched, call the
entry on zeros of each case's shape, while the tests begin; what they compile lands in Triton's
cache on disk, where the runner finds it. They prove nothing and report nothing.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from grader.arena.layout import Slot, tensor_like, unpack
from grader.runner.load import load_python

MOST = 8
"""Each of them makes a context on the device, some 500 MB there and 100 MB here."""


class Rehearsal:
    """Processes that wait for the one job they will do."""

    def __init__(self) -> None:
        self._children: list[tuple[int, socket.socket]] = []

    @classmethod
    def start(cls) -> Rehearsal:
        """Fork them; each makes a context on the device. Call before making one oneself."""
        made = cls()
        for _ in range(max(1, min(MOST, len(os.sched_getaffinity(0)) // 2))):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _close_all_but(theirs)  # above all the wire: its end must tell the judge
                _wait_and_rehearse(theirs)
            theirs.close()
            made._children.append((pid, ours))
        return made

    def begin(self, source: bytes, folder: Path, request: dict[str, Any]) -> None:
        """Deal the cases out in their order, so that each is compiled by when the runner comes to
        it; the first ones it compiles itself at the same time."""
        for index, (_, sock) in enumerate(self._children):
            own = folder / f"rehearsal{index}"
            own.mkdir()
            share = request["cases"][index :: len(self._children)]
            (own / "job.json").write_text(json.dumps(request | {"cases": share}))
            (own / "source").write_bytes(source)
            with suppress(BrokenPipeError):  # it found no memory for a context: no loss
                sock.sendall(str(own).encode())

    def wait(self, limit_s: float) -> None:
        """Wait until all are done, and no longer than the limit; then end the processes."""
        deadline = time.monotonic() + limit_s
        for _, sock in self._children:
            select.select([sock], [], [], max(0.0, deadline - time.monotonic()))
        self.end()

    def end(self) -> None:
        """End the processes, whatever they are doing: all at once, since each has a context on the
        device to give back."""
        for pid, _ in self._children:
            for kill in (os.killpg, os.kill):  # it may not lead its own group yet
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        for pid, sock in self._children:
            with suppress(ChildProcessError):  # a submission may have reaped it
                os.waitpid(pid, 0)
            sock.close()
        self._children = []


def _close_all_but(sock: socket.socket) -> None:
    """Close every descriptor but the standard ones and this."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, sock.fileno())
    os.closerange(sock.fileno() + 1, most)


def _wait_and_rehearse(sock: socket.socket) -> None:
    """The life of one such process."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        _make_context()
        _prime()
        folder = sock.recv(4096)
        if folder:
            _rehearse(Path(folder.decode()))
    except BaseException:  # noqa: BLE001 - the call itself will tell what is wrong
        os._exit(1)
    os._exit(0)


def _make_context() -> None:
    import torch

    torch.zeros(1, device="cuda")


def _prime() -> None:
    from grader.runner.primer import compile_primer

    compile_primer()


def _rehearse(folder: Path) -> None:
    import torch

    request = json.loads((folder / "job.json").read_text())
    entry = load_python((folder / "source").read_bytes(), folder, request)
    for case in request["cases"]:
        try:
            values = [_zeros(unpack(value)) for value in case["values"]]
            entry.call(entry.prepare(values, case))
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001 - the call itself will tell; the next case may do better
            continue


def _zeros(value: Any) -> Any:
    if isinstance(value, Slot):
        return tensor_like(value, "cuda")
    if isinstance(value, list):
        return [tensor_like(slot, "cuda") for slot in value]
    return value
