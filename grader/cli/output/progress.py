"""Progress of a grading: one line per stage on stderr, removed when the report is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from grader.cli.output.terminal import safe_text, stderr

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBars
    from rich.progress import TaskID

LABELS = {
    "queue": "wait for a worker",
    "sandbox_start": "start the sandbox",
    "baseline": "baselines",
    "compile": "torch.compile",
    "load": "load the submission",
    "test": "tests",
    "benchmark": "benchmarks",
    "verify": "mutants",
}
"""Stage → its label; other stages are shown by their own name."""


class ProgressEvent(Protocol):
    """The fields of `grader.judge.Progress` that are shown."""

    @property
    def stage(self) -> str: ...
    @property
    def case(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def total(self) -> int: ...


class ProgressDisplay:
    """Callback that draws each event of a grading; without bars it does nothing."""

    def __init__(self, bars: ProgressBars | None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: ProgressEvent) -> None:
        """Draw one event. A new stage completes the previous one."""
        if self._bars is None:
            return
        task = self._tasks.get(event.stage)
        if task is None:
            self._finish_others()
            label = LABELS.get(event.stage, safe_text(event.stage, 40).plain)
            task = self._tasks[event.stage] = self._bars.add_task(label, total=None, now="")
        if event.total:
            now = f"{event.index + 1} of {event.total}  {safe_text(event.case, 40)}"
            self._bars.update(task, total=event.total, completed=event.index, now=now)
        elif event.case:
            self._bars.update(task, now=safe_text(event.case, 40).plain)

    def _finish_others(self) -> None:
        assert self._bars is not None
        for task in self._bars.tasks:
            self._bars.update(task.id, total=1, completed=1, now="")


@contextmanager
def show_progress(enabled: bool) -> Iterator[ProgressDisplay]:
    """The progress callback for one grading; it draws only if stderr is a terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
    )

    console = stderr()
    if not (enabled and console.is_terminal):
        yield ProgressDisplay(None)
        return
    columns = (
        SpinnerColumn(finished_text="[green]✔"),
        TextColumn("{task.description}", markup=False),  # a server may send any stage name
        BarColumn(bar_width=24),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield ProgressDisplay(bars)
