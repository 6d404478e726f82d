"""`grade watch`: grade a file each time it is saved, in a prestarted sandbox."""

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

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob
from grader.cli.options import device_option, sandbox_option

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from grader.judge import Progress
    from grader.report import Mismatch, Report
    from grader.sandbox.pool import RunnerPool
    from grader.submission import Submission

POLL_S = 0.05
"""How often to check the file; it counts as saved once two checks in a row agree."""

WARM_SANDBOXES = 2
"""Sandboxes kept ready: for the next save, and for a save during that grading."""

LEAST_CHANGE = 0.01
"""Smaller changes count as the same: with few rounds an interval may be narrow by chance."""

LEAST_ROUNDS = 5
"""With fewer rounds a change is unsure: the interval is then only the range of the rounds."""

LOG_LINES = 6

FileState = tuple[int, int, int]
"""Inode, modification time in ns, and size in bytes. Editors that replace a file change its
inode."""


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@sandbox_option
@click.pass_obj
def watch(deps: Dependencies, problem: str, file: Path, device: str, sandbox_name: str) -> None:
    """Grade FILE against PROBLEM now and each time it is saved, without recording the results.

    Prints whether the tests pass, then the times and the change since the last save: faster,
    slower, the same, or unsure if too few rounds were timed or the times did not converge. Timing
    is as in `grade practice` without --full. A save during a grading starts over. Ctrl-C ends it.
    """
    from grader.cli.output.terminal import print_warning, stdout
    from grader.sandbox.base import RunnerLimits
    from grader.sandbox.pool import RunnerPool

    job = LocalJob.load(deps, problem, file, device, sandbox_name)
    if job.note:
        print_warning(job.note)
    limits = RunnerLimits.of(job.problem.spec.limits)
    # Both exceptions are normal ends: exit status 0.
    with (
        suppress(KeyboardInterrupt, _ReaderGone),
        _acknowledge_interrupts(),
        RunnerPool(job.sandbox, limits, job.device, WARM_SANDBOXES) as pool,
    ):
        Watch(deps, job, file, pool, stdout()).run()


@contextmanager
def _acknowledge_interrupts() -> Iterator[None]:
    """Print a line at once on Ctrl-C: a sandbox that is still starting may take seconds to end."""

    def acknowledge(number: int, frame: FrameType | None) -> None:
        os.write(2, b"\ngrade: ending\n")  # print is not reentrant
        signal.default_int_handler(number, frame)

    previous = signal.signal(signal.SIGINT, acknowledge)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@dataclass(frozen=True)
class WatchedTime:
    """Time of one case, or the geometric mean of all, with its 95 % interval."""

    time_us: float
    ci_us: tuple[float, float]
    rounds: int
    """Rounds that count; for the mean, the fewest of any case."""
    converged: bool

    @property
    def comparable(self) -> bool:
        """Whether another time may be called faster or slower than this one."""
        return self.converged and self.rounds >= LEAST_ROUNDS


class _Abandoned(Exception):
    """Ends a grading that a newer save has replaced."""


class _ReaderGone(Exception):
    """Ends the watch: the reader of its output closed the pipe."""


