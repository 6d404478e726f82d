"""`problem.yaml` as plain data, stricter than YAML: no duplicate keys, aliases or tags, and numbers
in plain decimal.

The result is JSON data: objects with text keys, lists, text, finite numbers, booleans and null. A
hostile or careless file cannot pass anything else to the models.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from grader.problem.spec import ProblemError
from grader.problem.validation import check_text, error_at

MAX_DEPTH = 12
LARGEST_INTEGER = 2**63 - 1

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc, valid-type]
    """Safe YAML that reads ``1e-6`` as a number."""


# PyYAML implements YAML 1.1, which requires a dot in a float and reads 1e-6 as text.
_FLOAT = re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$")


_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


# YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_000 as 1000.
_DECIMAL = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE
)
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def parse(text: str) -> Any:
    """The data in `text`. Raises `ProblemError` with the position, but without the file name."""
    try:
        _refuse_deep_aliased_or_tagged(text)
        node = yaml.compose(text, Loader=_StrictLoader)
        if node is None:
            raise ProblemError("is empty")
        _refuse_odd_nodes(node)
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
    """Append a step to a key path: ``tests[3].params``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def _refuse_deep_aliased_or_tagged(text: str) -> None:
    """Checks the events before building data: nested aliases could expand beyond all memory."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise ProblemError(f"alias *{event.anchor} is not supported; write it out")
        if tag := getattr(event, "tag", None):  # PyYAML itself fails for a tag that does not fit
            name = tag.replace("tag:yaml.org,2002:", "!!")
            where = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
            raise ProblemError(f"{where}tag {name} is not supported; leave it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ProblemError(f"nested more than {MAX_DEPTH} deep")


def _refuse_odd_nodes(node: yaml.Node, path: str = "") -> None:
    """Refuses keys given twice, and numbers that are not plain decimal."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBER_TAGS and not _DECIMAL.fullmatch(node.value):
            raise ProblemError(
                f"{path}: {node.value} is not a plain decimal number; write its digits, or put it "
                "in quotes if it is text"
            )
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _refuse_odd_nodes(item, join(path, index))
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise ProblemError(f"{join(path, name)}: given twice")
            seen.add(name)
            _refuse_odd_nodes(value, join(path, name))


def _refuse_odd_values(value: Any, path: str) -> None:
    place = path or "top level"
    match value:
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ProblemError(f"{place}: key {key!r} is not text; put it in quotes")
                _refuse_invisible(key, place)
                _refuse_odd_values(item, join(path, key))
        case list():
            for index, item in enumerate(value):
                _refuse_odd_values(item, join(path, index))
        case float() if not math.isfinite(value):
            raise ProblemError(f"{place}: {value} is not a finite number")
        case int() if abs(value) > LARGEST_INTEGER:
            raise ProblemError(f"{place}: {value} does not fit in 64 bits")
        case str():
            _refuse_invisible(value, place)
        case int() | float() | bool() | None:
            pass
        case _:
            kind = type(value).__name__
            raise ProblemError(f"{place}: a YAML {kind} is not supported; put it in quotes")


def _refuse_invisible(text: str, place: str) -> None:
    """Refuses control and format characters, and separators of lines other than a line feed."""
    with error_at(place):
        check_text(text, "", ("Cc", "Cf", "Cs", "Zl", "Zp"))
