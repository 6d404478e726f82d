from __future__ import annotations

import pytest

from grader.server.http.throttle import MAX_VALID_TOKENS, Throttle, network_of
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


def test_wrong_tokens_over_the_limit_must_wait() -> None:
    throttle = Throttle(Settings(failures_per_minute=2))
    assert throttle.failure("192.0.2.1", "one") is None
    assert throttle.failure("192.0.2.1", "other") is None
    wait_s = throttle.failure("192.0.2.1", "third")
    assert wait_s is not None
    assert 0 < wait_s <= 60
    assert throttle.failure("192.0.2.2", "third") is None


def test_the_same_wrong_token_counts_once() -> None:
    throttle = Throttle(Settings(failures_per_minute=2))
    for _ in range(5):
        assert throttle.failure("192.0.2.1", "forgotten") is None
    assert throttle.failure("192.0.2.1", "one") is None
    assert throttle.failure("192.0.2.1", "other") is not None
    assert throttle.failure("192.0.2.1", "forgotten") is not None
    assert throttle.is_known_wrong("192.0.2.1", "forgotten")
    assert not throttle.is_known_wrong("192.0.2.2", "forgotten")
    assert not throttle.is_known_wrong("192.0.2.1", "never seen")


def test_an_address_has_as_many_vain_lookups_as_requests() -> None:
    now = [0.0]
    throttle = Throttle(Settings(failures_per_minute=2, requests_per_minute=5), lambda: now[0])
    throttle.success("seen")
    for number in range(5):
        assert throttle.lookup_wait_s("192.0.2.1", "new") is None
        throttle.failure("192.0.2.1", f"guess{number}")
    wait_s = throttle.lookup_wait_s("192.0.2.1", "new")
    assert wait_s is not None
    assert throttle.lookup_wait_s("192.0.2.2", "new") is None
    assert throttle.lookup_wait_s("192.0.2.1", "seen") is None
    throttle.failure("192.0.2.1", "seen")  # it was revoked
    assert throttle.lookup_wait_s("192.0.2.1", "seen") is not None
    now[0] += wait_s + 0.01
    assert throttle.lookup_wait_s("192.0.2.1", "new") is None


def test_old_valid_tokens_are_forgotten() -> None:
    throttle = Throttle(Settings(requests_per_minute=1))
    throttle.success("oldest")
    throttle.success("renewed")
    for number in range(MAX_VALID_TOKENS - 1):
        throttle.success("renewed")
        throttle.success(f"token{number}")
    throttle.failure("192.0.2.1", "guess")
    assert throttle.lookup_wait_s("192.0.2.1", "oldest") is not None
    assert throttle.lookup_wait_s("192.0.2.1", "renewed") is None


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
