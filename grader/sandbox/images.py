"""Container images: the *host* image and self-contained ones.

The host image holds no programs, only empty mount points and a list of users: a few kilobytes. When
a container starts, the host's Python, PyTorch and CUDA are mounted into it read-only, so a GPU
machine needs no download. A self-contained image is built from ``sandbox/Dockerfile``, a base image
and a directory of wheels, without network.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import docker
from docker.types import Mount

from grader.sandbox import host
from grader.sandbox.base import RunnerDevice, SandboxError

USER_ID = 65532
"""User id of a runner inside its container; a user that owns no files on a host."""

SCRATCH = Path("/scratch")
JIT = Path("/jit")
WIRE = Path("/run/grade")
"""Mount point of the directory with the judge's listening socket."""

DEFAULT_TAG = "grade-runner:latest"
PYTHON_LABEL = "grade.python"
"""Label of a self-contained image: the path of its Python."""

_PACKAGE_PARENT = PurePosixPath("/opt/grade-package")
_DRIVER = PurePosixPath("/opt/grade-driver")
_DRIVER_LIBRARY = re.compile(r"^(libcuda|libnvidia-(ml|ptxjitcompiler|nvvm\w*|gpucomp))\.so\.\d+$")


@dataclass(frozen=True)
class RunnerImage:
    """An image, and how to start a runner from it."""

    tag: str
    python: str
    mounts: list[Mount]
    environment: dict[str, str]


def host_image(api: docker.APIClient, device: RunnerDevice) -> RunnerImage:
    """The host image, created if the engine does not have it, which takes milliseconds."""
    content = _skeleton()
    repository, version = "grade-host", hashlib.sha256(content).hexdigest()[:12]
    tag = f"{repository}:{version}"
    if not _exists(api, tag):
        api.import_image_from_data(content, repository=repository, tag=version)
    mounts = [_read_only(path, path) for path in host.host_paths()]
    return RunnerImage(tag, sys.executable, mounts, _environment(device))


def self_contained_image(api: docker.APIClient, tag: str, device: RunnerDevice) -> RunnerImage:
    """A self-contained image by its tag. Raises `SandboxError` if missing or not built by us.

    The `grader` package is still mounted from the host, so that runner and judge use one version of
    the wire. So are the GPU driver's libraries, which must match the host's kernel module.
    """
    try:
        labels = api.inspect_image(tag)["Config"]["Labels"] or {}
    except docker.errors.ImageNotFound:
        raise SandboxError(
            f"the engine has no image {tag!r}: build it with"
            f" `grade sandbox build --base IMAGE --wheels DIR --tag {tag}`,"
            " or unset GRADE_IMAGE to use the host image"
        ) from None
    python = labels.get(PYTHON_LABEL)
    if not python:
        raise SandboxError(
            f"image {tag!r} does not say where its Python is: it lacks the label {PYTHON_LABEL};"
            " build it with `grade sandbox build`"
        )
    package = Path(__file__).resolve().parent.parent
    mounts = [_read_only(package, _PACKAGE_PARENT / package.name)]
    environment = _environment(device)
    for host_only in ("CUDA_HOME", "LD_LIBRARY_PATH"):
        environment.pop(host_only, None)
    folder = PurePosixPath(python).parent
    environment["PATH"] = f"{folder}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"
    environment["PYTHONPATH"] = str(_PACKAGE_PARENT)
    if device != "cpu":  # without a device, Triton's launchers are linked with them
        mounts += [_read_only(path, _DRIVER / path.name) for path in _driver_libraries()]
        environment["LD_LIBRARY_PATH"] = environment["TRITON_LIBCUDA_PATH"] = str(_DRIVER)
    return RunnerImage(tag, python, mounts, environment)


