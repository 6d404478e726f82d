"""`grade watch`: grade a file anew each time it is saved, with a sandbox that is always warm."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from grader.cli.commands.submit import Job
from grader.cli.dependencies import Desk
from grader.cli.options import device_option, find_problem, sandbox_option

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from grader.judge import Progress
    from grader.report import Mismatch, Report
    from grader.sandbox.pool import RunnerPool
    from grader.submission import Submission

LOOK_S = 0.05
"""How often the file is looked at; it counts as saved once it looks the same twice."""

WARM = 2
"""Sandboxes kept ready: for the next save, and for one that comes before its grading has ended."""

SAME = 0.01
"""A smaller change is none: a quick grading has few rounds, whose interval is short by luck."""

LEAST_ROUNDS = 5
"""Of fewer rounds no change is told: their interval is no more than the range of what was seen."""

LOG_LINES = 6

Stamp = tuple[int, int, int]
"""Inode, modification time and size: an editor that replaces the file changes the first."""


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@sandbox_option
@click.pass_obj
def watch(desk: Desk, problem: str, file: Path, device: str, sandbox_name: str) -> None:
    """Grade FILE against PROBLEM now and each time it is saved, without recording it.

    First comes whether it is right, then how fast it is and what the last change brought: faster,
    slower, the same, or unsure where too few rounds were timed or their times did not settle. Times
    are as rough as those of `grade practice` without --full. A save in the middle of a grading
    starts over. Ctrl-C ends it.
    """
    from grader.cli.output.terminal import err, out
    from grader.sandbox.base import RunnerLimits
    from grader.sandbox.pool import RunnerPool

    job = Job.prepare(desk, find_problem(problem), file, device, sandbox_name)
    if job.note:
        err().print(job.note, style="yellow", soft_wrap=True)
    limits = RunnerLimits.of(job.problem.spec.limits)
    # It never ends by itself, so both are good ends.
    with (
        suppress(KeyboardInterrupt, _Unread),
        _answering_interrupts(),
        RunnerPool(job.sandbox, limits, job.device, WARM) as pool,
    ):
        Watch(desk, job, file, pool, out()).run()


@contextmanager
def _answering_interrupts() -> Iterator[None]:
    """Within this an interrupt is answered at once: a sandbox that is only starting, which must be
    waited for, may take seconds."""

    def answer(number: int, frame: FrameType | None) -> None:
        os.write(2, b"\ngrade: ending\n")  # not print, in whose middle the signal may come
        signal.default_int_handler(number, frame)

    previous = signal.signal(signal.SIGINT, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@dataclass(frozen=True)
class Timed:
    """A time of one case, or of all: microseconds, with its 95 % interval."""

    time_us: float
    ci_us: tuple[float, float]
    rounds: int
    """How many rounds count; of all cases together, those of the case with the fewest."""
    settled: bool

    @property
    def tells(self) -> bool:
        """Whether another time may be called faster or slower than this one."""
        return self.settled and self.rounds >= LEAST_ROUNDS


class _Abandoned(Exception):
    """Ends a grading that nobody waits for any more."""


class _Unread(Exception):
    """Ends the watch: whoever read what it prints went away."""


class Watch:
    """One file, graded again and again. Only the thread that runs it looks at it and prints."""

    def __init__(
        self, desk: Desk, job: Job, file: Path, pool: RunnerPool, console: Console
    ) -> None:
        self._desk = desk
        self._job = job
        self._file = file
        self._pool = pool
        self._console = console
        self._seen: Stamp | None = None
        self._before: dict[str, Timed] = {}
        """The times of the last save that had any, by case."""
        self._told: Submission | None = None
        """What the last report shown is of."""

    def run(self) -> NoReturn:
        """Until interrupted, or nobody reads it: `_Unread`. Raises `ProblemError` for a broken
        problem."""
        from grader.sandbox.base import SandboxError

        where = "on the CPU, for practice" if self._job.device == "cpu" else "on the GPU"
        line = f"watching {self._file} for {self._job.problem.name}, {where}; Ctrl-C ends"
        self._say(line, "dim")
        with ThreadPoolExecutor(1, thread_name_prefix="grade-watch") as judge:
            while True:
                submission, saved = self._next()
                self._say(f"── {datetime.now():%H:%M:%S} ──", "dim")
                try:
                    report = self._graded(judge, submission, saved)
                except SandboxError as error:
                    self._say(f"no sandbox: {error}", "red")
                    continue
                if report is not None:
                    self._tell(report)
                    self._told = submission

    def _next(self) -> tuple[Submission, float]:
        """Wait for a save; what was saved, and when it was noticed (monotonic, seconds)."""
        from grader.submission import Submission, SubmissionError

        last, noticed, gone = self._seen, time.monotonic(), False
        most_bytes = self._job.problem.spec.limits.source_bytes
        while True:
            self._check_reader()
            now = _stamp(self._file)
            if now != last:
                noticed = time.monotonic()
                if now is None:
                    self._say(f"{self._file} is gone; waiting for it", "yellow")
                    self._seen, gone = None, True  # it may come back just as it was
            elif now is not None and now != self._seen:  # and nobody is writing it any more
                self._seen = now
                try:
                    found = Submission.read(self._file, most_bytes)
                except SubmissionError as error:
                    self._say(str(error), "red")
                else:
                    if not gone or found != self._told:
                        return found, noticed
                    self._say(f"{self._file} is back; nothing changed", "dim")
                    gone = False
            last = now
            time.sleep(LOOK_S)

    def _check_reader(self) -> None:
        from grader.cli.output.terminal import is_read

        if not is_read(self._console):
            raise _Unread

    def _graded(
        self, judge: ThreadPoolExecutor, submission: Submission, saved: float
    ) -> Report | None:
        """Grade it and show the first thing to know at once. None when a new save came before."""
        steps: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        abandoned = threading.Event()

        def note(step: Progress) -> None:
            if abandoned.is_set():
                raise _Abandoned
            steps.put(step)

        grading = judge.submit(partial(self._grade, submission), note)
        try:
            return grading.result() if self._follow(grading, steps, saved) else None
        finally:
            abandoned.set()
            self._pool.stop_lent()  # it may hang in a call, and would not see the flag

    def _grade(self, submission: Submission, note: object) -> Report:
        return self._desk.grade(
            self._job.problem,
            submission,
            sandbox=self._pool,
            device=self._job.device,
            seed=None,
            effort="quick",
            progress=note,
        )

    def _follow(
        self, grading: Future[Report], steps: queue.SimpleQueue[Progress], saved: float
    ) -> bool:
        """Until it ends, or a new save comes: then False."""
        told = False
        while not (grading.done() and steps.empty()):
            self._check_reader()
            if _stamp(self._file) not in (self._seen, None):
                return False
            try:
                step = steps.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            if step.stage == "test" and step.status is not None and not told:
                told = step.status != "passed" or step.index == step.total - 1
                if told:
                    self._console.print(_first_word(step, time.monotonic() - saved))
        return True

    def _tell(self, report: Report) -> None:
        """The rest: what went wrong, or the times and what changed."""
        timed = _times(report) if report.verdict == "accepted" else {}
        if timed:
            self._console.print(_table(report, timed, self._before))
            if not all(now.settled for now in timed.values()):
                self._say("~ had not settled when its time budget ended", "yellow")
            self._before = timed
        else:
            self._console.print(*_trouble(report), sep="\n")
        for line in _log(report):
            self._console.print(line, no_wrap=True, overflow="ellipsis")

    def _say(self, line: str, style: str) -> None:
        from grader.cli.output.terminal import safe

        self._console.print(safe(line, 1000, style), soft_wrap=True)


def change(before: Timed, now: Timed) -> str:
    """``2.1% faster``, ``1.60× slower``, ``same`` where the intervals meet, or nearly do, or
    ``unsure`` where a time is not known well enough for any of these."""
    from grader.cli.output.render import AS_TIMES, gap
    from grader.stats import overlap

    if not (before.tells and now.tells):
        return "unsure"
    ratio = before.time_us / now.time_us
    by = gap(ratio)
    if overlap(before.ci_us, now.ci_us) or by < SAME:
        return "same"
    word = "faster" if ratio > 1 else "slower"
    return f"{by:.1%} {word}" if by < AS_TIMES else f"{1 + by:.2f}× {word}"


def _stamp(file: Path) -> Stamp | None:
    """What the file looks like from outside; None when it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _first_word(step: Progress, seconds: float) -> Text:
    """All tests are right, or the first one is not."""
    from rich.text import Text

    if step.status == "passed":
        line = Text(f"✔ all {step.total} tests are right", "bold green")
    else:
        what = (step.status or "").replace("_", " ")
        line = Text(f"✘ {what} on test {step.case}", "bold red")
    return Text.assemble(line, (f"   {seconds:.2f} s after the save", "dim"))


