"""`problem.yaml` as plain data, stricter than YAML: no duplicate keys, no aliases, no tags.

What comes out is what JSON could say: objects with text keys, lists, text, finite numbers,
booleans and null. So nothing a hostile or careless file does reaches the models behind.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from grader.problem.errors import ProblemError

MAX_DEPTH = 12
LARGEST_INTEGER = 2**63 - 1

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc, valid-type]
    """Safe YAML that takes ``1e-6`` for a number and a key at most once."""


# YAML 1.1, which PyYAML speaks, wants a dot in a float and would read 1e-6 as text.
_FLOAT = re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$")


_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def parse(text: str) -> Any:
    """The data in `text`. Raises `ProblemError` with the place in the file (no file name)."""
    try:
        _refuse_deep_aliased_or_tagged(text)
        node = yaml.compose(text, Loader=_StrictLoader)
        if node is None:
            raise ProblemError("is empty")
        _refuse_duplicates(node)
        data = yaml.load(text, Loader=_StrictLoader)  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ProblemError(f"{where}not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise ProblemError(f"not valid YAML: {first_line}") from None
    _refuse_odd_values(data, "")
    return data


def join(path: str, step: str | int) -> str:
    """A key path with one more step: ``tests[3].params``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def _refuse_deep_aliased_or_tagged(text: str) -> None:
    """Before anything is built: an alias can stand for more data than memory holds."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise ProblemError(f"alias *{event.anchor} is not taken; write it out")
        if tag := getattr(event, "tag", None):  # PyYAML fails anyhow where one does not fit
            name = tag.replace("tag:yaml.org,2002:", "!!")
            where = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
            raise ProblemError(f"{where}tag {name} is not taken; leave it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ProblemError(f"nested more than {MAX_DEPTH} deep")


def _refuse_duplicates(node: yaml.Node, path: str = "") -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _refuse_duplicates(item, join(path, index))
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise ProblemError(f"{join(path, name)}: given twice")
            seen.add(name)
            _refuse_duplicates(value, join(path, name))


def _refuse_odd_values(value: Any, path: str) -> None:
    place = path or "top level"
    match value:
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ProblemError(f"{place}: key {key!r} is not text; put it in quotes")
                _refuse_odd_values(item, join(path, key))
        case list():
            for index, item in enumerate(value):
                _refuse_odd_values(item, join(path, index))
        case float() if not math.isfinite(value):
            raise ProblemError(f"{place}: {value} is not a finite number")
        case int() if abs(value) > LARGEST_INTEGER:
            raise ProblemError(f"{place}: {value} does not fit in 64 bits")
        case str() | int() | float() | bool() | None:
            pass
        case _:
            kind = type(value).__name__
            raise ProblemError(f"{place}: a YAML {kind} is not taken; put it in quotes")
