from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from grader import format

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [(0.5, "0.5000 µs"), (78.03, "78.03 µs"), (999.94, "999.9 µs"), (999.99, "1.000 ms"),
     (1234.5, "1.234 ms"), (2.5e6, "2.500 s")],
)  # fmt: skip
def test_micros(time_us: float, shown: str) -> None:
    assert format.micros(time_us) == shown.replace(" ", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "now"), (0.2, "now"), (59, "59 s ago"), (3600, "1 h ago"), (86400 * 400, "400 d ago")],
)
def test_age(seconds: float, shown: str) -> None:
    then = START - timedelta(seconds=seconds)
    assert format.age(then, START) == shown.replace(" ", "\N{NO-BREAK SPACE}", 1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0"), (3.14159, "3.142"), (999.94, "999.9"), (999.96, "1,000"),
     (1234.5, "1,234"), (16384, "16,384"), (1e-5, "1e-05"), (float("inf"), "inf")],
)  # fmt: skip
def test_number(value: float | None, shown: str) -> None:
    assert format.number(value) == shown


def test_parameters_put_sizes_first() -> None:
    params = {"dtype": "fp16", "rows": 4, "causal": True, "cols": 5, "gap": False}
    assert format.parameters(params) == "4×5 fp16 causal"


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "+0.00 %"), (0.00149, "+0.15 %"), (0.0333, "+3.3 %"), (0.137, "+14 %"),
     (1.32, "+132 %"), (11.5, "12.5×")],
)  # fmt: skip
def test_gap(share: float, shown: str) -> None:
    assert format.gap(share) == shown.replace(" ", "\N{NO-BREAK SPACE}")
