"""Import a submission in Python, and find its entry. Reads and writes what the judge lends."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from grader.runner.entry_point import EntryPoint, LoadError, accepts, expect_function
from grader.runner.error_text import summary
from grader.runner.solution_file import Extension, unpack

PREPARED = "prepared"
"""The parameter of an entry that has what the submission's setup made of the weights."""


def load_python(source: bytes, folder: Path, request: dict[str, Any]) -> EntryPoint:
    """Import the file and find its entry function. Raises `LoadError`."""
    solution = None
    convention = request.get("convention", {})
    if convention.get("kind") == "run":
        solution = unpack(source, folder, convention["binding"])
    if solution is None:
        module_name, path = "submission", folder / "submission.py"
        path.write_bytes(source)
        sys.path.insert(0, str(folder))
    else:
        module_name, path = solution.module, solution.path
        sys.path[:0] = map(str, solution.folders)
        request = request | {
            "entry": solution.entry,
            "writes_outputs": solution.writes_outputs,
        }
    try:
        if solution is not None and solution.extension is not None:
            module = _compiled(solution.extension)
        else:
            module = _imported(module_name, path)
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        raise LoadError(f"{type(error).__name__}: {error.msg}{where}") from error
    except BaseException as error:  # an import may also exit
        raise LoadError(f"importing it raised {summary(error)}") from error
    if "convention" in request:
        from grader.runner.conventions import entry_of_set  # needs torch, which a compiler lacks

        if (entry := entry_of_set(module, request)) is not None:
            return entry
    name = request["entry"]
    function = getattr(module, name, None)
    if function is None:
        raise LoadError(f"no function named '{name}' in the file{_suggestion(name, module)}")
    names, roles = list(request["names"]), list(request["roles"])
    parameters = request.get("parameters", {argument: argument for argument in names})
    weights = request.get("weights", [])
    setup = getattr(module, f"{name}_setup", None) if weights else None
    if setup is not None:
        parameters = _without_weights(parameters, weights)
        names, roles = [*names, PREPARED], [*roles, "in"]
    role_of = dict(zip(names, roles, strict=True))
    # A parameter that holds several arguments is not what a function returns.
    own_roles = [role_of[t] if isinstance(t, str) else "in" for t in parameters.values()]
    optional = request.get("optional", [])
    entry = _python_entry(function, name, list(parameters), own_roles, optional)
    if setup is not None:
        entry = replace(entry, setup=_setting_up(setup, names, weights))
    if list(parameters.values()) != names:
        entry = replace(entry, prepare=_nesting(names, list(parameters.values())))
    if "convention" in request:
        from grader.runner.conventions import with_own_forms

        entry = with_own_forms(entry)
    return entry


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _compiled(extension: Extension) -> Any:
    """Compile C++ and CUDA sources into a module, as `load_inline` does."""
    return importlib.import_module(extension.package).load(**extension.arguments)


def _without_weights(parameters: dict[str, Any], weights: list[str]) -> dict[str, Any]:
    """The parameters of an entry with a setup: one, `PREPARED`, in place of all weights."""
    found: dict[str, Any] = {}
    for name, tree in parameters.items():
        if any(leaf in weights for leaf in _leaves(tree)):
            found.setdefault(PREPARED, PREPARED)
        else:
            found[name] = tree
    return found


def _setting_up(
    setup: Callable[..., Any], names: list[str], weights: list[str]
) -> Callable[[list[Any]], list[Any]]:
    """Add the setup's result to the arguments of a set, of which it gets the weights."""
    places = [names.index(name) for name in weights]
    return lambda values: [*values, setup(*(values[place] for place in places))]


def _nesting(names: list[str], trees: list[Any]) -> Callable[[list[Any], dict[str, Any]], Any]:
    """Make an entry's parameters of the arguments of one set: each is a tree of their names."""

    def unflatten(tree: Any, values: dict[str, Any]) -> Any:
        if isinstance(tree, list):
            return tuple(unflatten(part, values) for part in tree)
        if isinstance(tree, dict):
            return {key: unflatten(part, values) for key, part in tree.items()}
        return values[tree]

    def prepare(arguments: list[Any], case: dict[str, Any]) -> list[Any]:
        values = dict(zip(names, arguments, strict=True))
        return [unflatten(tree, values) for tree in trees]

    return prepare


