"""How much memory this machine has left for the judge."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(device: str) -> int:
    """Bytes that can be allocated without swapping: of the host, or of the GPU for ``cuda``.

    Of the host, not more than what the control groups (version 2) around this process leave.
    """
    if device == "cuda":
        cached_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + cached_bytes
    return min([_field(_MEMINFO, "MemAvailable:") << 10, *_control_groups_bytes()])


def _control_groups_bytes() -> list[int]:
    found: list[int] = []
    group = _CGROUPS / _own_group()
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # no limit here: no file, or "max"
            limit_bytes = int((folder / "memory.max").read_text())
            used_bytes = int((folder / "memory.current").read_text())
            cache_bytes = _field(folder / "memory.stat", "inactive_file")
            found.append(limit_bytes - used_bytes + cache_bytes)
    return found


def _own_group() -> str:
    """The path of this process's group; empty where there is no version 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::/")
    return ""


def _field(path: Path, name: str) -> int:
    """The number behind a name at the start of a line."""
    lines = map(str.split, path.read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == name)
