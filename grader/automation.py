"""Gradings for programs: one at a time, or many side by side in sandboxes that stay warm.

`grade` and `check` run in this process. A `Grader` has worker processes, several on a device. On a
GPU it takes turns: it tests several submissions at a time, and then times the ones that passed, one
at a time. Meanwhile processors compile the next ones. A running submission could disturb another's
times, so only compilers and fresh sandboxes are beside it.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from grader.explanation import explain as explain
from grader.fleet.grading_engine import NoFreeSlot, Task, TaskOutcome
from grader.fleet.loaded_problems import ProblemFolders
from grader.fleet.local_engine import LocalEngine
from grader.problem import Case, Problem, ProblemError
from grader.problem.imported import SetSource
from grader.problem_folders import problem_folder, problem_folders
from grader.problem_sets import read_problem, split_prefix
from grader.report import PassedTests, Report, Verdict, one_line
from grader.sandbox import Device, make_sandbox
from grader.sandbox.base import SandboxError
from grader.sandbox.gpu_info import cuda_missing, driver
from grader.sandbox.owner import make_owned_folder, remove_tree
from grader.submission import Language, Submission, SubmissionError, language_of

if TYPE_CHECKING:
    from grader.judge.profiling.kernel_report import Profile

SandboxName = Literal["docker", "process"]
AnyProblem = Problem | str | Path
AnySource = str | bytes | Path
"""The text of a submission, or the path of its file."""

TESTS_AT_ONCE = 4
"""Gradings that test beside each other on one GPU."""
MOST_WARM = 12
"""Sandboxes that a slot which tests on a GPU keeps ready, at most three for each of its share of
the cores: as many as it tests in a turn, so that the processors compile kernels then, and start the
next sandboxes while others are timed."""
WARM_TO_TIME = 5
"""Sandboxes that the slot which times keeps ready: one takes 5 s to start, or more beside others,
and must then open the GPU between two timings, of which each takes 2.5. With three, one in three
timings waited for its sandbox. The slot is the only one of a GPU that times: it keeps the device
memory that its largest case needed, of softmax about 25 GB."""
TO_TIME = 32
"""Submissions that wait to be timed before tests of others stop."""
COMPILED = 40
"""Compiled submissions that wait to be tested before compiling stops: as many as are tested in a
turn."""
LAST_TO_TIME = 1
"""Submissions that wait to be timed from which on slots are kept free for tests: timing them takes
as long as compiling another."""
LOOKAHEAD = 128
"""Items that are read before they are needed."""
TRIES = 2
"""How often a grading that ends without a verdict is begun."""
POLL_S = 0.04


@dataclass(frozen=True)
class Item:
    """One submission to grade."""

    key: str
    """The caller's name for it."""
    source: AnySource
    problem: AnyProblem | None = None
    """None: the problem of the `Grader`."""
    language: Language | None = None
    """None: by the file's extension; a text is Python."""
    benchmarks: bool = True
    """Whether to time it if it passes its tests."""


@dataclass(frozen=True)
class Result:
    """The end of one grading: a report, or the reason why there is none."""

    key: str
    report: Report | None = None
    """Its verdict is never `judge_error`."""
    error: str | None = None
    """A fault of the judge, the problem or this machine, in one line; it says nothing about the
    submission, so it is no reason for a reward of zero."""


def grade(
    problem: AnyProblem,
    source: AnySource,
    *,
    language: Language | None = None,
    device: Device | None = None,
    sandbox: SandboxName = "docker",
    seed: int | None = None,
    benchmarks: bool = True,
) -> Report:
    """Grade one submission, as `grade submit` does, and record nothing.

    `problem` is a name that `grade problems` lists, a folder, a problem of another set such as
    ``kernelbench:PATH``, or a loaded one. Without `device`, it runs on a GPU if there is one. The
    process sandbox is for your own code only. `seed` repeats the inputs of an earlier report.

    Raises `ProblemError`, `SubmissionError`, and `SandboxError` when no sandbox starts. A fault of
    the judge is a report whose verdict is `judge_error`.
    """
    from grader.judge import grade as judge

    chosen = device or default_device()
    found = load_problem(problem, chosen, sandbox)
    return judge(
        found,
        load_submission(found, source, language),
        sandbox=make_sandbox(sandbox),
        device=chosen,
        seed=seed,
        benchmarks=benchmarks,
    )


