"""The examinations behind `grade doctor`. Nothing here imports torch: versions are read as data."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Literal

from grader.cli.commands.problems import size
from grader.cli.dependencies import Desk
from grader.sandbox.gpu_info import driver

MEMORY_BYTES = 4 << 30
"""Two processes that import torch, and the tensors of the largest CPU cases."""


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    name: str
    state: Literal["ok", "warn", "missing"]
    detail: str
    fix: str = ""
    """What to do about it; empty where there is nothing to do."""
    needed: bool = False
    """Nothing can be graded without it."""


def examine(desk: Desk) -> list[Finding]:
    """Every examination, in the order to read them."""
    examinations: tuple[Callable[[], Finding], ...] = (
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
        lambda: _docker(desk),
        lambda: _process(desk),
        _board,
    )
    return [*(examination() for examination in examinations), *_known_bad()]


def version(package: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _system() -> Finding:
    detail = f"{platform.system()} {platform.release()}, {os.cpu_count()} CPU cores"
    if hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET"):
        return Finding("system", "ok", detail)
    fix = "grade on Linux: memory is lent by memfd over a SOCK_SEQPACKET socket"
    return Finding("system", "missing", detail, fix, needed=True)


def _memory() -> Finding:
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shm = Path("/dev/shm")
    shm_bytes = shutil.disk_usage(shm).total if shm.is_dir() else 0
    detail = f"{size(total_bytes)}, /dev/shm {size(shm_bytes)}"
    if total_bytes < MEMORY_BYTES:
        return Finding("memory", "warn", detail, f"large cases want {size(MEMORY_BYTES)} or more")
    return Finding("memory", "ok", detail)


def _torch() -> Finding:
    found = version("torch")
    if found is None:
        fix = "pip install --constraint constraints.txt torch"
        return Finding("torch", "missing", "not installed", fix, needed=True)
    if "+cpu" in found and driver().missing is None:
        fix = "install a CUDA build: pip install --force-reinstall torch, from an index that has it"
        return Finding("torch", "warn", f"{found}, a CPU build, beside a GPU", fix)
    package = find_spec("torch")
    if package and package.origin and not Path(cache_from_source(package.origin)).exists():
        detail = f"{found}, without bytecode: every grading starts seconds later"
        folder = Path(package.origin).parent
        return Finding("torch", "warn", detail, f"{sys.executable} -m compileall -q {folder}")
    return Finding("torch", "ok", found)


def _numpy() -> Finding:
    found = version("numpy")
    if found is None:
        return Finding("numpy", "missing", "not installed", "pip install numpy", needed=True)
    return Finding("numpy", "ok", found)


def _triton() -> Finding:
    found = version("triton")
    if found is None:
        return Finding(
            "triton",
            "missing",
            "not installed; Triton kernels would be compile_error",
            "pip install triton",
        )
    how = "its interpreter, on the CPU" if driver().missing else "compiled for the GPU"
    return Finding("triton", "ok", f"{found}, {how}")


def _gpu() -> Finding:
    found = driver()
    if found.missing is not None:
        fix = "times on a CPU are practice and never rank; for ranked ones, use a GPU machine"
        return Finding("GPU", "warn", found.missing, fix)
    names = ", ".join(
        f"{gpu.name} ({size(gpu.memory_bytes)}, sm_{gpu.capability[0]}{gpu.capability[1]})"
        for gpu in found.gpus
    )
    newest = found.cuda or (0, 0)
    build = re.search(r"\+cu(\d+)(\d)$", version("torch") or "")
    if build and (int(build[1]), 0) > newest:
        fix = f"update the driver, or install a torch built for CUDA {newest[0]}"
        detail = (
            f"{names}; the driver runs CUDA up to {newest[0]}.{newest[1]}, torch wants {build[1]}"
        )
        return Finding("GPU", "missing", detail, fix)
    return Finding("GPU", "ok", f"{names}; driver for CUDA {newest[0]}.{newest[1]}")


def _cuda_bindings() -> Finding:
    return _gpu_package("cuda-bindings", "memory cannot be lent to a runner on the GPU")


def _nvml() -> Finding:
    return _gpu_package("nvidia-ml-py", "reports will lack clocks, temperature, throttling")


def _gpu_package(package: str, without: str) -> Finding:
    found = version(package)
    if found is not None:
        return Finding(package, "ok", found)
    if driver().missing is not None:
        return Finding(package, "ok", "not installed, and not needed without a GPU")
    return Finding(package, "missing", without, "pip install '.[gpu]'")


def _nvcc() -> Finding:
    from grader.sandbox.host import cuda_home

    home = cuda_home()
    path = shutil.which("nvcc") or (str(home / "bin" / "nvcc") if home else None)
    if path is None or not Path(path).exists():
        fix = "install the CUDA toolkit (package cuda-nvcc) and put nvcc on PATH"
        return Finding("nvcc", "warn", "not found; .cu files cannot be compiled here", fix)
    release = _output([path, "--version"])
    found = re.search(r"release (\d+)\.(\d+)", release)
    if found is None:
        return Finding("nvcc", "warn", f"{path} does not say its version", "reinstall the toolkit")
    detail = f"{found[1]}.{found[2]} at {path}"
    newest = driver().cuda
    if newest is not None and int(found[1]) > newest[0]:
        fix = f"update the driver, or use a toolkit of CUDA {newest[0]}"
        return Finding("nvcc", "warn", f"{detail}, newer than the driver", fix)
    return Finding("nvcc", "ok", detail)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _docker(desk: Desk) -> Finding:
    missing = desk.docker_missing()
    if missing is None:
        return Finding("Docker", "ok", "the engine answers; prove it: grade sandbox check")
    fix = "without it, grade only your own code"
    return Finding("Docker", "warn", missing, fix)


def _process(desk: Desk) -> Finding:
    from grader.sandbox.base import SandboxError
    from grader.sandbox.process import ProcessSandbox

    fix = "run as root, or allow unprivileged user namespaces"
    try:
        described = ProcessSandbox().describe()
    except SandboxError as error:
        alone = desk.docker_missing() is not None
        return Finding("process sandbox", "missing", str(error), f"use Docker; or {fix}", alone)
    if "namespaces" in described:
        return Finding("process sandbox", "ok", described)
    return Finding("process sandbox", "warn", described, f"{fix}, for a better fence")


def _board() -> Finding:
    from grader.board import BoardError, default_url
    from grader.db.engine import url_of

    url = os.environ.get("GRADE_DB")
    try:
        place = url_of(url or default_url())
    except BoardError as error:
        return Finding("board", "warn", str(error), "name a place with --db or GRADE_DB")
    shown = place.render_as_string(hide_password=True)
    if place.get_backend_name() != "sqlite" or not place.database:
        return Finding("board", "ok", shown)
    folder = Path(place.database).absolute()
    while not folder.exists():
        folder = folder.parent
    if os.access(folder, os.W_OK):
        return Finding("board", "ok", shown)
    fix = "name another place with --db or GRADE_DB"
    return Finding("board", "warn", f"{shown}: {folder} may not be written", fix)


def _known_bad() -> Iterator[Finding]:
    """Pairs of versions that are known not to work together, each seen by us."""
    triton, numpy = _numbers(version("triton")), _numbers(version("numpy"))
    if driver().missing is None or not triton:
        return
    if triton < (3, 7) and numpy >= (2, 4):
        yield Finding(
            "triton and numpy",
            "warn",
            "the interpreter of Triton before 3.7 fails with numpy 2.4 and newer: "
            '"only 0-dimensional arrays can be converted to Python scalars"',
            "pip install 'triton>=3.7', or 'numpy<2.4'",
        )
    yield Finding(
        "triton and bfloat16",
        "warn",
        "the interpreter cuts float32 off to bfloat16 instead of rounding, so a bf16 kernel may be "
        "one unit in the last place off everywhere; the check allows for it",
    )


def _numbers(found: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", (found or "").split("+")[0])[:2])