def _suggestion(name: str, module: ModuleType) -> str:
    own = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    near = difflib.get_close_matches(name, own, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _python_entry(
    function: Any, name: str, names: list[str], roles: list[str], optional: list[str]
) -> EntryPoint:
    expect_function(function, name)
    outputs = [i for i, role in enumerate(roles) if role == "out"]
    inputs = [names[i] for i in range(len(names)) if i not in outputs]
    for wanted in (names, inputs):
        _warn_of_order(function, name, wanted)
    if accepts(function, len(roles)):
        return EntryPoint(_writing(function, name, len(roles)))
    if outputs and accepts(function, len(roles) - len(outputs)):
        return EntryPoint(_returning(function, names, outputs, optional), returns=True)
    takes = ", ".join(inspect.signature(function).parameters)
    returning = f", or {name}({', '.join(inputs)}) that returns its outputs" if outputs else ""
    raise LoadError(
        f"'{name}({takes})' does not take the {len(roles)} arguments of the problem; "
        f"expected {name}({', '.join(names)}){returning}"
    )


def _warn_of_order(function: Any, name: str, wanted: list[str]) -> None:
    """Print that parameters with the problem's names are in another order: the call goes by it."""
    with suppress(TypeError, ValueError):  # no signature
        takes = list(inspect.signature(function).parameters)
        if takes != wanted and sorted(takes) == sorted(wanted):
            print(
                f"'{name}({', '.join(takes)})' is called with the problem's arguments in their "
                f"order, ({', '.join(wanted)}), whatever its parameters are named",
                file=sys.stderr,
            )


def _writing(function: Any, name: str, count: int) -> Callable[[list[Any]], None]:
    """Call a destination-passing function. Its return value is ignored, with one warning, since the
    author may expect it to be copied."""
    warned = False

    def call(arguments: list[Any]) -> None:
        nonlocal warned
        result = function(*arguments)
        if result is not None and not warned:
            warned = True
            _warn_ignored(result, arguments, name, count)

    return call


def _warn_ignored(result: Any, arguments: list[Any], name: str, count: int) -> None:
    import torch

    results = result if isinstance(result, tuple) else (result,)
    given = {id(t) for t in _leaves(arguments)}
    ignored = [t for t in results if isinstance(t, torch.Tensor) and id(t) not in given]
    if ignored:
        shown = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in ignored)
        print(
            f"ignored, since '{name}' takes all {count} arguments and must write its outputs "
            f"into them: the returned {shown}",
            file=sys.stderr,
        )


def _leaves(value: Any) -> Iterator[Any]:
    """What lists, tuples and dicts hold at their leaves."""
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _returning(
    function: Any, names: list[str], outputs: list[int], optional: list[str]
) -> Callable[[list[Any]], None]:
    missing = ", ".join(repr(names[i]) for i in outputs)

    def call(arguments: list[Any]) -> None:
        import torch

        inputs = [value for i, value in enumerate(arguments) if i not in outputs]
        returned = function(*inputs)
        if returned is None:
            raise TypeError(f"returned None: without the parameter {missing}, it must return that")
        results = returned if isinstance(returned, tuple) else (returned,)
        left_out = [names[i] for i in outputs[len(results) :]]
        if len(results) > len(outputs) or not {*left_out} <= {*optional}:
            raise TypeError(f"returned {len(results)} values where {len(outputs)} are outputs")
        for i, result in zip(outputs, results, strict=False):
            target = arguments[i]
            if not isinstance(result, torch.Tensor):
                kind = type(result).__name__
                raise TypeError(f"returned a {kind} for '{names[i]}', which is a tensor")
            if result.shape != target.shape or result.dtype != target.dtype:
                raise TypeError(
                    f"returned a tensor of shape {tuple(result.shape)} and {result.dtype} for "
                    f"'{names[i]}', which has shape {tuple(target.shape)} and {target.dtype}"
                )
            target.copy_(result)

    return call


def _kind(value: Any) -> str:
    return "class" if inspect.isclass(value) else type(value).__name__


def read_lent(fd: int, nbytes: int, offset: int = 0) -> bytes:
    """Read `nbytes` bytes of a file that the judge lends. Raises OSError when it is shorter."""
    parts = []
    end = offset + nbytes
    while offset < end:
        part = os.pread(fd, end - offset, offset)
        if not part:
            raise OSError("the judge's file is shorter than announced")
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def write_files(folder: Path, fd: int, sizes: dict[str, int]) -> None:
    """Write the files that the judge lends as one, in order: path → size in bytes."""
    offset = 0
    for name, nbytes in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_lent(fd, nbytes, offset))
        offset += nbytes


def write_lent(fd: int, content: bytes) -> None:
    """Write `content` at the start of a file that the judge lends."""
    written = 0
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)
