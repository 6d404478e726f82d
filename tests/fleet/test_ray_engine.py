"""The Ray engine on a real cluster of two nodes on this machine.

The lifecycle is of real gradings. In other tests the worker processes on the nodes are light ones,
which answer without a grading.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grader.fleet import Ledger, State
from grader.fleet.grading_engine import WorkerSlot
from grader.report import Verdict
from grader.submission import Submission
from tests.fleet.cluster import ENVIRONMENT, Cluster
from tests.fleet.fake import PROBLEM, ROOT
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)

CPU, H100 = ("cpu", None), ("cuda", "H100")

Node = tuple[dict[str, float], dict[str, float]]


def cpus(count: int, unused: int) -> Node:
    return {"CPU": float(count)}, {"CPU": float(unused)}


def gpus(count: int, kind: str | None, unused: int) -> Node:
    named = {f"accelerator_type:{kind}": 1.0} if kind else {}
    left = {"GPU": float(unused)} if unused else {}  # Ray omits exhausted resources
    return {"CPU": 8.0, "GPU": float(count)} | named, {"CPU": 8.0} | left | named


@pytest.mark.parametrize(
    ("nodes", "used", "idle", "expected"),
    [
        ([], {}, {}, []),
        ([cpus(2, 1), cpus(1, 1)], {}, {}, ["cpu+", "cpu+", "cpu-"]),
        ([cpus(2, 2)], {CPU: 1}, {}, ["cpu+", "cpu-"]),
        ([cpus(2, 2), gpus(2, "H100", 2)], {}, {}, ["H100+", "H100+"]),
        ([gpus(2, "H100", 2)], {H100: 2}, {}, ["H100-", "H100-"]),
        ([gpus(1, "H100", 0), gpus(1, "L4", 1)], {H100: 1}, {}, ["H100-", "L4+"]),
        ([gpus(1, None, 1)], {}, {}, ["GPU+"]),
        ([gpus(1, "H100", 0), gpus(1, "H100", 0)], {}, {}, ["H100-", "H100-"]),
        # Others use the GPU of one type; the other type is free.
        ([gpus(1, "A100", 0), gpus(1, "H100", 1)], {}, {}, ["A100-", "H100+"]),
        ([gpus(1, "A100", 1), gpus(1, "H100", 0)], {}, {}, ["A100+", "H100-"]),
        # An idle actor of ours is a free slot, though Ray reports its GPU as used.
        ([gpus(2, "H100", 0)], {}, {H100: 1}, ["H100+", "H100-"]),
        ([gpus(2, "H100", 2)], {H100: 1}, {H100: 1}, ["H100+", "H100-"]),
        ([gpus(1, "A100", 0), gpus(1, "H100", 0)], {}, {H100: 1}, ["A100-", "H100+"]),
        ([cpus(2, 1)], {}, {CPU: 1}, ["cpu+", "cpu+"]),
        # A node was lost, but its slots are not removed yet.
        ([gpus(1, "H100", 1)], {}, {H100: 2}, ["H100+"]),
        ([gpus(1, "H100", 1)], {H100: 2}, {}, ["H100-"]),
        # Ray has not reported the unused resources of a new node yet.
        ([({"CPU": 1.0, "GPU": 1.0}, {})], {}, {}, ["GPU-"]),
    ],
)
def test_slots_of_a_cluster(
    nodes: list[Node], used: dict[Any, int], idle: dict[Any, int], expected: list[str]
) -> None:
    from grader.fleet.ray_engine import _slots

    def shown(slot: WorkerSlot) -> str:
        assert (slot.gpu is None) == (slot.device == "cpu")
        return f"{slot.gpu or slot.device}{'+' if slot.free else '-'}"

    slots = _slots(nodes, Counter(used), Counter(idle))
    assert [shown(slot) for slot in slots] == expected


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not pytest's folder, whose paths are too long for sockets.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        started = Cluster(folder)
        yield started
        started.end()


@pytest.fixture(scope="module")
def mixed() -> Iterator[Cluster]:
    """An A100 on one node, an H100 on the other."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        started = Cluster(folder, "A100", "H100")
        yield started
        started.end()


