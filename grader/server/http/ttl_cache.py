"""Values that are made once, for everyone who asks before they change."""

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
    version: object = None
    made_at: float = float("-inf")


class Fresh(Generic[T]):
    """Keeps values while their version stays, and for `age_s` seconds at most. Safe to use from
    several threads.

    While one thread makes a value anew only for its age, the others are given the old one, unless
    it is much older. Versions are kept too, and so should be small.
    """

    def __init__(self, age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._age_s = age_s
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T], version: object = None) -> T:
        """The value of a key, made by `make` where there is none of this version that is fresh."""
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        value = kept.value
        if value is not None and kept.version == version and not self._is_old(kept):
            return value
        wait = value is None or kept.version != version or self._is_old(kept, 10)
        if not kept.making.acquire(blocking=wait):
            assert value is not None
            return value
        try:
            if kept.value is None or kept.version != version or self._is_old(kept):
                made = make()
                kept.value, kept.version, kept.made_at = made, version, self._clock()
            return kept.value
        finally:
            kept.making.release()

    def _is_old(self, kept: _Kept[T], times: float = 1) -> bool:
        return self._clock() - kept.made_at >= times * self._age_s