def check(problem: AnyProblem, source: AnySource, **options: Any) -> Report:
    """`grade` without benchmarks: is the submission right? Takes the same options. Other checks may
    use the GPU meanwhile.

    What a submission does only while it is timed, such as keeping the results of earlier inputs, is
    not found.
    """
    return grade(problem, source, benchmarks=False, **options)


def profile(
    problem: AnyProblem,
    source: AnySource,
    *,
    case: str | None = None,
    language: Language | None = None,
    device: Device | None = None,
    sandbox: SandboxName = "docker",
) -> Profile | Report:
    """What limits a submission on one benchmark case, by default the one that moves the most bytes;
    the report of its failure if it fails before.

    A profile believes the submission's own process. A ``.cu`` file on a machine without a GPU is
    compiled and not run. Raises what `grade` raises, and `ProblemError` for an unknown case.
    """
    from grader.judge.profiling.kernel_report import ProfilingError
    from grader.judge.profiling.profile import profile as judge

    chosen = device or default_device()
    found = load_problem(problem, chosen, sandbox)
    submission = load_submission(found, source, language)
    only_compile = submission.language == "cuda" and chosen == "cpu"
    benchmark = benchmark_case(found, case, "cuda" if only_compile else chosen)
    try:
        profiled, _ = judge(
            found,
            submission,
            None if only_compile else benchmark,
            sandbox=make_sandbox(sandbox),
            device=chosen,
        )
    except ProfilingError as stop:
        return stop.report
    return profiled


class Grader:
    """Grades many submissions. A context manager, since it keeps processes and sandboxes."""

    def __init__(
        self,
        problem: AnyProblem | None = None,
        *,
        devices: Sequence[str] | None = None,
        sandbox: SandboxName = "docker",
        tests_at_once: int | None = None,
    ) -> None:
        """`problem` is that of items without one. `devices` are ``cpu`` or ``cuda:0``, ``cuda:1``,
        …; by default the first GPU, or the CPU. `tests_at_once` is the number of gradings beside
        each other on a device: by default 4 on a GPU, and one for each core of a CPU.

        Raises `ProblemError`, and ValueError for a device that is unknown or not there, or for less
        than one test at once.
        """
        if tests_at_once is not None and tests_at_once < 1:
            raise ValueError(f"tests_at_once is {tests_at_once}; it must be at least 1")
        parsed = [_parsed(name) for name in devices or [default_device()]]
        self._place = (parsed[0][0], sandbox)
        self._problem = None
        if problem is not None:
            self._problem = _for_workers(load_problem(problem, *self._place))
        self._folders = ProblemFolders()
        self._kernels = make_owned_folder()
        self._lanes = [_Lane.start(*device, sandbox, tests_at_once) for device in parsed]
        self._ids = itertools.count(1)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and sandboxes. Gradings that run have no result. Idempotent."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.close()
        self._folders.close()
        remove_tree(self._kernels)

    def map(self, items: Iterable[Item]) -> Generator[Result, None, None]:
        """Grade the items, and yield the result of each once, in the order in which they end.

        Items are read while others are graded, at most `LOOKAHEAD` before they are needed. They may
        come slowly, but must not wait for a result. Closing the iterator before its end, or an
        exception of `items`, ends the gradings that run. One call at a time.

        Raises `SandboxError` when no worker process starts, and RuntimeError once this is closed.
        """
        return self._map(items, threading.Event())

    def _map(self, items: Iterable[Item], stop: threading.Event) -> Generator[Result, None, None]:
        """As `map`, until `stop` is set."""
        work = _Work(
            self._problem, iter(items), self._ids, self._place, self._folders, self._kernels
        )
        try:
            while not stop.is_set():
                if self._is_closed:
                    raise RuntimeError("this Grader is closed")
                work.read(POLL_S)
                yield from work.take_failed()
                for lane in self._lanes:
                    lane.fill(work)
                if work.is_read and not work.is_left and not self._is_running():
                    return
                self._expect_workers()
                wait_s = POLL_S if work.is_read or work.is_ahead else 0.0
                for lane in self._lanes:
                    for job, outcome in lane.ended(wait_s / len(self._lanes)):
                        result = work.end(job, outcome)
                        if result is not None:
                            yield result
        finally:
            for lane in self._lanes:
                lane.cancel()

    async def map_async(self, items: Iterable[Item]) -> AsyncIterator[Result]:
        """As `map`, for an event loop: another thread waits for the results. When its task is
        cancelled, the gradings that run are ended."""
        stop = threading.Event()
        results = self._map(items, stop)
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, results, None))
                # A thread cannot be cancelled: it ends a moment after it is told to.
                if (result := await asyncio.shield(step)) is None:
                    return
                yield result
        finally:
            stop.set()
            await asyncio.wait([step])
            results.close()

    def _is_running(self) -> bool:
        return any(lane.running for lane in self._lanes)

    def _expect_workers(self) -> None:
        """Raise `SandboxError` if no device can run what waits."""
        reasons = [lane.broken for lane in self._lanes]
        if reasons and None not in reasons:
            raise SandboxError(f"no worker process starts: {reasons[0]}")


