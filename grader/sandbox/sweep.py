"""The removal of containers whose owner is gone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import docker

from grader.sandbox.owner import is_gone, remove

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
        if not is_gone(labels.get(OWNER, "")):
            continue
        # Another judge may be sweeping the same one.
        with suppress(docker.errors.APIError):
            api.remove_container(container["Id"], force=True, v=True)
        folder = Path(labels.get(FOLDER, ""))
        if folder.name.startswith("grade-"):
            remove(folder)
        removed.append(container["Names"][0].lstrip("/"))
    return removed