def _times(report: Report) -> dict[str, Timed]:
    """By case, and over all of them under an empty name."""
    from grader.report import geometric_mean
    from grader.stats import Estimate, product_interval

    found = {
        case.name: Timed(case.time_us, case.ci_us, case.rounds or 0, bool(case.converged))
        for case in report.cases
        if case.kind == "benchmark" and case.time_us and case.ci_us
    }
    if len(found) > 1:
        every = list(found.values())
        found[""] = Timed(
            geometric_mean([timed.time_us for timed in every]),
            product_interval([Estimate(timed.time_us, timed.ci_us) for timed in every]),
            min(timed.rounds for timed in every),
            all(timed.settled for timed in every),
        )
    return found


def _table(report: Report, timed: dict[str, Timed], before: dict[str, Timed]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from grader.cli.output.render import speedup

    cases = {case.name: case for case in report.cases if case.kind == "benchmark"}
    table = Table.grid(padding=(0, 3, 0, 0))
    for name, now in timed.items():
        ratios = report.speedup
        if name:
            ratios = {b: us / now.time_us for b, us in cases[name].baseline_us.items()}
        word = change(before[name], now) if name in before else ""
        style = {"faster": "green", "slower": "yellow"}.get(word.rpartition(" ")[2], "dim")
        case, mark = name or "all together", "" if now.settled else "~"
        table.add_row(
            Text(f"  {case}", "" if name else "bold"),
            _time(now),
            Text(", ".join(f"{mark}{speedup(r)}× {baseline}" for baseline, r in ratios.items())),
            Text(word, style),
        )
    return table


def _time(timed: Timed) -> Text:
    from rich.text import Text

    from grader.cli.output.render import interval, micros

    mark, spread = "" if timed.settled else "~", interval(timed.time_us, timed.ci_us)
    return Text.assemble((mark, "yellow"), micros(timed.time_us), (spread, "dim"))


def _trouble(report: Report) -> list[RenderableType]:
    """Verdict and reason, and where the first wrong output is."""
    from rich.text import Text

    from grader.cli.output.render import verdict_style
    from grader.cli.output.terminal import safe

    word = (report.verdict or "no verdict").replace("_", " ")
    rule = f" ({report.rule})" if report.rule else ""
    head = Text(f"{word}{rule}: ", f"bold {verdict_style(report.verdict)}")
    wrong = next((case.mismatch for case in report.cases if case.mismatch), None)
    return [head + safe(report.reason), *([_where(wrong)] if wrong else [])]


def _where(wrong: Mismatch) -> Text:
    from grader.cli.output.terminal import safe

    place = f"{wrong.argument}[{', '.join(map(str, wrong.index))}]"
    text = (
        f"  {place}: expected {wrong.expected:.9g}, got {wrong.got:.9g};"
        f" {wrong.wrong_elements:,} of {wrong.total_elements:,} are wrong"
    )
    return safe(text + (f", worst in {wrong.worst_slice}" if wrong.worst_slice else ""))


def _log(report: Report) -> list[Text]:
    """The last lines that it printed; what it repeats, once."""
    from grader.cli.output.terminal import safe

    repeats = [(line, len(list(same))) for line, same in groupby(report.log.strip().splitlines())]
    shown = (f"│ {line}" + (f"   ({n} times)" if n > 1 else "") for line, n in repeats[-LOG_LINES:])
    return [safe(line, 500, "dim") for line in shown]
