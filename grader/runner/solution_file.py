"""A Solution of FlashInfer-Trace and SOL-ExecBench: a JSON file with several sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grader.runner.entry_point import LoadError

PACKAGE = "solution"
COMPILED = (".cu", ".cpp", ".cc", ".cxx", ".c")
"""Extensions of sources that make an extension module of PyTorch. In both sets' own graders, too,
`torch.utils.cpp_extension` compiles all of a Solution's sources with these, whichever has the
entry."""
FLAGS = {
    "cflags": "extra_cflags",
    "cuda_cflags": "extra_cuda_cflags",
    "ld_flags": "extra_ldflags",
}
"""A Solution's `compile_options`, and what `torch.utils.cpp_extension.load` calls them."""


@dataclass(frozen=True)
class Unpacked:
    """A Solution whose sources are written."""

    module: str
    """The entry's module, below the folder; its package is importable by that name."""
    path: Path
    entry: str
    extension: dict[str, Any] | None
    """What `torch.utils.cpp_extension.load` makes the module with, if the entry is compiled."""
    writes_outputs: bool
    """Whether the entry writes its outputs, which follow the inputs."""
    folders: tuple[Path, ...]
    """Where its sources are looked for: they import each other absolutely in SOL-ExecBench, and
    relatively in FlashInfer-Trace."""


def unpack(source: bytes, folder: Path) -> Unpacked | None:
    """Write a Solution's sources below `folder`; None if it is no JSON object, and so Python.

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
    extension = None if file.endswith(".py") else _extension(spec, root, paths)
    writes = spec.get("destination_passing_style", True) is not False
    return Unpacked(module, root / inner, entry, extension, writes, (root, folder))


def _extension(spec: dict[str, Any], root: Path, paths: list[Path]) -> dict[str, Any]:
    """The arguments of `torch.utils.cpp_extension.load`."""
    binding = spec.get("binding") or "torch"
    if binding != "torch":
        raise LoadError(f"the Solution's binding is '{binding}'; C++ is bound with 'torch' only")
    options = spec.get("compile_options") or {}
    flags = {ours: options.get(theirs) or [] for theirs, ours in FLAGS.items()}
    return flags | {
        "name": f"compiled_{PACKAGE}",
        "sources": [str(path) for path in dict.fromkeys(paths) if path.suffix in COMPILED],
        "extra_include_paths": [str(root)],
    }


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
