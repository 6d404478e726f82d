"""The Docker engine of this machine: a connection to it, and its failures in words of ours."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import docker
import requests
from docker.utils import kwargs_from_env

from grader.sandbox.base import SandboxError

FAULTS = (docker.errors.DockerException, requests.RequestException)
"""What the engine's client raises."""

_DEFAULT = "unix:///var/run/docker.sock"
_TIMEOUT_S = 60


@contextmanager
def engine(timeout_s: int = _TIMEOUT_S) -> Iterator[docker.APIClient]:
    """A connection whose every failure is a `SandboxError` that says what to do."""
    with engine_errors(), closing(client(timeout_s=timeout_s)) as api:
        yield api


def client(version: str = "auto", timeout_s: int = _TIMEOUT_S) -> docker.APIClient:
    """A connection to the engine that ``DOCKER_HOST`` names; the caller closes it.

    version: of the engine's API, when it is known; asking costs a round trip.
    Raises `SandboxError` when there is no engine to talk to on this machine.
    """
    _reach(os.environ.get("DOCKER_HOST") or _DEFAULT)
    return docker.APIClient(version=version, timeout=timeout_s, **kwargs_from_env())


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn what the engine's client raises into a `SandboxError`."""
    try:
        yield
    except docker.errors.APIError as error:
        raise SandboxError(f"the Docker engine refused: {error.explanation or error}") from error
    except FAULTS as error:
        raise SandboxError(f"the Docker engine failed: {error}") from error


def _reach(where: str) -> None:
    """Connect once, since what is wrong can be told best from that."""
    scheme, _, path = where.partition("://")
    if scheme not in ("unix", "http+unix"):
        raise SandboxError(
            f"DOCKER_HOST={where} is not on this machine: judge and runner share memory,"
            " so point it at a local engine, unix:///path/to/docker.sock"
        )
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except PermissionError:
            raise SandboxError(
                f"no permission to use the Docker engine at {where}:"
                " add yourself to the group `docker` and log in again, or run as root"
            ) from None
        except OSError as error:
            raise SandboxError(
                f"no Docker engine answers at {where} ({error.strerror or error}): start one"
                " (scripts/start-docker.sh), set DOCKER_HOST, or use --sandbox process"
                " for your own code"
            ) from None
