"""Runs `grade` in this process, for tests against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from grader.cli import main


@dataclass
class Result:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object on stdout."""
        return json.loads(self.out)


Grade = Callable[..., Result]


def runner(capsys: pytest.CaptureFixture[str], *prefix: str) -> Grade:
    """A function that runs `grade` with these arguments before its own."""

    def run(*arguments: str) -> Result:
        status = main([*prefix, *arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run
