"""The ways in which other sets' submissions are called: `custom_kernel(data)` or several functions,
`ModelNew`, and `run(*inputs)` or `run(*inputs, *outputs)`.

Each becomes an entry that takes the arguments one by one, as our own do. What it returns is copied
into the outputs that the judge lends, unless it has been written there already.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from types import ModuleType
from typing import Any

import torch

from grader.runner.entry_point import EntryPoint, LoadError, accepts, expect_function
from grader.runner.sets.driver import Tree, has_objects, unflatten, viewed


def entry_of_set(module: ModuleType, request: dict[str, Any]) -> EntryPoint | None:
    """The entry by the convention of `request`; None where the file has our own instead."""
    convention = request["convention"]
    if convention["kind"] == "arguments":
        return None
    if convention["kind"] == "model":
        return _model_entry(module, request, convention)
    function = getattr(module, request["entry"], None)
    if function is None and (functions := convention.get("functions")):
        function = _together(module, functions)
    if function is None:
        raise LoadError(f"no function named '{request['entry']}' in the file")
    expect_function(function, request["entry"])
    if convention["kind"] == "run":
        return _run_entry(function, request)
    count = _parameters(function)
    if count is not None and count > 2:
        return None
    outputs = [i for i, role in enumerate(request["roles"]) if role != "in"]

    def prepare(values: list[Any], case: dict[str, Any]) -> Any:
        values = _shaped(values, case)

        def given() -> list[Any]:
            trees = [case["data"], case["result"]] if count == 2 else [case["data"]]
            return [unflatten(tree, values) for tree in trees]

        # A call may change an object, such as a cache that counts its entries: each gets its own.
        kept = None if has_objects(case["data"]) else given()
        return kept, given, case["result"], {i: values[i] for i in outputs}

    def call(prepared: Any) -> None:
        kept, given, tree, outs = prepared
        result = function(*(given() if kept is None else kept))
        if result is None and count == 2:
            return
        _deliver(result, tree, outs)

    return EntryPoint(call, prepare, returns=count != 2)


def _together(module: ModuleType, functions: dict[str, list[str]]) -> Any:
    """One function of the data that calls several functions of a submission on parts of it."""
    for name in functions:
        if not callable(getattr(module, name, None)):
            raise LoadError(f"no function named '{name}' in the file")

    def together(data: dict[str, Any]) -> dict[str, Any]:
        return {
            name: getattr(module, name)(*(data[argument] for argument in arguments))
            for name, arguments in functions.items()
        }

    return together


def _model_entry(
    module: ModuleType, request: dict[str, Any], convention: dict[str, Any]
) -> EntryPoint | None:
    made = getattr(module, "ModelNew", None)
    if made is None:
        if callable(getattr(module, request["entry"], None)):
            return None
        raise LoadError(f"neither a class 'ModelNew' nor a function '{request['entry']}' in it")
    names: list[str | None] = convention["weights"]
    outputs = [i for i, role in enumerate(request["roles"]) if role != "in"]

    def setup(values: list[Any]) -> list[Any]:
        state = {name: value for name, value in zip(names, values, strict=True) if name is not None}
        shapes = convention["shapes"]
        state = {name: value.reshape(shapes[name]) for name, value in state.items()}
        device = next(value.device for value in values if isinstance(value, torch.Tensor))
        model = made(*convention["init"]).to(device)
        model.load_state_dict(state, strict=True)
        return [*values, model]

    def prepare(values: list[Any], case: dict[str, Any]) -> Any:
        model = values[-1]
        values = _shaped(values[:-1], case)
        return (
            model,
            unflatten(case["data"], values),
            case["result"],
            {i: values[i] for i in outputs},
        )

    def call(prepared: Any) -> None:
        model, data, tree, outs = prepared
        with torch.no_grad():
            _deliver(model(*data), tree, outs)

    return EntryPoint(call, prepare, setup, returns=True)


def _run_entry(function: Any, request: dict[str, Any]) -> EntryPoint:
    roles = request["roles"]
    outputs = [i for i, role in enumerate(roles) if role != "in"]
    optional = {i for i, name in enumerate(request["names"]) if name in request.get("optional", [])}
    count = len(roles) - len(outputs)
    writes = request.get("writes_outputs")
    if writes is None:
        writes = accepts(function, len(roles))
    if not accepts(function, len(roles) if writes else count):
        given = f"{len(roles)} inputs and outputs" if writes else f"{count} inputs"
        raise LoadError(f"'{request['entry']}' does not take the {given} of the problem")

    def prepare(values: list[Any], case: dict[str, Any]) -> Any:
        values = _shaped(values, case)
        outs = {i: values[i] for i in outputs}
        given = unflatten(case["data"], values)
        return [*given, *outs.values()] if writes else given, case["result"], outs

    def call(prepared: Any) -> None:
        given, tree, outs = prepared
        result = function(*given)
        if not writes:
            _deliver_named(result, tree, outs, optional)

    return EntryPoint(call, prepare, returns=not writes)


def _deliver_named(result: Any, tree: Tree, outs: dict[int, Any], optional: set[int]) -> None:
    """Copy outputs that were returned alone, in order, or by name. Those at the `optional` places
    may be missing."""
    places = tree["dict"]
    if not isinstance(result, dict):
        parts = result if isinstance(result, tuple | list) else [result]
        missing = list(places.values())[len(parts) :]
        if len(parts) > len(places) or any(place["value"] not in optional for place in missing):
            raise TypeError(f"returned {len(parts)} values where {len(places)} are outputs")
        result = dict(zip(places, parts, strict=False))
    placed: list[tuple[torch.Tensor, torch.Tensor]] = []
    for name, place in places.items():
        if name not in result:
            if place["value"] in optional:
                continue
            raise TypeError(f"returned no '{name}'")
        value = result[name]
        if isinstance(value, int | float):
            value = torch.full_like(outs[place["value"]], value)
        placed += _placed(value, place, outs)
    _copy(placed)


def _parameters(function: Any) -> int | None:
    """How many positional parameters a function has to be given; None if it does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def with_own_forms(entry: EntryPoint) -> EntryPoint:
    """An entry whose arguments have the shapes and dtypes that the set gives them."""

    def prepare(values: list[Any], case: dict[str, Any]) -> Any:
        return entry.prepare(_shaped(values, case), case)

    return replace(entry, prepare=prepare)


