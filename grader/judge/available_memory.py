"""How much memory this machine has left for the judge."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(device: str) -> int:
    """Bytes that can be allocated on ``cuda``, or on the host without swapping.

    The limits of the control groups (version 2) of this process bound the host's bytes.
    """
    if device == "cuda":
        cached_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + cached_bytes
    return min([_field(_MEMINFO, "MemAvailable:") << 10, *_control_groups_bytes()])


def _control_groups_bytes() -> list[int]:
    found: list[int] = []
    group = _CGROUPS / _own_group()
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # no limit: there is no file, or it says "max"
            limit_bytes = int((folder / "memory.max").read_text())
            used_bytes = int((folder / "memory.current").read_text())
            cache_bytes = _field(folder / "memory.stat", "inactive_file")
            found.append(limit_bytes - used_bytes + cache_bytes)
    return found


def _own_group() -> str:
    """Path of this process's control group; empty if the system has no version 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::/")
    return ""


def _field(path: Path, name: str) -> int:
    """The number after `name`, on the line that begins with it."""
    lines = map(str.split, path.read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == name)
