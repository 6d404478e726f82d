"""What the compilers left: each kernel's registers, memory, PTX and SASS, read with `cuobjdump`.

Triton keeps a `.cubin` and a `.ptx` per kernel in its cache; a `.cu` file and `load_inline` leave
shared objects. All of them lie below the directory that compilers may execute from.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

MOST_FILES = 200
"""So many compiled files are looked at, the newest first; autotuning leaves dozens."""
TOOL_S = 60.0

_RESOURCES = re.compile(
    r"^ *Function (\S+):\n +REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", re.M
)
_LOCAL = re.compile(r"\s(?:LDL|STL)[.\s]")
_TENSOR = re.compile(r"\s(?:[HIDQB]G?MMA|UTC[A-Z]*MMA)[.\s]")


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel as it was compiled."""

    name: str
    """As the profiler shows it: demangled."""
    registers: int
    """Per thread."""
    shared_bytes: int
    """Per block, without what a launch adds."""
    local_bytes: int
    """Per thread: registers spilled to memory, and arrays that did not fit into registers."""
    local_instructions: int = 0
    """Instructions that read or write local memory."""
    tensor_instructions: int = 0
    """Instructions of the tensor cores."""
    sass: str = ""
    ptx: str = ""
    """Of this kernel alone; empty where the PTX of several lies in one file."""


class ToolError(Exception):
    """A tool that is needed is not there, or fails; the text says which, in one line."""


def compiled_kernels(folder: Path, names: set[str] | None) -> list[CompiledKernel]:
    """The kernels compiled below `folder`; of Triton's only those in `names` unless it is None.

    Raises `ToolError`.
    """
    files = [*folder.glob("submission.so"), *folder.glob("extensions/**/*.so")]
    cubins = [f for f in folder.rglob("*.cubin") if names is None or f.stem in names]
    files += sorted(cubins, key=lambda f: f.stat().st_mtime, reverse=True)
    return [code for file in files[:MOST_FILES] for code in read_code(file)]


def read_code(file: Path) -> Iterator[CompiledKernel]:
    """The kernels in a cubin or a shared object. Raises `ToolError`."""
    resources = list(resource_usage(_cuobjdump("--dump-resource-usage", file)))
    if not resources:
        return
    listings = split_sass(_cuobjdump("--dump-sass", file))
    beside = file.with_suffix(".ptx")
    ptx = (
        beside.read_text("utf-8", "replace") if file.suffix == ".cubin" and beside.exists() else ""
    )
    for code in resources:
        sass = listings.get(code.name, "")
        yield replace(
            code,
            name=demangle(code.name),
            sass=sass,
            ptx=ptx,
            local_instructions=len(_LOCAL.findall(sass)),
            tensor_instructions=len(_TENSOR.findall(sass)),
        )


def resource_usage(text: str) -> Iterator[CompiledKernel]:
    """Kernels, with their symbols as names, in what ``cuobjdump --dump-resource-usage`` prints."""
    for symbol, registers, stack, shared, local in _RESOURCES.findall(text):
        yield CompiledKernel(symbol, int(registers), int(shared), int(stack) + int(local))


def split_sass(text: str) -> dict[str, str]:
    """Symbol → listing, from what ``cuobjdump --dump-sass`` prints."""
    _, *parts = re.split(r"^\s*Function : ", text, flags=re.M)
    return {part.split("\n", 1)[0].strip(): part.partition("\n")[2] for part in parts}


def ptx_of_cuda(folder: Path, target: str) -> str:
    """The PTX of `submission.cu`, which the shared object does not hold. Raises `ToolError`."""
    ptx, source = folder / "profile.ptx", folder / "submission.cu"
    flags = ["-O3", "-std=c++17", f"-arch=compute_{target}", "--ptx"]
    _run(["nvcc", *flags, "-o", str(ptx), str(source)])
    return ptx.read_text("utf-8", "replace")


def demangle(symbol: str) -> str:
    """A C++ symbol as its author wrote it, in the very words of PyTorch's profiler."""
    if not symbol.startswith("_Z"):
        return symbol
    demangler = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
    demangler.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = demangler(symbol.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not address:
        return symbol
    text = ctypes.string_at(address).decode("utf-8", "replace")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(address)
    return text


def _cuobjdump(option: str, file: Path) -> str:
    tool = shutil.which("cuobjdump") or _of_triton("cuobjdump")
    if tool is None:
        raise ToolError("no cuobjdump here: it comes with the CUDA toolkit, and with Triton")
    return _run([tool, option, str(file)])


def _of_triton(program: str) -> str | None:
    """Triton brings some of the CUDA toolkit's programs along."""
    spec = find_spec("triton")
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / "backends" / "nvidia" / "bin" / program
        if path.is_file():
            return str(path)
    return None


def _run(command: list[str]) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{name} did not run: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ToolError(f"{name} ended with status {done.returncode}: {(said or [''])[-1]}")
    return done.stdout.decode("utf-8", "replace")
