"""What `grade doctor` says of the languages in which kernels are written, other than CUDA C++.

A language is ticked only after its example of softmax was accepted here, in the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from grader.cli.dependencies import Dependencies
from grader.cli.diagnostics import Diagnostic, import_failure, version
from grader.kernel_languages import KERNEL_LANGUAGES, KernelLanguage

EXAMPLES = Path(__file__).resolve().parents[2] / "submissions" / "softmax" / "accepted"
"""The folder of the examples, in a checkout of the repository."""

CHECKED = [one for one in KERNEL_LANGUAGES if one.key != "triton"]
"""Triton has a finding of its own."""


def check_languages(deps: Dependencies, tries: bool) -> Iterator[Diagnostic]:
    """A finding on each language; with `tries`, after its example was graded."""
    for language in CHECKED:
        installed = version(language.distribution)
        if installed is None:
            fix = f"pip install '{language.distribution}{language.extra}'" if tries else ""
            yield Diagnostic(language.label, "untried", "not installed", fix)
        elif not tries:
            detail = f"{installed}, not tried here"
            yield Diagnostic(
                language.label, "untried", detail, "grade doctor --languages grades an example"
            )
        else:
            state, found = _try(deps, language)
            yield Diagnostic(language.label, state, f"{installed}: {found}")


def _try(
    deps: Dependencies, language: KernelLanguage
) -> tuple[Literal["ok", "missing", "untried"], str]:
    """Grade the example on the GPU; without one, only import the package."""
    if (failure := import_failure(language.distribution, language.module)) is not None:
        return "missing", f"cannot be imported: {failure}"
    if (no_gpu := deps.cuda_missing()) is not None:
        return "untried", f"can be imported; not run, {no_gpu}"
    example = EXAMPLES / f"{language.key}_softmax.py"
    if not example.is_file():
        return "untried", f"can be imported; not run, there is no {example}"
    return _graded(deps, example)


def _graded(deps: Dependencies, example: Path) -> tuple[Literal["ok", "missing"], str]:
    """The verdict on an example, without timing it."""
    from grader.cli.local_grading import JudgeFault, LocalJob, judge_faults

    problem = EXAMPLES.parents[2] / "problems" / "softmax"
    job = LocalJob.load(deps, str(problem), example, "cuda", "auto")
    try:
        with judge_faults(job):
            report = deps.grade(
                job.problem,
                job.submission,
                sandbox=job.sandbox,
                device=job.device,
                seed=None,
                benchmarks=False,
            )
    except JudgeFault as fault:
        report = fault.report
    if report.verdict == "accepted":
        return "ok", f"its softmax was accepted on {report.gpu}, {job.sandbox.describe()}"
    return "missing", f"its softmax got {report.verdict or 'no verdict'}: {report.reason}"
