"""A Solution of FlashInfer-Trace and SOL-ExecBench: a JSON file with several sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grader.runner.entry_point import LoadError

PACKAGE = "solution"


@dataclass(frozen=True)
class Unpacked:
    """A Solution whose sources are written."""

    module: str
    """The entry's module, below the folder; its package is importable by that name."""
    path: Path
    entry: str
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
    if not file.endswith(".py"):
        raise LoadError(f"the Solution's entry is in '{file}'; only Python files can be graded")
    root = folder / PACKAGE
    sources = data.get("sources")
    if not isinstance(sources, list) or not sources:
        raise LoadError("the Solution has no sources")
    paths = set()
    for one in sources:
        path = root / _inner(_text(one, "path"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(one, "content"))
        paths.add(path)
    inner = _inner(file)
    if root / inner not in paths:
        raise LoadError(f"the Solution's sources lack its entry's file '{file}'")
    module = ".".join((PACKAGE, *inner.with_suffix("").parts))
    writes = spec.get("destination_passing_style", True) is not False
    return Unpacked(module, root / inner, entry, writes, (root, folder))


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
