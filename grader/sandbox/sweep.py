"""Whose a container is, and the removal of those whose owner is gone."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import docker

MARK, OWNER, FOLDER = "grade.runner", "grade.owner", "grade.folder"
"""Labels: that a container is ours, which process owns it, and the directory of its socket."""


def sweep(api: docker.APIClient) -> list[str]:
    """Remove containers whose owner is gone; return their names.

    Only owners that this process could see are judged: those of its own PID namespace, and those
    of an earlier boot.
    """
    removed = []
    for container in api.containers(all=True, filters={"label": f"{MARK}=1"}):
        labels = container["Labels"]
        if not _is_gone(labels.get(OWNER, "")):
            continue
        # Another judge may be sweeping the same one.
        with suppress(docker.errors.APIError):
            api.remove_container(container["Id"], force=True, v=True)
        folder = Path(labels.get(FOLDER, ""))
        if folder.name.startswith("grade-"):
            shutil.rmtree(folder, ignore_errors=True)
        removed.append(container["Names"][0].lstrip("/"))
    return removed


def owner_of(pid: int) -> str:
    """This process for all time: boot, PID namespace, process id, start time in clock ticks."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    # The name in brackets may hold spaces; the start time is the 20th field behind it.
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{boot}/{namespace}/{pid}/{started}"


def _is_gone(owner: str) -> bool:
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
