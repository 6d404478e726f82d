"""What verifying a problem's check found, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LEAST_SHARE = 1e-3
"""Honest implementations that use less of their bounds count as using this much in a margin."""

Expected = Literal["fail", "fail once", "pass"]
"""Of a mutant: to fail on every case, or on at least one."""
CheckOutcome = Literal["failed", "passed", "same as reference", "admitted", "left out"]


@dataclass(frozen=True)
class VerificationRow:
    """The check of one implementation or mutant on one case."""

    name: str
    case: str
    expected: Expected
    outcome: CheckOutcome
    detail: str = ""
    used: float = 0.0
    """The largest share of any bound that the outputs use; more than 1 fails."""

    @property
    def ok(self) -> bool:
        """Whether the outcome is not the opposite of the expected one."""
        opposites = {"fail": "passed", "fail once": None, "pass": "failed"}
        return self.outcome != opposites[self.expected]


@dataclass(frozen=True)
class CaseMargin:
    """How far apart the check keeps honest and broken implementations in one case."""

    case: str
    honest: VerificationRow
    """The honest implementation that uses most of its bounds."""
    mutant: VerificationRow | None
    """The mutant that fails by the least; None if none fails."""
    admitted: list[str]
    """The mutants that the case admits."""

    @property
    def ratio(self) -> float | None:
        """What the mutant uses of the bounds, over what the honest implementation uses; infinite
        for a mutant without numbers."""
        if self.mutant is None:
            return None
        return self.mutant.used / max(self.honest.used, LEAST_SHARE)


@dataclass
class VerificationResult:
    """All rows; `ok` when the problem may be published."""

    rows: list[VerificationRow] = field(default_factory=list)
    cases: int = 0
    """How many cases were checked."""
    compiled: list[str] = field(default_factory=list)
    """The cases on which torch.compile was checked."""

    @property
    def ok(self) -> bool:
        """Whether every row is ok, and every mutant that applies failed at least once."""
        return not self.findings()

    def findings(self) -> list[str]:
        """What keeps the problem from being published, in words."""
        wrong = [row for row in self.rows if not row.ok]
        found = [f"{row.name}, {row.case}: {row.outcome}. {row.detail}" for row in wrong]
        return found + [f"{name}: never caught" for name in self.never_caught()]

    def never_caught(self) -> list[str]:
        """The mutants that failed on no case, though they apply to one. A mutant that may pass
        applies where it changes the right answer."""
        mutants: dict[str, set[str]] = {}
        for row in self.rows:
            if row.expected != "pass":
                proves_nothing = row.expected == "fail once" and row.outcome == "same as reference"
                if row.outcome != "left out" and not proves_nothing:
                    mutants.setdefault(row.name, set()).add(row.outcome)
        return [name for name, outcomes in mutants.items() if "failed" not in outcomes]

    def margins(self) -> list[CaseMargin]:
        """The margin of each case, in order; cases without an honest implementation left out."""
        found = []
        for case in dict.fromkeys(row.case for row in self.rows):
            rows = [row for row in self.rows if row.case == case]
            honest = [row for row in rows if row.expected == "pass"]
            mutants = [row for row in rows if row.outcome == "failed" and row.expected == "fail"]
            if honest:
                found.append(
                    CaseMargin(
                        case,
                        max(honest, key=lambda row: row.used),
                        min(mutants, key=lambda row: row.used, default=None),
                        [row.name for row in rows if row.outcome == "admitted"],
                    )
                )
        return found
