"""Compile the device code of a `.cu` file with NVRTC, which needs no compiler on the host."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.runner.declared_launch import Launch
from grader.runner.entry_point import LoadError
from grader.runner.prototype_check import assertions, describe_clash

OUTPUT_BYTES = 64 * 1024
"""The most of NVRTC's output that is shown."""
FLAGS = ("-std=c++17", "-split-compile=0")

_INTEGERS = b"".join(
    b"typedef signed %s int%d_t; typedef unsigned %s uint%d_t;\n" % (name, bits, name, bits)
    for name, bits in ((b"char", 8), (b"short", 16), (b"int", 32), (b"long long", 64))
)
_HEADERS = (b"cstdint", b"stdint.h")
"""NVRTC has none of the host's headers. Each of these gets `_INTEGERS`: the types as CUDA's own
headers declare them under NVRTC."""
_NO_HEADER = re.compile(r"(?:could not|cannot) open source file")


class Unavailable(Exception):
    """NVRTC is not here, or does not do for this file. The text is one line."""


@dataclass(frozen=True)
class DeviceCode:
    """Compiled kernels."""

    cubin: bytes
    symbols: dict[str, str]
    """Kernel, as a launch names it → its symbol in the cubin."""

    def to_json(self) -> bytes:
        code = base64.b64encode(self.cubin).decode()
        return json.dumps({"symbols": self.symbols, "cubin": code}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> DeviceCode:
        """Raises ValueError, KeyError or TypeError for text that `to_json` did not write."""
        found = json.loads(text)
        return cls(base64.b64decode(found["cubin"], validate=True), dict(found["symbols"]))


def version() -> str:
    """Its version, such as ``13.0``. Raises `Unavailable`."""
    status, major, minor = _nvrtc().nvrtcVersion()
    _require(status)
    return f"{major}.{minor}"


def device_code(source: bytes, target: str, launches: Mapping[str, list[Launch]]) -> DeviceCode:
    """Compile the kernels of these launches for an architecture such as ``90a``.

    Raises `LoadError` with the compiler's error, also for a kernel that does not take what its
    launch passes; and `Unavailable`, also for a file that includes a header of the host.
    """
    nvrtc = _nvrtc()
    prototypes = {one.kernel: one.prototype for own in launches.values() for one in own}
    text = source + b"\n" + assertions(prototypes).encode()
    status, program = nvrtc.nvrtcCreateProgram(
        text, b"submission.cu", len(_HEADERS), [_INTEGERS] * len(_HEADERS), list(_HEADERS)
    )
    _require(status)
    try:
        for kernel in prototypes:
            _require(*nvrtc.nvrtcAddNameExpression(program, kernel.encode()))
        flags = [*FLAGS, f"-arch=sm_{target}", *(f"-I{folder}" for folder in _include_folders())]
        encoded = [flag.encode() for flag in flags]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status:
            log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise _error(log[:OUTPUT_BYTES].decode("utf-8", "replace").rstrip("\0"), prototypes)
        symbols = {}
        for kernel in prototypes:
            status, symbol = nvrtc.nvrtcGetLoweredName(program, kernel.encode())
            _require(status)
            symbols[kernel] = symbol.decode()
        return DeviceCode(_read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), symbols)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # the library is loaded at the first call
    except (ImportError, RuntimeError, OSError) as error:
        raise Unavailable(f"no NVRTC: {error}") from error
    return nvrtc


def _include_folders() -> list[str]:
    """The headers of the CUDA toolkit, such as cuda_fp16.h, and those of its C++ libraries."""
    home = os.environ.get("CUDA_HOME")
    folders = [Path(home, "include"), Path(home, "include", "cccl")] if home else []
    return [str(folder) for folder in folders if folder.is_dir()]


def _require(status: Any) -> None:
    if status:
        raise Unavailable(f"NVRTC failed: {status.name}")


def _read(size: Callable[..., Any], text: Callable[..., Any], program: Any) -> bytes:
    status, length = size(program)
    _require(status)
    buffer = bytearray(length)
    _require(*text(program, buffer))
    return bytes(buffer)


def _error(log: str, prototypes: dict[str, str]) -> Exception:
    """The first error as one line; the whole log is printed, for the source's author."""
    if _NO_HEADER.search(log):
        return Unavailable("the file includes a header of the host")
    if clash := describe_clash(log, prototypes):
        return LoadError(clash)
    sys.stderr.write(log)
    first = next((line for line in log.splitlines() if "error" in line), log[:200])
    return LoadError(f"nvrtc: {first.strip()}")