def build(
    api: docker.APIClient,
    base: str,
    wheels: Path,
    tag: str = DEFAULT_TAG,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Build a self-contained image from ``sandbox/Dockerfile`` and return its tag.

    base: an image that the engine has, with Python 3.11 or newer, its ``venv`` and a C compiler.
    wheels: a directory; every ``*.whl`` in it is installed. Nothing is downloaded.
    Raises `SandboxError` with the step that failed.
    """
    files = sorted(path for path in wheels.glob("*.whl") if path.is_file())
    if not files:
        raise SandboxError(
            f"no wheels in {wheels}: fill it with `pip download --dest {wheels} torch triton numpy`"
        )
    if not _exists(api, base):
        raise SandboxError(
            f"the engine has no base image {base!r}, and none is pulled:"
            " make one as sandbox/README.md says, or load one with `docker load`"
        )
    # Not in memory: the wheels of a CUDA PyTorch take several gigabytes.
    with tempfile.TemporaryFile(prefix="grade-build-") as context:
        with tarfile.open(fileobj=context, mode="w") as tar:
            tar.add(dockerfile(), "Dockerfile")
            for file in files:
                tar.add(file, f"wheels/{file.name}")
        context.seek(0)
        try:
            _run_build(api, context, base, tag, progress)
        finally:
            # The build stage that holds the wheels is as large as the image itself.
            api.prune_images({"dangling": True, "label": "grade.stage=install"})
    return tag


def dockerfile() -> Path:
    """The repository's Dockerfile.

    Raises `SandboxError` when the package is not installed from a checkout.
    """
    path = Path(__file__).resolve().parents[2] / "sandbox" / "Dockerfile"
    if not path.is_file():
        raise SandboxError(f"no {path}: run this from a checkout of the repository")
    return path


def _run_build(
    api: docker.APIClient,
    context: IO[bytes],
    base: str,
    tag: str,
    progress: Callable[[str], None],
) -> None:
    lines: list[str] = []
    events = api.build(
        fileobj=context,
        custom_context=True,
        tag=tag,
        buildargs={"BASE": base},
        network_mode="none",
        rm=True,
        forcerm=True,
        pull=False,
        decode=True,
    )
    for event in events:
        for line in event.get("stream", "").splitlines():
            if line.strip():
                lines.append(line.strip())
                progress(line.strip())
        if "error" in event:
            tail = " | ".join(lines[-3:])
            raise SandboxError(f"building {tag} failed: {event['error'].strip()} (after: {tail})")


def _environment(device: RunnerDevice) -> dict[str, str]:
    environment = host.runner_environment(SCRATCH, JIT, device)
    # A fresh tmpfs has no directories, and programs expect TMPDIR to exist.
    environment["TMPDIR"] = str(JIT)
    return environment


def _skeleton() -> bytes:
    """The host image as a tar: always the same bytes, so that the digest can serve as its tag."""
    folders = {
        "": 0o755,
        "dev": 0o755,
        "etc": 0o755,
        "jit": 0o755,
        "proc": 0o555,
        "run": 0o755,
        "run/grade": 0o755,
        "scratch": 0o755,
        "sys": 0o555,
        "tmp": 0o1777,
    }
    files = {
        "etc/passwd": f"root:x:0:0::/:\nrunner:x:{USER_ID}:{USER_ID}::{SCRATCH}:\n",
        "etc/group": f"root:x:0:\nrunner:x:{USER_ID}:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode in folders.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, text in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _exists(api: docker.APIClient, tag: str) -> bool:
    try:
        api.inspect_image(tag)
    except docker.errors.ImageNotFound:
        return False
    return True


def _read_only(source: Path, target: Path | PurePosixPath) -> Mount:
    return Mount(str(target), str(source), type="bind", read_only=True)


def _driver_libraries() -> list[Path]:
    """The user-space libraries of the NVIDIA driver, one path per library name."""
    listing = subprocess.run(
        ["ldconfig", "-p"], capture_output=True, text=True, check=False, timeout=10
    ).stdout
    known = [Path(line.rpartition("=> ")[2]) for line in listing.splitlines() if "x86-64" in line]
    for folder in host.driver_folders():
        known += sorted(folder.iterdir())
    found = {path.name: path for path in known if _DRIVER_LIBRARY.match(path.name)}
    if "libcuda.so.1" not in found:
        raise SandboxError("no libcuda.so.1 on this host: install the NVIDIA driver")
    return sorted(found.values())