Step = Literal["compile", "test", "time"]


@dataclass
class _Job:
    item: Item
    problem: Problem
    submission: Submission
    passed: PassedTests | None = None
    """Its tests, once they have passed and it is to be timed."""
    failures: int = 0
    """How often its present step has ended without a verdict."""
    kernels: Path | None = None
    """What is compiled, for its tests and its timing."""
    step: Step = "test"
    """Which step runs, or ran last."""


class _Work:
    """The items that are not done: to compile, to test, and to time."""

    def __init__(
        self,
        problem: Problem | None,
        items: Iterator[Item],
        ids: Iterator[int],
        place: tuple[Device, SandboxName],
        folders: ProblemFolders,
        kernels: Path,
    ) -> None:
        """`kernels` is a folder for what is compiled."""
        self._problem = problem
        self._place = place
        self._folders = folders
        self._kernels = kernels
        self._items = items
        self._ids = ids
        self._problems: dict[str, Problem] = {}
        self._failed: deque[Result] = deque()
        self.to_compile: deque[_Job] = deque()
        """Those to time on a GPU that need a compiler. They may also be tested at once, which
        compiles them too."""
        self.to_test: deque[_Job] = deque()
        self.to_time: deque[_Job] = deque()
        self.is_read = False
        """Whether all items have been read."""

    @property
    def is_left(self) -> bool:
        """Whether a job waits."""
        return bool(self.to_compile or self.to_test or self.to_time)

    @property
    def is_ahead(self) -> bool:
        """Whether enough items wait."""
        return len(self.to_compile) + len(self.to_test) + len(self._failed) >= LOOKAHEAD

    def read(self, limit_s: float) -> None:
        """Read items until enough wait, or `limit_s` seconds have passed; at least one if they do
        not wait yet."""
        end_s = time.monotonic() + limit_s
        while not self.is_read and not self.is_ahead:
            item = next(self._items, None)
            if item is None:
                self.is_read = True
                return
            try:
                problem = self._problem_of(item)
                submission = load_submission(problem, item.source, item.language)
            except (ProblemError, SandboxError, SubmissionError) as error:
                self._failed.append(Result(item.key, error=one_line(str(error))))
            else:
                job = _Job(item, problem, submission)
                if item.benchmarks and (submission.uses_triton or submission.language == "cuda"):
                    job.kernels = self._kernels / str(next(self._ids))
                is_compiled_ahead = job.kernels is not None and self._place[0] == "cuda"
                (self.to_compile if is_compiled_ahead else self.to_test).append(job)
            if time.monotonic() >= end_s:
                return

    def take_failed(self) -> Iterator[Result]:
        """The items that cannot be graded."""
        while self._failed:
            yield self._failed.popleft()

    def task(self, job: _Job, device: Device) -> Task:
        """The next step of a job, as an engine takes it."""
        return Task(
            id=next(self._ids),
            folder=self._folder_of(job.problem),
            digest=job.problem.digest,
            name=job.submission.name,
            language=job.submission.language,
            source=job.submission.source,
            device=device,
            benchmarks=job.step == "time",
            passed=job.passed,
            kernels=job.kernels,
            compile_only=job.step == "compile",
        )

    def end(self, job: _Job, outcome: TaskOutcome) -> Result | None:
        """The result of a job's step; None if the job goes on."""
        report = outcome.report
        if job.step == "compile":  # if that has failed, its tests compile again, and say why
            self.to_test.append(job)
            return None
        if outcome.is_system_failure:
            job.failures += 1
            if job.failures < TRIES:
                (self.to_time if job.passed else self.to_test).appendleft(job)
                return None
            return Result(job.item.key, error=outcome.failure_reason)
        assert report is not None
        if report.verdict is Verdict.ACCEPTED and job.item.benchmarks and not job.passed:
            job.passed, job.failures = PassedTests.of(report), 0
            self.to_time.append(job)
            return None
        if job.kernels is not None:
            job.kernels.unlink(missing_ok=True)
        return Result(job.item.key, report)

    def _folder_of(self, problem: Problem) -> Path:
        """A folder from which a worker process can load the problem."""
        return problem.folder if problem.imported is None else self._folders.folder_of(problem)

    def _problem_of(self, item: Item) -> Problem:
        if item.problem is None:
            if self._problem is None:
                raise ProblemError("the item names no problem, and neither does the Grader")
            return self._problem
        name = str(item.problem)
        if isinstance(item.problem, Problem):
            return _for_workers(item.problem)
        if name not in self._problems:
            self._problems[name] = _for_workers(load_problem(item.problem, *self._place))
        return self._problems[name]


