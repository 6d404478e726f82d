"""Registers, memory, PTX and SASS of the compiled kernels, read with `cuobjdump`.

Triton caches a `.cubin` and a `.ptx` per kernel; nvcc and `load_inline` leave shared objects. All
lie below the jit folder.
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

from grader.runner.declared_launch import DECLARED_CUBIN

MOST_FILES = 200
"""Compiled files that are read, the newest first; autotuning leaves dozens."""
TOOL_TIMEOUT_S = 60.0

_RESOURCES = re.compile(
    r"^ *Function (\S+):\n +REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", re.M
)
_LOCAL = re.compile(r"\s(?:LDL|STL)[.\s]")
_TENSOR = re.compile(r"\s(?:[HIDQB]G?MMA|UTC[A-Z]*MMA)[.\s]")


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled kernel."""

    name: str
    """Demangled, as the profiler shows it."""
    registers: int
    """Per thread."""
    shared_bytes: int
    """Static shared memory per block, without the dynamic part of a launch."""
    local_bytes: int
    """Local memory per thread: spilled registers, and arrays that do not fit into registers."""
    local_instructions: int = 0
    """Instructions that read or write local memory."""
    tensor_instructions: int = 0
    """Instructions of the tensor cores."""
    sass: str = ""
    ptx: str = ""
    """PTX of this kernel; empty where one file holds the PTX of several."""


class ToolError(Exception):
    """A required tool is missing or failed; the text is one line."""


def compiled_kernels(folder: Path, names: set[str] | None) -> list[CompiledKernel]:
    """The kernels compiled below `folder`. `names` selects Triton's kernels; None means all.

    Raises `ToolError`.
    """
    files = [
        *folder.glob("submission.so"),
        *folder.glob(DECLARED_CUBIN),
        *folder.glob("extensions/**/*.so"),
    ]
    cubins = [
        file
        for file in folder.rglob("*.cubin")
        if file not in files and (names is None or file.stem in names)
    ]
    files += sorted(cubins, key=lambda f: f.stat().st_mtime, reverse=True)
    return [code for file in files[:MOST_FILES] for code in read_code(file)]


def read_code(file: Path) -> Iterator[CompiledKernel]:
    """The kernels in a cubin or a shared object. Raises `ToolError`."""
    resources = list(resource_usage(_cuobjdump("--dump-resource-usage", file)))
    if not resources:
        return
    listings = split_sass(_cuobjdump("--dump-sass", file))
    ptx_file = file.with_suffix(".ptx")
    ptx = (
        ptx_file.read_text("utf-8", "replace")
        if file.suffix == ".cubin" and ptx_file.exists()
        else ""
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
    """Parse ``cuobjdump --dump-resource-usage``; a kernel's name is its symbol."""
    for symbol, registers, stack, shared, local in _RESOURCES.findall(text):
        yield CompiledKernel(symbol, int(registers), int(shared), int(stack) + int(local))


def split_sass(text: str) -> dict[str, str]:
    """Parse ``cuobjdump --dump-sass`` into symbol → listing."""
    _, *parts = re.split(r"^\s*Function : ", text, flags=re.M)
    return {part.split("\n", 1)[0].strip(): part.partition("\n")[2] for part in parts}


def ptx_of_cuda(folder: Path, target: str) -> str:
    """Compile `submission.cu` to PTX, which its shared object lacks. Raises `ToolError`."""
    ptx, source = folder / "profile.ptx", folder / "submission.cu"
    flags = ["-O3", "-std=c++17", f"-arch=compute_{target}", "--ptx"]
    _run(["nvcc", *flags, "-o", str(ptx), str(source)])
    return ptx.read_text("utf-8", "replace")


def demangle(symbol: str) -> str:
    """Demangle a C++ symbol, exactly as PyTorch's profiler does."""
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
    tool = shutil.which("cuobjdump") or _bundled_with_triton("cuobjdump")
    if tool is None:
        raise ToolError("no cuobjdump here: it comes with the CUDA toolkit, and with Triton")
    return _run([tool, option, str(file)])


def _bundled_with_triton(program: str) -> str | None:
    """The path of a CUDA toolkit program that Triton bundles, or None."""
    spec = find_spec("triton")
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / "backends" / "nvidia" / "bin" / program
        if path.is_file():
            return str(path)
    return None


def _run(command: list[str]) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{name} did not run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ToolError(f"{name} ended with status {done.returncode}: {(lines or [''])[-1]}")
    return done.stdout.decode("utf-8", "replace")