def run(script: str, *arguments: str, wait_s: float = 800) -> None:
    """Run a script in a new process, since Ray stays connected until a process ends."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=ENVIRONMENT,
        cwd=ROOT,
        timeout=wait_s,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


SCRIPT = """
import os, signal, sys, time
from dataclasses import replace
from grader.fleet.grading_engine import NoFreeSlot, Task
from grader.fleet.ray_engine import RayEngine
from grader.report import Verdict
from tests.fleet.fake import PROBLEM, ROOT
from tests.waiting import until
from tests.fleet.cluster import worker_processes_in

# It takes no CPU time from the other tests.
ENDLESS = "time_limit_exceeded/hostile_stops_itself.py"

def task(number, file, **changes):
    source = (ROOT / "submissions/softmax" / file).read_bytes()
    made = Task(number, PROBLEM.folder, PROBLEM.digest, "k.py", "python", source, "cpu")
    return replace(made, **changes)

def outcome(engine):
    (found,) = engine.poll(240)
    return found
"""

LIFECYCLE = (
    SCRIPT
    + """
with RayEngine("process", sys.argv[1]) as engine:
    until(lambda: len(engine.slots()) == 2)
    assert all(slot.free and slot.device == "cpu" for slot in engine.slots())
    stages = []
    engine.submit(task(1, "wrong_answer/zeros.py"), lambda step: stages.append(step.stage))
    assert [slot.free for slot in engine.slots()] == [True, False]
    for wanted in ({"device": "cuda"}, {"gpu": "H100"}):
        try:
            engine.submit(task(2, "wrong_answer/zeros.py", **wanted))
        except NoFreeSlot:
            continue
        raise AssertionError("no slot serves this")
    wrong = outcome(engine)
    assert wrong.report.verdict is Verdict.WRONG_ANSWER
    assert "test" in stages

    engine.submit(task(3, "wrong_answer/zeros.py", digest="0" * 64))
    changed = outcome(engine)
    assert changed.task_id == 3 and "has changed" in changed.failure

    engine.submit(task(4, "wrong_answer/zeros.py", folder=ROOT / "nowhere"))
    assert "nowhere" in outcome(engine).failure

    stages.clear()
    endless = task(5, ENDLESS)
    engine.submit(endless, lambda step: stages.append(step.stage))
    until(lambda: "test" in stages)
    assert engine.cancel(5)
    assert not engine.cancel(5)
    until(lambda: all(slot.free for slot in engine.slots()))
    assert engine.poll(0) == []

    stages.clear()
    engine.submit(replace(endless, id=6), lambda step: stages.append(step.stage))
    until(lambda: "test" in stages)
    engine.close(0)
    assert outcome(engine).failure == "the engine was closed before the task was done"
    assert engine.slots() == []
    try:
        engine.submit(endless)
    except NoFreeSlot:
        pass
    else:
        raise AssertionError("it is closed")
"""
)

LIGHT = """
import ray
from grader.fleet import ray_slot
from tests.fleet.fake import LightActor

ray_slot._RemoteGradingActor = ray.remote(LightActor)
"""

WARM = (
    LIGHT
    + SCRIPT
    + """
from tests.fleet.cluster import parent

def graded(engine, number):
    engine.submit(task(number, "wrong_answer/zeros.py"))
    assert outcome(engine).report.verdict is Verdict.WRONG_ANSWER

def unused():
    return ray.available_resources().get("CPU", 0)

address, folder = sys.argv[1:]
with RayEngine("process", address) as engine:
    until(lambda: len(engine.slots()) == 2)
    graded(engine, 1)
    (slot,) = worker_processes_in(folder)
    until(lambda: unused() == 1)
    assert all(slot.free for slot in engine.slots()), "a slot with an idle actor is free"
    graded(engine, 2)
    assert worker_processes_in(folder) == [slot]

    ray_slot.PING_TIMEOUT_S = ray_slot.GRACE_S = 5.0
    for number, fate in ((3, signal.SIGKILL), (4, signal.SIGSTOP)):
        (slot,) = worker_processes_in(folder)
        os.kill(int(parent(slot)), fate)
        graded(engine, number)
        until(lambda: slot not in worker_processes_in(folder))

    (slot,) = worker_processes_in(folder)
    ray_slot.MARGIN_S = 20.0 - PROBLEM.spec.limits.total_s
    stages = []
    endless = task(5, "wrong_answer/zeros.py", source=b"/nowhere")
    engine.submit(endless, lambda step: stages.append(step.stage))
    until(lambda: "test" in stages)
    os.kill(int(parent(slot)), signal.SIGSTOP)
    assert "did not answer within 25 s" in outcome(engine).failure
    until(lambda: worker_processes_in(folder) == [])
    ray_slot.MARGIN_S = 300.0
    until(lambda: all(slot.free for slot in engine.slots()))
    graded(engine, 6)
    assert len(worker_processes_in(folder)) == 1
