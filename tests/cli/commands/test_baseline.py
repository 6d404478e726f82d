"""`grade baseline`, and the recorded baselines that practice shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grader.judge.timing.baseline_store import (
    BaselineEnvironment,
    BaselineFile,
    ProblemBaselines,
    RecordedCeilings,
    load_recorded,
    processor_name,
    save,
    user_folder,
)
from grader.judge.timing.baselines import Baselines
from grader.problem import Problem
from grader.report import CaseResult
from tests.cli.conftest import Shell

H100 = "NVIDIA H100 80GB HBM3"
ENVIRONMENT = BaselineEnvironment(
    driver="580.1",
    cuda="13.0",
    torch="2.11.0",
    triton=None,
    python="3.12.3",
    grade="0.1",
    measured_at=datetime(2026, 11, 21, tzinfo=UTC),
)


@dataclass
class FakeMeasurement:
    """Returns given baselines."""

    hardware: str = H100
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    interrupted: bool = False

    def __call__(self, *_: object) -> Baselines:
        cases = {"small": {"eager": 100.0, "compiled": 60.0 + 1 / 3}}
        return Baselines(
            self.hardware, ENVIRONMENT, cases, self.notes, self.missing, self.interrupted
        )


def result(time_us: float = 50.0, **changes: Any) -> CaseResult:
    fields: dict[str, Any] = {
        "name": "small",
        "kind": "benchmark",
        "params": {"n": 1024},
        "status": "passed",
        "time_us": time_us,
        "baseline_us": {"eager": 99.0},
    }
    return CaseResult(**fields | changes)


@pytest.fixture
def expert(problem: Path) -> Path:
    path = problem.parent.parent / "reference" / problem.name / "wide.py"
    path.parent.mkdir(parents=True)
    path.write_text("def doubled(x, out):\n    out.copy_(x * 2)\n")
    return path


@pytest.fixture
def timings(shell: Shell) -> Callable[[], dict[str, Any]]:
    """Reads the user's record."""

    def read() -> dict[str, Any]:
        (path,) = user_folder().iterdir()
        found = json.loads(path.read_text())
        assert isinstance(found, dict)
        return found

    return read


@pytest.fixture
def measuring(shell: Shell) -> Shell:
    shell.change(measure_baselines=FakeMeasurement())
    shell.judge.changes = {"cases": [result(40.0)]}
    return shell


@pytest.mark.usefixtures("expert")
def test_everything_is_recorded_and_shown(
    measuring: Shell, problem: Path, timings: Callable[[], dict[str, Any]]
) -> None:
    status, out, _ = measuring("baseline", problem)
    assert status == 0
    kept = timings()
    assert (kept["hardware"], kept["device"], kept["ranked"]) == (H100, "cuda", True)
    times = kept["problems"]["double"]
    assert times["cases"] == {"small": {"eager": 100.0, "compiled": 60.333, "wide.py": 40.0}}
    assert times["experts"] == ["wide.py"]
    assert times["environment"]["driver"] == "580.1"
    assert times["digest"] == Problem.load(problem).times_digest
    for word in ("small", "compiled", "wide.py", "60.33", "nvidia-h100-80gb-hbm3.json"):
        assert word in out


def test_times_are_the_users_unless_they_are_recorded_for_the_project(
    measuring: Shell, problem: Path
) -> None:
    before = sorted(problem.parent.parent.rglob("*"))
    status, out, _ = measuring("baseline", problem)
    assert status == 0
    (path,) = user_folder().iterdir()
    assert f"recorded double on {H100}: {path}" in out
    assert sorted(p for p in problem.parent.parent.rglob("*") if p not in before) == [
        problem.parent.parent / "data",
        *sorted((problem.parent.parent / "data").rglob("*")),
    ]
    assert measuring("baseline", problem, "--record")[0] == 0
    assert (problem.parent.parent / "reference" / "timings" / path.name).exists()


