"""The lock that allows one measurement at a time on a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grader.judge.gpu import lock as module
from grader.judge.gpu.lock import gpu_lock
from grader.sandbox.base import SandboxError
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("unused_gpu")

OTHER_PROCESS = """
import signal, sys
from grader.judge.gpu import lock
lock.selected_gpu_node = lambda: None
signal.alarm(2)
with lock.gpu_lock("cuda", shared=sys.argv[1] == "shared"):
    print("held")
"""


def other_process(tmp: Path, kind: str = "alone") -> subprocess.CompletedProcess[str]:
    """Another user's process on this machine, with another folder for temporary files."""
    environment = os.environ | {"TMPDIR": str(tmp)}
    command = [sys.executable, "-c", OTHER_PROCESS, kind]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_lock_holds_for_processes_with_other_temporary_folders(tmp_path: Path) -> None:
    with gpu_lock("cuda"):
        assert other_process(tmp_path).returncode == -signal.SIGALRM
    assert other_process(tmp_path).stdout == "held\n"


def test_a_cpu_has_no_lock() -> None:
    with gpu_lock("cpu"), gpu_lock("cpu"):
        pass


def test_one_thread_may_lock_twice(tmp_path: Path) -> None:
    with gpu_lock("cuda"):
        with gpu_lock("cuda") as is_held:
            assert is_held
        assert other_process(tmp_path).returncode == -signal.SIGALRM, "the outer block holds it"
    assert other_process(tmp_path).stdout == "held\n"


def test_without_wait_a_held_lock_is_reported() -> None:
    def try_it() -> bool:
        with gpu_lock("cuda", wait=False) as is_held:
            return is_held

    with ThreadPoolExecutor(1) as another_thread:
        with gpu_lock("cuda"):
            assert another_thread.submit(try_it).result() is False
            assert try_it() is True
        assert another_thread.submit(try_it).result() is True


def test_gradings_that_share_keep_only_others_out(tmp_path: Path) -> None:
    with gpu_lock("cuda", shared=True):
        assert other_process(tmp_path, "shared").stdout == "held\n"
        assert other_process(tmp_path).returncode == -signal.SIGALRM
    with gpu_lock("cuda"):
        assert other_process(tmp_path, "shared").returncode == -signal.SIGALRM
        with gpu_lock("cuda", shared=True) as is_held:
            assert is_held
    assert other_process(tmp_path).stdout == "held\n"


def test_one_that_waits_for_all_of_it_is_next() -> None:
    def hold(shared: bool) -> bool:
        with gpu_lock("cuda", wait=False, shared=shared) as is_held:
            return is_held

    def wait_for_all() -> None:
        with gpu_lock("cuda"):
            pass

    with ThreadPoolExecutor(2) as threads:
        with gpu_lock("cuda", shared=True):
            assert threads.submit(hold, True).result()
            waiting = threads.submit(wait_for_all)
            until(lambda: not threads.submit(hold, True).result())
            assert not waiting.done()
        waiting.result(PATIENCE_S)
        assert threads.submit(hold, True).result()


def test_who_shares_cannot_lock_it_alone() -> None:
    with gpu_lock("cuda", shared=True), pytest.raises(AssertionError), gpu_lock("cuda"):
        pytest.fail("it was held")


@pytest.mark.parametrize("kind", ["gpu", "turn"])
def test_a_folder_in_place_of_the_lock_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / f"grade-{kind}-0.lock").mkdir()
    with pytest.raises(SandboxError, match="remove it"), gpu_lock("cuda"):
        pytest.fail("it was held")


def test_a_lock_file_that_cannot_be_created_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path / "gone")
    with pytest.raises(SandboxError, match="No such file"), gpu_lock("cuda"):
        pytest.fail("it was held")
