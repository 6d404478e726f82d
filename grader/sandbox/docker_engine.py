"""The Docker engine of this machine: a connection to it, its errors, and orphaned containers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import docker
import requests
from docker.utils import kwargs_from_env

from grader.sandbox.base import SandboxError
from grader.sandbox.owner import has_exited, remove_tree

CLIENT_ERRORS = (docker.errors.DockerException, requests.RequestException)
"""What docker-py raises."""

RUNNER_LABEL, OWNER_LABEL, FOLDER_LABEL = "grade.runner", "grade.owner", "grade.folder"
"""Container labels: the mark of a runner, its owner's `process_identity`, its socket's folder."""

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_TIMEOUT_S = 60


@contextmanager
def docker_client(timeout_s: int = _TIMEOUT_S) -> Iterator[docker.APIClient]:
    """A connection whose every failure is a `SandboxError` that says what to do."""
    with engine_errors(), closing(new_client(timeout_s=timeout_s)) as api:
        yield api


def new_client(version: str = "auto", timeout_s: int = _TIMEOUT_S) -> docker.APIClient:
    """A connection to the engine that ``DOCKER_HOST`` names; the caller closes it.

    version: of the engine's API; ``auto`` asks the engine, which costs a round trip.
    Raises `SandboxError` when no engine answers on this machine.
    """
    _check_reachable(os.environ.get("DOCKER_HOST") or _DEFAULT_HOST)
    return docker.APIClient(version=version, timeout=timeout_s, **kwargs_from_env())


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn docker-py's exceptions into `SandboxError`."""
    try:
        yield
    except docker.errors.APIError as error:
        raise SandboxError(f"the Docker engine refused: {error.explanation or error}") from error
    except CLIENT_ERRORS as error:
        raise SandboxError(f"the Docker engine failed: {error}") from error


def remove_orphans(api: docker.APIClient) -> list[str]:
    """Remove the containers whose owner has exited, and return their names.

    Owners in another PID namespace cannot be seen and are skipped; owners of an earlier boot have
    exited.
    """
    removed = []
    for container in api.containers(all=True, filters={"label": f"{RUNNER_LABEL}=1"}):
        labels = container["Labels"]
        if not has_exited(labels.get(OWNER_LABEL, "")):
            continue
        # Another judge may be removing the same container.
        with suppress(docker.errors.APIError):
            api.remove_container(container["Id"], force=True, v=True)
        folder = Path(labels.get(FOLDER_LABEL, ""))
        if folder.name.startswith("grade-"):
            remove_tree(folder)
        removed.append(container["Names"][0].lstrip("/"))
    return removed


def _check_reachable(host: str) -> None:
    """Connect once: a plain connect gives a more precise error than docker-py does."""
    scheme, _, path = host.partition("://")
    if scheme not in ("unix", "http+unix"):
        raise SandboxError(
            f"DOCKER_HOST={host} is not on this machine: judge and runner share memory,"
            " so point it at a local engine, unix:///path/to/docker.sock"
        )
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except PermissionError:
            raise SandboxError(
                f"no permission to use the Docker engine at {host}:"
                " add yourself to the group `docker` and log in again, or run as root"
            ) from None
        except OSError as error:
            raise SandboxError(
                f"no Docker engine answers at {host} ({error.strerror or error}): start one"
                " (scripts/start-docker.sh), set DOCKER_HOST, or use --sandbox process"
                " for your own code"
            ) from None
