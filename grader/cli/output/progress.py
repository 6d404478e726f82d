"""What is happening now, one line per stage; gone when the report comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from grader.cli.output.terminal import err, safe

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

LABELS = {
    "queue": "wait for a worker",
    "sandbox_start": "start the sandbox",
    "baseline": "baselines",
    "load": "load the submission",
    "test": "tests",
    "benchmark": "benchmarks",
    "verify": "mutants",
}


class Step(Protocol):
    """`grader.judge.Progress`, as far as it is shown."""

    @property
    def stage(self) -> str: ...
    @property
    def case(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def total(self) -> int: ...


class Watcher:
    """Called with each step of a grading; draws it when there is somewhere to draw."""

    def __init__(self, bars: Bars | None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, step: Step) -> None:
        """Show one step. A new stage ends the one before."""
        if self._bars is None:
            return
        task = self._tasks.get(step.stage)
        if task is None:
            self._finish_others()
            label = LABELS.get(step.stage, safe(step.stage, 40).plain)
            task = self._tasks[step.stage] = self._bars.add_task(label, total=None, now="")
        if step.total:
            now = f"{step.index + 1} of {step.total}  {safe(step.case, 40)}"
            self._bars.update(task, total=step.total, completed=step.index, now=now)
        elif step.case:
            self._bars.update(task, now=safe(step.case, 40).plain)

    def _finish_others(self) -> None:
        assert self._bars is not None
        for task in self._bars.tasks:
            self._bars.update(task.id, total=1, completed=1, now="")


@contextmanager
def watching(show: bool) -> Iterator[Watcher]:
    """A watcher for one grading; it draws on stderr, and only on a terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
    )

    console = err()
    if not (show and console.is_terminal):
        yield Watcher(None)
        return
    columns = (
        SpinnerColumn(finished_text="[green]✔"),
        TextColumn("{task.description}", markup=False),  # a server may name any stage
        BarColumn(bar_width=24),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield Watcher(bars)
