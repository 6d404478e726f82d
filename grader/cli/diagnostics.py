"""The checks of `grade doctor`.

They import torch, numpy and triton in processes of their own, which a broken package may crash.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Literal

from grader.cli.dependencies import Dependencies
from grader.cli.output.render import size
from grader.report import one_line
from grader.sandbox.gpu_info import driver

IMPORTED = ("torch", "numpy", "triton")
"""Packages that are imported to see whether they work."""
IMPORT_S = 120.0
"""Limit of one import."""
MEMORY_BYTES = 4 << 30
"""Enough for two processes with torch, and the tensors of the largest CPU cases."""


@dataclass(frozen=True)
class Diagnostic:
    """Result of one check."""

    name: str
    state: Literal["ok", "warn", "missing", "untried"]
    detail: str
    fix: str = ""
    """What to do about it; empty if there is nothing to do."""
    needed: bool = False
    """Whether nothing can be graded without it."""


def examine(deps: Dependencies) -> list[Diagnostic]:
    """Run all checks, in the order in which they are printed."""
    checks: tuple[Callable[[], Diagnostic], ...] = (
        _python,
        _system,
        _memory,
        _torch,
        _numpy,
        _triton,
        _gpu,
        _cuda_bindings,
        _nvml,
        _nvcc,
        lambda: _docker(deps),
        lambda: _process(deps),
        _board,
    )
    with ThreadPoolExecutor(len(IMPORTED)) as pool:
        failures = dict(zip(IMPORTED, pool.map(import_failure, IMPORTED), strict=True))
    found = [_imported(check(), failures) for check in checks]
    return [*found, *_known_incompatibilities()]


def import_failure(package: str, module: str | None = None) -> str | None:
    """Why the module of an installed package, by default of its name, cannot be imported, in one
    line; None if it can be, or if the package is not installed."""
    if version(package) is None:
        return None
    command = [sys.executable, "-c", f"import {module or package}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return one_line(str(error))
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return one_line(lines[-1] if lines else f"Python ended with status {done.returncode}")


def _imported(found: Diagnostic, failures: dict[str, str | None]) -> Diagnostic:
    """The finding on a package, or that it is installed and cannot be imported."""
    failure = failures.get(found.name)
    if failure is None:
        return found
    detail = f"{version(found.name)} cannot be imported: {failure}"
    fix = f"pip install --force-reinstall {found.name}"
    return Diagnostic(found.name, "missing", detail, fix, needed=found.name != "triton")


def version(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Diagnostic:
    return Diagnostic("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _system() -> Diagnostic:
    detail = f"{platform.system()} {platform.release()}, {os.cpu_count()} CPU cores"
    try:
        os.close(os.memfd_create("doctor"))
        for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
            end.close()
    except (AttributeError, OSError) as error:
        fix = "use Linux: tensors are shared through memfd and a SOCK_SEQPACKET socket"
        return Diagnostic("system", "missing", f"{detail}: {error}", fix, needed=True)
    return Diagnostic("system", "ok", detail)


def _memory() -> Diagnostic:
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shm = Path("/dev/shm")
    shm_bytes = shutil.disk_usage(shm).total if shm.is_dir() else 0
    detail = f"{size(total_bytes)}, /dev/shm {size(shm_bytes)}"
    if total_bytes < MEMORY_BYTES:
        return Diagnostic(
            "memory", "warn", detail, f"large cases need {size(MEMORY_BYTES)} or more"
        )
    return Diagnostic("memory", "ok", detail)


def _torch() -> Diagnostic:
    found = version("torch")
    if found is None:
        fix = "pip install --constraint constraints.txt torch"
        return Diagnostic("torch", "missing", "not installed", fix, needed=True)
    if "+cpu" in found and driver().missing is None:
        fix = "install a CUDA build: pip install --force-reinstall torch, from an index that has it"
        return Diagnostic("torch", "warn", f"{found}, a CPU build on a machine with a GPU", fix)
    package = find_spec("torch")
    if package and package.origin and not Path(cache_from_source(package.origin)).exists():
        detail = f"{found}, without compiled bytecode: each grading takes seconds longer"
        folder = Path(package.origin).parent
        return Diagnostic("torch", "warn", detail, f"{sys.executable} -m compileall -q {folder}")
    return Diagnostic("torch", "ok", found)


def _numpy() -> Diagnostic:
    found = version("numpy")
    if found is None:
        return Diagnostic("numpy", "missing", "not installed", "pip install numpy", needed=True)
    return Diagnostic("numpy", "ok", found)


def _triton() -> Diagnostic:
    found = version("triton")
    if found is None:
        return Diagnostic(
            "triton",
            "missing",
            "not installed; Triton kernels get compile_error",
            "pip install triton",
        )
    how = "interpreted on the CPU" if driver().missing else "compiled for the GPU"
    return Diagnostic("triton", "ok", f"{found}, {how}")


def _gpu() -> Diagnostic:
    found = driver()
    if found.missing is not None:
        fix = "CPU times are practice and never rank; use a machine with a GPU to rank"
        return Diagnostic("GPU", "warn", found.missing, fix)
    names = ", ".join(
        f"{gpu.name} ({size(gpu.memory_bytes)}, sm_{gpu.capability[0]}{gpu.capability[1]})"
        for gpu in found.gpus
    )
    newest = found.cuda or (0, 0)
    build = re.search(r"\+cu(\d+)(\d)$", version("torch") or "")
    if build and (int(build[1]), 0) > newest:
        fix = f"update the driver, or install a torch built for CUDA {newest[0]}"
        detail = (
            f"{names}; the driver supports CUDA up to {newest[0]}.{newest[1]}, "
            f"torch needs {build[1]}"
        )
        return Diagnostic("GPU", "missing", detail, fix)
    return Diagnostic("GPU", "ok", f"{names}; driver for CUDA {newest[0]}.{newest[1]}")


def _cuda_bindings() -> Diagnostic:
    return _gpu_package("cuda-bindings", "not installed; nothing can be graded on the GPU")


def _nvml() -> Diagnostic:
    return _gpu_package(
        "nvidia-ml-py", "not installed; reports lack clocks, temperature and throttling"
    )


def _gpu_package(package: str, without: str) -> Diagnostic:
    found = version(package)
    if found is not None:
        return Diagnostic(package, "ok", found)
    if driver().missing is not None:
        return Diagnostic(package, "ok", "not installed, and not needed without a GPU")
    return Diagnostic(package, "missing", without, "pip install '.[gpu]'")


def _nvcc() -> Diagnostic:
    from grader.sandbox.host import cuda_home

    home = cuda_home()
    path = shutil.which("nvcc") or (str(home / "bin" / "nvcc") if home else None)
    if path is None or not Path(path).exists():
        fix = "install the CUDA toolkit (package cuda-nvcc) and put nvcc on PATH"
        return Diagnostic("nvcc", "warn", "not found; .cu files cannot be compiled here", fix)
    release = _output([path, "--version"])
    found = re.search(r"release (\d+)\.(\d+)", release)
    if found is None:
        return Diagnostic("nvcc", "warn", f"{path} reports no version", "reinstall the toolkit")
    detail = f"{found[1]}.{found[2]} at {path}"
    newest = driver().cuda
    if newest is not None and int(found[1]) > newest[0]:
        fix = f"update the driver, or use a toolkit of CUDA {newest[0]}"
        return Diagnostic("nvcc", "warn", f"{detail}, newer than the driver", fix)
    return Diagnostic("nvcc", "ok", detail)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _docker(deps: Dependencies) -> Diagnostic:
    missing = deps.docker_missing()
    if missing is None:
        return Diagnostic("Docker", "ok", "the engine answers; test it with grade sandbox check")
    fix = "start or install Docker; without it, grade your own code only"
    return Diagnostic("Docker", "warn", missing, fix)


def _process(deps: Dependencies) -> Diagnostic:
    from grader.sandbox.base import SandboxError
    from grader.sandbox.process import ProcessSandbox

    fix = "run as root, or allow unprivileged user namespaces"
    try:
        described = ProcessSandbox().describe()
    except SandboxError as error:
        alone = deps.docker_missing() is not None
        return Diagnostic("process sandbox", "missing", str(error), f"use Docker; or {fix}", alone)
    if "namespaces" in described:
        return Diagnostic("process sandbox", "ok", described)
    return Diagnostic("process sandbox", "warn", described, f"{fix}, for better isolation")


def _board() -> Diagnostic:
    from grader.board import Board, BoardError, default_url
    from grader.db.engine import parse_url

    fix = "set another database with --db or GRADE_DB; grade practice needs none"
    try:
        url = os.environ.get("GRADE_DB") or default_url()
        place = parse_url(url)
        shown = place.render_as_string(hide_password=True)
        path = place.database if place.get_backend_name() == "sqlite" else None
        if path is not None and path != ":memory:" and not Path(path).exists():
            _create_below(Path(path).absolute().parent)
            return Diagnostic("board", "ok", f"{shown}, which the first grade submit creates")
        with closing(Board.open(url, create=False)) as board:
            board.check_writable()
    except BoardError as error:
        return Diagnostic("board", "missing", str(error), fix)
    except OSError as error:
        why = f"{shown} cannot be created: {error.filename}: {error.strerror}"
        return Diagnostic("board", "missing", why, fix)
    return Diagnostic("board", "ok", shown)


def _create_below(folder: Path) -> None:
    """Create and remove a folder in the nearest one that exists. Raises OSError.

    Permission bits are not enough for root, or in /proc.
    """
    while not folder.exists() and not folder.is_symlink():
        folder = folder.parent
    try:
        tempfile.TemporaryDirectory(prefix=".grade-", dir=folder).cleanup()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def _known_incompatibilities() -> Iterator[Diagnostic]:
    """Versions that do not work together; each was observed."""
    triton, numpy = _numbers(version("triton")), _numbers(version("numpy"))
    if driver().missing is None or not triton:
        return
    if triton < (3, 7) and numpy >= (2, 4):
        yield Diagnostic(
            "triton and numpy",
            "warn",
            "the interpreter of Triton older than 3.7 fails with numpy 2.4 or newer: "
            '"only 0-dimensional arrays can be converted to Python scalars"',
            "pip install 'triton>=3.7', or 'numpy<2.4'",
        )
    yield Diagnostic(
        "triton and bfloat16",
        "warn",
        "the interpreter truncates float32 to bfloat16 instead of rounding: bf16 outputs may be "
        "off by one unit in the last place; the check allows it",
    )


def _numbers(found: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", (found or "").split("+")[0])[:2])
