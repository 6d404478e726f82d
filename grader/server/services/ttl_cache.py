"""A cache of values with a version and a maximum age, shared by threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ENTRIES = 256
"""Entries that are kept, unless a cache says otherwise."""

STALE_FACTOR = 10
"""An expired value is still served, while another thread renews it, up to this many times its
maximum age."""


@dataclass
class _Entry(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that makes the value."""
    value: T | None = None
    version: object = None
    made_at: float = float("-inf")


class TtlCache(Generic[T]):
    """Keeps each value until its version changes, and for `age_s` seconds at most. Thread-safe.

    While one thread renews an expired value of the same version, the others get the old value.
    Versions are kept with the values, so they should be small. The least recently used of more than
    `most` values is dropped.
    """

    def __init__(
        self,
        age_s: float,
        clock: Callable[[], float] = time.monotonic,
        most: int = MAX_ENTRIES,
    ) -> None:
        self._age_s = age_s
        self._most = most
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T], version: object = None) -> T:
        """The value of `key`; `make` creates it if there is no fresh one of this version."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        value = entry.value
        if value is not None and entry.version == version and not self._is_expired(entry):
            return value
        must_wait = (
            value is None or entry.version != version or self._is_expired(entry, STALE_FACTOR)
        )
        if not entry.lock.acquire(blocking=must_wait):
            assert value is not None
            return value
        try:
            if entry.value is None or entry.version != version or self._is_expired(entry):
                made = make()
                entry.value, entry.version, entry.made_at = made, version, self._clock()
            return entry.value
        finally:
            entry.lock.release()

    def _is_expired(self, entry: _Entry[T], factor: float = 1) -> bool:
        return self._clock() - entry.made_at >= factor * self._age_s
