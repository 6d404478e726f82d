"""A control group that limits one runner's memory and processes, where this user may make one.

It counts what polling processes misses: shared memory, files in memory and short-lived forks. The
group is made next to or below the judge's own. Versions 1 and 2 are supported.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

CACHE_BYTES = 1 << 30
"""Room above the limit for reclaimable pages, such as those of libraries. Without it a runner near
its limit would thrash, reading them again and again, instead of being killed."""

_PREFIX = "grade-"
_ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """A limited group. Writing a process id to each file of `procs` adds the process."""

    def __init__(self, memory: Path, pids: Path, memory_bytes: int, count: int) -> None:
        self._memory, self._pids = memory, pids
        unified = memory == pids
        self.procs = [folder / "cgroup.procs" for folder in dict.fromkeys((memory, pids))]
        self._memory_bytes = memory_bytes
        self._stat = memory / "memory.stat"
        self._own = ("anon", "shmem") if unified else ("rss", "shmem", "swap")
        self._events = memory / ("memory.events" if unified else "memory.oom_control")
        (memory / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(
            str(memory_bytes + CACHE_BYTES)
        )
        swap = memory / ("memory.swap.max" if unified else "memory.memsw.limit_in_bytes")
        with suppress(OSError):  # absent where the kernel counts no swap
            swap.write_text("0" if unified else str(memory_bytes + CACHE_BYTES))
        (pids / "pids.max").write_text(str(count))

    @classmethod
    def create(cls, name: str, memory_bytes: int, count: int) -> ControlGroup | None:
        """A new group with `name` in its name, or None where none can be made."""
        for memory, pids in _parent_groups():
            _remove_orphans(memory)
            _remove_orphans(pids)
            made = [
                folder / f"{_PREFIX}{os.getpid()}-{name}"
                for folder in dict.fromkeys((memory, pids))
            ]
            try:
                for folder in made:
                    folder.mkdir()
                return cls(made[0], made[-1], memory_bytes, count)
            except OSError:
                for folder in made:
                    _remove(folder, timeout_s=0)
        return None

    def out_of_memory(self) -> bool:
        """Whether it exceeds its limit, or the kernel has killed a process of it for memory."""
        killed = _numbers(self._events).get("oom_kill", 0)
        stat = _numbers(self._stat)
        return killed > 0 or sum(stat.get(key, 0) for key in self._own) > self._memory_bytes

    def remove(self) -> None:
        """Remove the group once its processes have exited. Never raises."""
        for folder in dict.fromkeys((self._memory, self._pids)):
            _remove(folder, timeout_s=1.0)


def _numbers(path: Path) -> dict[str, int]:
    """Read a file of lines ``key number``; empty when the group is gone."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _parent_groups() -> list[tuple[Path, Path]]:
    """Candidate parents for the memory and the pids group, the likeliest first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    if "memory" in own and "pids" in own:
        return [(_ROOT / f"memory{own['memory']}", _ROOT / f"pids{own['pids']}")]
    # In version 2 only a group without processes may have limited children. Ours has this process,
    # so an ancestor is the likelier parent.
    unified = Path(own.get("", "/"))
    folders = [_ROOT / str(path).lstrip("/") for path in (unified, *unified.parents)]
    return [(folder, folder) for folder in folders if _delegates(folder)]


def _delegates(folder: Path) -> bool:
    try:
        controllers = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return {"memory", "pids"} <= set(controllers) and os.access(folder, os.W_OK)


def _remove_orphans(parent: Path) -> None:
    """Remove empty groups of judges that have exited."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _remove(folder, timeout_s=0)


def _remove(folder: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # busy for a moment after the last process exited
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)