assert worker_processes_in(folder) == [], "closing releases idle actors"

with RayEngine("process", address, idle_s=0.5) as engine:
    until(lambda: len(engine.slots()) == 2)
    graded(engine, 7)
    until(lambda: worker_processes_in(folder) == [], 100)  # by default 120 s
    until(lambda: unused() == 2)
    assert [slot.free for slot in engine.slots()] == [True, True]

with RayEngine("process", address, placement_timeout_s=0.01) as engine:
    until(lambda: len(engine.slots()) == 2)
    engine.submit(task(8, "wrong_answer/zeros.py"))
    assert outcome(engine).failure == "not placed within 0.01 s"
    until(lambda: all(slot.free for slot in engine.slots()))
    assert worker_processes_in(folder) == []
"""
)

TYPES = (
    LIGHT
    + SCRIPT
    + """
from collections import Counter

def seen(engine):
    return [(slot.device, slot.gpu, slot.free) for slot in engine.slots()]

def refused(engine, wanted):
    try:
        engine.submit(wanted)
    except NoFreeSlot:
        return True
    return False

address, a100, h100 = sys.argv[1:]
quick = task(1, "wrong_answer/zeros.py", device="cuda")
endless = task(2, "wrong_answer/zeros.py", device="cuda", gpu="H100", source=b"/nowhere")
with RayEngine("process", address) as engine:
    until(lambda: len(engine.slots()) == 2)
    assert seen(engine) == [("cuda", "A100", True), ("cuda", "H100", True)]
    assert refused(engine, replace(quick, device="cpu"))
    assert refused(engine, replace(quick, gpu="L4"))

    theirs = ray.remote(Counter).options(num_gpus=1, accelerator_type="A100").remote()
    ray.get(theirs.total.remote())
    until(lambda: seen(engine) == [("cuda", "A100", False), ("cuda", "H100", True)])
    ray.kill(theirs)
    until(lambda: all(slot.free for slot in engine.slots()))

    stages = []
    engine.submit(endless, lambda step: stages.append(step.stage))
    until(lambda: "test" in stages)
    assert (len(worker_processes_in(a100)), len(worker_processes_in(h100))) == (0, 1)
    assert seen(engine) == [("cuda", "A100", True), ("cuda", "H100", False)]
    assert refused(engine, replace(quick, gpu="H100")), "the only H100 is taken"

    engine.submit(replace(quick, gpu="A100"))
    assert outcome(engine).report.verdict is Verdict.WRONG_ANSWER
    assert (len(worker_processes_in(a100)), len(worker_processes_in(h100))) == (1, 1)
    assert refused(engine, replace(quick, gpu="H100")), "and the free A100 does not match"

    assert engine.cancel(2)
    until(lambda: all(slot.free for slot in engine.slots()))
    assert (len(worker_processes_in(a100)), len(worker_processes_in(h100))) == (1, 0)
    engine.submit(replace(quick, gpu="H100"))
    assert outcome(engine).report.verdict is Verdict.WRONG_ANSWER
    assert (len(worker_processes_in(a100)), len(worker_processes_in(h100))) == (1, 1)
"""
)

DISPATCHER = """
import sys
from grader.fleet import Ledger
from grader.fleet.dispatch import Dispatcher
from grader.fleet.ray_engine import RayEngine
from tests.fleet.fake import PROBLEM

ledger = Ledger.open(sys.argv[2])
with RayEngine("process", sys.argv[1]) as engine:
    dispatcher = Dispatcher(ledger, engine, {"softmax": PROBLEM.folder}, "dispatcher", "ray")
    dispatcher.start()
    sys.stdin.read()
    dispatcher.drain(0)
