"""Build Triton's C launchers faster.

Before a kernel's first launch Triton compiles a launcher for its signature, a few hundred lines of
C, with `gcc -O3`. On a GPU host this took 0.3 s, longer than compiling the kernel itself, mostly
for headers and for optimising code that only passes arguments on. Here the headers are precompiled
once in the background, launchers are compiled with -O1, and only one of several processes builds
the same launcher. Triton 3.9 has one launcher for all kernels, built before any kernel is loaded;
that is left to Triton.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

LAUNCHER = "__triton_launcher"
"""Triton 3.6's name of every launcher."""
FLAGS = ("-O1", "-fPIC", "-Wno-psabi")
HEADERS = """\
#include "cuda.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#define PY_SSIZE_T_CLEAN
#include <Python.h>
"""
"""The start of every launcher's source."""


class BuildInProgress(Exception):
    """Another process is building this launcher."""


def install() -> None:
    """Use `build` in this process and its forks, if Triton builds a launcher per signature."""
    from triton import knobs

    if _builds_launcher_per_signature():
        knobs.build.impl = build


def build_launchers_while_compiling() -> None:
    """From now on, build each kernel's launcher in a thread while the kernel is compiled.

    Compiling returns when both are done, or when another process is building the launcher.
    """
    import triton.compiler

    if not _builds_launcher_per_signature():
        return
    compile_kernel = triton.compiler.compile

    def compile_both(source: Any, *arguments: Any, **options: Any) -> Any:
        # A tensor descriptor's launcher depends on metadata of the compiled kernel.
        has_descriptors = "tensordesc" in str(source.signature)
        with ThreadPoolExecutor(1) as executor:  # an error there recurs at the launch
            if not has_descriptors:
                executor.submit(_build_for, source, _NoMetadata())
            kernel = compile_kernel(source, *arguments, **options)
            if has_descriptors:
                executor.submit(_build_for, source, kernel.metadata)
        return kernel

    triton.compiler.compile = compile_both


class _NoMetadata:
    """Placeholder metadata: building a launcher needs none, except for tensor descriptors."""

    def __getattr__(self, name: str) -> None:
        return None


def _build_for(source: Any, metadata: Any) -> None:
    from triton import knobs
    from triton.runtime import driver

    with suppress(BuildInProgress), knobs.build.scope():
        knobs.build.impl = partial(build, waits=False)
        driver.active.launcher_cls(source, metadata)


def _builds_launcher_per_signature() -> bool:
    from triton.backends.nvidia import driver

    return hasattr(driver, "make_launcher")


def build(
    name: str,
    source: str,
    folder: str,
    library_dirs: list[str],
    include_dirs: list[str],
    libraries: list[str],
    waits: bool = True,
) -> str:
    """Compile a Python extension module, unless another process has; the path of the result.

    waits: wait for a launcher that another process is building; otherwise raise `BuildInProgress`.
    Raises RuntimeError when there is no C compiler, and `subprocess.CalledProcessError` when it
    fails.
    """
    shared = Path(os.environ.get("GRADE_JIT", folder))
    if not shared.is_dir():
        shared = Path(folder)
    key = hashlib.sha256(f"{name} {Path(source).read_text()}".encode()).hexdigest()
    made = shared / f"{key}{sysconfig.get_config_var('EXT_SUFFIX')}"
    non_blocking = fcntl.LOCK_NB if name == LAUNCHER and not waits else 0
    with (shared / key).open("w") as lock:  # the kernel releases it if the process fails or dies
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | non_blocking)
        except BlockingIOError:
            raise BuildInProgress from None
        if not made.exists():
            temporary = made.with_suffix(".partial")
            _compile(source, temporary, [*include_dirs, folder], library_dirs, libraries)
            temporary.replace(made)
    return str(made)


def _compile(
    source: str,
    made: Path,
    include_dirs: list[str],
    library_dirs: list[str],
    libraries: list[str],
) -> None:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("Triton needs a C compiler: install gcc, or name one in CC")
    python = sysconfig.get_path("include", "posix_prefix")  # Debian's default scheme has no headers
    included = [f"-I{each}" for each in (*include_dirs, python)]
    command = [compiler, source, *FLAGS, "-shared", "-o", str(made), *included]
    command += [f"-L{each}" for each in library_dirs]
    command += [f"-l{':' if '.' in each else ''}{each}" for each in libraries]
    header = _precompiled_header(compiler, included)
    try:
        subprocess.check_call([*command, "-include", header], stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        subprocess.check_call(command)  # no header file, or the source conflicts with it


def _precompiled_header(compiler: str, included: list[str]) -> str:
    """The path of a file that includes `HEADERS`, if it can be written.

    The first caller starts to precompile it in the background. The C compiler uses the precompiled
    file as soon as it exists.
    """
    header = Path(os.environ.get("GRADE_JIT", os.devnull), "launcher.h")
    with suppress(OSError):
        with header.open("x") as stream:
            stream.write(HEADERS)
        temporary = header.with_suffix(".partial")
        command = [compiler, "-x", "c-header", *FLAGS, str(header), "-o", str(temporary), *included]
        script = '{ "$@" && mv "$0" "${0%.partial}.h.gch"; } &'
        null = subprocess.DEVNULL
        subprocess.call(
            ["sh", "-c", script, str(temporary), *command], stdin=null, stdout=null, stderr=null
        )
    return str(header)
