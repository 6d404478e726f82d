"""Write the reference of `problem.yaml` in docs/authoring.md from the models of the spec.

    python -m scripts.problem_reference

Types, defaults and meanings are those of `grader/problem/spec.py`; its docstrings are the text. An
example of each key is in `EXAMPLES` below, and must be valid. Run it after a change of the spec.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from grader.problem import spec

PAGE = Path(__file__).resolve().parent.parent / "docs" / "authoring.md"
START = "<!-- Written by `python -m scripts.problem_reference`; do not edit below this line. -->"

EXAMPLES = {
    "Spec.format": "1",
    "Spec.title": "Softmax over rows",
    "Spec.summary": "Softmax along the last axis of a matrix.",
    "Spec.topic": "fusion",
    "Spec.difficulty": "2",
    "Spec.limited_by": "memory",
    "Spec.entry": "softmax",
    "Spec.args": "[{name: out, role: out, dtype: fp32, shape: [n]}]",
    "Spec.cuda_dtypes": "[fp32, fp16, bf16]",
    "Spec.nested": "{params: [weight, bias]}",
    "Spec.tolerances": "{fp32: {atol: 1.0e-6, rtol: 1.0e-5, rel_l2: 1.0e-6}}",
    "Spec.accumulate": "{dtype: fp32, terms: cols}",
    "Spec.cost": "{bytes: 2 * rows * cols * itemsize, flops: 5 * rows * cols}",
    "Spec.limits": "{call_s: 60}",
    "Spec.gpu": "H100",
    "Spec.tests": "[{name: one_row, params: {rows: 1, cols: 257, dtype: fp32}}]",
    "Spec.benchmarks": "[{name: square, device: cuda, params: {rows: 4096, cols: 4096}}]",
    "Spec.variants": "{values: [large, equal]}",
    "Spec.domain": "[{rows: {max: 4096}, cols: {max: 65536}, dtype: [fp32, bf16]}]",
    "Argument.name": "x",
    "Argument.role": "out",
    "Argument.kind": "tensors",
    "Argument.dtype": "bf16",
    "Argument.shape": "[rows, cols // 2]",
    "Argument.contiguous": "false",
    "Argument.scratch": "true",
    "Argument.optional": "true",
    "Argument.structured": "true",
    "Argument.strides": "[1, rows]",
    "Argument.weight": "true",
    "Argument.unique": "false",
    "Argument.tolerances": "{fp32: {atol: 0.0, rtol: 1.0e-6, rel_l2: 1.0e-6}}",
    "Tolerance.atol": "1.0e-6",
    "Tolerance.rtol": "1.0e-5",
    "Tolerance.rel_l2": "1.0e-6",
    "Tolerance.budget": "8.0",
    "Accumulate.dtype": "fp32",
    "Accumulate.terms": "rows * cols",
    "Accumulate.roundings": "32",
    "Accumulate.operands": "bf16",
    "Cost.bytes": "(m * k + k * n + m * n) * itemsize",
    "Cost.flops": "2 * m * n * k",
    "Cost.unit": "tensor",
    "Limits.source_bytes": "65536",
    "Limits.load_s": "300",
    "Limits.call_s": "60",
    "Limits.compile_s": "240",
    "Limits.total_s": "1200",
    "Limits.memory_bytes": "17179869184",
    "Limits.device_memory_bytes": "34359738368",
    "Limits.scratch_bytes": "2147483648",
    "Limits.output_bytes": "1048576",
    "Limits.pids": "2048",
    "Case.name": "one_row",
    "Case.params": "{rows: 1, cols: 257, dtype: fp32, values: normal}",
    "Case.calls": "4",
    "Case.device": "cuda",
    "Case.tolerances": "{fp16: {atol: 1.0e-3, rtol: 1.0e-3, rel_l2: 1.0e-3}}",
    "ParameterDomain.min": "0",
    "ParameterDomain.max": "min(n, 300)",
    "ParameterDomain.multiple_of": "2",
    "ParameterDomain.choices": "[fp32, bf16]",
}
"""Model and key → a value as YAML. Keys that the models do not have are left out."""

UNITS = {
    "Case.calls": "calls",
    "Cost.flops": "operations",
    "Limits.pids": "processes",
    "Tolerance.budget": "× eager's error",
    "Accumulate.terms": "terms",
    "Accumulate.roundings": "roundings",
}
"""Model and key → its unit, where the key's name does not end with it."""