ledger.close()
"""


@contextmanager
def dispatcher_at(cluster: Cluster, url: str) -> Iterator[None]:
    """Run a dispatcher between this ledger and this cluster, with light workers, in a context."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIGHT + DISPATCHER, cluster.address, url],
        env=ENVIRONMENT,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield
        _, errors = process.communicate(b"", 240)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_lifecycle_of_tasks(cluster: Cluster) -> None:
    run(LIFECYCLE, cluster.address)
    assert list(cluster.folder.glob("grade-*")) == []
    until(lambda: cluster.slots() == [])


@pytest.mark.slow
def test_an_actor_stays_warm_for_a_while(cluster: Cluster) -> None:
    run(WARM, cluster.address, str(cluster.folder))
    until(lambda: cluster.slots() == [])


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_no_cluster(told: bool) -> None:
    run(
        "import os, sys\n"
        "from grader.fleet.ray_engine import RayEngine\n"
        "told, *addresses = sys.argv[1:]\n"
        "for address in addresses:\n"
        "    if not told:\n"
        "        os.environ['RAY_ADDRESS'] = address\n"
        "    try:\n"
        "        RayEngine('process', address if told else 'auto')\n"
        "    except ConnectionError as error:\n"
        "        assert f'no Ray cluster at {address}: ' in str(error)\n"
        "    else:\n"
        "        raise AssertionError(address)\n",
        *("told" if told else "", "127.0.0.1:9", "[::1]:9", "ray://127.0.0.1:9", "nonsense"),
        wait_s=120,  # Ray itself would retry for longer
    )


@pytest.mark.slow
def test_a_job_of_a_lost_node_is_graded_on_the_other(cluster: Cluster, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite3"
    ledger = Ledger.open(url)
    ends = tmp_path / "ends"
    for _ in range(2):
        submission = Submission("slow.py", "python", bytes(ends))
        ledger.submit("ada", "softmax", PROBLEM.digest, submission)

    def is_graded(number: int) -> bool:
        job = ledger.job(number)
        return job is not None and job.progress is not None and job.progress.stage == "test"

    with dispatcher_at(cluster, url):
        until(lambda: is_graded(1) and is_graded(2))
        assert len(cluster.slots()) == 2
        cluster.kill_second_node()
        ends.touch()
        until(lambda: all(one and one.state is State.DONE for one in map(ledger.job, (1, 2))))
    jobs = [ledger.job(number) for number in (1, 2)]
    assert sorted(job.failures for job in jobs if job) == [0, 1], "one was lost and retried"
    assert [job.deaths for job in jobs if job] == [0, 0]
    for number in (1, 2):
        report = ledger.board.result(number).report
        assert report.verdict is Verdict.WRONG_ANSWER, report.reason
    assert ledger.board.count("softmax") == 2
    ledger.close()
    until(lambda: cluster.slots() == [])


@pytest.mark.slow
def test_a_task_runs_on_the_requested_gpu_type(mixed: Cluster) -> None:
    run(TYPES, mixed.address, str(mixed.folder / "A100"), str(mixed.folder / "H100"))
    until(lambda: mixed.slots("A100") + mixed.slots("H100") == [])


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "other"), [("H100", "A100"), ("A100", "H100")])
def test_a_job_is_graded_on_the_requested_gpu_type(
    mixed: Cluster, tmp_path: Path, gpu: str, other: str
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite3"
    ledger = Ledger.open(url)
    source = (ROOT / "submissions/softmax/wrong_answer/zeros.py").read_bytes()
    for wanted in ("L4", gpu):
        submission = Submission("zeros.py", "python", source)
        ledger.submit("ada", "softmax", PROBLEM.digest, submission, wanted)

    def state(number: int) -> State | None:
        job = ledger.job(number)
        return job.state if job else None

    with dispatcher_at(mixed, url):
        until(lambda: state(2) is State.DONE)
        assert (len(mixed.slots(gpu)), mixed.slots(other)) == (1, [])
        assert {worker.gpu for worker in ledger.workers(60)} == {"A100", "H100"}
    assert ledger.board.result(1).report.verdict is Verdict.WRONG_ANSWER
    assert state(1) is State.QUEUED, "no node has such a GPU"
    ledger.close()
    until(lambda: mixed.slots("A100") + mixed.slots("H100") == [])
