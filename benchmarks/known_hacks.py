"""How many known hacks does the judge catch, and how many clean kernels does it refuse?

    python -m benchmarks.known_hacks ROOT [--labels FILE] [--device cuda] [--sandbox docker]
        [--out results.jsonl]

ROOT is your own checkout of a corpus that others wrote; nothing of it is copied. Each line of its
labels, by default ROOT/labels.jsonl, is JSON: `path` of a file below ROOT, `problem` as every
command takes it (`softmax`, a folder, `kernelbench:FILE.py`; paths may be relative to ROOT), and
`label`: `hack` or `clean`. Other fields are ignored. `benchmarks/known_hacks.jsonl` labels files of
KernelBot, SOL-ExecBench and KernelBench, in folders `kernelbot`, `sol` and `kernelbench` of ROOT,
as their authors name them.

Prints Markdown: the share of hacks that were caught and of clean kernels that were refused, with
Wilson's intervals of 95 %, and each file that was judged against its label. Caught or refused is
what is `wrong_answer` or `rejected`. A file that did not run to its end says nothing of the judge:
it is in neither rate, and is listed. Without a GPU nothing is timed, so that hacks of the time are
missed. A run that is stopped prints what it has; with the same --out it is continued.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from pydantic import BaseModel, ConfigDict, ValidationError

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, run
from grader.cli.options import find_problem
from grader.problem import Problem, ProblemError
from grader.problem_sets import split_prefix
from grader.report import Report, Verdict, one_line
from grader.sandbox.base import exit_on_signals
from grader.stats import wilson_interval
from grader.submission import SubmissionError

REFUSED = (Verdict.WRONG_ANSWER, Verdict.REJECTED)
Label = Literal["hack", "clean"]


class Labelled(BaseModel):
    """One line of the labels."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    path: str
    problem: str
    label: Label


@dataclass(frozen=True)
class Judged:
    """A labelled file, and what the judge said of it."""

    file: Labelled
    verdict: Verdict | None
    """None if there is none."""
    reason: str
    rule: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the judge decided if it is right."""
        return self.verdict is Verdict.ACCEPTED or self.verdict in REFUSED

    @property
    def is_against_label(self) -> bool:
        """Whether it is a hack that was accepted, or a clean kernel that was refused."""
        return self.is_counted and (self.verdict in REFUSED) != (self.file.label == "hack")


Grade = Callable[[Labelled], Report]


def read_labels(path: Path) -> list[Labelled]:
    """The labelled files. Raises click.UsageError with the line of a mistake."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Labelled.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise click.UsageError(f"{path}:{number}: {where}: {first['msg']}") from None
    if not found:
        raise click.UsageError(f"{path} has no labels")
    return found


def read_verdicts(path: Path) -> dict[Labelled, Judged]:
    """What an earlier run has written. Raises click.UsageError for another kind of file."""
    if not path.exists():
        return {}
    found = {}
    try:
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            verdict = line["verdict"] and Verdict(line["verdict"])
            file = Labelled.model_validate(line)
            found[file] = Judged(file, verdict, line["reason"], line["rule"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{path} is not what an earlier run wrote: {error}") from None
    return found


def judge_all(files: Iterable[Labelled], grade: Grade) -> Iterator[Judged]:
    """The verdict on each file. One whose problem or file cannot be read has none."""
    for file in files:
        try:
            report = grade(file)
        except (ProblemError, SubmissionError, click.ClickException) as error:
            text = error.message if isinstance(error, click.ClickException) else str(error)
            yield Judged(file, None, one_line(text))
        else:
            yield Judged(file, report.verdict, report.reason, report.rule)


def problem_text(problem: str, root: Path) -> str:
    """The problem as the commands take it, of a name, or of a path that may be relative to
    `root`."""
    prefix, path = "", Path(problem)
    if (of_set := split_prefix(problem)) is not None:
        prefix, path = f"{of_set[0]}:", of_set[1]
    text = str(path)
    file, mark, part = text.partition("#")  # of a set whose file has several problems
    below = root / file
    if not path.is_absolute() and below.exists():
        text = f"{below}{mark}{part}"
    return prefix + text


def summary(judged: Sequence[Judged]) -> Iterator[str]:
    """The lines of the Markdown report."""
    yield "| files | label | counted | caught or refused | share | interval of 95 % |"
    yield "|---|---|---|---|---|---|"
    for label in ("hack", "clean"):
        mine = [one for one in judged if one.file.label == label]
        counted = [one for one in mine if one.is_counted]
        refused = sum(one.verdict in REFUSED for one in counted)
        share, interval = "–", "–"
        if counted:
            low, high = wilson_interval(refused, len(counted))
            share, interval = f"{refused / len(counted):.1%}", f"{low:.1%} to {high:.1%}"
        yield f"| {len(mine)} | {label} | {len(counted)} | {refused} | {share} | {interval} |"
    rules = Counter(one.rule for one in judged if one.rule)
    if rules:
        yield ""
        yield "Rules: " + ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
    yield from _listed("Hacks that were accepted", judged, "hack")
    yield from _listed("Clean kernels that were refused", judged, "clean")
    rest = [one for one in judged if not one.is_counted]
    yield from _lines("Not counted, since they did not run to their end", rest)


def _listed(title: str, judged: Sequence[Judged], label: Label) -> Iterator[str]:
    found = [one for one in judged if one.is_against_label and one.file.label == label]
    yield from _lines(title, found)


def _lines(title: str, judged: Sequence[Judged]) -> Iterator[str]:
    if judged:
        yield ""
        yield f"{title}:"
    for one in judged:
        verdict = one.verdict or "no verdict"
        yield f"- {one_line(one.file.path, 200)} ({one.file.label}): {verdict}: {one.reason}"


def grading(root: Path, device: str, sandbox: str) -> Grade:
    """A function that grades a file below `root` on this machine. Each problem is read once."""
    deps = Dependencies()
    problems: dict[str, Problem] = {}

    def grade(file: Labelled) -> Report:
        if file.problem not in problems:
            text = problem_text(file.problem, root)
            problems[file.problem] = find_problem(text, deps, device, sandbox)
        job = LocalJob.load(deps, problems[file.problem], root / file.path, device, sandbox)
        return run(deps, job, show=False)

    return grade


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--labels", type=click.Path(path_type=Path), help="[default: ROOT/labels.jsonl]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--out", type=click.Path(path_type=Path), help="Write each verdict as JSON.")
def main(root: Path, labels: Path | None, device: str, sandbox: str, out: Path | None) -> None:
    """Grade a corpus of known hacks, and print the catch rate and the false refusals."""
    files = read_labels(labels or root / "labels.jsonl")
    known = {} if out is None else read_verdicts(out)
    judged = [known[file] for file in files if file in known]
    exit_on_signals()
    try:
        left = [file for file in files if file not in known]
        for one in judge_all(left, grading(root, device, sandbox)):
            judged.append(one)
            print(f"\r{len(judged)} of {len(files)}", end="", file=sys.stderr, flush=True)
            if out is not None:
                line = one.file.model_dump() | {"verdict": one.verdict, "rule": one.rule}
                with out.open("a") as stream:
                    stream.write(json.dumps(line | {"reason": one.reason}) + "\n")
    finally:  # also where a time limit or Ctrl-C ends it
        print(file=sys.stderr)
        for text in summary(judged):
            print(text)


if __name__ == "__main__":
    main()
