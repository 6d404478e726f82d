"""`grader.grade`, `grader.check` and `grader.Grader`, in real sandboxes on a CPU."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest

import grader
from grader import automation
from grader.automation import Item, Result, load_problem, load_submission
from grader.fleet.grading_engine import Task, TaskOutcome, WorkerSlot
from grader.fleet.loaded_problems import ProblemFolders
from grader.fleet.local_engine import LocalEngine
from grader.judge.record import Device
from grader.problem import ProblemError
from grader.report import PassedTests, Report, Verdict
from grader.sandbox import SandboxError
from grader.sandbox.gpu_info import Gpu, GpuDriver
from grader.submission import Language, SubmissionError
from tests.forked_sandbox import ForkedSandbox
from tests.sets import made_up

ROOT = Path(__file__).resolve().parent.parent
SUBMISSIONS = ROOT / "submissions" / "softmax"
RIGHT = (SUBMISSIONS / "accepted" / "torch_softmax.py").read_text()
WRONG = SUBMISSIONS / "wrong_answer" / "zeros.py"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradings of this process need not import torch again; those of a `Grader`'s workers do."""
    monkeypatch.setattr(automation, "make_sandbox", lambda _: ForkedSandbox())


def test_one_grading_and_one_check() -> None:
    report = grader.grade("softmax", RIGHT, device="cpu", sandbox="process", seed=7)
    assert report.verdict is Verdict.ACCEPTED
    assert report.seed == 7
    assert {case.kind for case in report.cases} == {"test", "benchmark"}
    checked = grader.check(ROOT / "problems" / "softmax", WRONG, device="cpu", sandbox="process")
    assert checked.verdict is Verdict.WRONG_ANSWER
    assert {case.kind for case in checked.cases} == {"test"}


@pytest.mark.usefixtures("forked")
def test_a_profile_or_the_report_of_a_failure() -> None:
    options: dict[str, Any] = {"device": "cpu", "sandbox": "process"}
    found = grader.profile("softmax", RIGHT, case="practice", **options)
    assert not isinstance(found, Report)
    assert (found.problem, found.case, found.device) == ("softmax", "practice", "cpu")
    assert found.limit
    failed = grader.profile("softmax", "def softmax(", **options)
    assert isinstance(failed, Report)
    assert failed.verdict is Verdict.COMPILE_ERROR
    with pytest.raises(
        ProblemError, match="no benchmark case 'practise' on --device cpu; did you mean"
    ):
        grader.profile("softmax", RIGHT, case="practise", **options)


def test_many_gradings() -> None:
    items = [
        Item("right", RIGHT),
        Item("wrong", WRONG),
        Item("tests only", RIGHT.encode(), benchmarks=False),
        Item("no code", "def softmax(", language="python"),
        Item("nowhere", RIGHT, problem="softmix"),
        Item("no file", SUBMISSIONS / "gone.py"),
    ]
    with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=2) as many:
        found = {result.key: result for result in many.map(items)}
        again = asyncio.run(_all(many, items[1:2]))
    assert len(found) == len(items)
    verdicts = {key: r.report.verdict for key, r in found.items() if r.report is not None}
    assert verdicts == {
        "right": Verdict.ACCEPTED,
        "wrong": Verdict.WRONG_ANSWER,
        "tests only": Verdict.ACCEPTED,
        "no code": Verdict.COMPILE_ERROR,
    }
    assert _kinds(found["right"]) == {"test", "benchmark"}
    right = found["right"].report
    assert right is not None
    assert right.cases[0].kind == "test"
    assert "test" not in right.stages_s, "its tests had passed before"
    assert _kinds(found["wrong"]) == _kinds(found["tests only"]) == {"test"}
    assert "no problem 'softmix' here; there are:" in (found["nowhere"].error or "")
    assert "no such file" in (found["no file"].error or "")
    assert [result.key for result in again] == ["wrong"]


async def _all(many: grader.Grader, items: list[Item]) -> list[Result]:
    return [result async for result in many.map_async(items)]


def _kinds(result: Result) -> set[str]:
    assert result.report is not None
    return {case.kind for case in result.report.cases}


WORKER = """
import base64, json, os, sys
ready = {"gpu": None}
print(json.dumps({"ready": ready}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    with open(LOG, "a") as log:
        print(task["task"], task["benchmarks"], base64.b64decode(task["source"]).decode(), file=log)
    print(json.dumps({"task": task["task"], "failure": "no sandbox starts"}), flush=True)
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worker processes that fail every task, and write what they were asked to a log."""
    log = tmp_path / "log"
    _use_workers(tmp_path, monkeypatch, f"LOG = {str(log)!r}\n{WORKER}")
    return log


