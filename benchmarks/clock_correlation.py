"""Does the SM clock explain why times of one kernel differ? An analysis of recorded gradings.

    python -m benchmarks.clock_correlation [FILE]

Needs no GPU. FILE has the format of `benchmarks.precision --out`; the default is
benchmarks/recorded_rounds.jsonl, whose runs 5 and 6 have clocks (two machines with two H200 each,
2026-11-22). A row per kernel and run has the range of SM clocks around its rounds, the correlation
and the slope of time over clock within a grading, and the spread of the scores before and after
each round is corrected to the median clock by that slope.
"""

from __future__ import annotations

import math
from pathlib import Path

import click

from benchmarks.estimators import RECORDED, Rounds, recorded, spread
from grader.report import geometric_mean
from grader.stats import estimate, median

MOST_DEVIATION = 0.004
"""A round whose time differs from its grading's median by more than this share is left out."""

Grading = tuple[Rounds, Rounds]
"""Times (µs) and SM clocks (MHz) of the rounds, by case."""


def deviations(gradings: list[Grading], case: str) -> list[tuple[float, float]]:
    """Relative deviations of time and clock from the grading's medians, round by round."""
    found = []
    for times_us, clocks_mhz in gradings:
        median_us, median_mhz = median(times_us[case]), median(clocks_mhz[case])
        for us, mhz in zip(times_us[case], clocks_mhz[case], strict=True):
            found.append((us / median_us - 1, mhz / median_mhz - 1))
    return [(time, clock) for time, clock in found if abs(time) < MOST_DEVIATION]


def slope(pairs: list[tuple[float, float]]) -> float:
    """Least-squares slope of time over clock; -1 if time is proportional to the cycle length."""
    both, alone = math.fsum(t * c for t, c in pairs), math.fsum(c * c for _, c in pairs)
    return both / alone if alone else 0.0


def correlation(pairs: list[tuple[float, float]]) -> float:
    """Pearson correlation of deviations, whose means are taken as zero."""
    both = math.fsum(t * c for t, c in pairs)
    alone = math.fsum(t * t for t, _ in pairs) * math.fsum(c * c for _, c in pairs)
    return both / math.sqrt(alone) if alone else 0.0


def row(gradings: list[Grading]) -> str:
    """The table cells of one kernel and run."""
    cases = list(gradings[0][0])
    clocks = [mhz for _, by_case in gradings for some in by_case.values() for mhz in some]
    pairs = {case: deviations(gradings, case) for case in cases}
    slopes = {case: slope(some) for case, some in pairs.items()}
    median_mhz = median(clocks)

    def score(grading: Grading, corrected: bool) -> float:
        times_us, clocks_mhz = grading
        return geometric_mean(
            [
                estimate(
                    [
                        us * (1 - corrected * slopes[case] * (mhz / median_mhz - 1))
                        for us, mhz in zip(times_us[case], clocks_mhz[case], strict=True)
                    ]
                ).value
                for case in cases
            ]
        )

    raw, corrected = (spread([score(g, how) for g in gradings]) for how in (False, True))
    found = sorted(correlation(some) for some in pairs.values())
    return (
        f"{len(gradings)} | {min(clocks):.0f} to {max(clocks):.0f} | "
        f"{found[0]:+.2f} to {found[-1]:+.2f} | {median(list(slopes.values())):+.2f} | "
        f"{raw:.2%} | {corrected:.2%}"
    )


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path), default=RECORDED)
def main(file: Path) -> None:
    """Compare recorded times with the SM clocks around them."""
    print(
        "| kernel | run | gradings | clocks MHz | correlation, by case | slope | spread "
        "| corrected spread |\n|---|---|---|---|---|---|---|---|"
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
