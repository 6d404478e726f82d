"""The local engine, with real worker processes and with a misbehaving one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.fleet.grading_engine import NoFreeSlot, Task, TaskOutcome, WorkerSlot
from grader.fleet.local_engine import LocalEngine
from grader.judge import Progress
from grader.report import Report, Verdict
from tests.fleet.fake import PROBLEM, ROOT
from tests.waiting import PATIENCE_S, until

SUBMISSIONS = ROOT / "submissions/softmax"

FAKE = """
import json, os, signal, subprocess, sys, time

def send(**fields):
    print(json.dumps(fields), flush=True)

def end(task):
    send(task=task, failure="done as requested")

send(ready={"gpu": None})
for line in sys.stdin:
    request = json.loads(line)
    task, what = request["task"], request["name"]
    send(task=task, progress={"stage": "load"})
    if what == "die":
        os._exit(3)
    elif what == "die and leave a child":
        subprocess.Popen(["sleep", "1000"])
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "babble":
        print("Hello, I am a library", flush=True)
    elif what == "another task":
        end(task + 1)
    elif what == "two things":
        send(task=task, failure="a", ready={"gpu": None})
    elif what == "long line":
        sys.stdout.write("x" * (100 << 20))
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "1000"])
    elif what == "deep":
        print("[" * 100000, flush=True)
    elif what == "answer and die":
        end(task)
        os._exit(0)
    elif what == "report":
        send(task=task, report=json.load(open(__file__ + ".json")))
        continue
    if what == "well":
        time.sleep(0.2)
        end(task)
    else:
        while True:
            time.sleep(1000)
"""


def task(number: int, name: str = "well", **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "folder": PROBLEM.folder,
        "digest": PROBLEM.digest,
        "language": "python",
        "source": b"",
        "device": "cpu",
    }
    return Task(id=number, name=name, **(fields | changes))


def real(number: int, file: str) -> Task:
    path = SUBMISSIONS / file
    return task(number, path.name, source=path.read_bytes())


def submit(
    engine: LocalEngine, task: Task, on_progress: Callable[[Progress], None] | None = None
) -> None:
    """Wait for a free slot and submit."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return engine.submit(task, on_progress)
        except NoFreeSlot:
            assert time.monotonic() < deadline, "no slot ever became free"
            time.sleep(0.01)


def outcome(engine: LocalEngine, limit_s: float = PATIENCE_S) -> TaskOutcome:
    (found,) = engine.poll(limit_s)
    return found


def below(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = {int(child) for child in file.read_text().split()}
        except OSError:  # it has just ended
            continue
        found |= children.union(*map(below, children))
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a zombie is dead


earlier: set[int] = set()
"""Processes that other tests have left to this process, such as those of multiprocessing."""


def started() -> set[int]:
    """All descendants of this process that the test has started."""
    return below(os.getpid()) - earlier


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    global earlier
    fds, earlier = len(os.listdir("/proc/self/fd")), below(os.getpid())
    yield
    until(lambda: not any(map(alive, started())))
    until(lambda: len(os.listdir("/proc/self/fd")) == fds)
    assert not [t for t in threading.enumerate() if t.name.startswith("grade-slot")]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[LocalEngine]:
    program = tmp_path / "slot.py"
    program.write_text(FAKE)
    command = [sys.executable, str(program)]
    with LocalEngine(1, "cpu", "process", command=command, margin_s=1000) as engine:
        yield engine


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("die", "the slot died (exit status 3)"),
        ("die and leave a child", "the slot died (signal 9)"),
        ("babble", "an invalid message: b'Hello, I am a library'"),
        ("another task", "a task that it was not given"),
        ("two things", "an invalid message"),
        ("deep", "an invalid message"),
        ("long line", "a line of more than 8,388,608 bytes"),
    ],
)
def test_a_bad_slot_is_a_failure_and_replaced(fake: LocalEngine, what: str, why: str) -> None:
    until(lambda: fake.slots()[0].free)
    processes = started()
    submit(fake, task(1, what))
    bad = outcome(fake)
    assert (bad.task_id, bad.report, bad.is_system_failure) == (1, None, True)
    assert why in (bad.failure or "")
    assert not any(map(alive, processes))
    submit(fake, task(2))
    assert outcome(fake) == TaskOutcome(2, failure="done as requested")


def test_an_outcome_counts_even_if_the_slot_then_dies(fake: LocalEngine) -> None:
    until(lambda: fake.slots()[0].free)
    processes = started()
    submit(fake, task(1, "answer and die"))
    assert outcome(fake) == TaskOutcome(1, failure="done as requested")
    until(lambda: not any(map(alive, processes)))  # or the next task goes to a dying process
    submit(fake, task(2))
    assert outcome(fake) == TaskOutcome(2, failure="done as requested")
    assert fake.poll(0) == []


