"""Build what Triton builds in C sooner.

Before a kernel's first launch Triton has a few hundred lines of C compiled for its signature, its
launcher, with `gcc -O3`. On a GPU host that was seen to take 0.3 s, longer than the kernel itself,
most of it for headers and for optimising what only passes arguments on. Here the headers are
compiled once, beside whatever else goes on, and launchers with -O1. Triton 3.9 has one for all
kernels, which is built before any is loaded; that is left to Triton.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from contextlib import suppress
from pathlib import Path

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


def install() -> None:
    """Have Triton build so in this process, and in those that are forked of it, if it builds a
    launcher for each signature."""
    from triton import knobs
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher"):
        knobs.build.impl = build


def build(
    name: str,
    source: str,
    folder: str,
    library_dirs: list[str],
    include_dirs: list[str],
    libraries: list[str],
) -> str:
    """Compile an extension module of Python's into `folder`; the path of what was built. Raises
    RuntimeError where there is no compiler, and `subprocess.CalledProcessError` when it fails."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("Triton needs a C compiler: install gcc, or name one in CC")
    python = sysconfig.get_path("include", "posix_prefix")  # Debian's own scheme has no headers
    included = [f"-I{each}" for each in (*include_dirs, folder, python)]
    made = f"{folder}/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [compiler, source, *FLAGS, "-shared", "-o", made, *included]
    command += [f"-L{each}" for each in library_dirs]
    command += [f"-l{':' if '.' in each else ''}{each}" for each in libraries]
    header = _headers(compiler, included)
    try:
        subprocess.check_call([*command, "-include", header], stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        subprocess.check_call(command)  # there is no header, or the source does not suit it
    return made


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
