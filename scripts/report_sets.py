"""Report which problems of other sets can be judged here, from the user's own checkouts.

    python -m scripts.report_sets OUT.jsonl leetgpu:ROOT kernelbot:ROOT... [--processes N]
        [--limit-s 120] [--sandbox process] [--only TEXT]

Runs `grade verify SET:PATH --json` for every problem, each in a process of its own that is ended
after --limit-s seconds, and appends its result to OUT.jsonl; what is there already is not run
again, so a run can be continued. Prints the counts and the reasons by set as Markdown. Exit status:
0 if every problem has a result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from grader.problem import ProblemError
from grader.problem_sets import SETS, list_problems, split_prefix

STATES = ("runs", "runs with limits", "cannot")


def examine(name: str, limit_s: float, sandbox: str) -> dict[str, Any]:
    """What `grade verify` says of one problem, with its name as typed."""
    command = [sys.executable, "-m", "grader.cli", "verify", name, "--json", "--sandbox", sandbox]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        found = {"error": f"more than {limit_s:g} s"}
    except ValueError:
        found = {"error": "no answer"}
    if "error" in found:
        path = name.partition(":")[2]
        reason = str(found["error"]).removeprefix(f"{path}: ")
        found = {"state": "cannot", "reasons": [reason]}
    return {"problem": name} | found


def names_below(roots: tuple[str, ...], only: str) -> Iterator[str]:
    """Every problem below the roots whose path has the text `only`, as typed."""
    for root in roots:
        of_set = split_prefix(root)
        if of_set is None:
            raise click.UsageError(f"{root}: name a set and a folder, such as kernelbot:ROOT")
        prefix, folder = of_set
        for path in list_problems(prefix, folder):
            if only in str(path):
                yield f"{prefix}:{path}"


def summary(results: list[dict[str, Any]]) -> str:
    """Counts and reasons by set, as Markdown."""
    lines = ["| set | problems | runs | with limits | cannot |", "|---|---|---|---|---|"]
    reasons = []
    for prefix in SETS:
        mine = [one for one in results if one["problem"].startswith(f"{prefix}:")]
        if not mine:
            continue
        counts = Counter(one["state"] for one in mine)
        cells = " | ".join(str(counts[state]) for state in STATES)
        lines.append(f"| {SETS[prefix].TITLE} | {len(mine)} | {cells} |")
        cannot = [one for one in mine if one["state"] == "cannot"]
        for one in cannot:
            name = Path(one["problem"].partition(":")[2])
            reasons.append(
                f"- {prefix} {name.parent.name}/{name.name}: {'; '.join(one['reasons'])}"
            )
    return "\n".join([*lines, "", *reasons])


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("roots", nargs=-1, required=True)
@click.option("--processes", default=1, show_default=True, help="Problems at a time.")
@click.option("--limit-s", default=120.0, show_default=True, help="Time of one problem.")
@click.option("--sandbox", default="auto", show_default=True, help="As of `grade verify`.")
@click.option("--only", default="", help="Only problems with this in their path.")
def main(
    out: Path, roots: tuple[str, ...], processes: int, limit_s: float, sandbox: str, only: str
) -> None:
    """Examine the problems below ROOTS, such as kernelbot:FOLDER, and append to OUT."""
    known: dict[str, dict[str, Any]] = {}
    if out.exists():
        known = {one["problem"]: one for one in map(json.loads, out.read_text().splitlines())}
    try:
        names = list(names_below(roots, only))
    except ProblemError as error:
        raise click.UsageError(str(error)) from None
    left = [name for name in names if name not in known]
    with ThreadPoolExecutor(processes) as pool, out.open("a") as file:
        for found in pool.map(lambda name: examine(name, limit_s, sandbox), left):
            known[found["problem"]] = found
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(found["state"], found["problem"], *found["reasons"][:1], file=sys.stderr)
    print(summary([known[name] for name in names]))


if __name__ == "__main__":
    main()
