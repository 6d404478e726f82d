"""Reads problem folders. Nothing here imports torch or runs a problem's code."""

from grader.problem.formula import Formula, FormulaError
from grader.problem.judged_version import JudgedVersion
from grader.problem.load import Problem
from grader.problem.prototype import prototypes
from grader.problem.spec import Argument, Case, ProblemError, Spec

__all__ = [
    "Argument",
    "Case",
    "Formula",
    "FormulaError",
    "JudgedVersion",
    "Problem",
    "ProblemError",
    "Spec",
    "prototypes",
]