def _use_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have a `Grader` start this program as its worker processes."""
    program = tmp_path / "worker.py"
    program.write_text(text)

    def engine(*args: Any, **options: Any) -> LocalEngine:
        return LocalEngine(*args, **options, command=[sys.executable, str(program)])

    monkeypatch.setattr(automation, "LocalEngine", engine)


def test_a_fault_of_the_machine_is_an_error_after_a_second_try(failing: Path) -> None:
    with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many:
        (result,) = many.map([Item("a", "x = 1")])
    assert result == Result("a", error="no sandbox starts")
    assert failing.read_text() == "1 False x = 1\n2 False x = 1\n"


def test_items_are_read_as_they_are_needed(failing: Path) -> None:
    read: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(1000):
            read.append(number)
            yield Item(str(number), "x")

    with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many:
        results = many.map(items())
        next(results)
        assert len(read) <= automation.LOOKAHEAD + 2


def test_items_that_come_slowly_are_graded_meanwhile(failing: Path) -> None:
    read: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(40):
            time.sleep(0.1)
            read.append(number)
            yield Item(str(number), "x")

    with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many:
        results = many.map(items())
        next(results)
        assert len(read) < 40
        assert len(list(results)) == 39


def test_many_items_that_cannot_be_graded_hide_none(
    failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: Any, *place: Any) -> Any:
        if name == "fib:X#y":
            raise SandboxError("no sandbox starts for its code")
        return load_problem(name, *place)

    monkeypatch.setattr(automation, "load_problem", load)
    items = [Item(str(number), "x", problem="fib:X#y") for number in range(automation.LOOKAHEAD)]
    with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many:
        errors = {one.key: one.error for one in many.map([*items, Item("last", "x")])}
    assert errors.pop("last") == "no sandbox starts"
    assert set(errors.values()) == {"no sandbox starts for its code"}
    assert len(errors) == automation.LOOKAHEAD


def test_workers_that_never_start_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_workers(tmp_path, monkeypatch, "raise SystemExit(3)")
    monkeypatch.setattr("grader.fleet.local_engine.BROKEN_STARTS", 1)
    with (
        grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many,
        pytest.raises(SandboxError, match=r"no worker process starts: the slot died \(.*3.*\)"),
    ):
        list(many.map([Item("a", "x")]))


def test_a_grader_that_is_closed_grades_nothing(failing: Path) -> None:
    many = grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1)
    many.close()
    many.close()
    with pytest.raises(RuntimeError, match="this Grader is closed"):
        list(many.map([Item("a", "x")]))


IDLE_WORKER = """
import json, sys
print(json.dumps({"ready": {"gpu": None}}), flush=True)
sys.stdin.read()
"""


def test_a_cancelled_task_ends_its_gradings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_workers(tmp_path, monkeypatch, IDLE_WORKER)

    async def run() -> None:
        with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many:
            async for _ in many.map_async([Item("a", "x"), Item("b", "x")]):
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(run(), 1.0))


def test_a_call_that_is_left_early_ends_its_gradings() -> None:
    """Else their results would be among those of the next call."""
    endless = "import time\n\ndef softmax(x, out):\n    time.sleep(600)\n"
    with grader.Grader("softmax", devices=["cpu"], sandbox="process", tests_at_once=1) as many:
        results = many.map([Item("wrong", WRONG), Item("endless", endless)])
        assert next(results).key == "wrong"
        results.close()
        assert [result.key for result in many.map([Item("next", WRONG)])] == ["next"]

        def broken() -> Iterator[Item]:
            yield Item("endless", endless)
            raise OSError("no more items")

        with pytest.raises(OSError, match="no more items"):
            list(many.map(broken()))
        assert [result.key for result in many.map([Item("last", WRONG)])] == ["last"]


@pytest.mark.parametrize("device", ["gpu", "cuda:one", "cuda:", "cpu:1", ""])
def test_an_unknown_device(device: str) -> None:
    with pytest.raises(ValueError, match="is no device"):
        grader.Grader(devices=[device])


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automation, "cuda_missing", lambda: "no NVIDIA GPU")
    with pytest.raises(ValueError, match="cuda:0: no NVIDIA GPU"):
        grader.Grader(devices=["cuda:0"])
    monkeypatch.setattr(automation, "cuda_missing", lambda: None)
    gpu = Gpu("H200", 1 << 37, (9, 0))
    monkeypatch.setattr(automation, "driver", lambda: GpuDriver(None, (13, 0), (gpu, gpu)))
    with pytest.raises(ValueError, match="cuda:2: the last GPU here is cuda:1"):
        grader.Grader(devices=["cuda:2"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert automation._parsed("cuda:1") == ("cuda", "5")
    assert automation._parsed("cuda") == ("cuda", "3")


@pytest.mark.usefixtures("forked")
def test_only_whole_problems_go_to_workers() -> None:
    part = dataclasses.replace(load_problem("softmax"), selected=frozenset(["primes"]))
    with pytest.raises(ProblemError, match="takes whole problems only"):
        grader.Grader(part)
    report = grader.check(part, WRONG, device="cpu", sandbox="process")
    assert [case.name for case in report.cases] == ["primes"]


@pytest.mark.usefixtures("forked")
def test_a_problem_of_another_set(tmp_path: Path) -> None:
    """By its path, for one grading and for workers, which have no checkout."""
    name = f"kernelbench:{made_up.kernelbench(tmp_path)}"
    right = made_up.MODEL.replace("class Model(", "class ModelNew(")
    options: dict[str, Any] = {"device": "cpu", "sandbox": "process"}
    checked = grader.check(name, right, **options)
    assert checked.verdict is Verdict.ACCEPTED, checked.reason
    problem = load_problem(name, **options)
    assert load_problem(name, **options) is problem, "it is imported once"
    items = [Item("right", right), Item("wrong", right.replace("relu", "tanh"), problem=name)]
    with grader.Grader(name, devices=["cpu"], sandbox="process", tests_at_once=1) as many:
        found = {result.key: result for result in many.map(items)}
    reports = {key: result.report for key, result in found.items()}
    assert reports["right"] is not None, found["right"].error
    assert reports["wrong"] is not None, found["wrong"].error
    assert reports["right"].verdict is Verdict.ACCEPTED, reports["right"].reason
    assert reports["right"].problem_digest == checked.problem_digest
    assert reports["wrong"].verdict is Verdict.WRONG_ANSWER
    with pytest.raises(ProblemError, match="no such file or folder"):
        load_problem("kernelbench:/nowhere.py", **options)


def test_the_example_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "automation.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "cwd": ROOT}
    done = subprocess.run([sys.executable, "-c", code], **options)
    first, *others = done.stdout.splitlines()
    assert first == "accepted - right on every case"
    assert sorted(others) == [f"{number} accepted" for number in range(4)]


def test_errors_of_the_caller() -> None:
    problem = load_problem("softmax")
    with pytest.raises(ProblemError, match="no problem 'nothing' here"):
        load_problem("nothing")
    with pytest.raises(SubmissionError, match="are allowed"):
        automation.load_submission(problem, "x" * (problem.spec.limits.source_bytes + 1), None)
    assert automation.load_submission(problem, "\ud800", None).source == b"\xed\xa0\x80"
    with pytest.raises(SubmissionError, match="is not that of cuda"):
        automation.load_submission(problem, WRONG, "cuda")
    with pytest.raises(AttributeError, match="no attribute 'grades'"):
        grader.grades  # type: ignore[attr-defined]  # noqa: B018


def test_the_runner_imports_nothing_for_programs() -> None:
    code = "import sys, grader; print([m for m in sys.modules if m.startswith('grader.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


class Slots:
    """Stands in for an engine: it runs nothing, and a slot is free again once its step ends."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tasks: list[Task] = []

    def slots(self) -> list[WorkerSlot]:
        return [
            WorkerSlot("", "cuda", "H100", free=n >= len(self.tasks)) for n in range(self.count)
        ]

    def submit(self, task: Task) -> None:
        self.tasks.append(task)


