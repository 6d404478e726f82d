"""The steps that `benchmarks.judge_profile` times are there under these names."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.judge_profile import BESIDE, STEPS


@pytest.mark.parametrize(
    ("owner", "name"),
    [*STEPS, *BESIDE],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_timed_step_is_a_function_of_the_judge(owner: Any, name: str) -> None:
    assert callable(getattr(owner, name))