def test_the_users_times_come_before_the_projects(shell: Shell, problem: Path) -> None:
    record(problem, H100)
    record(problem, "NVIDIA A100")
    (project,) = (one for one in load_recorded(Problem.load(problem)) if one.hardware == H100)
    times = project.times.model_copy(update={"cases": {"small": {"eager": 7.0}}})
    mine = BaselineFile(hardware=H100, device="cuda", ranked=True, problems={"double": times})
    save(user_folder(), mine)
    found = {one.hardware: one.times.cases for one in load_recorded(Problem.load(problem))}
    assert found[H100] == {"small": {"eager": 7.0}}
    assert found["NVIDIA A100"]["small"]["eager"] == 100.0


@pytest.mark.usefixtures("expert")
def test_other_problems_keep_their_times(
    measuring: Shell, problem: Path, timings: Callable[[], dict[str, Any]]
) -> None:
    other = ProblemBaselines(
        digest="d" * 64, environment=ENVIRONMENT, experts=[], cases={"a": {"eager": 1.0}}
    )
    folder = user_folder()
    save(folder, BaselineFile(hardware=H100, device="cuda", ranked=True, problems={"other": other}))
    assert measuring("baseline", problem)[0] == 0
    assert list(timings()["problems"]) == ["double", "other"]


def test_an_interrupted_measurement_keeps_what_it_has(
    measuring: Shell, problem: Path, timings: Callable[[], dict[str, Any]]
) -> None:
    """And the earlier times of the other cases, unless the problem has changed since."""
    folder = user_folder()
    earlier = {"wide": {"eager": 9.0}, "gone": {"eager": 1.0}, "small": {"eager": 5.0}}
    measuring.change(measure_baselines=FakeMeasurement(missing=["wide", "tall"], interrupted=True))
    for digest, kept in ((Problem.load(problem).times_digest, True), ("d" * 64, False)):
        times = ProblemBaselines(digest=digest, environment=ENVIRONMENT, experts=[], cases=earlier)
        recorded = {"double": times}
        save(folder, BaselineFile(hardware=H100, device="cuda", ranked=True, problems=recorded))
        status, _, err = measuring("baseline", problem)
        assert status == 130
        assert "interrupted: not measured were wide, tall" in err
        cases = timings()["problems"]["double"]["cases"]
        assert cases["small"]["eager"] == 100.0
        assert cases.keys() == ({"small", "wide"} if kept else {"small"})


def test_an_interrupted_compilation_keeps_the_other_times(
    measuring: Shell, timings: Callable[[], dict[str, Any]], problem: Path
) -> None:
    measuring.change(measure_baselines=FakeMeasurement(interrupted=True))
    status, _, err = measuring("baseline", problem)
    assert status == 130
    assert "interrupted: torch.compile was not measured for every case" in err
    assert timings()["problems"]["double"]["cases"]["small"]["eager"] == 100.0


@pytest.mark.usefixtures("expert")
def test_ceilings_of_the_grading_are_recorded(
    measuring: Shell, problem: Path, timings: Callable[[], dict[str, Any]]
) -> None:
    found = {"bytes_per_s": 3.00412e12, "fp32_per_s": 51.8e12, "tensor_per_s": 802e12}
    measuring.judge.changes |= {"environment": {"ceilings": found}}
    assert measuring("baseline", problem)[0] == 0
    assert timings()["ceilings"] == found | {"bytes_per_s": 3.004e12}
    measuring.judge.changes |= {"environment": {}}
    assert measuring("baseline", problem)[0] == 0
    assert timings()["ceilings"]["fp32_per_s"] == 51.8e12, "kept: the grading measured none"


@pytest.mark.usefixtures("expert")
def test_nothing_is_recorded_if_an_expert_kernel_is_wrong(measuring: Shell, problem: Path) -> None:
    measuring.judge.changes = {"verdict": "wrong_answer", "reason": "off by one"}
    status, _, err = measuring("baseline", problem)
    assert status == 1
    assert "wide.py was wrong_answer: off by one; nothing was recorded" in err
    assert not user_folder().exists()


