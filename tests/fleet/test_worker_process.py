"""A slot as its keeper sees it: lines in, lines out, and nothing left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from grader.fleet.job import MAX_SOURCE_BYTES
from grader.fleet.worker_process import ORDER_BYTES, Bench, Order, Ready, Word
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox.base import Runner, RunnerDevice, RunnerLimits, Sandbox, SandboxError
from tests.fleet.fake import PROBLEM, ROOT, patient
from tests.waiting import PATIENCE_S, until

SUBMISSIONS = ROOT / "submissions/softmax"


def order(number: int, file: str, digest: str | None = None, problem: Problem = PROBLEM) -> Order:
    path = SUBMISSIONS / file
    return Order(
        task=number,
        folder=problem.folder,
        digest=digest or problem.digest,
        name=path.name,
        language="python",
        source=path.read_bytes(),
    )


def children(pid: int) -> set[int]:
    """Processes that this one has started and that are there."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for file in files for child in file.read_text().split()}


class Slot:
    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "grader.fleet.worker_process", *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def hear(self) -> Word:
        assert self.process.stdout is not None
        return Word.model_validate_json(self.process.stdout.readline())

    def end_of(self, number: int) -> tuple[Word, list[str]]:
        """What it said last of a task, and the stages that it named before."""
        stages: list[str] = []
        while True:
            word = self.hear()
            assert word.task == number
            if word.progress is None:
                return word, stages
            if word.progress.stage not in stages:
                stages.append(word.progress.stage)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def slot() -> Iterator[Slot]:
    slot = Slot("--device", "cpu", "--sandbox", "process")
    try:
        assert slot.hear() == Word(ready=Ready(gpu=None))
        yield slot
    finally:
        slot.close()


def test_it_grades_one_after_the_other(slot: Slot) -> None:
    slot.tell(order(1, "accepted/torch_softmax.py").line())
    first, stages = slot.end_of(1)
    assert first.report is not None
    assert first.report.verdict is Verdict.ACCEPTED
    assert stages == ["sandbox_start", "load", "test", "benchmark"]
    slot.tell(order(2, "wrong_answer/zeros.py").line())
    slot.tell(order(3, "accepted/torch_softmax.py", digest="0" * 64).line())
    second, _ = slot.end_of(2)
    assert second.report is not None
    assert second.report.verdict is Verdict.WRONG_ANSWER
    third, stages = slot.end_of(3)
    assert third.failure is not None
    assert "has changed since this was handed in" in third.failure
    assert stages == []


def test_a_broken_problem_is_a_failure(slot: Slot, tmp_path: Path) -> None:
    missing = order(1, "accepted/torch_softmax.py").model_copy(update={"folder": tmp_path / "no"})
    slot.tell(missing.line())
    word, _ = slot.end_of(1)
    assert word.failure is not None
    assert str(tmp_path / "no") in word.failure


@pytest.mark.parametrize("way", ["sigterm", "stdin", "sigkill"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_nothing_is_left_of_it(slot: Slot, tmp_path: Path, way: str, busy: bool) -> None:
    pid = slot.process.pid
    if busy:
        endless = "time_limit_exceeded/infinite_loop.py"
        slot.tell(order(1, endless, problem=patient(tmp_path)).line())
        while (word := slot.hear()).progress is None or word.progress.stage != "test":
            pass
    else:  # a warm sandbox waits
        slot.tell(order(1, "compile_error/syntax_error.py").line())
        slot.end_of(1)
        until(lambda: bool(children(pid)))
    found = children(pid)
    assert found
    if way == "stdin":
        assert slot.process.stdin is not None
        slot.process.stdin.close()
    else:
        slot.process.send_signal(signal.SIGTERM if way == "sigterm" else signal.SIGKILL)
    assert slot.process.wait(PATIENCE_S) == (
        -signal.SIGKILL if way == "sigkill" else 128 + signal.SIGTERM
    )
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in found))


def test_an_order_without_end_ends_it(slot: Slot) -> None:
    with pytest.raises(BrokenPipeError):
        for _ in range(0, 2 * ORDER_BYTES, 1 << 20):
            slot.tell(b"x" * (1 << 20))
    assert slot.process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_options_are_checked() -> None:
    command = [
        sys.executable,
        "-m",
        "grader.fleet.worker_process",
        "--device",
        "tpu",
        "--sandbox",
        "process",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "'tpu' is not cpu, cuda or cuda:N" in ended.stderr


def test_a_missing_gpu_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "grader.fleet.worker_process", "--device", "cuda:99"]
    ended = subprocess.run(
        [*command, "--sandbox", "process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    # It may see the end of its stdin before it has looked for the GPU.
    assert ended.returncode in (1, 128 + signal.SIGTERM)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


STRAY = """
import os, sys
from grader.fleet.worker_process import _own_streams, Ready, Word
stdin, stdout = _own_streams()
print("a library greets you", flush=True)
os.system("echo a child greets you; cat")
stdout.write(Word(ready=Ready(gpu=None)).line())
"""


def test_stray_prints_go_to_stderr() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STRAY], cwd=ROOT, input=b"order\n", capture_output=True, check=True
    )
    assert Word.model_validate_json(ended.stdout) == Word(ready=Ready(gpu=None))
    assert ended.stderr.decode().split("\n")[:2] == ["a library greets you", "a child greets you"]


def test_the_largest_order_fits() -> None:
    full = order(1 << 62, "accepted/torch_softmax.py").model_copy(
        update={"source": b"\xff\n" * (MAX_SOURCE_BYTES // 2), "name": "n" * 255}
    )
    assert len(full.line()) < ORDER_BYTES
    assert full.line().count(b"\n") == 1
    assert Order.model_validate_json(full.line()) == full


def test_a_report_survives_the_line(make_report: Callable[..., Report]) -> None:
    report = make_report(
        score_us=float("inf"), environment={"nan": float("-inf")}, log="\u2028 \x00 \n €"
    )
    line = Word(task=1, report=report).line()
    assert line.count(b"\n") == 1
    back = Word.model_validate_json(line).report
    assert back is not None
    assert back.score_us == float("inf")
    assert back.model_dump_json() == report.model_dump_json()


@pytest.mark.parametrize("said", [{}, {"failure": "a", "ready": {"gpu": None}}, {"task": 1}])
def test_a_word_is_one_thing(said: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Word.model_validate(said)


class NoSandbox(Sandbox):
    name = "none"

    def describe(self) -> str:
        return self.name

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        raise SandboxError("no space\nleft")


def test_a_sandbox_that_does_not_start_is_a_failure() -> None:
    told: list[Word] = []
    bench = Bench(NoSandbox(), "cpu", told.append)
    try:
        bench.serve(order(5, "accepted/torch_softmax.py"))
    finally:
        bench.close()
    assert told[-1] == Word(task=5, failure="no space left")
