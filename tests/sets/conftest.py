"""Ends the sandboxes that the tests of a file have left open for the next grading."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grader.judge.set_host import close_hosts


@pytest.fixture(scope="module", autouse=True)
def no_host_is_left() -> Iterator[None]:
    """Other tests look for processes that were left behind."""
    yield
    close_hosts()