def _shaped(values: list[Any], case: dict[str, Any]) -> list[Any]:
    """The arguments with their own number of dimensions and dtypes."""
    found = []
    # A setup adds its result to the values.
    for value, own in zip_longest(values, case["own"]):
        if own is not None:
            shape, view = own
            value = value.reshape(shape) if value.dim() != len(shape) else value
            value = viewed(value, view)
        found.append(value)
    return found


def _deliver(result: Any, tree: Tree, outs: dict[int, Any]) -> None:
    """Copy what was returned into the outputs. Raises TypeError if it has another form."""
    _copy(list(_placed(result, tree, outs)))


def _copy(placed: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for target, value in placed:
        target.copy_(value)


def _placed(
    result: Any, tree: Tree, outs: dict[int, Any]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs, and what belongs into them, but for what lies there already. No copy of one changes
    another: what was returned may be a part of an output, turned or in another order."""
    ((kind, part),) = tree.items()
    if kind == "value":
        target = outs[part]
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"returned a {type(result).__name__} where a tensor is expected")
        if result.dtype == torch.float64 and target.is_floating_point():
            result = result.to(target.dtype)
        if result.numel() == target.numel() == 1:
            result = result.reshape(target.shape)
        if result.shape != target.shape or result.dtype != target.dtype:
            raise TypeError(
                f"returned a tensor of shape {tuple(result.shape)} and {result.dtype}, where "
                f"{tuple(target.shape)} and {target.dtype} are expected"
            )
        if (result.data_ptr(), result.stride()) != (target.data_ptr(), target.stride()):
            is_lent = result.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
            yield target, result.clone() if is_lent else result
    elif kind in ("tuple", "list"):
        if not isinstance(result, tuple | list) or len(result) != len(part):
            raise TypeError(f"returned no {kind} of {len(part)}")
        for one, place in zip(result, part, strict=True):
            yield from _placed(one, place, outs)
    elif kind == "dict":
        if not isinstance(result, dict) or result.keys() != part.keys():
            raise TypeError(f"returned no dict with {', '.join(part)}")
        for key, place in part.items():
            yield from _placed(result[key], place, outs)
