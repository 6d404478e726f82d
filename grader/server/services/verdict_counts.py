"""How many results have which verdict, by problem, month and broken rule.

A result without its user: the numbers name no user. Results of rejudges that do not count, replaced
and deleted ones are left out; held ones and those of banned users are not. Items of batches are no
results. Those of a board that is frozen for the reader are as they were at that moment.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from sqlalchemy import JSON, ColumnElement, Connection, Engine, and_, cast, func, select

from grader.db.engine import connect
from grader.db.tables import results
from grader.report import Rule, Verdict
from grader.server.services.freeze import counted_before, is_left_out
from grader.server.services.ttl_cache import TtlCache

CACHE_AGE_S = 60.0
"""The counts may be this old: all results are counted, however many there are."""

READ_AT_ONCE = 500
"""Reports from which the rule is read by one query."""

LEFT_OUT = ("preview", "rejudged", "deleted")

_NEVER = datetime.min.replace(tzinfo=UTC)


class CountedResults(NamedTuple):
    """The number of results that agree in all else."""

    problem: str
    month: str
    """As ``2030-01``, UTC."""
    verdict: Verdict
    rule: Rule | None
    number: int


@dataclass(frozen=True)
class VerdictTally:
    """The verdicts and the broken rules of some results."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    rules: Counter[Rule] = field(default_factory=Counter)

    @property
    def graded(self) -> int:
        """The number of results."""
        return self.verdicts.total()

    @property
    def accepted(self) -> int:
        """The number that was accepted."""
        return self.verdicts[Verdict.ACCEPTED]

    @property
    def wrong(self) -> int:
        """The number of wrong answers."""
        return self.verdicts[Verdict.WRONG_ANSWER]

    @property
    def rejected(self) -> int:
        """The number of right answers that were won by breaking a rule."""
        return self.verdicts[Verdict.REJECTED]

    @property
    def failed(self) -> int:
        """The number of those that did not run to their end."""
        return self.graded - self.accepted - self.wrong - self.rejected

    def add(self, row: CountedResults) -> None:
        """Count results."""
        self.verdicts[row.verdict] += row.number
        if row.rule is not None:
            self.rules[row.rule] += row.number


@dataclass(frozen=True)
class VerdictSummary:
    """All results of some problems, and by problem and month."""

    total: VerdictTally
    problems: Sequence[tuple[str, VerdictTally]]
    """Most results first."""
    months: Sequence[tuple[str, VerdictTally]]
    """The newest first."""


class VerdictCounts:
    """The counts of one database, at most `CACHE_AGE_S` old. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cache: TtlCache[list[CountedResults]] = TtlCache(CACHE_AGE_S)
        self._lock = threading.Lock()
        self._rules: dict[int, Rule | None] = {}
        """The rule of each rejected result that was read. They never change."""

    def summary(self, problems: Mapping[str, datetime | None]) -> VerdictSummary:
        """The counts of these problems, each with the moment since which its board is frozen for
        the reader, or None. Raises `BoardError` if the database fails."""
        rows = self._cache.get("all", lambda: self._read(~is_left_out(*LEFT_OUT)))
        shown = [row for row in rows if problems.get(row.problem, _NEVER) is None]
        for problem, moment in problems.items():
            if moment is not None:
                shown += self._cache.get((problem, moment), partial(self._as_of, problem, moment))
        return _summary(shown)

    def _as_of(self, problem: str, moment: datetime) -> list[CountedResults]:
        counts = and_(counted_before(moment), ~is_left_out(*LEFT_OUT, at=moment))
        return self._read(and_(results.c.problem == problem, counts))

    def _read(self, counts: ColumnElement[bool]) -> list[CountedResults]:
        month = func.substr(results.c.created_at, 1, 7)
        by = (results.c.problem, month, results.c.verdict)
        is_rejected = results.c.verdict == str(Verdict.REJECTED)
        grouped = select(*by, func.count()).where(counts, ~is_rejected).group_by(*by)
        rejected = select(results.c.id, results.c.problem, month).where(counts, is_rejected)
        with connect(self._engine) as connection:
            found = [
                CountedResults(problem, month, Verdict(verdict), None, int(count))
                for problem, month, verdict, count in connection.execute(grouped)
            ]
            rows = connection.execute(rejected).all()
            rules = self._read_rules(connection, [row[0] for row in rows])
        broken = Counter((problem, month, rules[number]) for number, problem, month in rows)
        return found + [
            CountedResults(problem, month, Verdict.REJECTED, rule, count)
            for (problem, month, rule), count in broken.items()
        ]

    def _read_rules(self, connection: Connection, numbers: Sequence[int]) -> dict[int, Rule | None]:
        """The rule of each of these results, of which only new ones are read: the rule stands in
        the report, which is large."""
        if connection.dialect.name == "postgresql":
            rule = cast(results.c.report, JSON)["rule"].as_string()
        else:
            rule = func.json_extract(results.c.report, "$.rule")
        with self._lock:
            known = {number: self._rules[number] for number in numbers if number in self._rules}
        missing = [number for number in numbers if number not in known]
        for start in range(0, len(missing), READ_AT_ONCE):
            query = select(results.c.id, rule).where(
                results.c.id.in_(missing[start : start + READ_AT_ONCE])
            )
            for number, name in connection.execute(query):
                known[number] = Rule(name) if name else None
        with self._lock:
            self._rules |= known
        return known


def _summary(rows: Iterable[CountedResults]) -> VerdictSummary:
    total = VerdictTally()
    problems: dict[str, VerdictTally] = {}
    months: dict[str, VerdictTally] = {}
    for row in rows:
        total.add(row)
        problems.setdefault(row.problem, VerdictTally()).add(row)
        months.setdefault(row.month, VerdictTally()).add(row)
    return VerdictSummary(
        total,
        sorted(problems.items(), key=lambda named: (-named[1].graded, named[0])),
        sorted(months.items(), reverse=True),
    )