class Watch:
    """Grades one file at each save. Only the thread of `run` reads the file and prints."""

    def __init__(
        self, deps: Dependencies, job: LocalJob, file: Path, pool: RunnerPool, console: Console
    ) -> None:
        self._deps = deps
        self._job = job
        self._file = file
        self._pool = pool
        self._console = console
        self._read_state: FileState | None = None
        """State of the file when it was last read."""
        self._previous: dict[str, WatchedTime] = {}
        """Times of the last accepted save, by case."""
        self._reported: Submission | None = None
        """Submission of the last printed report."""

    def run(self) -> NoReturn:
        """Grade each save until interrupted, or until `_ReaderGone`.

        Raises `ProblemError` for a broken problem.
        """
        from grader.sandbox.base import SandboxError

        where = "on the CPU, for practice" if self._job.device == "cpu" else "on the GPU"
        line = f"watching {self._file} for {self._job.problem.name}, {where}; Ctrl-C ends"
        self._print(line, "dim")
        with ThreadPoolExecutor(1, thread_name_prefix="grade-watch") as judge:
            while True:
                submission, saved = self._next_save()
                self._print(f"── {datetime.now():%H:%M:%S} ──", "dim")
                try:
                    report = self._grade(judge, submission, saved)
                except SandboxError as error:
                    self._print(f"no sandbox: {error}", "red")
                    continue
                if report is not None:
                    self._print_report(report)
                    self._reported = submission

    def _next_save(self) -> tuple[Submission, float]:
        """Wait for a save; return the submission and the time of the save (monotonic, seconds)."""
        from grader.submission import Submission, SubmissionError

        last, saved, gone = self._read_state, time.monotonic(), False
        problem = self._job.problem
        most_bytes = problem.spec.limits.source_bytes
        while True:
            self._check_reader()
            now = _file_state(self._file)
            if now != last:
                saved = time.monotonic()
                if now is None:
                    self._print(f"{self._file} is gone; waiting for it", "yellow")
                    self._read_state, gone = None, True  # it may come back unchanged
            elif now is not None and now != self._read_state:  # the write has ended
                self._read_state = now
                try:
                    found = Submission.read(self._file, most_bytes, problem.takes_solutions)
                except SubmissionError as error:
                    self._print(str(error), "red")
                else:
                    if not gone or found != self._reported:
                        return found, saved
                    self._print(f"{self._file} is back, unchanged", "dim")
                    gone = False
            last = now
            time.sleep(POLL_S)

    def _check_reader(self) -> None:
        from grader.cli.output.terminal import reader_is_gone

        if reader_is_gone(self._console):
            raise _ReaderGone

    def _grade(
        self, judge: ThreadPoolExecutor, submission: Submission, saved: float
    ) -> Report | None:
        """Grade a submission and print the test outcome at once; None if a newer save came."""
        events: queue.Queue[Progress] = queue.Queue()
        abandoned = threading.Event()

        def on_progress(event: Progress) -> None:
            if abandoned.is_set():
                raise _Abandoned
            events.put(event)

        grading = judge.submit(partial(self._call_judge, submission), on_progress)
        try:
            return grading.result() if self._follow(grading, events, saved) else None
        finally:
            abandoned.set()
            self._pool.stop_lent()  # a call that hangs would never check the flag

    def _call_judge(self, submission: Submission, on_progress: object) -> Report:
        return self._deps.grade(
            self._job.problem,
            submission,
            sandbox=self._pool,
            device=self._job.device,
            seed=None,
            effort="quick",
            progress=on_progress,
        )

    def _follow(self, grading: Future[Report], events: queue.Queue[Progress], saved: float) -> bool:
        """Wait until the grading ends (True), or a newer save comes (False)."""
        printed = False
        while not (grading.done() and events.empty()):
            self._check_reader()
            if _file_state(self._file) not in (self._read_state, None):
                return False
            try:
                event = events.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if event.stage == "test" and event.status is not None and not printed:
                printed = event.status != "passed" or event.index == event.total - 1
                if printed:
                    self._console.print(_test_outcome(event, time.monotonic() - saved))
        return True

    def _print_report(self, report: Report) -> None:
        """Print the times and their change, or what went wrong, and the end of the log."""
        from grader.cli.output.render import NOT_CONVERGED

        timed = _times(report) if report.verdict == "accepted" else {}
        if timed:
            self._console.print(_table(report, timed, self._previous))
            if not all(now.converged for now in timed.values()):
                self._print(NOT_CONVERGED, "yellow")
            self._previous = timed
        else:
            self._console.print(*_failure(report), sep="\n")
        for line in _log(report):
            self._console.print(line, no_wrap=True, overflow="ellipsis")

    def _print(self, line: str, style: str) -> None:
        from grader.cli.output.terminal import safe_text

        self._console.print(safe_text(line, 1000, style), soft_wrap=True)


