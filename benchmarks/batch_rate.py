"""How many gradings an hour does a batch make on one GPU, and are the scores those of one alone?

    python -m benchmarks.batch_rate [--count 60] [--sandbox docker] [--tests-at-once 4]
        [--language python|cuda] [--tests-only] [--alone 3] [--device cuda] [--for-s SECONDS]

The batch has `--count` different softmax kernels, none of which a compiler has seen: of ten, seven
are right, one is a wrong answer, one does not compile, and one is slow or hostile in turn. Their
order is shuffled, the same in every run. Prints a Markdown row: gradings an hour, without the start
of the processes, verdicts as expected, and how far the median score of the right ones is from that
of `--alone` gradings one at a time; and where the time of the right ones goes, in the step that
decides their verdict. A batch that `--for-s` ends has no rate, since files that end early come
first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Literal

import click

from grader.automation import Grader, Item, grade
from grader.report import Verdict

FOLDER = Path(__file__).resolve().parent.parent / "submissions" / "softmax"
RIGHT = {"python": "accepted/triton_softmax.py", "cuda": "accepted/cuda_softmax.cu"}
SUM = {"python": "tl.sum(tile, axis=1)[:, None]", "cuda": "kMax ? fmaxf(a, b) : a + b"}
"""The part of each kernel that a wrong one changes by 1 %."""
FACTOR = {"python": "1.01", "cuda": "1.01f"}
OTHERS = (
    ("accepted/torch_softmax.py", Verdict.ACCEPTED),
    ("rejected/forged_claim.py", Verdict.REJECTED),
)
"""A slower kernel, and a hostile one."""
PARTS = (*["right"] * 7, "wrong", "broken", "other")
BEFORE = ("sandbox_start", "load", "baseline")
"""The stages before a timing."""
HEAD = """\
| what | sandbox | at once | gradings | seconds | an hour | verdicts as expected | score off by |
|---|---|---|---|---|---|---|---|"""


def items(
    count: int, language: Literal["python", "cuda"], tests_only: bool
) -> Iterator[tuple[Item, Verdict]]:
    """The kernels with the verdict that each must get."""
    text = (FOLDER / RIGHT[language]).read_text()
    assert SUM[language] in text
    for number in range(count):
        part = PARTS[number % len(PARTS)]
        key = f"{number} {part}"
        if part == "other":
            file, verdict = OTHERS[number // len(PARTS) % len(OTHERS)]
            if tests_only:  # it cheats only while it is timed
                verdict = Verdict.ACCEPTED
            yield Item(key, (FOLDER / file).read_text(), benchmarks=not tests_only), verdict
            continue
        source = unseen(text, number, language)
        verdict = Verdict.ACCEPTED
        if part == "wrong":
            source = source.replace(SUM[language], f"{SUM[language]} * {FACTOR[language]}")
            verdict = Verdict.WRONG_ANSWER
        elif part == "broken":
            source, verdict = source + "(", Verdict.COMPILE_ERROR
        yield Item(key, source, language=language, benchmarks=not tests_only), verdict


def unseen(text: str, number: int, language: str) -> str:
    """The same kernel with other names of functions, so that no cache has it compiled."""
    names = {"python": ("_whole_rows", "_chunk_sums", "_chunk_finish"), "cuda": ("warp_reduce",)}
    for name in names[language]:
        text = text.replace(name, f"{name}_{number}_{time.time_ns()}")
    return text


@click.command()
@click.option("--count", default=60, show_default=True)
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--tests-at-once", default=4, show_default=True)
@click.option("--language", type=click.Choice(["python", "cuda"]), default="python")
@click.option("--tests-only", is_flag=True)
@click.option("--alone", default=3, show_default=True, help="Gradings to compare scores with.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--for-s", type=float, help="End the batch after so many seconds.")
def main(
    count: int,
    sandbox: Literal["docker", "process"],
    tests_at_once: int,
    language: Literal["python", "cuda"],
    tests_only: bool,
    alone: int,
    device: Literal["cpu", "cuda"],
    for_s: float | None,
) -> None:
    """Grade the batch, and then a few of its kernels one at a time."""
    batch = list(items(count, language, tests_only))
    random.Random(0).shuffle(batch)  # as a model makes them: in no order
    expected = {item.key: verdict for item, verdict in batch}
    scores: list[float] = []
    stages_s: dict[str, list[float]] = {}
    done = right = 0
    with Grader(
        "softmax", devices=[device], sandbox=sandbox, tests_at_once=tests_at_once
    ) as grader:
        # The processes start, and compile what belongs to the judge.
        list(grader.map(item for item, _ in items(2 * tests_at_once, language, tests_only)))
        start_s = time.monotonic()
        for result in grader.map(item for item, _ in batch):
            done += 1
            verdict = result.report.verdict if result.report else None
            right += verdict is expected[result.key]
            stages = result.report.stages_s if result.report else {}
            timed = ""
            if result.report and "benchmark" in stages:
                rounds = sum(case.rounds or 0 for case in result.report.cases)
                before_s = sum(stages.get(stage, 0.0) for stage in BEFORE)
                timed = f", begun in {before_s:.2f} s, timed in {stages['benchmark']:.2f} s"
                timed += f", {rounds} rounds"
                if (cost_us := result.report.environment.get("round_cost_us")) is not None:
                    timed += f" that cost {cost_us} µs each"
            passed_s = time.monotonic() - start_s
            click.echo(f"{passed_s:.1f} s: {result.key}: {verdict}{timed}", err=True)
            if verdict is not expected[result.key]:
                why = result.report.reason if result.report else result.error
                click.echo(f"{result.key}: {verdict}: {why}", err=True)
            if result.report and "right" in result.key:
                scores += filter(None, [result.report.score_us])
                for stage, stage_s in stages.items():
                    stages_s.setdefault(stage, []).append(stage_s)
            if for_s is not None and passed_s >= for_s:
                break
        took_s = time.monotonic() - start_s
    off = "–"
    if scores and alone:
        own = [item.source for item, _ in items(10, language, False)][:alone]
        reports = [
            grade("softmax", source, language=language, sandbox=sandbox, device=device)
            for source in own
        ]
        single = median([report.score_us for report in reports if report.score_us])
        off = f"{median(scores) / single - 1:+.2%}"
    what = f"{language}, {'tests only' if tests_only else 'full'}"
    parts = (f"{stage} {sum(all_s) / len(all_s):.2f}" for stage, all_s in stages_s.items())
    click.echo(f"Mean seconds of a right one by stage: {', '.join(parts)}\n")
    click.echo(HEAD)
    graded, rate = f"{count}", f"{count / took_s * 3600:,.0f}"
    if done < count:
        graded, rate = f"{done} of {count}", "–"
    click.echo(
        f"| {what} | {sandbox} | {tests_at_once} | {graded} | {took_s:.1f} | {rate} | "
        f"{right} of {done} | {off} |"
    )


if __name__ == "__main__":
    main()
