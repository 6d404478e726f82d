"""Build what Triton builds in C sooner.

Before a kernel's first launch Triton has a few hundred lines of C compiled for its signature, its
launcher, with `gcc -O3`. On a GPU host that was seen to take 0.3 s, longer than the kernel itself,
most of it for headers and for optimising what only passes arguments on. Here the headers are
compiled once, beside whatever else goes on, and launchers with -O1; and of all processes that want
the same one at the same time, one builds it. Triton 3.9 has one for all kernels, which is built
before any is loaded; that is left to Triton.
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
"""What Triton 3.6 calls any launcher."""
FLAGS = ("-O1", "-fPIC", "-Wno-psabi")
HEADERS = """\
#include "cuda.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#define PY_SSIZE_T_CLEAN
#include <Python.h>
"""
"""What launchers begin with."""


class BuildInProgress(Exception):
    """Another process is building it."""


def install() -> None:
    """Have Triton build so in this process, and in those that are forked of it, if it builds a
    launcher for each signature."""
    from triton import knobs

    if _builds_for_each():
        knobs.build.impl = build


def build_launchers_while_compiling() -> None:
    """From now on, have this process build the launcher of each kernel while it compiles that, and
    be done when both are there, or another process builds it."""
    import triton.compiler

    if not _builds_for_each():
        return
    compile_kernel = triton.compiler.compile

    def beside(source: Any, *arguments: Any, **options: Any) -> Any:
        # What a descriptor is passed on as, is known when the kernel is compiled.
        has_descriptors = "tensordesc" in str(source.signature)
        with ThreadPoolExecutor(1) as helper:  # what fails there fails again where it is told
            if not has_descriptors:
                helper.submit(_build_for, source, _Unknown())
            kernel = compile_kernel(source, *arguments, **options)
            if has_descriptors:
                helper.submit(_build_for, source, kernel.metadata)
        return kernel

    triton.compiler.compile = beside


class _Unknown:
    """What a launcher that is only built does not need to know of its kernel."""

    def __getattr__(self, name: str) -> None:
        return None


def _build_for(source: Any, metadata: Any) -> None:
    from triton import knobs
    from triton.runtime import driver

    with suppress(BuildInProgress), knobs.build.scope():
        knobs.build.impl = partial(build, waits=False)
        driver.active.launcher_cls(source, metadata)


def _builds_for_each() -> bool:
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
    """Compile an extension module of Python's; the path of what was built, by this process or by
    another that has begun it before. Raises `BuildInProgress` for a launcher that is not to be
    waited for, RuntimeError where there is no compiler, and `subprocess.CalledProcessError` when it
    fails."""
    shared = Path(os.environ.get("GRADE_JIT", folder))
    if not shared.is_dir():
        shared = Path(folder)
    key = hashlib.sha256(f"{name} {Path(source).read_text()}".encode()).hexdigest()
    made = shared / f"{key}{sysconfig.get_config_var('EXT_SUFFIX')}"
    is_left = name == LAUNCHER and not waits
    with (shared / key).open("w") as lock:  # whoever fails at it, or dies, lets go of it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if is_left else 0))
        except BlockingIOError:
            raise BuildInProgress from None
        if not made.exists():
            half = made.with_suffix(".half")
            _compile(source, half, [*include_dirs, folder], library_dirs, libraries)
            half.replace(made)
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
    python = sysconfig.get_path("include", "posix_prefix")  # Debian's own scheme has no headers
    included = [f"-I{each}" for each in (*include_dirs, python)]
    command = [compiler, source, *FLAGS, "-shared", "-o", str(made), *included]
    command += [f"-L{each}" for each in library_dirs]
    command += [f"-l{':' if '.' in each else ''}{each}" for each in libraries]
    header = _headers(compiler, included)
    try:
        subprocess.check_call([*command, "-include", header], stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        subprocess.check_call(command)  # there is no header, or the source does not suit it


def _headers(compiler: str, included: list[str]) -> str:
    """A file that includes `HEADERS`, if it can be made. Whoever asks for it first has it compiled,
    and waits no more than the others: the compiler takes that when it is there."""
    header = Path(os.environ.get("GRADE_JIT", os.devnull), "launcher.h")
    with suppress(OSError):
        with header.open("x") as stream:
            stream.write(HEADERS)
        half = header.with_suffix(".half")
        compiled = [compiler, "-x", "c-header", *FLAGS, str(header), "-o", str(half), *included]
        script = '{ "$@" && mv "$0" "${0%.half}.h.gch"; } &'
        null = subprocess.DEVNULL
        subprocess.call(
            ["sh", "-c", script, str(half), *compiled], stdin=null, stdout=null, stderr=null
        )
    return str(header)
