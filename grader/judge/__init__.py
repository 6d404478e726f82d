"""Decides whether a submission is correct and how fast it is, and never runs its code."""

from grader.judge.grade import grade
from grader.judge.record import Progress

__all__ = ["Progress", "grade"]
