"""`scripts/report_sets.py`: what fails in company is proved again alone, and a run goes on where it
stopped."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scripts import report_sets
from scripts.report_sets import Budget, Worker, lacks_resources
from tests.sets import made_up

RIGHT = {"state": "runs", "reasons": []}


class FakeWorker:
    """Finds that in company problem ``b`` has too little memory, and ``c`` never runs."""

    calls: list[tuple[str, bool]]

    def __init__(self, sandbox: str, threads: int, alone: bool = False) -> None:
        self._alone = alone

    def examine(self, name: str, limit_s: float, budget: Budget) -> dict[str, Any]:
        self.calls.append((Path(name).name, self._alone))
        found = RIGHT
        if name.endswith("b") and not self._alone:
            found = report_sets.cannot("describing case 1: CUDA out of memory")
        elif name.endswith("c"):
            found = report_sets.cannot("no function named 'ref_kernel'")
        return {"problem": name} | found

    def stop(self) -> None:
        pass


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Problems that were examined, and whether alone. There are three."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "challenge.py").touch()
    FakeWorker.calls = []
    monkeypatch.setattr(report_sets, "Worker", FakeWorker)
    return FakeWorker.calls


def run(folder: Path, *options: str) -> Result:
    arguments = [str(folder / "out.jsonl"), f"leetgpu:{folder}", *options]
    return CliRunner().invoke(report_sets.main, arguments)


def states(folder: Path) -> dict[str, dict[str, Any]]:
    lines = map(json.loads, (folder / "out.jsonl").read_text().splitlines())
    return {Path(found["problem"]).name: found for found in lines}


def test_what_lacked_memory_in_company_is_proved_again_alone(
    calls: list[tuple[str, bool]], tmp_path: Path
) -> None:
    done = run(tmp_path, "--processes", "2")
    assert done.exit_code == 0, done.output
    assert sorted(calls[:3]) == [("a", False), ("b", False), ("c", False)]
    assert calls[3:] == [("b", True)]
    assert states(tmp_path)["b"]["in_company"] == "describing case 1: CUDA out of memory"
    assert "| LeetGPU | 3 | 2 | 0 | 1 |" in done.output
    assert "alone, after in company: describing case 1: CUDA out of memory" in done.output
    assert "no function named 'ref_kernel'" in done.output


def test_one_process_has_no_company(calls: list[tuple[str, bool]], tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 0
    assert len(calls) == 3
    assert "| LeetGPU | 3 | 1 | 0 | 2 |" in done.output


def test_a_run_goes_on_where_it_stopped(
    calls: list[tuple[str, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path, "--processes", "2", "--for-s", "0")
    assert first.exit_code == 1
    assert "3 problems are left" in first.output
    names = [f"leetgpu:{tmp_path / name}" for name in "ab"]
    known = [{"problem": names[0]} | RIGHT, {"problem": names[1], "again": True} | RIGHT]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(one) + "\n" for one in known))
    assert run(tmp_path, "--processes", "2").exit_code == 0
    assert calls == [("c", False), ("b", True)]


@pytest.mark.parametrize(
    ("reason", "lacks"),
    [
        ("cases 'timed' is left out: OutOfMemoryError: CUDA out of memory", True),
        ("its own reference is time_limit_exceeded: the call took too long", True),
        ("generating inputs: it took longer than 120 s", True),
        ("its process ended with exit status -9", True),
        ("every test is too large for a CPU", False),
        ("its 1809 arguments are more than a request of 61440 bytes describes", False),
    ],
)
def test_reasons_that_company_may_have_caused(reason: str, lacks: bool) -> None:
    assert lacks_resources({"state": "cannot", "reasons": [reason]}) == lacks


def test_problems_that_need_more_memory_than_is_left_wait() -> None:
    budget = Budget()
    budget.take(0.7)
    budget.take(0.3)
    thread = threading.Thread(target=budget.take, args=(0.5,), daemon=True)
    thread.start()
    budget.give_back(0.3)
    thread.join(0.05)
    assert thread.is_alive()
    budget.give_back(0.7)
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.slow
def test_problems_are_proved_in_processes(tmp_path: Path) -> None:
    made_up.leetgpu(tmp_path / "first")
    made_up.leetgpu(tmp_path / "second", text="raise RuntimeError('no such library')")
    done = run(tmp_path, "--processes", "2", "--sandbox", "process")
    assert done.exit_code == 0, done.output
    assert "| LeetGPU | 2 | 1 | 0 | 1 |" in done.output
    assert "RuntimeError: no such library" in done.output


@pytest.mark.slow
def test_a_problem_that_takes_too_long_ends_its_process_only(tmp_path: Path) -> None:
    folder = made_up.leetgpu(tmp_path, text="import time\ntime.sleep(1000)")
    name = f"leetgpu:{folder}"
    worker = Worker("process", 1)
    try:
        found = worker.examine(name, 0.5, Budget())
        assert found["reasons"] == ["it took longer than 0.5 s"]
        missing = worker.examine("leetgpu:/nowhere", 60, Budget())
        assert missing["reasons"] == ["no such file or folder"]
    finally:
        worker.stop()
