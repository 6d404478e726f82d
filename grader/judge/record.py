"""What a grading has found so far, and where it is. No torch in here."""

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
"""How long to measure: `full` is for ranking, `quick` for a person at work."""


@dataclass(frozen=True)
class Progress:
    """Where a grading is, for whoever watches."""

    stage: str
    """sandbox_start, baseline, load, test, benchmark or verify."""
    case: str = ""
    index: int = 0
    total: int = 0
    status: str | None = None
    """The case's status when it has just ended; None when it begins."""


Watcher = Callable[[Progress], None]


@dataclass
class Record:
    """What a grading has found so far."""

    faults: list[Fault] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Benchmark cases that do not rank for what was not seen of them, or looked odd."""
    environment: dict[str, Any] = field(default_factory=dict)
    log: bytes = b""
    loaded_only: bool = False

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, in seconds."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages_s[name] = self.stages_s.get(name, 0.0) + time.monotonic() - start
