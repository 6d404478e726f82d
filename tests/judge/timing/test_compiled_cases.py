"""torch.compile within its limit: what is slow, fails or dies is left out, and all of it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.judge.record import Progress
from grader.judge.timing import baselines, compiled_cases
from grader.judge.timing.baselines import measure_baselines
from grader.problem import Problem
from tests.judge.conftest import SPEC, WriteProblem

BENCHMARK = "  - {name: small, params: {n: 4096, dtype: fp32}}\n"
WORKER = """
import json, os, pathlib, subprocess, sys, time
folder, _, name, device = sys.argv[1:]
helper = subprocess.Popen(["sleep", "600"], stdout=2)  # as a compiler would be
(pathlib.Path(folder) / f"{name}.pid").write_text(f"{os.getpid()} {helper.pid}")
if name == "slow":
    time.sleep(600)
if name == "dead":
    sys.exit("no memory")
print(json.dumps({"error": "no compiler"} if name == "fails" else {"compiled": True}), flush=True)
sys.stdin.readline()
if name == "stuck":
    time.sleep(600)
print(json.dumps({"time_us": 7.5}), flush=True)
time.sleep(600)
"""
"""Stands for `compiled_worker`; does what the case's name says."""
REAL_COMMAND = compiled_cases.COMMAND


@pytest.fixture(autouse=True)
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_cases, "COMMAND", (sys.executable, "-c", WORKER))
    monkeypatch.setattr(compiled_cases, "SHOWN_EVERY_S", 0.05)
    monkeypatch.setattr(baselines, "time_baselines", lambda *_, **__: {"eager": 1.0})


def with_cases(write_problem: WriteProblem, *names: str) -> Problem:
    cases = "".join(BENCHMARK.replace("small", name) for name in names)
    return write_problem(SPEC.replace(BENCHMARK, cases))


def have_ended(folder: Path, name: str) -> bool:
    """Whether the process of a case and the one that it started have ended; a zombie of init has
    too."""
    for pid in (folder / f"{name}.pid").read_text().split():
        status = Path(f"/proc/{pid}/stat")
        for _ in range(100):
            if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.05)
        else:
            return False
    return True


def test_what_does_not_compile_in_time_is_left_out(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_cases, "COMPILE_S", 3.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    problem = with_cases(write_problem, "slow", "quick", "fails", "dead", "late")
    events: list[Progress] = []
    found = measure_baselines(problem, "cpu", events.append)
    assert found.cases == {
        name: {"eager": 1.0} | ({"compiled": 7.5} if name in ("quick", "late") else {})
        for name in ("slow", "quick", "fails", "dead", "late")
    }
    assert sorted(found.notes) == [
        "torch.compile, case 'dead': its process ended: exit status 1: no memory",
        "torch.compile, case 'fails': no compiler",
        "torch.compile, case 'slow': not compiled within 3 s; left out",
    ]
    assert not found.interrupted
    assert all(have_ended(problem.folder, name) for name in found.cases)
    shown = [event.case for event in events if event.stage == "compile"]
    assert shown[0] == "0 s of 3 s: slow, quick, fails, dead"
    assert "2 s of 3 s: slow" in shown
    assert shown[-2:] == ["timing quick", "timing late"]


def test_no_more_compile_at_once_than_there_are_processors(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_cases, "COMPILE_S", 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    problem = with_cases(write_problem, "slow", "quick")
    found = measure_baselines(problem, "cpu")
    assert [note.rpartition(": ")[2] for note in found.notes] == [
        "not compiled within 1 s; left out"
    ] * 2
    assert not (problem.folder / "quick.pid").exists()


def test_a_case_that_is_never_timed_is_left_out(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_cases, "TIMING_S", 0.5)
    found = measure_baselines(with_cases(write_problem, "stuck", "quick"), "cpu")
    assert found.notes == [
        "torch.compile, case 'stuck': timing it took longer than 0.5 s; left out"
    ]
    assert found.cases["quick"]["compiled"] == 7.5


@pytest.mark.parametrize(("other", "at"), [("slow", "s: slow"), ("quick", "timing quick")])
def test_ctrl_c_ends_the_processes_and_keeps_the_times(
    write_problem: WriteProblem, other: str, at: str
) -> None:
    problem = with_cases(write_problem, "first", other)

    def interrupt(event: Progress) -> None:
        if at in event.case and (problem.folder / f"{other}.pid").exists():
            raise KeyboardInterrupt

    found = measure_baselines(problem, "cpu", interrupt)
    assert found.interrupted
    assert found.missing == []
    assert found.cases[other] == {"eager": 1.0}
    assert ("compiled" in found.cases["first"]) == (other == "quick")
    assert all(have_ended(problem.folder, name) for name in found.cases)


def test_a_worker_ends_with_the_judge(write_problem: WriteProblem) -> None:
    """Its stdin is closed then, even if the judge was killed."""
    problem = write_problem(reference="import time\n\ndef reference(**_): time.sleep(600)\n")
    command = [*REAL_COMMAND, str(problem.folder), problem.digest, "small", "cpu"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_problem_that_changes_meanwhile_is_not_timed(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_cases, "COMMAND", REAL_COMMAND)
    old = write_problem()
    write_problem(reference="raise AssertionError\n")
    found = measure_baselines(old, "cpu")
    assert found.cases == {"small": {"eager": 1.0}}
    assert found.notes[0].endswith("was changed meanwhile; run grade baseline again")
