"""Sources of different users on one board that are alike, for organisers to look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from grader.problem import Problem
from grader.problem.scaffold import scaffold
from grader.server.services.container import Services
from grader.server.services.fingerprints import Fingerprint, gram_hashes
from grader.submission import Language

MAX_SOURCES = 1000
"""Users' best sources that are compared, from the first of each leaderboard on."""

MAX_PAIRS = 200
"""Pairs in one report."""

LEAST_HASHES = 12
"""A source of fewer is too short to tell: about 60 tokens that are not the starter's."""

LIMIT_S = 20.0
"""How long a report may take. What was read by then is compared, and is at hand for the next one.
Reading is ended after five sixths of it."""

LEAST = 0.6
"""The least similarity that is listed by default."""

_STARTERS: tuple[tuple[str, Language], ...] = (
    ("torch", "python"),
    ("triton", "python"),
    ("cuda", "cuda"),
)


@dataclass(frozen=True)
class ComparedSource:
    """A user's or a team's best source on one GPU."""

    submission_id: int
    user: str
    """The user, or the team."""
    rank: int
    gpu: str
    is_team: bool = False


@dataclass(frozen=True)
class SimilarPair:
    """Two sources of different users or teams."""

    left: ComparedSource
    right: ComparedSource
    similarity: float
    """The share of the shorter one's fingerprints that the other has, from 0 to 1, without those of
    the starter and the reference."""
    shared: int
    """How many fingerprints they share; about one for each 4 or 5 tokens in a row."""


@dataclass(frozen=True)
class SimilarityReport:
    """The pairs that are alike, best match first."""

    pairs: Sequence[SimilarPair]
    sources: int
    """The sources on the board, of which `MAX_SOURCES` at most are compared."""
    compared: int
    too_short: int
    """Sources with hardly anything besides the starter and the reference."""
    unreadable: int
    """Sources whose tokens took too long, or that were removed."""
    complete: bool
    """Whether the time sufficed. If not, ask again: what was read is at hand."""


def similar_sources(
    services: Services,
    problem: Problem,
    least: float = LEAST,
    clock: Callable[[], float] = time.monotonic,
) -> SimilarityReport:
    """Compare every user's best sources for the current version of a problem.

    Ends after `LIMIT_S` seconds. Raises `BoardError` if the database fails.
    """
    deadline = clock() + LIMIT_S
    entries = list(_entries(services, problem))
    chosen = entries[:MAX_SOURCES]
    boilerplate = _boilerplate(problem)
    sources: list[ComparedSource] = []
    prints: list[Fingerprint] = []
    too_short = unreadable = 0
    complete = True
    for entry, language in chosen:
        if clock() > deadline - LIMIT_S / 6:
            complete = False
            break
        found = _fingerprint(services, entry, language)
        if found is None:
            unreadable += 1
            continue
        found = found.without(boilerplate)
        if len(found.hashes) < LEAST_HASHES:
            too_short += 1
            continue
        sources.append(entry)
        prints.append(found)
    pairs: list[SimilarPair] = []
    for left, right, similarity, shared in similar_pairs(prints, least, lambda: clock() > deadline):
        if sources[left].user != sources[right].user:
            pairs.append(SimilarPair(sources[left], sources[right], similarity, shared))
    complete = complete and clock() <= deadline
    pairs.sort(key=lambda pair: (-pair.similarity, -pair.shared))
    return SimilarityReport(
        pairs[:MAX_PAIRS], len(entries), len(sources), too_short, unreadable, complete
    )


def similar_pairs(
    prints: Sequence[Fingerprint], least: float, is_late: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, int, float, int]]:
    """The pairs of fingerprints (by index, the lower first) of at least this similarity, with it,
    and how many hashes they share. Ends early when it is late.

    Of a long source only the smallest hashes are known. Two are compared up to where both are
    complete.
    """
    sets = [frozenset(one.hashes) for one in prints]
    for left, one in enumerate(prints):
        if is_late():
            return
        for right in range(left + 1, len(prints)):
            shared = len(sets[left] & sets[right])
            if shared < LEAST_HASHES * least:
                continue
            end = min(one.end, prints[right].end)
            fewer = min(one.count(end), prints[right].count(end))
            if fewer >= LEAST_HASHES and shared >= least * fewer:
                yield left, right, shared / fewer, shared


def _entries(services: Services, problem: Problem) -> Iterator[tuple[ComparedSource, Language]]:
    """Each user's or team's best results, by their place on the leaderboards of all GPUs."""
    leaderboards = services.standings.snapshot()(problem.digest, None)
    most = max((len(one.standings) for one in leaderboards), default=0)
    seen: set[int] = set()
    for place in range(most):
        for leaderboard in leaderboards:
            if place < len(leaderboard.standings):
                one = leaderboard.standings[place]
                if one.submission_id is not None and one.submission_id not in seen:
                    seen.add(one.submission_id)
                    entry = ComparedSource(
                        one.submission_id, one.user, one.rank, leaderboard.gpu, one.is_team
                    )
                    yield entry, "cuda" if one.language == "cuda" else "python"


def _fingerprint(
    services: Services, entry: ComparedSource, language: Language
) -> Fingerprint | None:
    job = services.ledger.job(entry.submission_id)
    if job is None:
        return None
    read = partial(services.submissions.source, entry.submission_id)
    return services.fingerprints.of(job.sha256, language, read)


def _boilerplate(problem: Problem) -> frozenset[int]:
    """The hashes of what everybody starts with."""
    texts = [(scaffold(problem, name), language) for name, language in _STARTERS]
    # Everybody has the code of another set's problem, too.
    given = problem.files if problem.imported is None else problem.imported.source.files
    references: list[tuple[str, Language]] = [
        (content.decode("utf-8", "replace"), "python")
        for name, content in given.items()
        if name in ("reference.py", "challenge.py", "model.py", "def.py")
    ]
    return frozenset(gram for one in [*texts, *references] for gram in gram_hashes(*one))
