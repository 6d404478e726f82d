"""`scripts/workers.py`: one GPU per worker, and no worker outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from scripts import workers as module
from scripts.workers import visible_gpus, workers
from tests.waiting import until

ROOT = Path(__file__).resolve().parent.parent


def gpu_after(seconds: float) -> str | None:
    time.sleep(seconds)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("chosen", "names"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("3,5", ["3", "5"]), ("3,5,9", ["3", "5"])],
)
def test_visible_gpus(
    chosen: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == names


def test_each_worker_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "visible_gpus", lambda: ["3", "GPU-5"])
    with workers("cuda") as executor:
        # Long enough that one worker does not take both tasks.
        seen = [executor.submit(gpu_after, 5) for _ in range(2)]
        assert {future.result() for future in seen} == {"3", "GPU-5"}


def test_a_worker_that_dies_loses_only_its_task() -> None:
    with workers("cpu") as executor:
        dies = executor.submit(os.kill, executor.submit(os.getpid).result(), signal.SIGKILL)
        after = executor.submit(os.getpid)
        with pytest.raises(BrokenProcessPool):
            dies.result()
        assert after.result() != os.getpid()


def test_without_a_gpu_the_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "visible_gpus", lambda: [])
    with pytest.raises(SystemExit, match="no NVIDIA GPU"), workers("cuda"):
        pass


def test_pending_tasks_are_cancelled_when_the_block_is_left() -> None:
    with pytest.raises(KeyboardInterrupt), workers("cpu") as executor:
        futures = [executor.submit(gpu_after, 0.5) for _ in range(50)]
        futures[0].result()
        raise KeyboardInterrupt
    assert sum(future.cancelled() for future in futures) > 40


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    code = """
import os, time
from scripts.workers import workers
if __name__ == "__main__":
    with workers("cpu") as executor:
        print(executor.submit(os.getpid).result(), flush=True)
        executor.submit(time.sleep, 100).result()
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Python reports the resources that the killed process left
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{worker}/stat").exists() or state(worker) == "Z")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
