"""What of this host a runner needs: read-only directories, a clean environment, device nodes.

Both sandboxes ask here, so that a submission sees the same machine in either. Nothing that holds
problems, results or other submissions is ever on the list: of our own code only the installed
`grader` package is.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from grader.sandbox.base import RunnerDevice

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr/local/nvidia"),
    "/opt/nvidia/nsight-compute",  # what the toolkit's `ncu` starts
)
"""Programs and shared libraries. On most systems nearly all are links into the first."""

LINKER = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
"""What of ``/etc`` the dynamic linker and compilers need. Users and hosts are the sandbox's own."""

PACKAGES = ("torch", "triton", "numpy", "cuda")
"""Packages a submission may import, wherever this interpreter finds them."""

_PROC_GPUS = Path("/proc/driver/nvidia/gpus")


def host_paths() -> list[Path]:
    """Directories and files of the host that a runner needs read-only, at the same paths.

    Absolute, existing, sorted; a path below another one is left out. A path may be a symbolic link
    (``/lib``, or a link to an interpreter's directory): what it points to is meant, at the path of
    the link.
    """
    wanted = [Path(p) for p in SYSTEM]
    wanted += [Path("/etc") / name for name in LINKER]
    wanted += [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    wanted += [_package_folder(), *_site_folders()]
    wanted += [path for path in (cuda_home(), *_driver_folders()) if path]
    wanted = [Path(os.path.abspath(p)) for p in wanted if p.exists()]
    for hop in _links(Path(sys.executable)):
        # A virtual environment's `python` is a chain of links; each link's directory must be there.
        if not any(hop.is_relative_to(p) for p in wanted):
            wanted.append(hop.parent)
    wanted = [p for p in wanted if p != Path("/")]
    return sorted(p for p in set(wanted) if not any(p != q and p.is_relative_to(q) for q in wanted))


def runner_environment(scratch: Path, jit: Path, device: RunnerDevice) -> dict[str, str]:
    """The whole environment of a runner; nothing of ours is inherited.

    `scratch` is where it may write, `jit` where just-in-time compilers may also execute from.
    """
    cuda = cuda_home()
    programs = [Path(sys.executable).parent, *([cuda / "bin"] if cuda else [])]
    path = [str(p) for p in programs]
    path += ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    imports = [_package_folder().parent, *_site_folders()]
    imports = [folder for folder in imports if folder not in _own_site_folders()]
    cores = str(processors(device))
    environment = {
        "PATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONPATH": os.pathsep.join(str(p) for p in imports),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
        "HOME": str(scratch),
        "USER": "runner",
        "LOGNAME": "runner",
        "TMPDIR": str(jit / "tmp"),
        "GRADE_SCRATCH": str(scratch),
        "GRADE_JIT": str(jit),
        "TRITON_HOME": str(jit),
        "TRITON_CACHE_DIR": str(jit / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(jit / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(jit / "extensions"),
        "CUDA_CACHE_PATH": str(jit / "cuda"),
        "OMP_NUM_THREADS": cores,
        "MKL_NUM_THREADS": cores,
        "MAX_JOBS": cores,
    }
    if cuda:
        environment["CUDA_HOME"] = str(cuda)
    if drivers := _driver_folders():
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(str(p) for p in drivers)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
        # NaN and infinity are ordinary numbers, which a GPU says nothing about either.
        environment["PYTHONWARNINGS"] = "ignore::RuntimeWarning:triton.runtime.interpreter"
    if device != "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif chosen_node() is None and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")):
        # All GPUs' nodes go in, so the runner must number them as we do.
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return environment


def processors(device: RunnerDevice) -> int:
    """How many processors a runner may use: on a GPU its share of them but for one, with which its
    judge watches it, since a runner that had all would hold up the judges of other GPUs. Two at
    least, for a thread beside the one that waits for the GPU. What only compiles has as many.
    """
    ours = len(os.sched_getaffinity(0))
    if device == "cpu":
        return ours
    return min(ours, max(2, ours // max(1, len(gpu_nodes())) - 1))


def gpu_nodes() -> list[Path]:
    """The device nodes of this host's GPUs."""
    return sorted(Path("/dev").glob("nvidia[0-9]*"))


def device_nodes(device: RunnerDevice) -> list[Path]:
    """The device nodes a runner needs: on a GPU the driver's and the chosen GPU's, else none.

    The chosen GPU is the first of ``CUDA_VISIBLE_DEVICES``, or the first of the machine in PCI
    order. Where the driver does not tell which node that is, every GPU's node is listed.
    """
    if device != "cuda":
        return []
    chosen = chosen_node()
    gpus = [chosen] if chosen else gpu_nodes()
    drivers = [Path("/dev") / n for n in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]
    capabilities = sorted(Path("/dev/nvidia-caps").glob("*"))
    return [node for node in [*gpus, *drivers, *capabilities] if node.exists()]


@cache
def cuda_home() -> Path | None:
    """The CUDA toolkit's directory, or None where there is no ``nvcc``."""
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
        candidates.append(str(Path(nvcc).resolve().parent.parent))
    candidates.append("/usr/local/cuda")
    for candidate in map(Path, filter(None, candidates)):
        # The header tells a toolkit from a bin directory that holds a wrapper script.
        headers = (candidate / "include/cuda.h", candidate / "include/cuda_runtime.h")
        if (candidate / "bin/nvcc").is_file() and any(h.is_file() for h in headers):
            return candidate.resolve()
    return None


def _package_folder() -> Path:
    return Path(__file__).resolve().parent.parent


@cache
def _site_folders() -> list[Path]:
    """Where `PACKAGES` lie when the interpreter would not look there by itself under ``-s``."""
    folders: list[Path] = []
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            parent = Path(folder).parent
            if parent not in _own_site_folders() and parent not in folders:
                folders.append(parent)
    return folders


@cache
def _own_site_folders() -> set[Path]:
    """Where the interpreter looks by itself: named again, they would hide its own library."""
    return {Path(folder) for folder in site.getsitepackages()}


@cache
def _driver_folders() -> list[Path]:
    """Directories with the driver's ``libcuda`` that the linker does not search by itself."""
    inherited = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    known = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/lib64"]
    folders = [Path(p) for p in (*inherited, *known) if p.startswith("/")]
    return [p for p in dict.fromkeys(folders) if (p / "libcuda.so.1").exists()]


@cache
def chosen_node() -> Path | None:
    """The node of the GPU that CUDA numbers 0 in this process, when the driver tells."""
    gpus: list[tuple[str, Path]] = []
    for information in sorted(_PROC_GPUS.glob("*/information")):
        text = information.read_text()
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        uuid = re.search(r"GPU UUID:\s*(\S+)", text)
        node = Path(f"/dev/nvidia{minor[1]}") if minor else None
        if node and node.exists():
            gpus.append((uuid[1] if uuid else "", node))
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdecimal():
        return gpus[int(first)][1] if int(first) < len(gpus) else None
    return next((node for uuid, node in gpus if first and uuid.startswith(first)), None)


def _links(path: Path) -> list[Path]:
    """`path` and every symbolic link's target on the way to the real file."""
    hops = [path]
    while hops[-1].is_symlink() and len(hops) < 40:
        hops.append(Path(os.path.normpath(hops[-1].parent / os.readlink(hops[-1]))))
    return hops
