from __future__ import annotations

import pytest

from grader.server.settings import Settings
from grader.server.throttle import Throttle, network


def test_each_address_and_user_is_counted_apart() -> None:
    throttle = Throttle(Settings(requests_per_minute=1, submissions_per_minute=1))
    assert throttle.request("192.0.2.1") is None
    wait_s = throttle.request("192.0.2.1")
    assert wait_s is not None
    assert 0 < wait_s <= 60
    assert throttle.request("192.0.2.2") is None
    assert throttle.submission("ada") is None
    assert throttle.submission("ada") is not None
    assert throttle.submission("bob") is None


def test_looking_at_failures_counts_none() -> None:
    throttle = Throttle(Settings(failures_per_minute=2))
    for _ in range(5):
        assert throttle.is_guessing("192.0.2.1") is None
    throttle.failure("192.0.2.1")
    assert throttle.is_guessing("192.0.2.1") is None
    throttle.failure("192.0.2.1")
    assert throttle.is_guessing("192.0.2.1") is not None
    assert throttle.is_guessing("192.0.2.2") is None


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_ipv6_customer_is_one(address: str, counted_as: str) -> None:
    assert network(address) == counted_as
