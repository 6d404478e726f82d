"""The marks of example submissions."""

from __future__ import annotations

from pathlib import Path

from grader.cli.examples import examples
from grader.problem import Problem


def _example(problem: Path, text: str) -> object:
    folder = problem.parent.parent / "submissions" / "double" / "accepted"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.py").write_text(text)
    (found,) = examples(Problem.load(problem))
    return found.missing("cpu"), found.missing("cuda")


def test_an_example_is_left_out_where_its_package_is_missing(problem: Path) -> None:
    why = "needs the package {}, which is not installed"
    assert _example(problem, "# grade: needs=json\n") == (None, None)
    assert _example(problem, "# grade: needs=json.decoder\n") == (None, None)
    assert _example(problem, "# grade: needs=no_such\n") == (why.format("no_such"),) * 2
    inner = why.format("no_such.inner")
    assert _example(problem, "# grade: needs=no_such.inner\n") == (inner, inner)
    both = "# grade: device=cuda needs=no_such\n"
    assert _example(problem, both) == ("needs a GPU", why.format("no_such"))
    assert _example(problem, "def doubled(x, out): ...\n") == (None, None)
