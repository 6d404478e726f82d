"""What a grading has found so far, and its progress. No torch in here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from grader.judge.verdict import Fault
from grader.report import CaseResult
from grader.sandbox.base import Device as Device

Effort = Literal["full", "quick"]
"""How long to measure: `full` for ranking, `quick` for one's own code during development."""


@dataclass(frozen=True)
class Progress:
    """The step that a grading begins, or has just ended."""

    stage: str
    """sandbox_start, baseline, compile, load, test, benchmark or verify."""
    case: str = ""
    index: int = 0
    total: int = 0
    status: str | None = None
    """The case's status when it has just ended; None when it begins."""


ProgressCallback = Callable[[Progress], None]


@dataclass
class Record:
    """What a grading has found so far."""

    faults: list[Fault] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unranked_cases: list[str] = field(default_factory=list)
    """Benchmark cases that cannot rank because the judge could not watch them well enough. A note
    says why."""
    environment: dict[str, Any] = field(default_factory=dict)
    log: bytes = b""
    """Output of the compiler and the runner."""
    stopped_s: float = 0.0
    """Seconds in the problem's own code, which do not count against `limits.total_s`."""
    compiled_only: bool = False
    """Whether the submission was compiled and not run, for lack of a GPU."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the duration of the block, in seconds, to the stage `name`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages_s[name] = self.stages_s.get(name, 0.0) + time.monotonic() - start