@dataclass
class _Lane:
    """One device, and what runs there."""

    device: Device
    testing: LocalEngine
    timing: LocalEngine
    """On a CPU the same as `testing`."""
    is_timing: bool = False
    running: dict[int, _Job] = field(default_factory=dict)

    @classmethod
    def start(
        cls, device: Device, gpu: str | None, sandbox: SandboxName, count: int | None
    ) -> _Lane:
        """Start the processes of a device."""
        cores = len(os.sched_getaffinity(0))
        if device == "cpu":
            engine = LocalEngine(count or cores, device, sandbox)
            return cls(device, engine, engine)
        count = count or TESTS_AT_ONCE
        warm = max(1, min(MOST_WARM, 3 * cores // count))
        return cls(
            device,
            LocalEngine(count, device, sandbox, gpu=gpu, warm=warm),
            LocalEngine(1, device, sandbox, gpu=gpu, warm=WARM_TO_TIME),
        )

    @property
    def broken(self) -> str | None:
        """Why no process of one of its engines starts; None if they do, or while a job runs."""
        if self.running:
            return None
        for engine in self.engines:
            slots = engine.slots()
            if slots and all(slot.broken for slot in slots):
                return slots[0].broken
        return None

    @property
    def engines(self) -> list[LocalEngine]:
        return [self.testing] if self.timing is self.testing else [self.testing, self.timing]

    def ended(self, wait_s: float) -> Iterator[tuple[_Job, TaskOutcome]]:
        """The jobs whose step has ended; waits for one."""
        for engine in self.engines:
            for outcome in engine.poll(wait_s / len(self.engines)):
                if (job := self.running.pop(outcome.task_id, None)) is not None:
                    yield job, outcome

    def cancel(self) -> None:
        """End what runs. An outcome that comes nevertheless is of no job."""
        for task_id in self.running:
            for engine in self.engines:
                engine.cancel(task_id)
        self.running = {}

    def close(self) -> None:
        """End all processes and sandboxes."""
        for engine in self.engines:
            engine.close(0)

    def fill(self, work: _Work) -> None:
        """Start as many jobs as there are free slots. Submissions are tested or timed in turn: one
        that waits for the GPU alone holds up tests, so those to time come together. Those of the
        next turn are compiled while others are timed."""
        if not work.to_test or len(work.to_time) >= TO_TIME:
            self.is_timing = True
        if not work.to_time:
            self.is_timing = False
        while self.is_timing and self._start("time", work.to_time, work):
            pass
        while not self.is_timing and self._start("test", work.to_test, work):
            pass
        while self._compiles_more(work) and self._start("compile", work.to_compile, work):
            pass
        while self._tests_uncompiled(work) and self._start("test", work.to_compile, work):
            pass

    def _compiles_more(self, work: _Work) -> bool:
        """Whether to compile another submission now. One slot does not if it is a `.cu` file: nvcc
        has a thread for each processor. With six at a time, timings took a quarter longer."""
        if self.device == "cpu" or len(work.to_test) >= COMPILED or not self._uses_gpu_alone:
            return False
        slots = len(self.testing.slots())
        compiling = sum(job.step == "compile" for job in self.running.values())
        is_cuda = bool(work.to_compile) and work.to_compile[0].submission.language == "cuda"
        if is_cuda and compiling >= max(1, slots - 1):
            return False
        return len(work.to_time) > LAST_TO_TIME or len(work.to_test) < slots

    def _tests_uncompiled(self, work: _Work) -> bool:
        """Whether the GPU has nothing else to do."""
        if self.device == "cpu":
            return True
        return not (work.to_test or work.to_time or self._uses_gpu_alone)

    @property
    def _uses_gpu_alone(self) -> bool:
        """Whether a submission is timed now, or is about to be."""
        return self.is_timing or any(job.step == "time" for job in self.running.values())

    def _start(self, step: Step, queue: deque[_Job], work: _Work) -> bool:
        """Start the next job of a queue with this step; whether there was one, and a slot for
        it."""
        engine = self.timing if step == "time" else self.testing
        if not queue or not any(slot.free for slot in engine.slots()):
            return False
        queue[0].step = step
        task = work.task(queue[0], self.device)
        try:
            engine.submit(task)
        except NoFreeSlot:  # its process has just ended
            return False
        self.running[task.id] = queue.popleft()
        return True


def load_problem(
    problem: AnyProblem, device: Device | None = None, sandbox: SandboxName = "docker"
) -> Problem:
    """A problem by its name, its folder, or as it is. One of another set, such as
    ``kernelbench:PATH``, is imported in a sandbox on `device`, once while its files stay the same.

    Raises `ProblemError`.
    """
    if isinstance(problem, Problem):
        return problem
    of_set = split_prefix(problem) if isinstance(problem, str) else None
    if of_set is not None:
        return _in_set(read_problem(*of_set), device or default_device(), sandbox)
    folder = problem if isinstance(problem, Path) else problem_folder(problem)
    if folder is None:
        names = ", ".join(path.name for path in problem_folders())
        raise ProblemError(f"no problem '{problem}' here; there are: {names or 'none'}")
    return Problem.load(folder)


_IMPORTED: dict[tuple[Path, str, Device, SandboxName], Problem] = {}


def _in_set(source: SetSource, device: Device, sandbox: SandboxName) -> Problem:
    from grader.judge.import_problem import import_problem

    key = (source.folder, source.digest(), device, sandbox)
    if key not in _IMPORTED:
        _IMPORTED[key] = import_problem(source, make_sandbox(sandbox), device)
    return _IMPORTED[key]


def _for_workers(problem: Problem) -> Problem:
    """The problem, if a worker process can load it again from its folder."""
    if problem.selected is not None:
        raise ProblemError(f"{problem.name}: a Grader takes whole problems only; use grade()")
    return problem


def _parsed(name: str) -> tuple[Device, str | None]:
    """``cpu``, or ``cuda`` and the GPU as CUDA_VISIBLE_DEVICES names it. Raises ValueError."""
    kind, _, number = name.partition(":")
    if name == "cpu":
        return "cpu", None
    if kind != "cuda" or not (name == "cuda" or number.isdecimal()):
        raise ValueError(f"{name!r} is no device; write cpu, or cuda:0")
    if missing := cuda_missing():
        raise ValueError(f"{name}: {missing}")
    gpus = len(driver().gpus)
    if int(number or 0) >= gpus:
        raise ValueError(f"{name}: the last GPU here is cuda:{gpus - 1}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "cuda", visible.split(",")[int(number or 0)].strip() if visible else number or "0"


def load_submission(problem: Problem, source: AnySource, language: Language | None) -> Submission:
    """A submission of a text or a file. Raises `SubmissionError` if it is too large, or the file
    cannot be read."""
    limit = problem.spec.limits.source_bytes
    if isinstance(source, Path):
        if language is None or language_of(source) is language:
            return Submission.read(source, limit, solutions=problem.takes_solutions)
        raise SubmissionError(f"{source}: its extension is not that of {language}")
    # A lone surrogate is no text; it makes a file that is not UTF-8, which does not load.
    content = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    if len(content) > limit:
        raise SubmissionError(f"the source has {len(content):,} bytes; {limit:,} are allowed")
    name = "submission.cu" if language == "cuda" else "submission.py"
    return Submission(name, language or "python", content)


def benchmark_case(problem: Problem, name: str | None, device: Device) -> Case:
    """The benchmark case called `name`, or the one that moves the most bytes on this device. Raises
    `ProblemError` if there is none."""
    cases = problem.cases("benchmark", device)
    if not cases:
        raise ProblemError(f"{problem.name} has no benchmark case for --device {device}")
    if name is None:
        return max(cases, key=problem.bytes)
    names = [case.name for case in cases]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names)}"
        raise ProblemError(f"no benchmark case '{name}' on --device {device}; {hint}")
    return cases[names.index(name)]


def default_device() -> Device:
    """``cuda`` if there is a GPU."""
    return "cpu" if cuda_missing() else "cuda"
