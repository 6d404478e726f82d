"""What a runner needs of this host: read-only directories, an environment, device nodes.

Both sandboxes use this module, so a submission sees the same machine in either. The directories
never hold problems, results or other submissions; of the grader only its package is included.
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

SYSTEM_PATHS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr/local/nvidia"),
    "/opt/nvidia/nsight-compute",  # the toolkit's `ncu` is a wrapper around it
)
"""Programs and shared libraries. On most systems nearly all are links into ``/usr``."""

ETC_NAMES = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
"""The part of ``/etc`` that the linker and compilers need. The sandbox brings users and hosts."""

PACKAGES = (
    *("torch", "triton", "numpy", "cuda"),
    # CUTLASS lies in a folder of its own package, which also holds the libraries that it loads.
    *("tilelang", "nvidia_cutlass_dsl", "cutlass", "helion"),
)
"""Packages a submission may import, wherever this interpreter finds them."""

_PROC_GPUS = Path("/proc/driver/nvidia/gpus")


def host_paths() -> list[Path]:
    """Directories and files of the host to mount read-only at the same paths.

    Absolute, existing, sorted; a path below another one is left out. A path may be a symbolic link,
    such as ``/lib``: its target is mounted at the path of the link.
    """
    wanted = [Path(p) for p in SYSTEM_PATHS]
    wanted += [Path("/etc") / name for name in ETC_NAMES]
    wanted += [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    wanted += [_package_folder(), *_site_folders()]
    wanted += [path for path in (cuda_home(), *driver_folders()) if path]
    wanted = [Path(os.path.abspath(p)) for p in wanted if p.exists()]
    for hop in _links(Path(sys.executable)):
        # A virtual environment's `python` is a chain of links, and each link must resolve.
        if not any(hop.is_relative_to(p) for p in wanted):
            wanted.append(hop.parent)
    wanted = [p for p in wanted if p != Path("/")]
    return sorted(p for p in set(wanted) if not any(p != q and p.is_relative_to(q) for q in wanted))


def runner_environment(scratch: Path, jit: Path, device: RunnerDevice) -> dict[str, str]:
    """The whole environment of a runner; nothing is inherited.

    scratch: the folder it may write to.
    jit: the folder for just-in-time compilers, which it may also execute from.
    """
    cuda = cuda_home()
    programs = [Path(sys.executable).parent, *([cuda / "bin"] if cuda else [])]
    path = [str(p) for p in programs]
    path += ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    imports = [_package_folder().parent, *_site_folders()]
    imports = [folder for folder in imports if folder not in _own_site_folders()]
    cores = str(runner_cpus(device))
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
        # It loads what it compiles from its cache, which is in HOME by default.
        "TILELANG_CACHE_DIR": str(jit / "tilelang"),
        "CUTE_DSL_CACHE_DIR": str(jit / "cute"),
        "CUDA_TILE_CACHE_DIR": str(jit / "cutile"),
        "OMP_NUM_THREADS": cores,
        "MKL_NUM_THREADS": cores,
        "MAX_JOBS": cores,
        # NumPy's BLAS starts a thread for each core when it is imported, and each of them spins for
        # 2^26 cycles before it sleeps. 2^4 is the least.
        "OPENBLAS_THREAD_TIMEOUT": "4",
    }
    if cuda:
        environment["CUDA_HOME"] = str(cuda)
    if drivers := driver_folders():
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(str(p) for p in drivers)
    if device == "cpu":
        # Idle threads of one process, spinning, made rounds of another up to 50 times slower.
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
        environment["TRITON_INTERPRET"] = "1"
        # NumPy warns about NaN and infinity; a GPU does not.
        environment["PYTHONWARNINGS"] = "ignore::RuntimeWarning:triton.runtime.interpreter"
    if device != "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif selected_gpu_node() is None and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")):
        # All GPUs' nodes are passed in, so the runner must number them as the judge does.
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return environment


def runner_cpus(device: RunnerDevice) -> int:
    """The number of CPUs a runner may use.

    On a CPU device, all. A GPU runner gets its GPU's share less one, which its judge needs; with
    more it would slow the judges of other GPUs. At least two, for a thread beside the one that
    waits for the GPU. A runner that only compiles gets the same.
    """
    ours = len(os.sched_getaffinity(0))
    if device == "cpu":
        return ours
    return min(ours, max(2, ours // max(1, len(gpu_nodes())) - 1))


def gpu_nodes() -> list[Path]:
    """The device nodes of this host's GPUs."""
    return sorted(Path("/dev").glob("nvidia[0-9]*"))


def device_nodes(device: RunnerDevice) -> list[Path]:
    """The device nodes a runner needs: those of the driver and the selected GPU; none on a CPU.

    The selected GPU is the first of ``CUDA_VISIBLE_DEVICES``, or the first of the machine in PCI
    order. If the driver does not report its node, the nodes of all GPUs are listed.
    """
    if device != "cuda":
        return []
    selected = selected_gpu_node()
    gpus = [selected] if selected else gpu_nodes()
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
        # A directory without the headers holds only a wrapper script, not a toolkit.
        headers = (candidate / "include/cuda.h", candidate / "include/cuda_runtime.h")
        if (candidate / "bin/nvcc").is_file() and any(h.is_file() for h in headers):
            return candidate.resolve()
    return None


def _package_folder() -> Path:
    return Path(__file__).resolve().parent.parent


@cache
def _site_folders() -> list[Path]:
    """Folders of `PACKAGES` that the interpreter does not search by default under ``-s``."""
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
    """Folders searched by default. Listed in PYTHONPATH they would hide the standard library."""
    return {Path(folder) for folder in site.getsitepackages()}


@cache
def driver_folders() -> list[Path]:
    """Folders with the driver's ``libcuda`` that the linker does not search by default."""
    inherited = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    known = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/lib64"]
    folders = [Path(p) for p in (*inherited, *known) if p.startswith("/")]
    return [p for p in dict.fromkeys(folders) if (p / "libcuda.so.1").exists()]


@cache
def selected_gpu_node() -> Path | None:
    """The node of CUDA device 0 of this process, or None if the driver does not report it."""
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
    """`path` and the target of each symbolic link on the way to the real file."""
    hops = [path]
    while hops[-1].is_symlink() and len(hops) < 40:
        hops.append(Path(os.path.normpath(hops[-1].parent / os.readlink(hops[-1]))))
    return hops
