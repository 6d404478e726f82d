"""A Solution of FlashInfer-Trace and SOL-ExecBench: a JSON file with several sources."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grader.runner.entry_point import LoadError

PACKAGE = "solution"
CUDA = ".cu"
COMPILED = (CUDA, ".cpp", ".cc", ".cxx", ".c")
"""Extensions of sources that are compiled into one module, whichever has the entry."""
BINDINGS = {"torch": "torch.utils.cpp_extension", "tvm-ffi": "tvm_ffi.cpp"}
"""A Solution's `binding` → the package whose `load` compiles it, in the sets' own graders too."""
FLAGS = {
    "cflags": "extra_cflags",
    "cuda_cflags": "extra_cuda_cflags",
    "ld_flags": "extra_ldflags",
}
"""A Solution's `compile_options`, and what both packages call them."""
LINKED = ("-lcuda", "-lcublas")
"""Libraries that FlashInfer-Trace's own grader links to a Solution in CUDA."""


@dataclass(frozen=True)
class Extension:
    """How a Solution in C++ and CUDA becomes a module."""

    package: str
    """One of `BINDINGS`."""
    arguments: dict[str, Any]
    """Of its function `load`."""


@dataclass(frozen=True)
class Unpacked:
    """A Solution whose sources are written."""

    module: str
    """The entry's module, below the folder; its package is importable by that name."""
    path: Path
    entry: str
    extension: Extension | None
    """What makes the module, if it is compiled."""
    writes_outputs: bool
    """Whether the entry writes its outputs, which follow the inputs."""
    folders: tuple[Path, ...]
    """Where its sources are looked for: they import each other absolutely in SOL-ExecBench, and
    relatively in FlashInfer-Trace."""


def unpack(source: bytes, folder: Path, binding: str = "torch") -> Unpacked | None:
    """Write a Solution's sources below `folder`; None if it is no JSON object, and so Python.

    binding: that of a Solution which names none.

    Raises `LoadError` when it is none that can be run here.
    """
    if not source.lstrip().startswith(b"{"):
        return None
    try:
        data = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"the Solution is not readable as JSON ({error})") from None
    spec = data.get("spec")
    point = _text(spec, "entry_point")
    file, mark, entry = point.partition("::")
    if not mark or not entry.isidentifier():
        raise LoadError(f"the Solution's entry_point '{point}' is not 'file::function'")
    if not file.endswith((".py", *COMPILED)):
        raise LoadError(f"the Solution's entry is in '{file}', which is neither Python nor C++")
    root = folder / PACKAGE
    sources = data.get("sources")
    if not isinstance(sources, list) or not sources:
        raise LoadError("the Solution has no sources")
    paths: list[Path] = []
    for one in sources:
        path = root / _inner(_text(one, "path"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(one, "content"))
        paths.append(path)
    inner = _inner(file)
    if root / inner not in paths:
        raise LoadError(f"the Solution's sources lack its entry's file '{file}'")
    module = ".".join((PACKAGE, *inner.with_suffix("").parts))
    extension = None if file.endswith(".py") else _extension(spec, root, paths, binding)
    writes = spec.get("destination_passing_style", True) is not False
    return Unpacked(module, root / inner, entry, extension, writes, (root, folder))


def _extension(spec: dict[str, Any], root: Path, paths: list[Path], binding: str) -> Extension:
    binding = spec.get("binding") or binding
    if not isinstance(binding, str) or binding not in BINDINGS:
        known = " or ".join(f"'{name}'" for name in BINDINGS)
        raise LoadError(f"the Solution's binding is {binding!r}; it may be {known}")
    arguments: dict[str, Any] = {ours: _flags(spec, theirs) for theirs, ours in FLAGS.items()}
    sources = [str(path) for path in dict.fromkeys(paths) if path.suffix in COMPILED]
    build = root.parent / "build"
    build.mkdir(exist_ok=True)
    arguments |= {
        "name": f"compiled_{PACKAGE}",
        "extra_include_paths": [str(root)],
        "build_directory": str(build),
    }
    if binding == "torch":
        arguments["sources"] = sources
    else:
        arguments["cuda_files"] = [path for path in sources if path.endswith(CUDA)]
        arguments["cpp_files"] = [path for path in sources if not path.endswith(CUDA)]
        if arguments["cuda_files"]:
            # The driver's library may be there as a stub only.
            stubs = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64/stubs")
            arguments["extra_ldflags"] += [f"-L{stubs}", *LINKED]
    return Extension(BINDINGS[binding], arguments)


def _flags(spec: dict[str, Any], key: str) -> list[str]:
    options = spec.get("compile_options") or {}
    flags = (options.get(key) or []) if isinstance(options, dict) else None
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise LoadError(f"the Solution's compile_options: '{key}' must be a list of flags")
    return list(flags)


def _text(data: Any, key: str) -> str:
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, str) or not found:
        raise LoadError(f"the Solution has no '{key}'")
    return found


def _inner(path: str) -> PurePosixPath:
    inner = PurePosixPath(path)
    if inner.is_absolute() or ".." in inner.parts or "\0" in path:
        raise LoadError(f"the Solution's path '{path}' is outside its folder")
    return inner
