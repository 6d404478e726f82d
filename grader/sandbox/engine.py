"""The Docker engine of this machine: a connection to it, and its failures in words of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import docker
import requests
from docker.utils import kwargs_from_env

from grader.sandbox.base import SandboxError

FAULTS = (docker.errors.DockerException, requests.RequestException)
"""What the engine's client raises."""

_TIMEOUT_S = 60


def client(version: str = "auto", timeout_s: int = _TIMEOUT_S) -> docker.APIClient:
    """A connection to the engine. Raises `SandboxError` for an engine on another machine."""
    where = kwargs_from_env()
    url = where.get("base_url", "unix://")
    if not url.startswith(("unix://", "http+unix://")):
        raise SandboxError(
            f"DOCKER_HOST={os.environ['DOCKER_HOST']} is not on this machine: judge and runner"
            " share memory, so point it at a local engine, unix:///path/to/docker.sock"
        )
    return docker.APIClient(version=version, timeout=timeout_s, **where)


@contextmanager
def engine(timeout_s: int = _TIMEOUT_S) -> Iterator[docker.APIClient]:
    """A connection whose every failure is a `SandboxError` that says what to do."""
    with engine_errors(), closing(client(timeout_s=timeout_s)) as api:
        yield api


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn what the engine's client raises into a `SandboxError` that says what to do."""
    try:
        yield
    except docker.errors.APIError as error:
        raise SandboxError(f"the Docker engine refused: {error.explanation or error}") from error
    except FAULTS as error:
        raise SandboxError(_advice(str(error))) from error


def _advice(text: str) -> str:
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if "Permission" in text:
        return (
            f"no permission to use the Docker engine at {where}:"
            " add yourself to the group `docker` and log in again, or run as root"
        )
    if "No such file" in text or "FileNotFound" in text or "refused" in text:
        return (
            f"no Docker engine answers at {where}: start one (scripts/start-docker.sh),"
            " set DOCKER_HOST, or use --sandbox process for your own code"
        )
    return f"the Docker engine at {where} failed: {text}"