ALIASES = (
    (spec.Name, "name"),
    (spec.FormulaText, "formula"),
    (spec.GpuType, "words of a GPU's name"),
    (str, "text"),
    (int, "whole number"),
    (float, "number"),
    (bool, "true or false"),
    (Any, "value"),
)
"""Types by their words. Pairs, since a type with a constraint has no hash."""


def reference() -> str:
    """The tables of all models, as Markdown. Raises KeyError for a key without an example, and
    ValueError for an example that is not valid."""
    texts = _docstrings()
    dtypes = ", ".join(f"`{name}`" for name in spec.DTYPES)
    notes = f"A formula is text or a number. The dtypes (`DTYPES`) are {dtypes}.\n\n"
    return notes + "\n".join(line for model in _models(spec.Spec) for line in _table(model, texts))


def updated(page: str) -> str:
    """The page with the reference of the current models below `START`."""
    before, start, _ = page.partition(START)
    if not start:
        raise ValueError(f"{PAGE}: the line {START!r} is missing")
    return f"{before}{start}\n\n{reference()}"


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and those of its fields, each once, in order of appearance."""
    found = [model]
    for one in found:
        hints = get_type_hints(one, include_extras=True)
        for hint in hints.values():
            found += [other for other in _models_in(hint) if other not in found]
    return found


def _models_in(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for inner in get_args(hint):
        yield from _models_in(inner)


def _table(model: type[BaseModel], texts: dict[str, str]) -> Iterator[str]:
    name = model.__name__
    title = "The file" if model is spec.Spec else name
    yield f"### {title}\n\n{_cell(texts[name])}\n"
    yield "| key | type | unit | default | example | meaning |\n|---|---|---|---|---|---|"
    hints = get_type_hints(model, include_extras=True)
    for key, field in model.model_fields.items():
        place = f"{name}.{key}"
        inner = next(_models_in(hints[key]), None)
        text = texts.get(place) or texts[inner.__name__ if inner else place]
        cells = [
            f"`{key}`",
            _type(hints[key]) + _bounds(hints[key], field),
            UNITS.get(place) or _unit(key),
            _default(field),
            f"`{_example(place, field)}`",
            _cell(text),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _type(hint: Any) -> str:
    """A type in words; a model as a link to its table."""
    words = next((words for alias, words in ALIASES if hint == alias), None)
    if words is not None:
        return words
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in arguments if one is not NoneType)
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"name → {_type(arguments[1])}"
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


def _bounds(hint: Any, field: FieldInfo) -> str:
    """``, ≥ 0.1``: the limits of a number, of a text's length or of a list's."""
    if hint == spec.FormulaText:
        return ""
    words = {
        "ge": "≥ {}",
        "gt": "> {}",
        "le": "≤ {}",
        "min_length": "at least {}",
        "max_length": "at most {} characters",
    }
    found = [
        text.format(value)
        for one in field.metadata
        for limit, text in words.items()
        if (value := getattr(one, limit, None)) is not None
    ]
    return "".join(f", {text}" for text in found)


def _unit(key: str) -> str:
    """The unit that a key's name ends with."""
    if key.endswith("bytes"):
        return "bytes"
    return "s" if key.endswith("_s") else "–"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _example(place: str, field: FieldInfo) -> str:
    """The example of a key, after it is found valid."""
    if place not in EXAMPLES:
        raise KeyError(f"{place} has no example; add one to EXAMPLES in {Path(__file__).name}")
    checked: Any = field.annotation
    if field.metadata:
        checked = Annotated[(field.annotation, *field.metadata)]
    TypeAdapter(checked).validate_python(yaml.safe_load(EXAMPLES[place]))
    return EXAMPLES[place]


def _cell(text: str) -> str:
    """A docstring as one line of Markdown, fit for a table."""
    line = " ".join(text.replace("``", "`").split())
    return re.sub(r"(?<!\\)\|", r"\\|", line)


def _docstrings() -> dict[str, str]:
    """Docstrings of the models, and of their fields as ``Model.field``."""
    found = {}
    for node in ast.parse(inspect.getsource(spec)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        found[node.name] = ast.get_docstring(node) or ""
        for field, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[f"{node.name}.{field.target.id}"] = inspect.cleandoc(str(after.value.value))
    return found


@click.command()
def main() -> None:
    """Write the reference into docs/authoring.md."""
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
