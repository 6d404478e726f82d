from __future__ import annotations

import pytest

from grader.server.http.throttle import Throttle, network_of
from grader.server.settings import Settings


def test_each_address_and_user_is_counted_separately() -> None:
    throttle = Throttle(Settings(requests_per_minute=1, submissions_per_minute=1))
    assert throttle.request("192.0.2.1") is None
    wait_s = throttle.request("192.0.2.1")
    assert wait_s is not None
    assert 0 < wait_s <= 60
    assert throttle.request("192.0.2.2") is None
    assert throttle.submission("ada") is None
    assert throttle.submission("ada") is not None
    assert throttle.submission("bob") is None


def test_a_refund_makes_room_for_one_more() -> None:
    throttle = Throttle(Settings(submissions_per_minute=1))
    throttle.refund_submission("ada")  # there is nothing to take back
    assert throttle.submission("ada") is None
    assert throttle.submission("ada") is not None
    throttle.refund_submission("ada")
    assert throttle.submission("ada") is None
    assert throttle.submission("ada") is not None


def test_asking_for_the_wait_counts_no_failure() -> None:
    throttle = Throttle(Settings(failures_per_minute=2))
    for _ in range(5):
        assert throttle.guess_wait_s("192.0.2.1") is None
    throttle.failure("192.0.2.1", "one")
    assert throttle.guess_wait_s("192.0.2.1") is None
    throttle.failure("192.0.2.1", "other")
    assert throttle.guess_wait_s("192.0.2.1") is not None
    assert throttle.guess_wait_s("192.0.2.2") is None


def test_the_same_wrong_token_counts_once() -> None:
    throttle = Throttle(Settings(failures_per_minute=2))
    for _ in range(5):
        throttle.failure("192.0.2.1", "forgotten")
    assert throttle.guess_wait_s("192.0.2.1") is None
    assert throttle.is_known_wrong("192.0.2.1", "forgotten")
    assert not throttle.is_known_wrong("192.0.2.2", "forgotten")
    assert not throttle.is_known_wrong("192.0.2.1", "other")


def test_waiting_for_the_returned_seconds_is_enough() -> None:
    now = [1000.0]
    throttle = Throttle(Settings(requests_per_minute=5), lambda: now[0])
    served = 0
    for _ in range(200):
        wait_s = throttle.request("192.0.2.1")
        if wait_s is None:
            served += 1
            now[0] += 0.7
            continue
        now[0] += wait_s - 1
        assert throttle.request("192.0.2.1") is not None
        now[0] += 1.01
        assert throttle.request("192.0.2.1") is None
        served += 1
    minutes = (now[0] - 1000) / 60
    assert 4 < served / minutes < 6


def test_old_windows_are_dropped() -> None:
    now = [0.0]
    throttle = Throttle(Settings(requests_per_minute=1), lambda: now[0])
    for host in range(250):
        throttle.request(f"192.0.2.{host}")
    now[0] += 121
    assert throttle.request("192.0.2.1") is None
    counts = throttle._requests
    assert len(counts._current) + len(counts._previous) == 1


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, counted_as: str) -> None:
    assert network_of(address) == counted_as
