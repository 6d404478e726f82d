"""Does the multiprocessors' clock explain why rounds, and gradings, differ? On recorded gradings.

    python -m benchmarks.sm_clock [FILE]

Needs no GPU. FILE is as `benchmarks.precision --out` writes it; by default benchmarks/recorded_rounds.jsonl,
of which runs 5 and 6 have clocks: two machines with two H200 each, of 2026-11-22. For each kernel
and run it prints the clocks that were read around rounds; how much longer a round takes by how much
slower the clock is, within one grading, and how well the one goes with the other; and how far the
scores lie apart, as they are and with every round brought to the usual clock by that.
"""

from __future__ import annotations

import math
from pathlib import Path

import click

from benchmarks.estimators import RECORDED, Rounds, apart, recorded
from grader.report import geometric_mean
from grader.stats import median, middle

SLOW = 0.004
"""A round that takes so much longer or shorter than its grading's others says nothing of clocks."""

Grading = tuple[Rounds, Rounds]
"""Of each round, by case, microseconds and megahertz."""


def deviations(gradings: list[Grading], case: str) -> list[tuple[float, float]]:
    """Of each round of a case, by what share its time and its clock differ from its grading's."""
    found = []
    for times_us, clocks_mhz in gradings:
        usual_us, usual_mhz = median(times_us[case]), median(clocks_mhz[case])
        for us, mhz in zip(times_us[case], clocks_mhz[case], strict=True):
            found.append((us / usual_us - 1, mhz / usual_mhz - 1))
    return [(time, clock) for time, clock in found if abs(time) < SLOW]


def slope(pairs: list[tuple[float, float]]) -> float:
    """By how much the time changes with the clock, as shares: -1 where they go with each other."""
    both, alone = math.fsum(t * c for t, c in pairs), math.fsum(c * c for _, c in pairs)
    return both / alone if alone else 0.0


def correlation(pairs: list[tuple[float, float]]) -> float:
    """Pearson's, of deviations, which lie around nothing."""
    both = math.fsum(t * c for t, c in pairs)
    alone = math.fsum(t * t for t, _ in pairs) * math.fsum(c * c for _, c in pairs)
    return both / math.sqrt(alone) if alone else 0.0


def row(gradings: list[Grading]) -> str:
    """The cells of one kernel and run."""
    cases = list(gradings[0][0])
    clocks = [mhz for _, by_case in gradings for some in by_case.values() for mhz in some]
    pairs = {case: deviations(gradings, case) for case in cases}
    slopes = {case: slope(some) for case, some in pairs.items()}
    usual_mhz = median(clocks)

    def score(grading: Grading, corrected: bool) -> float:
        times_us, clocks_mhz = grading
        return geometric_mean(
            [
                middle(
                    [
                        us * (1 - corrected * slopes[case] * (mhz / usual_mhz - 1))
                        for us, mhz in zip(times_us[case], clocks_mhz[case], strict=True)
                    ]
                ).value
                for case in cases
            ]
        )

    raw, corrected = (apart([score(g, how) for g in gradings]) for how in (False, True))
    goes = sorted(correlation(some) for some in pairs.values())
    return (
        f"{len(gradings)} | {min(clocks):.0f} to {max(clocks):.0f} | "
        f"{goes[0]:+.2f} to {goes[-1]:+.2f} | {median(list(slopes.values())):+.2f} | "
        f"{raw:.2%} | {corrected:.2%}"
    )


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path), default=RECORDED)
def main(file: Path) -> None:
    """Hold recorded rounds against the clocks read around them."""
    print(
        "| kernel | run | gradings | clocks MHz | correlation, by case | slope | scores apart "
        "| corrected |\n|---|---|---|---|---|---|---|---|"
    )
    for (kernel, run), gradings in recorded(file).items():
        clocked = [
            (grading["round_us"], grading["round_mhz"])
            for grading in gradings
            if grading.get("round_mhz", {}).keys() == grading["round_us"].keys()
        ]
        if clocked:
            print(f"| {kernel} | {run} | {row(clocked)} |")


if __name__ == "__main__":
    main()
