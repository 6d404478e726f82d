"""A control group for one runner's memory and process count, where this user may make one.

It counts what a look at processes can't: shared and written-only memory, files in memory, forks
that live for a moment. Made beside or below the judge's own group; version 1 and 2.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "grade-"
_ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """A limited group. `procs` are the files that take a process into it."""

    def __init__(self, memory: Path, pids: Path, memory_bytes: int, count: int) -> None:
        self._memory, self._pids = memory, pids
        unified = memory == pids
        self.procs = [folder / "cgroup.procs" for folder in dict.fromkeys((memory, pids))]
        self._events = memory / ("memory.events" if unified else "memory.oom_control")
        (memory / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(
            str(memory_bytes)
        )
        swap = memory / ("memory.swap.max" if unified else "memory.memsw.limit_in_bytes")
        with suppress(OSError):  # absent where the kernel counts no swap
            swap.write_text("0" if unified else str(memory_bytes))
        (pids / "pids.max").write_text(str(count))

    @classmethod
    def create(cls, name: str, memory_bytes: int, count: int) -> ControlGroup | None:
        """A new group called after `name`, or None where none can be made."""
        for memory, pids in _places():
            _sweep(memory)
            _sweep(pids)
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
                    _remove(folder, patience_s=0)
        return None

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the group for its memory."""
        with suppress(OSError):
            for line in self._events.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value) > 0
        return False

    def remove(self) -> None:
        """Remove the group, whose processes are dead. Never raises."""
        for folder in dict.fromkeys((self._memory, self._pids)):
            _remove(folder, patience_s=1.0)


def _places() -> list[tuple[Path, Path]]:
    """Where groups for memory and for pids may be made, the likeliest first."""
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
    # Version 2 lets only a group without processes of its own have limited children, so ours is
    # rarely the place; its parents may be.
    unified = Path(own.get("", "/"))
    folders = [_ROOT / str(path).lstrip("/") for path in (*unified.parents, unified)]
    return [(folder, folder) for folder in reversed(folders) if _delegates(folder)]


def _delegates(folder: Path) -> bool:
    try:
        controllers = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return {"memory", "pids"} <= set(controllers) and os.access(folder, os.W_OK)


def _sweep(parent: Path) -> None:
    """Remove empty groups of judges that are gone."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _remove(folder, patience_s=0)


def _remove(folder: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # busy for a moment after the last process died
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)
