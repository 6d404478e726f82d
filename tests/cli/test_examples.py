"""The marks of example submissions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grader.cli.examples import Example, examples
from grader.problem import Problem
from grader.report import Report, Rule, Verdict


def _example(problem: Path, text: str, expected: str = "accepted") -> Example:
    folder = problem.parent.parent / "submissions" / "double" / expected
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.py").write_text(text)
    (found,) = examples(Problem.load(problem))
    return found


def _missing(problem: Path, text: str) -> object:
    found = _example(problem, text)
    return found.missing("cpu"), found.missing("cuda")


def test_an_example_is_left_out_where_its_package_is_missing(problem: Path) -> None:
    why = "needs the package {}, which is not installed"
    assert _missing(problem, "# grade: needs=json\n") == (None, None)
    assert _missing(problem, "# grade: needs=json.decoder\n") == (None, None)
    assert _missing(problem, "# grade: needs=no_such\n") == (why.format("no_such"),) * 2
    inner = why.format("no_such.inner")
    assert _missing(problem, "# grade: needs=no_such.inner\n") == (inner, inner)
    both = "# grade: device=cuda needs=no_such\n"
    assert _missing(problem, both) == ("needs a GPU", why.format("no_such"))
    assert _missing(problem, "def doubled(x, out): ...\n") == (None, None)


def test_a_report_fits_what_the_marks_name(
    problem: Path, make_report: Callable[..., Report]
) -> None:
    def fits(verdict: Verdict, rule: Rule | None = None) -> bool:
        return found.fits(make_report(verdict=verdict, rule=rule))

    found = _example(problem, "# grade: rule=time_claim\n", "rejected")
    assert fits(Verdict.REJECTED, Rule.TIME_CLAIM)
    assert not fits(Verdict.REJECTED, Rule.WORK_OUTSIDE_CALL)
    assert not fits(Verdict.ACCEPTED)
    found = _example(
        problem, "# grade: rule=time_claim or=accepted,work_outside_call\n", "rejected"
    )
    assert fits(Verdict.REJECTED, Rule.TIME_CLAIM)
    assert fits(Verdict.REJECTED, Rule.WORK_OUTSIDE_CALL)
    assert fits(Verdict.ACCEPTED)
    assert not fits(Verdict.WRONG_ANSWER)
    assert not fits(Verdict.REJECTED, Rule.MEMORY_TAMPERED)
    with pytest.raises(ValueError, match="acepted"):
        _example(problem, "# grade: or=acepted\n", "rejected")