@pytest.mark.parametrize("verdict", [Verdict.WRONG_ANSWER, Verdict.JUDGE_ERROR])
def test_a_slot_without_a_verdict_is_replaced(
    fake: LocalEngine, tmp_path: Path, make_report: Callable[..., Report], verdict: Verdict
) -> None:
    report = make_report(verdict=verdict)
    (tmp_path / "slot.py.json").write_text(report.model_dump_json())
    until(lambda: fake.slots()[0].free)
    processes = started()
    submit(fake, task(1, "report"))
    assert outcome(fake).report == report
    if verdict is Verdict.JUDGE_ERROR:
        until(lambda: not any(map(alive, processes)))
    submit(fake, task(2))
    assert outcome(fake) == TaskOutcome(2, failure="done as requested")
    if verdict is not Verdict.JUDGE_ERROR:
        until(lambda: not any(map(alive, processes)))  # that outcome was a system failure too


def test_a_hanging_slot_is_killed_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.fleet.child_process.GRACE_S", 0.2)
    program = tmp_path / "slot.py"
    program.write_text(FAKE)
    margin_s = 1 - PROBLEM.spec.limits.total_s
    command = [sys.executable, str(program)]
    with LocalEngine(1, "cpu", "process", command=command, margin_s=margin_s) as engine:
        for number, what in enumerate(["hang", "stubborn"]):
            submit(engine, task(number, what))
            assert outcome(engine) == TaskOutcome(
                number, failure="the slot did not answer within 1 s"
            )
        submit(engine, task(9))
        assert outcome(engine).failure == "done as requested"


def test_cancel_ends_the_task_without_an_outcome(fake: LocalEngine) -> None:
    submit(fake, task(1, "hang"))
    assert not fake.cancel(2)
    assert fake.cancel(1)
    assert not fake.cancel(1)
    assert not fake.slots()[0].free
    submit(fake, task(3))
    assert outcome(fake) == TaskOutcome(3, failure="done as requested")
    assert not fake.cancel(3)
    assert fake.poll(0) == []


def test_one_task_per_slot(tmp_path: Path) -> None:
    program = tmp_path / "slot.py"
    program.write_text(FAKE)
    with LocalEngine(2, "cpu", "process", command=[sys.executable, str(program)]) as engine:
        until(lambda: all(slot.free for slot in engine.slots()))
        assert [slot.name for slot in engine.slots()] == ["0-cpu", "1-cpu"]
        engine.submit(task(1))
        engine.submit(task(2))
        with pytest.raises(NoFreeSlot):
            engine.submit(task(3))
        found: list[TaskOutcome] = []
        while len(found) < 2:
            more = engine.poll(20)
            assert more, "an outcome is missing"
            found += more
        assert {one.task_id for one in found} == {1, 2}


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"gpu": "H100"}])
def test_a_task_that_no_slot_serves(fake: LocalEngine, changes: dict[str, Any]) -> None:
    until(lambda: fake.slots()[0].free)
    with pytest.raises(NoFreeSlot):
        fake.submit(task(1, **changes))


@pytest.mark.parametrize(
    ("gpu", "wanted", "fits"),
    [
        ("NVIDIA H100 80GB HBM3", None, True),
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", True),
        ("NVIDIA A100-SXM4-40GB", "A100 80GB", False),
        ("NVIDIA L40S", "L4", False),
        (None, "H100", False),
    ],
)
def test_a_gpu_type_matches_words_of_the_name(
    gpu: str | None, wanted: str | None, fits: bool
) -> None:
    assert WorkerSlot("0-cuda-0", "cuda", gpu, True).serves("cuda", wanted) is fits


def test_a_progress_callback_may_raise(fake: LocalEngine) -> None:
    heard: list[Progress] = []

    def note(step: Progress) -> None:
        heard.append(step)
        raise RuntimeError("the watcher is broken")

    submit(fake, task(1), note)
    assert outcome(fake).failure == "done as requested"
    assert heard == [Progress("load")]


def test_a_problem_that_cannot_be_loaded_is_a_failure(fake: LocalEngine, tmp_path: Path) -> None:
    fake.submit(task(1, folder=tmp_path / "nowhere"))
    assert "nowhere" in (outcome(fake).failure or "")


def test_a_source_over_the_limit_raises(fake: LocalEngine) -> None:
    with pytest.raises(ValueError, match="at most 16,777,216 bytes"):
        fake.submit(task(1, source=bytes((16 << 20) + 1)))


def test_a_source_at_the_limit_passes(fake: LocalEngine) -> None:
    submit(fake, task(1, source=bytes(16 << 20)))
    assert outcome(fake).failure == "done as requested"


@pytest.mark.parametrize(
    ("what", "drain_s", "failure"),
    [
        ("well", 20, "done as requested"),
        ("hang", 0.2, "the engine was closed before the task was done"),
    ],
)
def test_close_drains(fake: LocalEngine, what: str, drain_s: float, failure: str) -> None:
    submit(fake, task(1, what))
    start = time.monotonic()
    fake.close(drain_s)
    assert time.monotonic() - start < 15
    assert fake.poll(0) == [TaskOutcome(1, failure=failure)]
    assert fake.slots() == []
    with pytest.raises(NoFreeSlot):
        fake.submit(task(2))
    fake.close(0)


