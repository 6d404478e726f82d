"""Values that may be a moment old: made once for everyone who asks within that moment."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 256
"""How many values are kept."""


@dataclass
class _Kept(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None
    made_at: float = float("-inf")


class Fresh(Generic[T]):
    """Keeps values for `age_s` seconds. Safe to use from several threads.

    While one thread makes a value anew, the others are given the old one, unless it is much older.
    """

    def __init__(self, age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._age_s = age_s
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made by `make` where there is none that is fresh."""
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        value = kept.value
        age_s = self._clock() - kept.made_at
        if value is not None and age_s < self._age_s:
            return value
        wait = value is None or age_s > 10 * self._age_s
        if not kept.making.acquire(blocking=wait):
            assert value is not None
            return value
        try:
            if kept.value is None or self._clock() - kept.made_at >= self._age_s:
                made = make()
                kept.value, kept.made_at = made, self._clock()
            return kept.value
        finally:
            kept.making.release()
