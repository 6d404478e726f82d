"""A folder on disk → `Problem`. Pure: nothing here imports torch or runs a problem's code."""

from grader.problem.errors import ProblemError
from grader.problem.formula import Formula, FormulaError
from grader.problem.load import Problem
from grader.problem.prototype import prototypes
from grader.problem.spec import Argument, Case, Spec

__all__ = [
    "Argument",
    "Case",
    "Formula",
    "FormulaError",
    "Problem",
    "ProblemError",
    "Spec",
    "prototypes",
]