def test_a_slot_that_never_starts_is_restarted_with_backoff(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    command = ["/bin/sh", "-c", f"echo >> {tried}; exit 1"]
    with LocalEngine(1, "cpu", "process", command=command) as engine:
        until(tried.exists)
        time.sleep(0.3)
        assert not engine.slots()[0].free
        with pytest.raises(NoFreeSlot):
            engine.submit(task(1))
    assert len(tried.read_text().splitlines()) == 1


def test_a_missing_command(tmp_path: Path) -> None:
    with LocalEngine(1, "cpu", "process", command=[str(tmp_path / "no")]) as engine:
        time.sleep(0.1)
        assert not engine.slots()[0].free


def test_more_slots_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(ValueError, match="2 slots, but CUDA_VISIBLE_DEVICES names 1"):
        LocalEngine(2, "cuda", "process")


def test_each_gpu_has_a_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    monkeypatch.chdir(tmp_path)
    command = ["/bin/sh", "-c", 'echo > "$1"; exit 1']
    with LocalEngine(2, "cuda", "process", command=command) as engine:
        assert [slot.name for slot in engine.slots()] == ["0-cuda-3", "1-cuda-5"]
        until(lambda: len(list(tmp_path.iterdir())) == 2)
    assert {path.name for path in tmp_path.iterdir()} == {"cuda:3", "cuda:5"}


def test_a_judge_error_is_a_system_failure(make_report: Callable[..., Report]) -> None:
    assert not TaskOutcome(1, make_report()).is_system_failure
    assert TaskOutcome(1, make_report(verdict=Verdict.JUDGE_ERROR)).is_system_failure


SANDBOXES = ["process", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_real_gradings_and_a_slot_killed_in_the_middle(sandbox: str) -> None:
    with LocalEngine(1, "cpu", sandbox) as engine:  # type: ignore[arg-type]
        stages: list[str] = []
        submit(engine, real(1, "accepted/torch_softmax.py"), lambda s: stages.append(s.stage))
        right = outcome(engine)
        assert right.report is not None
        assert right.report.verdict is Verdict.ACCEPTED
        assert list(dict.fromkeys(stages)) == ["sandbox_start", "load", "test", "benchmark"]

        under_way = threading.Event()
        endless = real(2, "time_limit_exceeded/infinite_loop.py")
        submit(engine, endless, lambda s: under_way.set() if s.stage == "test" else None)
        assert under_way.wait(PATIENCE_S)
        processes, containers = started(), containers_of(sandbox)
        assert len(containers) == 2 * (sandbox == "docker")  # the runner's, and the compiler's
        (slot,) = [pid for pid in processes if b"grader.fleet.worker_process" in command_line(pid)]
        os.kill(slot, signal.SIGKILL)
        assert outcome(engine) == TaskOutcome(2, failure="the slot died (signal 9)")
        until(lambda: not any(map(alive, processes)))
        assert not containers_of(sandbox) & containers

        submit(engine, real(3, "wrong_answer/zeros.py"))
        wrong = outcome(engine)
        assert wrong.report is not None
        assert wrong.report.verdict is Verdict.WRONG_ANSWER
        submit(engine, real(4, "compile_error/syntax_error.py"))
        unread = outcome(engine)
        assert unread.report is not None
        assert unread.report.verdict is Verdict.COMPILE_ERROR
        processes, containers = started(), containers_of(sandbox)
    until(lambda: not any(map(alive, processes)))
    assert not containers_of(sandbox) & containers


def test_cancel_of_a_real_grading() -> None:
    with LocalEngine(1, "cpu", "process") as engine:
        under_way = threading.Event()
        endless = real(1, "time_limit_exceeded/infinite_loop.py")
        submit(engine, endless, lambda s: under_way.set() if s.stage == "test" else None)
        assert under_way.wait(PATIENCE_S)
        processes = started()
        assert engine.cancel(1)
        submit(engine, task(2, digest="0" * 64))
        assert "has changed" in (outcome(engine).failure or "")
        assert not any(map(alive, processes))


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def containers_of(sandbox: str) -> set[str]:
    """The Docker containers owned by our descendants, or by processes that have ended."""
    from grader.sandbox.docker_engine import OWNER_LABEL, RUNNER_LABEL, docker_client

    if sandbox != "docker":
        return set()
    with docker_client() as api:
        listed = api.containers(all=True, filters={"label": RUNNER_LABEL})
    owners = {c["Id"]: int(c["Labels"][OWNER_LABEL].split("/")[2]) for c in listed}
    ours = started()
    return {box for box, pid in owners.items() if pid in ours or not Path(f"/proc/{pid}").exists()}
