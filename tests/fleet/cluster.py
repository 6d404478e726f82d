"""A real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.fleet.fake import ROOT
from tests.fleet.test_local_engine import alive, below
from tests.waiting import PATIENCE_S, until

OBJECT_STORE_BYTES = 80_000_000
ENVIRONMENT = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}


class Cluster:
    """A head node, and a second node that can be killed, each with one CPU and maybe a fake GPU.

    `gpus` are the GPU types. The temporary files of a node lie in a folder named after its GPU.
    """

    def __init__(self, folder: str, *gpus: str) -> None:
        first, second = gpus or ("", "")
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.folder = Path(folder)
        """The temporary folder of its nodes."""
        self._nodes: list[subprocess.Popen[bytes]] = []
        head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        self._start(first, *head, "--no-monitor")
        until(lambda: accepts(port))
        self._start(second, f"--address={self.address}", "--dashboard-agent-listen-port=0")

    def _start(self, gpu: str, *options: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        small = ["--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        small += [f"--num-gpus={int(bool(gpu))}"]
        small += ["--include-log-monitor=false"]  # it takes a third of a node's CPU time
        if gpu:
            small += [f"--resources={json.dumps({f'accelerator_type:{gpu}': 1})}"]
        own = self.folder / gpu
        own.mkdir(exist_ok=True)
        self._nodes.append(
            subprocess.Popen(
                [ray, "start", *options, *small, "--disable-usage-stats", "--block"],
                env=ENVIRONMENT | {"TMPDIR": str(own)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def kill_second_node(self) -> None:
        """Kill every process of the second node, as a power failure would."""
        node = self._nodes[1]
        # Stop all first, or one would report the death of another.
        processes = (node.pid, *below(node.pid))
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in processes:
                with suppress(
                    ProcessLookupError
                ):  # the init process of a PID namespace takes the others with it
                    os.kill(pid, number)
        node.wait()

    def end(self) -> None:
        processes = {pid for node in self._nodes for pid in below(node.pid)}
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            node.wait(PATIENCE_S)
        for pid in filter(alive, processes):
            os.kill(pid, signal.SIGKILL)

    def slots(self, gpu: str = "") -> list[str]:
        """The worker processes on its nodes, or on the node with this GPU."""
        return worker_processes_in(str(self.folder / gpu))


def worker_processes_in(folder: str) -> list[str]:
    """The worker processes with this temporary folder."""
    mark = f"TMPDIR={folder}".encode()
    found = [
        process.name
        for process in Path("/proc").glob("[0-9]*")
        if b"grader.fleet.worker_process" in read(process / "cmdline")
        and mark in read(process / "environ").split(b"\0")
    ]
    # A child between fork and exec looks like the worker process itself.
    return [pid for pid in found if parent(pid) not in found]


def parent(pid: str) -> str:
    """The parent of a process; empty if it has ended."""
    words = read(Path("/proc", pid, "stat")).rpartition(b")")[2].split()
    return words[1].decode() if words else ""


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def free_port() -> int:
    """A free port below 32768, which Linux does not give to other processes."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
