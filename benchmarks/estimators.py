"""Which estimator should turn a case's rounds into a time? Three, on the same recorded gradings.

    python -m benchmarks.estimators [FILE]

Needs no GPU. FILE has a line of JSON for each grading, with the times of its rounds by case, as
`benchmarks.precision --out` writes it. The default is benchmarks/recorded_rounds.jsonl: runs 1 to 4
are of 2026-11-21 on H100 and H200 (run 3 on a noisy host), runs 5 and 6 of the next day on H200.
For each kernel, run and estimator, a row has the spread of the scores, the interval to which a
score is known, estimator many scores would rank, and estimator many cases are known to ±0.5 %.

Runs 1 to 4 were recorded while the median decided when a case had enough rounds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from grader import stats
from grader.judge.score import RANKED_PRECISION
from grader.judge.timing.plan import PLANS
from grader.report import geometric_mean

RECORDED = Path(__file__).parent / "recorded_rounds.jsonl"
SETTLED = PLANS["cuda", "full"].settled

Rounds = dict[str, list[float]]
"""Microseconds by case."""


ESTIMATORS = {
    "median": stats.median_estimate,
    "Hodges-Lehmann": stats.hodges_lehmann,
    "the narrower": stats.estimate,
}


def recorded(file: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The gradings of a file that have rounds, by kernel and run."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in file.read_text().splitlines():
        grading = json.loads(line)
        if grading["round_us"]:
            found[grading["kernel"], str(grading.get("run", ""))].append(grading)
    return found


def spread(scores: list[float]) -> float:
    """(max − min) / median of the scores."""
    return (max(scores) - min(scores)) / stats.median(scores)


def row(gradings: list[Rounds], estimator: str) -> str:
    """The table cells of one kernel and run."""
    scores, widths, settled = [], [], []
    for cases in gradings:
        middles = [ESTIMATORS[estimator](times_us) for times_us in cases.values()]
        score = geometric_mean([middle.value for middle in middles])
        low, high = stats.product_interval(middles)
        scores.append(score)
        widths.append((high - low) / 2 / score)
        settled += [(b - a) / 2 <= SETTLED * value for value, (a, b) in middles]
    ranked = sum(width <= RANKED_PRECISION for width in widths)
    return (
        f"{estimator} | {spread(scores):.2%} | ± {min(widths):.2%} to {max(widths):.2%} | "
        f"{ranked} of {len(gradings)} | {sum(settled)} of {len(settled)}"
    )


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path), default=RECORDED)
def main(file: Path) -> None:
    """Compare three estimators on recorded rounds."""
    print(
        "| kernel | run | estimator | spread | a score is known to | ranked | "
        f"cases known to ±{SETTLED:.1%} |\n|---|---|---|---|---|---|---|"
    )
    for (kernel, run), gradings in recorded(file).items():
        rounds = [grading["round_us"] for grading in gradings]
        for number, estimator in enumerate(ESTIMATORS):
            first = f"{kernel} | {run}" if number == 0 else " | "
            print(f"| {first} | {row(rounds, estimator)} |")


if __name__ == "__main__":
    main()
