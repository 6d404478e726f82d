"""Device memory: how much a submission holds, what PyTorch caches in the judge's process, and how
large an arena may be that is kept."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CachePolicy:
    """What may be kept in the judge's process although nothing uses it, by PyTorch's allocator if
    nothing else is said. Bytes."""

    check_bytes: int = 4 << 30
    """Kept for the checks of large tests;"""
    check_share: float = 1 / 16
    """at most this share of the device's memory."""
    cache_bytes: int = 2 << 30
    """Further memory that may be cached,"""
    free_bytes: int = 18 << 30
    """unless less than this is free: a submission's usual limit and two CUDA contexts."""
    reused_share: float = 1 / 8
    """Of the device's memory, for the arena that benchmarks share."""


POLICY = CachePolicy()


def most_reused_bytes(device: str) -> float:
    """The largest block of a benchmark for which an arena is kept from case to case: beside a
    larger one it would take memory that the case may need."""
    if device == "cpu":
        return math.inf
    return POLICY.reused_share * torch.cuda.get_device_properties().total_memory


class DeviceMemory:
    """Device memory that other processes hold, beyond what they held when the runner was idle."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._idle_bytes = 0

    def note_idle(self) -> None:
        """The runner has loaded nothing yet: what is in use now does not count."""
        self._idle_bytes = self._others_bytes()

    def held_bytes(self, lent_bytes: int) -> int:
        """Bytes that the submission holds, without the `lent_bytes` of the judge's arena."""
        return self._others_bytes() - lent_bytes - self._idle_bytes

    def _others_bytes(self) -> int:
        """Device memory in use that PyTorch did not allocate in this process; 0 on a CPU."""
        if self._device == "cpu":
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()


def release_cached_memory(device: str, nbytes: int = 0) -> None:
    """Empty PyTorch's cache where `nbytes` more would leave the runner too little: arenas do not
    come from PyTorch's allocator."""
    if device == "cpu":
        return
    unused_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if unused_bytes <= POLICY.cache_bytes + _check_bytes():
        return
    if torch.cuda.mem_get_info()[0] - nbytes < POLICY.free_bytes:
        torch.cuda.empty_cache()


def reserve_check_memory() -> None:
    """Have PyTorch's allocator cache memory for the checks of tests. While other processes
    allocate, the driver takes tenths of a second for it."""
    with suppress(torch.cuda.OutOfMemoryError):  # a check asks for what it needs, later
        torch.empty(_check_bytes(), dtype=torch.uint8, device="cuda")


def _check_bytes() -> int:
    total_bytes = torch.cuda.get_device_properties().total_memory
    return min(POLICY.check_bytes, int(POLICY.check_share * total_bytes))
