"""Whose a container or a temporary folder is, for all time, and whether that process is gone."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"grade-(\d+)-(\d+)-(\d+)-\w+")
"""A temporary folder: PID namespace, process id and start time of its owner, and a random part."""


def own_folder() -> Path:
    """A new temporary folder whose name says whose it is. Those of owners that were killed are
    removed."""
    for folder in Path(tempfile.gettempdir()).glob("grade-*"):
        found = _NAME.fullmatch(folder.name)
        with suppress(OSError):  # another may be removing it too
            is_ours = folder.lstat().st_uid == os.geteuid()  # and no trap of another's
            if found and is_ours and is_gone("/".join([_boot(), *found.groups()])):
                remove(folder)
    _, *owner = owner_of(os.getpid()).split("/")
    return Path(tempfile.mkdtemp(prefix=f"grade-{'-'.join(owner)}-"))


def remove(folder: Path) -> None:
    """Remove what is there of a folder in which a runner may have written, however deep."""
    with suppress(OSError):
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def owner_of(pid: int) -> str:
    """This process for all time: boot, PID namespace, process id, start time in clock ticks."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    # The name in brackets may hold spaces; the start time is the 20th field behind it.
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_boot()}/{namespace}/{pid}/{started}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_gone(owner: str) -> bool:
    """Whether the process that `owner_of` named has ended. One in another PID namespace, which we
    could not see, has not."""
    boot, namespace, pid, _ = [*owner.split("/"), "", "", "", ""][:4]
    own_boot, own_namespace, *_ = owner_of(os.getpid()).split("/")
    if boot != own_boot:
        return True
    if namespace != own_namespace:
        return False
    try:
        return owner_of(int(pid)) != owner
    except (OSError, ValueError):
        return True
