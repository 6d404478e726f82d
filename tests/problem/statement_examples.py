"""Runs the Python examples of statements in Triton's interpreter, through the judge's check.

    TRITON_INTERPRET=1 python -m tests.problem.statement_examples FOLDER...

Triton reads the variable only on import, so that tests need a process for it. Prints a line for
every example that is right. Exit status: 1 at the first one that is not.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from grader.judge.correctness.check import ExpectedOutputs, check_outputs
from grader.judge.correctness.error_bound import error_bounds
from grader.judge.problem_code import ProblemCode
from grader.problem import Case, Problem
from tests.problem.test_packages import DTYPES

MOST_BYTES = 1 << 15
"""Larger cases are left out: the interpreter is slow."""


def entries(problem: Problem) -> Iterator[Callable[..., Any]]:
    """The entry of each example; examples for torch.compile, which takes long, are left out."""
    entry = problem.spec.entry
    for source in re.findall(r"```python\n(.*?)```", problem.statement, re.DOTALL):
        if f"def {entry}(" in source and "@torch.compile" not in source:
            # Triton reads the source from its file.
            path = Path(tempfile.mkdtemp()) / "example.py"
            path.write_text("import torch\n" + source)
            spec = importlib.util.spec_from_file_location("example", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            yield getattr(module, entry)


def failure(code: ProblemCode, case: Case, entry: Callable[..., Any]) -> str | None:
    """What the judge's check says of an entry's outputs; None where they are right."""
    problem = code.problem
    inputs = code.inputs(case, seed=5)
    outputs = {
        a.name: torch.full(problem.shape(a, case), 77, dtype=DTYPES[problem.dtype(a, case)])
        for a in code.written
    }
    entry(**inputs, **outputs)
    truth, eager = code.run_reference(case, inputs), code.run_eager(case, inputs)
    bounds = error_bounds(code, case, inputs, truth)
    expected = ExpectedOutputs(truth, inputs, eager, bounds)
    return check_outputs(code, case, outputs, expected).failure


def main() -> None:
    """Run the examples of the problems whose folders are given."""
    for folder in sys.argv[1:]:
        problem = Problem.load(Path(folder))
        code = ProblemCode(problem, "cpu")
        cases = [c for c in problem.cases("test", "cpu") if problem.bytes(c) <= MOST_BYTES]
        for number, entry in enumerate(entries(problem), start=1):
            for case in cases:
                found = failure(code, case, entry)
                if found is not None:
                    sys.exit(f"{problem.name}, example {number}, case '{case.name}': {found}")
            print(f"{problem.name}, example {number}: right on {len(cases)} cases", flush=True)


if __name__ == "__main__":
    main()
