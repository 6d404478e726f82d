"""A report as one screen of plain text, for a model or a person who has to improve the kernel.

It says what failed, where, the likely cause, what limits the time, and what to try, of what is in
the report alone. Texts of the submission are escaped in it already.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from grader import format
from grader.report import CaseResult, Mismatch, Report, Rule, Verdict, one_line

MAX_LINES = 40
MAX_COLUMNS = 100
LOG_LINES = 10
SHOWN_CASES = 5
NEAR_ROOFLINE = 0.85
"""Above this share of the roofline, little is left to gain."""
LAUNCH_US = 10.0
"""A call that takes less is mostly the launch, which takes 2 to 5 µs."""

_SPACES = str.maketrans({"\N{NO-BREAK SPACE}": " "})

_TRY = {
    Verdict.COMPILE_ERROR: "Mend what the log names. `grade new PROBLEM` writes a file that loads.",
    Verdict.RUNTIME_ERROR: "Check bounds and masks at the sizes of the case, and the launch's grid "
    "and shared memory.",
    Verdict.WRONG_ANSWER: "Run this case alone and compare with the problem's reference; mask the "
    "last tile, and sum in fp32.",
    Verdict.TIME_LIMIT_EXCEEDED: "Look for a loop that does not end at these sizes, and for "
    "compiling or autotuning in each call.",
    Verdict.MEMORY_LIMIT_EXCEEDED: "Allocate less: write into the outputs that are given, and keep "
    "no copies of inputs.",
    Verdict.OUTPUT_LIMIT_EXCEEDED: "Print nothing in the kernel's calls.",
}

_RULES = {
    Rule.TIME_CLAIM: "The reported time is below what the judge's own clock allows: synchronize "
    "nothing and patch no timer.",
    Rule.WORK_OUTSIDE_CALL: "Work ran before the call or after its return: start all of it within "
    "the call, on the current stream.",
    Rule.CARRIED_ANSWER: "An output is that of other inputs: compute it anew in each call; cache "
    "only what does not depend on the inputs' content.",
    Rule.MEMORY_TAMPERED: "An input or memory that is no output was written: write the outputs "
    "only.",
    Rule.BELOW_FLOOR: "It is faster than the hardware allows, so a person has to look at it: is "
    "all of the work done?",
}

_LIMITS = {
    "memory": "Memory traffic limits this problem: read and write each byte once, in wide loads "
    "that neighbouring threads share, with enough of them under way.",
    "compute": "Arithmetic limits this problem: keep the tensor cores fed, with larger tiles and "
    "loads that overlap with the multiply-adds.",
    "latency": "Latency limits this problem: use fewer launches and fewer steps that wait for each "
    "other.",
}


def explain(report: Report, limited_by: str | None = None) -> str:
    """At most `MAX_LINES` lines of at most `MAX_COLUMNS` columns, without a newline at the end.

    limited_by: what the problem's spec says limits a good kernel: ``memory``, ``compute`` or
        ``latency``.
    """
    lines = [*_head(report)]
    for title, paragraphs in _sections(report, limited_by):
        wrapped = [line for paragraph in paragraphs for line in _wrapped(paragraph)]
        if wrapped:
            lines += ["", title, *wrapped]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], "…"]
    return "\n".join(line.translate(_SPACES)[:MAX_COLUMNS].rstrip() for line in lines)


def _head(report: Report) -> Iterator[str]:
    yield one_line(
        f"{report.problem}: {report.submission_name} on {report.gpu or report.device}", MAX_COLUMNS
    )
    yield from _wrapped(f"{report.verdict or 'no verdict'}: {report.reason}", "", lines=4)
    if (reward := report.reward) is None:
        yield "This says nothing about the submission."
        return
    tests = [case for case in report.cases if case.kind == "test"]
    passed = sum(case.status == "passed" for case in tests)
    reached = f"reached: {reward.stage}; {passed} of {len(tests)} tests passed"
    yield reached + (f"; rule broken: {reward.rule}" if reward.rule else "")
    if report.score_us is not None:
        score = f"time: {format.micros(report.score_us)}"
        if reward.speedup is not None and reward.speedup_ci is not None:
            low, high = reward.speedup_ci
            score += f", {reward.speedup:.3g}× {reward.baseline} ({low:.3g} to {high:.3g})"
        if reward.roofline is not None:
            score += f", {format.percent(reward.roofline)} of the roofline"
        yield score


def _sections(report: Report, limited_by: str | None) -> Iterator[tuple[str, Iterable[str]]]:
    failed = [case for case in report.cases if case.status not in ("passed", "not_run")]
    if failed:
        yield "WHAT FAILED", _failures(failed)
    if cause := _cause(report, failed):
        yield "LIKELY CAUSE", cause
    if report.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR) and report.log.strip():
        yield "END OF THE LOG", report.log.strip().splitlines()[-LOG_LINES:]
    timed = [case for case in report.cases if case.time_us is not None]
    if timed and report.verdict is Verdict.ACCEPTED:
        yield "WHAT LIMITS THE TIME", _times(timed)
    if report.reward is not None:
        yield "WHAT TO TRY", _advice(report, timed, limited_by)


def _failures(failed: list[CaseResult]) -> Iterator[str]:
    first, *others = failed
    where = f"{first.kind} {first.name} ({format.parameters(first.params)})"
    yield f"{where}: {first.status}{f': {first.reason}' if first.reason else ''}"
    if first.mismatch is not None:
        yield from _mismatch(first.mismatch)
    if others:
        names = ", ".join(case.name for case in others[:SHOWN_CASES])
        more = len(others) - SHOWN_CASES
        yield f"also failed: {names}{f' and {more} more' if more > 0 else ''}"


def _mismatch(found: Mismatch) -> Iterator[str]:
    index = ", ".join(map(str, found.index))
    yield (
        f"{found.argument}[{index}] should be {found.expected:.6g} and is {found.got:.6g}; "
        f"{found.wrong_elements:,} of {found.total_elements:,} elements are wrong"
        f"{f', worst in {found.worst_slice}' if found.worst_slice else ''}"
    )


def _cause(report: Report, failed: list[CaseResult]) -> Iterable[str]:
    """What usually causes this; empty if nothing is known."""
    if report.rule is not None:
        return [_RULES[report.rule]]
    found = next((case.mismatch for case in failed if case.mismatch is not None), None)
    if found is not None and found.looks_like:
        return [f"The errors are as large as rounding to {found.looks_like} leaves them."]
    tests = [case for case in report.cases if case.kind == "test"]
    passed = [case for case in tests if case.status == "passed"]
    if failed and failed[0].kind == "benchmark" and len(passed) == len(tests) > 0:
        return [
            "It passed every test, and failed where it is timed: does it depend on the sizes of "
            "the tests, or keep something of earlier calls?"
        ]
    if failed and passed:
        good = ", ".join(format.parameters(case.params) for case in passed[:3])
        return [f"Other cases passed ({good}): what is special about those that failed?"]
    return []


def _times(timed: list[CaseResult]) -> Iterator[str]:
    """The benchmarks that are farthest from the roofline first."""
    ordered = sorted(timed, key=lambda case: 1.0 if case.sol is None else case.sol)
    for case in ordered[:SHOWN_CASES]:
        facts = [format.micros(case.time_us or 0.0)]
        if case.sol is not None:
            facts.append(f"{format.percent(case.sol)} of the roofline")
        if case.gb_per_s:
            facts.append(f"{format.number(case.gb_per_s)} GB/s")
        if case.tflop_per_s:
            facts.append(f"{format.number(case.tflop_per_s)} TFLOP/s")
        yield f"{case.name} ({format.parameters(case.params)}): {', '.join(facts)}"
    if len(ordered) > SHOWN_CASES:
        yield f"and {len(ordered) - SHOWN_CASES} more that are nearer to the roofline"


def _advice(report: Report, timed: list[CaseResult], limited_by: str | None) -> Iterator[str]:
    if report.verdict is not Verdict.ACCEPTED:
        if report.verdict in _TRY:
            yield _TRY[report.verdict]
        return
    if report.score_us is None:
        yield "It is right. It was not timed on a GPU."
        return
    roofline = report.reward.roofline if report.reward else None
    if roofline is not None and roofline >= NEAR_ROOFLINE:
        yield "It is near the roofline: only fewer bytes or operations would make it faster."
        return
    if any((case.time_us or 0.0) < LAUNCH_US for case in timed):
        yield "Calls below 10 µs are mostly the launch: launch one kernel, and prepare nothing."
    if limited_by in _LIMITS:
        yield _LIMITS[limited_by]
    yield "`grade profile` shows registers, occupancy and what limits the slowest kernel."


def _wrapped(text: str, indent: str = "  ", lines: int = LOG_LINES) -> list[str]:
    return textwrap.wrap(
        text,
        MAX_COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent,
        max_lines=lines,
        placeholder=" …",
        break_on_hyphens=False,
    )
