"""Decide whether a submission is right and how fast it is, without ever running it."""

from grader.judge.grade import grade
from grader.judge.record import Progress

__all__ = ["Progress", "grade"]
