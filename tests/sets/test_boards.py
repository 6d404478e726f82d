"""Problems of other sets as a hosted board holds them: read, imported, packed and loaded again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from grader.fleet.loaded_problems import ProblemFolders
from grader.fleet.set_problems import SetProblems
from grader.fleet.worker_process import TaskRequest, TaskRunner, WorkerMessage
from grader.judge.import_problem import import_problem, on_device
from grader.judge.import_process import import_in_process
from grader.problem import Problem, ProblemError
from grader.problem.imported import SetSource
from grader.problem.set_file import SET_FILE
from grader.problem_sets import read_problem
from grader.sandbox.base import Sandbox
from tests.forked_sandbox import ForkedSandbox
from tests.sets import made_up

KERNEL = """
import torch
def custom_kernel(data):
    x, weights, config = data
    scale = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + config["eps"])
    return x * scale * weights["weight"]
"""


@pytest.fixture
def sandbox() -> Sandbox:
    return ForkedSandbox()


def not_here(source: SetSource) -> Problem:
    raise ProblemError(f"{source.folder}: not on this machine")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [made_up.leetgpu, made_up.kernelbot, made_up.kernelbench, made_up.tensara]
)
def test_a_slot_loads_what_was_imported_without_the_checkout(
    make: Callable[[Path], Path], tmp_path: Path, sandbox: Sandbox
) -> None:
    problem = import_problem(read_problem(make.__name__, make(tmp_path)), sandbox, "cpu")
    folders = ProblemFolders()
    folder = folders.folder_of(problem)
    loaded = Problem.load(folder)
    folders.close()
    assert (loaded.name, loaded.digest) == (problem.name, problem.digest)
    assert (loaded.spec, loaded.statement) == (problem.spec, problem.statement)
    assert loaded.imported == problem.imported
    assert str(tmp_path) not in problem.statement, "a public page names no path of the server"


def test_the_digest_covers_every_file_and_needs_no_import(tmp_path: Path) -> None:
    folder = made_up.kernelbot(tmp_path)
    first = read_problem("kernelbot", folder)
    assert read_problem("kernelbot", folder).digest() == first.digest()
    changed = {
        folder.parent / "helpers.py": "helpers.py: changed",
        folder / "reference.py": "reference.py: changed",
        folder / "task.yml": "(options): changed",
    }
    for path, phrase in changed.items():
        before = path.read_text()
        path.write_text(before.replace("1e-1", "1e-2").replace("48", "49").replace("40", "41"))
        again = read_problem("kernelbot", folder)
        assert again.digest() != first.digest(), path
        assert again.judged.changes_since(first.judged) == [phrase]
        path.write_text(before)


@pytest.mark.slow
def test_a_slot_imports_what_was_described_on_the_other_device(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    problem = import_problem(read_problem("kernelbot", made_up.kernelbot(tmp_path)), sandbox, "cpu")
    assert problem.imported is not None
    assert on_device(problem, sandbox, "cpu") is problem
    elsewhere = dataclasses.replace(problem.imported, device="cuda", numbers={}, forms={})
    described = Problem.of_set(problem.spec, elsewhere)
    assert described.digest == problem.digest
    folder = tmp_path / described.name
    folder.mkdir()
    (folder / SET_FILE).write_bytes(described.files[SET_FILE])
    sent: list[WorkerMessage] = []
    runner = TaskRunner(sandbox, "cpu", sent.append)
    task = TaskRequest(
        task=1, folder=folder, digest=described.digest, name="k.py", language="python",
        source=KERNEL.encode(), benchmarks=False,
    )  # fmt: skip
    runner.run(task)
    runner.close()
    report = sent[-1].report
    assert report is not None, sent[-1].failure
    assert report.verdict == "accepted", report.reason
    assert [case.name for case in report.cases] == ["test_1", "test_2"]


@pytest.mark.slow
def test_a_process_imports_a_problem_or_says_why_not(tmp_path: Path) -> None:
    source = read_problem("kernelbench", made_up.kernelbench(tmp_path / "good"))
    problem = import_in_process(source, "process", "cpu")
    assert problem.imported is not None
    assert problem.imported.source.files == source.files
    assert (problem.digest, problem.imported.device) == (source.digest(), "cpu")
    noisy = made_up.MODEL.replace("torch.relu", "print('noise') or nn.functional.dropout")
    source = read_problem("kernelbench", made_up.kernelbench(tmp_path / "bad", noisy))
    with pytest.raises(ProblemError, match=r"7_Linear_norm\.py: .*another answer each time"):
        import_in_process(source, "process", "cpu")
    with pytest.raises(ProblemError, match=r"its import took longer than 0\.01 s"):
        import_in_process(source, "process", "cpu", limit_s=0.01)


def test_a_root_holds_all_its_problems_and_reasons(tmp_path: Path) -> None:
    folder = made_up.kernelbot(tmp_path)
    other = folder.parent / "two_py"
    other.mkdir()
    (other / "task.yml").write_text("multi_gpu: true\n")
    sources, broken = SetProblems([("kernelbot", tmp_path)], not_here).read()
    assert list(sources) == ["kernelbot_made_up_rms_py"]
    assert broken == {f"kernelbot:{other}": f"{other / 'task.yml'}: it needs several GPUs"}
    found, broken = SetProblems([("kernelbot", folder)], not_here).load()
    assert found == {}
    assert broken == {"kernelbot_made_up_rms_py": f"{folder}: not on this machine"}


def test_two_checkouts_of_a_problem_are_not_both_served(tmp_path: Path) -> None:
    first, second = (made_up.kernelbench(tmp_path / name) for name in ("a", "b"))
    sources, broken = SetProblems(
        [("kernelbench", first), ("kernelbench", second)], not_here
    ).read()
    assert [source.folder for source in sources.values()] == [first]
    (reason,) = broken.values()
    assert reason == f"{second}: {first} has the same name, kernelbench_level1_7_linear_norm"


def test_a_broken_set_file_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / SET_FILE).write_text('{"source": 1}')
    with pytest.raises(ProblemError, match=r"set\.json: source: ") as error:
        Problem.load(folder)
    assert len(str(error.value).splitlines()) == 1
