"""Who owns a container or a temporary folder, and whether that process has exited."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

_FOLDER_NAME = re.compile(r"grade-(\d+)-(\d+)-(\d+)-\w+")
"""PID namespace, process id and start time of the owner, and a random part."""


def make_owned_folder() -> Path:
    """Make a temporary folder whose name identifies this process.

    Folders of owners that have exited are removed first.
    """
    for folder in Path(tempfile.gettempdir()).glob("grade-*"):
        found = _FOLDER_NAME.fullmatch(folder.name)
        with suppress(OSError):  # another process may be removing it too
            is_ours = folder.lstat().st_uid == os.geteuid()  # never follow another user's trap
            if found and is_ours and has_exited("/".join([_boot_id(), *found.groups()])):
                remove_tree(folder)
    _, *owner = process_identity(os.getpid()).split("/")
    return Path(tempfile.mkdtemp(prefix=f"grade-{'-'.join(owner)}-"))


def remove_tree(folder: Path) -> None:
    """Remove a folder that a runner may have written to, however deep; missing is no error."""
    with suppress(OSError):
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def process_identity(pid: int) -> str:
    """A name that no other process ever has: boot id, PID namespace, pid, start time in ticks.

    Raises OSError when there is no such process.
    """
    namespace = os.stat("/proc/self/ns/pid").st_ino
    # The command name in brackets may hold spaces; the start time is the 20th field behind it.
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_boot_id()}/{namespace}/{pid}/{started}"


def has_exited(owner: str) -> bool:
    """Whether the process with this `process_identity` has exited.

    False for a process of another PID namespace, which cannot be seen from here.
    """
    boot, namespace, pid, _ = [*owner.split("/"), "", "", "", ""][:4]
    own_boot, own_namespace, *_ = process_identity(os.getpid()).split("/")
    if boot != own_boot:
        return True
    if namespace != own_namespace:
        return False
    try:
        return process_identity(int(pid)) != owner
    except (OSError, ValueError):
        return True


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