class Turns:
    """A device with two slots that test, and what waits for it; by the names of submissions."""

    def __init__(self, folder: Path, device: Device = "cuda") -> None:
        self.problem = load_problem("softmax", device, "process")
        place: tuple[Device, Literal["process"]] = (device, "process")
        self.work = automation._Work(
            self.problem, iter(()), itertools.count(1), place, ProblemFolders(), folder
        )
        self.testing, self.timing = Slots(2), Slots(1)
        self.lane = automation._Lane(
            device, cast("LocalEngine", self.testing), cast("LocalEngine", self.timing)
        )
        self.passed = PassedTests(
            problem_digest=self.problem.digest,
            submission_sha256="",
            device=device,
            seed=1,
            cases=(),
        )

    def add(self, queue: str, *names: str) -> None:
        for name in names:
            language: Language = "cuda" if name.endswith(".cu") else "python"
            submission = dataclasses.replace(
                load_submission(self.problem, "source", language), name=name
            )
            job = automation._Job(Item(name, "source"), self.problem, submission)
            job.kernels = Path(name)
            job.passed = self.passed if queue == "to_time" else None
            getattr(self.work, queue).append(job)

    def fill(self) -> list[str]:
        """What starts now."""
        before = len(self.testing.tasks), len(self.timing.tasks)
        self.lane.fill(self.work)
        started = self.testing.tasks[before[0] :] + self.timing.tasks[before[1] :]
        return [f"{_step(task)} {task.name}" for task in started]

    def end(self, name: str) -> None:
        """The step of this submission ends well."""
        for engine in (self.testing, self.timing):
            for task in [task for task in engine.tasks if task.name == name]:
                engine.tasks.remove(task)
                job = self.lane.running.pop(task.id)
                if task.compile_only:
                    assert self.work.end(job, TaskOutcome(task.id, has_compiled=True)) is None
                elif not task.benchmarks:
                    job.passed = self.passed
                    self.work.to_time.append(job)