@pytest.mark.usefixtures("expert")
def test_an_expert_kernel_that_cannot_run_here_is_left_out(
    measuring: Shell, problem: Path, timings: Callable[[], dict[str, Any]]
) -> None:
    measuring.judge.changes = {"verdict": None, "reason": "compiled, not run: no GPU"}
    status, _, err = measuring("baseline", problem)
    assert status == 0
    assert "wide.py is left out: compiled, not run" in err
    assert timings()["problems"]["double"]["experts"] == []


def test_a_cpu_is_marked_as_not_ranked(
    measuring: Shell, problem: Path, timings: Callable[[], dict[str, Any]]
) -> None:
    measuring.change(measure_baselines=FakeMeasurement("A CPU", ["torch.compile: no compiler"]))
    status, out, err = measuring("baseline", problem, "--device", "cpu")
    assert status == 0
    assert timings()["ranked"] is False
    assert RecordedCeilings.model_validate(timings()["ceilings"]).fp32_per_s > 1e6
    assert "not ranked" in out
    assert "no compiler" in err


def test_a_broken_record_is_status_2(measuring: Shell, problem: Path) -> None:
    folder = user_folder()
    folder.mkdir(parents=True)
    (folder / "nvidia-h100-80gb-hbm3.json").write_text("{}")
    status, _, err = measuring("baseline", problem)
    assert status == 2
    assert "no record of times" in err


# Recorded baselines in practice ----------------------------------------------------------------


def record(problem: Path, hardware: str) -> None:
    times = ProblemBaselines(
        digest=Problem.load(problem).times_digest,
        environment=ENVIRONMENT,
        experts=["wide.py"],
        cases={"small": {"eager": 100.0, "compiled": 60.0, "wide.py": 20.0}},
    )
    found = BaselineFile(hardware=hardware, device="cuda", ranked=True, problems={"double": times})
    save(problem.parent.parent / "reference" / "timings", found)


def test_practice_shows_speedups_over_the_record_of_this_gpu(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    record(problem, H100)
    record(problem, "NVIDIA A100")
    shell.judge.changes = {"cases": [result(50.0)]}
    _, out, _ = shell("practice", problem, kernel)
    assert f"speedup over the baselines recorded on {H100}, 2026-11-21" in out
    table = out[out.index("speedup over") :]
    heading = next(line for line in table.splitlines() if "× compiled" in line)
    assert "× wide.py" in heading
    assert "eager" not in heading  # timed in the same grading
    rows = [
        line.split() for line in table.splitlines() if line.strip().startswith(("small", "all"))
    ]
    assert rows == [["small", "1.20", "0.400"], ["all", "1.20", "0.400"]]
    assert "A100" not in out


def test_practice_shows_the_times_of_another_gpu_with_its_name(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    record(problem, "NVIDIA A100")
    shell.judge.changes = {"cases": [result(50.0)]}
    _, out, _ = shell("practice", problem, kernel)
    assert "recorded on NVIDIA A100, 2026-11-21, not on this machine" in out
    assert "20.00 µs" in out
    assert "speedup over" not in out


def test_a_cpus_report_shows_what_was_measured_alike_and_no_gpus_times(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    record(problem, "NVIDIA A100")
    shell.judge.changes = {"cases": [result(50.0, baseline_us={})], "device": "cpu", "gpu": None}
    _, out, _ = shell("practice", problem, kernel)
    assert "recorded on" not in out
    record(problem, processor_name())
    _, out, _ = shell("practice", problem, kernel)
    assert "× wide.py" in out
    for word in ("eager", "compiled", "A100"):
        assert word not in out.partition("recorded on")[2].partition("╭")[0], word


def test_a_record_of_another_version_is_not_shown(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    record(problem, H100)
    with (problem / "reference.py").open("a") as file:
        file.write("# another\n")
    shell.judge.changes = {"cases": [result(50.0)]}
    _, out, _ = shell("practice", problem, kernel)
    assert "recorded on" not in out


def test_a_broken_record_does_not_hide_the_verdict(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    folder = problem.parent.parent / "reference" / "timings"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("{")
    status, out, _ = shell("practice", problem, kernel)
    assert status == 0
    assert "no recorded times" in out
    assert "accepted" in out
