from __future__ import annotations

import threading

import pytest

from grader.server.services.ttl_cache import TtlCache
from tests.waiting import PATIENCE_S


def test_a_value_is_made_once_until_it_expires_or_its_version_changes() -> None:
    now = [0.0]
    made = iter(range(10))
    cache: TtlCache[int] = TtlCache(1.0, lambda: now[0])
    assert [cache.get("a", made.__next__, 1) for _ in range(3)] == [0, 0, 0]
    now[0] = 1.5
    assert [cache.get("a", made.__next__, 1) for _ in range(2)] == [1, 1]
    assert cache.get("b", made.__next__, 1) == 2
    assert [cache.get("a", made.__next__, 2) for _ in range(2)] == [3, 3]


def test_values_that_are_read_in_turn_are_kept_up_to_the_most() -> None:
    for most, last in ((3, 2), (2, 5)):
        made = iter(range(10))
        cache: TtlCache[int] = TtlCache(60.0, most=most)
        assert max(cache.get(key, made.__next__) for key in (1, 2, 3) * 2) == last


@pytest.mark.parametrize("changed", [False, True])
def test_during_a_renewal_others_get_the_old_value_if_the_version_is_the_same(
    changed: bool,
) -> None:
    now = [0.0]
    cache: TtlCache[str] = TtlCache(1.0, lambda: now[0])
    cache.get("a", lambda: "old", 1)
    now[0] = 2.0
    version = 2 if changed else 1
    started, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert may_end.wait(PATIENCE_S)
        return "new"

    maker = threading.Thread(target=cache.get, args=("a", slow, version))
    maker.start()
    assert started.wait(PATIENCE_S)
    threading.Timer(0.2, may_end.set).start()
    assert cache.get("a", lambda: "never", version) == ("new" if changed else "old")
    maker.join()
    assert cache.get("a", lambda: "never", version) == "new"


def test_an_exception_is_not_cached() -> None:
    cache: TtlCache[int] = TtlCache(1.0)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 7) == 7
