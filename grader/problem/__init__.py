"""Reads problem folders. Nothing here imports torch or runs a problem's code."""

from grader.problem.formula import Formula, FormulaError
from grader.problem.load import Problem
from grader.problem.prototype import prototypes
from grader.problem.spec import Argument, Case, ProblemError, Spec

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
