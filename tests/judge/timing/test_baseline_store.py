"""Files of recorded baselines: strict, written atomically, valid for one version of a problem."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grader.judge.gpu import environment
from grader.judge.timing.baseline_store import (
    COMPILED,
    BaselineEnvironment,
    BaselineFile,
    ProblemBaselines,
    RecordedCeilings,
    folder_of,
    load,
    load_recorded,
    locked,
    processor_name,
    save,
    slug,
)
from grader.judge.timing.baselines import measure_baselines
from grader.problem import Problem, ProblemError
from tests.judge.conftest import REFERENCE, WriteProblem

H100 = "NVIDIA H100 80GB HBM3"
ENVIRONMENT = BaselineEnvironment(
    driver="580.1",
    cuda="13.0",
    torch="2.11.0",
    triton="3.6.0",
    python="3.12.3",
    grade="0.1",
    measured_at=datetime(2026, 11, 21, tzinfo=UTC),
)


def times(problem: Problem | None = None, **changes: Any) -> ProblemBaselines:
    fields: dict[str, Any] = {
        "digest": problem.times_digest if problem else "d" * 64,
        "environment": ENVIRONMENT,
        "experts": ["cluster.cu"],
        "cases": {"small": {"eager": 12.5, "cluster.cu": 10.0}},
    }
    return ProblemBaselines(**fields | changes)


def baseline_file(hardware: str = H100, **problems: ProblemBaselines) -> BaselineFile:
    return BaselineFile(hardware=hardware, device="cuda", ranked=True, problems=problems)


def test_a_saved_file_is_loaded(tmp_path: Path) -> None:
    kept = baseline_file(softmax=times())
    path = save(tmp_path / "new", kept)
    assert path.name == "nvidia-h100-80gb-hbm3.json"
    assert load(tmp_path / "new", H100) == kept
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in (tmp_path / "new").iterdir()] == [path.name]


def test_other_hardware_has_no_file(tmp_path: Path) -> None:
    save(tmp_path, baseline_file())
    assert load(tmp_path, "NVIDIA B200") is None
    assert load(tmp_path / "missing", H100) is None


def test_one_problem_is_replaced_and_the_others_stay() -> None:
    old = baseline_file(softmax=times(), attention=times())
    new = times(cases={"small": {"eager": 1.0}})
    changed = old.updated("softmax", new)
    assert changed.problems["softmax"] == new
    assert changed.problems["attention"] == times()
    assert old.problems["softmax"] == times()
    assert list(changed.problems) == ["attention", "softmax"]


def test_ceilings_stay_until_new_ones_are_given() -> None:
    old, new = (
        RecordedCeilings(**asdict(environment.Ceilings(*rates)))
        for rates in ((1.0, 2.0, 3.0), (4, 5, 6))
    )
    first = baseline_file().updated("softmax", times(), old)
    assert first.updated("attention", times()).ceilings == old
    assert first.updated("attention", times(), new).ceilings == new


def test_a_file_of_an_older_version_without_ceilings_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, baseline_file(softmax=times()))
    before = json.loads(path.read_text())
    del before["ceilings"]
    path.write_text(json.dumps(before))
    assert load(tmp_path, H100) == baseline_file(softmax=times())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ceilings": {"bytes_per_s": 0}}, "ceilings"),
        ({"format": 2}, "format"),
        ({"ranked": False}, "ranked"),
        ({"gpu": "x"}, "gpu"),
        ({"problems": {"Bad Name": None}}, "problems"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = save(tmp_path, baseline_file(softmax=times()))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ProblemError, match=named) as error:
        load(tmp_path, H100)
    assert str(path) in str(error.value)
    assert "grade baseline" in str(error.value)


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_is_a_positive_number(time_us: float) -> None:
    with pytest.raises(ValidationError):
        times(cases={"small": {"eager": time_us}})


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, baseline_file(softmax=times()))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ProblemError, match="no record of times"):
        load(tmp_path, H100)


def test_a_file_of_other_hardware_is_refused(tmp_path: Path) -> None:
    save(tmp_path, baseline_file("NVIDIA-H100.80GB HBM3"))
    with pytest.raises(ProblemError, match="is of 'NVIDIA-H100"):
        load(tmp_path, H100)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, baseline_file(softmax=times()))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grader.judge.timing.baseline_store.os.replace", full)
    with pytest.raises(ProblemError, match="No space left"):
        save(tmp_path, baseline_file())
    assert load(tmp_path, H100) == baseline_file(softmax=times())
    assert len(list(tmp_path.iterdir())) == 1


def test_one_at_a_time_changes_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "timings"

    def add(name: str) -> None:
        with locked(folder):
            old = load(folder, H100) or baseline_file()
            time.sleep(0.01)  # in which another would read the same
            save(folder, old.updated(name, times()))

    names = [f"problem_{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(add, names))
    file = load(folder, H100)
    assert file is not None
    assert sorted(file.problems) == names


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProblemError, match="cannot be made"), locked(tmp_path / "file" / "new"):
        pytest.fail("it was locked")


def test_recorded_baselines_of_the_current_version_gpus_first(
    write_problem: WriteProblem,
) -> None:
    problem = write_problem()
    problem = Problem.load(problem.folder.rename(problem.folder.parent / "scale2"))
    folder = folder_of(problem)
    cpu = BaselineFile(hardware="A CPU", device="cpu", ranked=False)
    save(folder, cpu.updated("scale2", times(problem)))
    save(folder, baseline_file("NVIDIA H100", scale2=times(problem)))
    save(folder, baseline_file("NVIDIA A100", scale2=times(problem)))
    save(folder, baseline_file("NVIDIA B200", scale2=times(), other=times(problem)))
    found = [(one.hardware, one.device) for one in load_recorded(problem)]
    assert found == [("NVIDIA A100", "cuda"), ("NVIDIA H100", "cuda"), ("A CPU", "cpu")]


@pytest.mark.parametrize(
    ("folder", "root"), [("work/problems/scale", "work"), ("work/scale", "work")]
)
def test_the_folder_of_a_problem_s_baselines(
    write_problem: WriteProblem, tmp_path: Path, folder: str, root: str
) -> None:
    place = tmp_path / folder
    place.parent.mkdir(parents=True)
    problem = Problem.load(write_problem().folder.rename(place))
    assert folder_of(problem) == tmp_path / root / "reference" / "timings"
    kept = save(folder_of(problem), baseline_file(scale=times(problem)))
    assert kept.parent == folder_of(problem)
    assert [one.hardware for one in load_recorded(problem)] == [H100]


def test_slug() -> None:
    assert slug("Intel(R) Xeon(R) @ 2.20GHz") == "intel-r-xeon-r-2-20ghz"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
def test_every_baseline_and_torch_compile_are_measured(write_problem: WriteProblem) -> None:
    faster = "\n\nBASELINES = {'same': reference}\n"
    found = measure_baselines(write_problem(reference=REFERENCE + faster), "cpu")
    assert found.notes == []
    assert set(found.cases["small"]) == {"eager", "same", COMPILED}
    assert all(time_us > 0 for time_us in found.cases["small"].values())
    assert found.hardware == processor_name()
    assert found.environment.driver is None


@pytest.mark.cuda
@pytest.mark.slow
def test_torch_compile_is_measured_on_a_gpu(write_problem: WriteProblem) -> None:
    found = measure_baselines(write_problem(), "cuda")
    assert found.notes == []
    assert found.cases["small"].keys() == {"eager", COMPILED}
    assert found.cases["small"][COMPILED] < 1000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
def test_a_wrong_result_of_torch_compile_is_noted(write_problem: WriteProblem) -> None:
    differs = (
        "\n\nimport torch\n\n"
        "def eager(x, total, factor):\n"
        "    if torch.compiler.is_compiling():\n"
        "        return x\n"
        "    return reference(x, total, factor)\n"
    )
    found = measure_baselines(write_problem(reference=REFERENCE + differs), "cpu")
    assert set(found.cases["small"]) == {"eager"}
    assert "torch.compile, case 'small'" in found.notes[0]