def _step(task: Task) -> str:
    assert task.benchmarks == (task.passed is not None)
    return "compile" if task.compile_only else "time" if task.benchmarks else "test"


def test_the_next_are_compiled_while_one_is_timed(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.add("to_compile", *"abcd")
    assert turns.fill() == ["test a", "test b"], "the GPU has nothing else to do"
    turns.end("a")
    assert turns.fill() == ["compile c", "time a"]
    turns.end("b")
    assert turns.fill() == ["compile d"]
    turns.end("c")
    assert turns.fill() == [], "it waits for its turn"
    turns.end("a")
    assert turns.fill() == ["time b"]
    turns.end("d")
    turns.end("b")
    assert turns.fill() == ["test c", "test d"]


def test_tests_come_first(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.add("to_compile", "a")
    turns.add("to_test", "b")
    turns.add("to_time", "c")
    assert turns.fill() == ["test b"]
    turns.end("b")
    assert turns.fill() == ["compile a", "time c"]


def test_no_more_is_compiled_than_is_tested_in_a_turn(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.add("to_time", *map(str, range(automation.TO_TIME)))
    turns.add("to_test", *map(str, range(automation.COMPILED)))
    turns.add("to_compile", "a")
    assert turns.fill() == ["time 0"]


@pytest.mark.parametrize(("compiled", "more"), [(1, ["compile a"]), (2, [])])
def test_slots_are_free_for_the_next_tests(tmp_path: Path, compiled: int, more: list[str]) -> None:
    turns = Turns(tmp_path)
    turns.add("to_time", *"xy")
    turns.add("to_test", *map(str, range(compiled)))
    turns.lane.is_timing = True
    turns.add("to_compile", "a")
    assert turns.fill() == [*more, "time x"]


def test_nvcc_leaves_a_slot_to_the_processors(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.add("to_compile", "a.cu", "b.cu", "c")
    turns.add("to_time", *"xyz")
    assert turns.fill() == ["compile a.cu", "time x"]
    turns.work.to_compile.popleft()
    assert turns.fill() == ["compile c"]


def test_on_a_cpu_tests_compile(tmp_path: Path) -> None:
    turns = Turns(tmp_path, "cpu")
    turns.add("to_compile", "a")
    turns.add("to_test", "b")
    assert turns.fill() == ["test b", "test a"]


def test_a_compiler_that_fails_decides_nothing(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.add("to_compile", "a")
    job = turns.work.to_compile.popleft()
    job.step = "compile"
    assert turns.work.end(job, TaskOutcome(1, failure="no sandbox")) is None
    assert (list(turns.work.to_test), job.failures) == ([job], 0)


def test_what_is_to_be_timed_on_a_gpu_is_compiled_first(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    triton = (ROOT / "submissions/softmax/accepted/triton_softmax.py").read_text()
    items = [
        Item("triton", triton),
        Item("cuda", "", language="cuda"),
        Item("torch", "import torch"),
        Item("check", triton, benchmarks=False),
    ]
    turns.work._items = iter(items)
    turns.work.read(60)
    assert [job.item.key for job in turns.work.to_compile] == ["triton", "cuda"]
    assert [job.item.key for job in turns.work.to_test] == ["torch", "check"]