def change(before: WatchedTime, now: WatchedTime) -> str:
    """The change of a time in words: ``2.1% faster``, ``1.60× slower``, ``same`` or ``unsure``.

    ``same`` if the intervals overlap or the change is below `LEAST_CHANGE`; ``unsure`` if either
    time is not comparable.
    """
    from grader.cli.output.render import RATIO_FROM, gap
    from grader.stats import overlap

    if not (before.comparable and now.comparable):
        return "unsure"
    ratio = before.time_us / now.time_us
    by = gap(ratio)
    if overlap(before.ci_us, now.ci_us) or by < LEAST_CHANGE:
        return "same"
    word = "faster" if ratio > 1 else "slower"
    return f"{by:.1%} {word}" if by < RATIO_FROM else f"{1 + by:.2f}× {word}"


def _file_state(file: Path) -> FileState | None:
    """None if the file does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _test_outcome(event: Progress, seconds: float) -> Text:
    """All tests passed, or the first one that failed."""
    from rich.text import Text

    if event.status == "passed":
        line = Text(f"✔ all {event.total} tests passed", "bold green")
    else:
        what = (event.status or "").replace("_", " ")
        line = Text(f"✘ {what} on test {event.case}", "bold red")
    return Text.assemble(line, (f"   {seconds:.2f} s after the save", "dim"))


def _times(report: Report) -> dict[str, WatchedTime]:
    """Times by case; the geometric mean of several cases has an empty name."""
    from grader.report import geometric_mean
    from grader.stats import Estimate, product_interval

    found = {
        case.name: WatchedTime(case.time_us, case.ci_us, case.rounds or 0, bool(case.converged))
        for case in report.cases
        if case.kind == "benchmark" and case.time_us and case.ci_us
    }
    if len(found) > 1:
        every = list(found.values())
        found[""] = WatchedTime(
            geometric_mean([timed.time_us for timed in every]),
            product_interval([Estimate(timed.time_us, timed.ci_us) for timed in every]),
            min(timed.rounds for timed in every),
            all(timed.converged for timed in every),
        )
    return found


def _table(report: Report, timed: dict[str, WatchedTime], before: dict[str, WatchedTime]) -> Table:
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
        case, mark = name or "all cases", "" if now.converged else "~"
        table.add_row(
            Text(f"  {case}", "" if name else "bold"),
            _time(now),
            Text(", ".join(f"{mark}{speedup(r)}× {baseline}" for baseline, r in ratios.items())),
            Text(word, style),
        )
    return table


def _time(timed: WatchedTime) -> Text:
    from rich.text import Text

    from grader.cli.output.render import interval, micros

    mark = "" if timed.converged else "~"
    return Text.assemble(
        (mark, "yellow"), micros(timed.time_us), (interval(timed.time_us, timed.ci_us), "dim")
    )


def _failure(report: Report) -> list[RenderableType]:
    """The verdict with its reason, and the first wrong output element."""
    from rich.text import Text

    from grader.cli.output.render import verdict_style
    from grader.cli.output.terminal import safe_text

    word = (report.verdict or "no verdict").replace("_", " ")
    rule = f" ({report.rule})" if report.rule else ""
    head = Text(f"{word}{rule}: ", f"bold {verdict_style(report.verdict)}")
    wrong = next((case.mismatch for case in report.cases if case.mismatch), None)
    return [head + safe_text(report.reason), *([_mismatch(wrong)] if wrong else [])]


def _mismatch(wrong: Mismatch) -> Text:
    from grader.cli.output.terminal import safe_text

    place = f"{wrong.argument}[{', '.join(map(str, wrong.index))}]"
    text = (
        f"  {place}: expected {wrong.expected:.9g}, got {wrong.got:.9g};"
        f" {wrong.wrong_elements:,} of {wrong.total_elements:,} elements are wrong"
    )
    return safe_text(text + (f", worst in {wrong.worst_slice}" if wrong.worst_slice else ""))


def _log(report: Report) -> list[Text]:
    """The last lines that the submission printed; repeated lines are shown once."""
    from grader.cli.output.terminal import safe_text

    repeats = [(line, len(list(same))) for line, same in groupby(report.log.strip().splitlines())]
    shown = (f"│ {line}" + (f"   ({n} times)" if n > 1 else "") for line, n in repeats[-LOG_LINES:])
    return [safe_text(line, 500, "dim") for line in shown]
