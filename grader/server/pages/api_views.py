"""The routes of the HTTP API for a reader, from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GROUPS = {
    "submissions": "Submissions",
    "batches": "Batches",
    "problems": "Problems and leaderboards",
    "users": "Users",
    "teams": "Teams",
    "operation": "Operation",
    "admin": "For admins",
    "work": "For workers",
}
"""Tag of the document → heading, in the order of the page."""

FOLDED = ("admin", "work")
"""Groups that most readers do not need."""

EXAMPLES: Mapping[str, Any] = {
    "number": 17, "name": "softmax", "problem": "softmax", "user": "ada", "gpu": "H100",
    "limit": 20, "version": 1,
}  # fmt: skip
"""Field or parameter → its value in an example. Optional ones that are not here are left out."""

MAX_DEPTH = 3
"""How deep an example of a body goes: a worker's report holds lists of objects."""

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a path, query, header or body."""

    name: str
    place: str
    """path, query, header, or body."""
    kind: str
    """Its type in words, such as ``integer or null``."""
    required: bool
    meaning: str


@dataclass(frozen=True)
class Operation:
    """A method of a path."""

    method: str
    path: str
    summary: str
    meaning: str
    token: str
    """needed, optional or none."""
    parameters: tuple[Parameter, ...]
    example: str
    """A command line that calls it."""
    answer: tuple[Parameter, ...]
    """The fields of its answer; empty for one that is no JSON object."""

    @property
    def anchor(self) -> str:
        """The id of its part of the page."""
        return f"{self.method.lower()}{self.path.translate(_ANCHORS)}"


_ANCHORS = str.maketrans({"/": "-", ".": "-", "{": None, "}": None})


def operations(document: Schema) -> dict[str, list[Operation]]:
    """The operations of each group, in the order of the document."""
    found: dict[str, list[Operation]] = {tag: [] for tag in GROUPS}
    for path, methods in document["paths"].items():
        for method, schema in methods.items():
            tag = next(iter(schema.get("tags", ())), "operation")
            found.setdefault(tag, []).append(_operation(document, path, method, schema))
    return {tag: some for tag, some in found.items() if some}


def _operation(document: Schema, path: str, method: str, schema: Schema) -> Operation:
    body_type, body = next(
        ((kind, one["schema"]) for kind, one in schema.get("requestBody", {"content": {}})
         ["content"].items()),
        ("", {}),
    )  # fmt: skip
    security = schema.get("security")
    token = "none" if not security else "optional" if {} in security else "needed"
    parameters = [
        Parameter(
            one["name"], one["in"], _kind(document, one["schema"]), one.get("required", False),
            one.get("description", ""),
        )
        for one in schema.get("parameters", ())
    ]  # fmt: skip
    parameters += _fields(document, body)
    answer = _json_of(schema["responses"], "200", "201", "202")
    return Operation(
        method=method.upper(),
        path=path,
        summary=schema.get("summary", ""),
        meaning=" ".join(schema.get("description", "").split()),
        token=token,
        parameters=tuple(parameters),
        example=_example(document, path, method, token, parameters, body_type, body),
        answer=tuple(_fields(document, answer)),
    )


def _json_of(responses: Schema, *statuses: str) -> Schema:
    """The schema of the first of these answers that is JSON; empty if there is none."""
    for status in statuses:
        content = responses.get(status, {}).get("content", {})
        if "application/json" in content:
            schema: Schema = content["application/json"].get("schema", {})
            return schema
    return {}


def _resolved(document: Schema, schema: Schema) -> Schema:
    """The schema that a reference names; the first alternative that is not null."""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        elif "anyOf" in schema:
            schema = next(one for one in schema["anyOf"] if one.get("type") != "null")
        else:
            return schema


def _fields(document: Schema, schema: Schema) -> Iterator[Parameter]:
    """The fields of an object."""
    resolved = _resolved(document, schema)
    required = resolved.get("required", ())
    for name, one in resolved.get("properties", {}).items():
        meaning = one.get("description", "")
        yield Parameter(name, "body", _kind(document, one), name in required, meaning)


def _kind(document: Schema, schema: Schema) -> str:
    """A schema's type in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(document, one) for one in schema["anyOf"]))
    resolved = _resolved(document, schema)
    if "enum" in resolved or "const" in resolved:
        values = resolved.get("enum") or [resolved["const"]]
        return ", ".join(map(str, values))
    if resolved.get("type") == "array" and "items" in resolved:
        return f"list of {_kind(document, resolved['items'])}"
    if resolved.get("format") == "date-time":
        return "time"
    if "contentMediaType" in resolved or resolved.get("format") == "binary":
        return "file"
    return str(resolved.get("type", "any value"))


def _example(
    document: Schema,
    path: str,
    method: str,
    token: str,
    parameters: list[Parameter],
    body_type: str,
    body: Schema,
) -> str:
    """A command line that calls an operation. `$SITE` is the server's address."""
    names = dict(EXAMPLES) | ({"name": "ada"} if "/users/" in path else {})
    names |= {"team": "tile-quantum"} if "/teams/" in path else {}
    address = path
    for one in parameters:
        if one.place == "path":
            address = address.replace(f"{{{one.name}}}", str(names.get(one.name, 1)))
    query = [f"{one.name}={names[one.name]}" for one in parameters
             if one.place == "query" and one.name in names]  # fmt: skip
    words = ["curl"]
    words += {"get": [], "head": ["--head"]}.get(method, [f"-X {method.upper()}"])
    if token == "needed":
        words.append('-H "Authorization: Bearer $GRADE_TOKEN"')
    if body_type == "multipart/form-data":
        fields = [one for one in parameters if one.place == "body" and one.required]
        words += [
            f"-F {one.name}={'@kernel.py' if one.kind == 'file' else names.get(one.name, 'text')}"
            for one in fields
        ]
    elif body_type:
        words.append("--json '" + json.dumps(_value(document, body), ensure_ascii=False) + "'")
    return " ".join([*words, f'"$SITE{address}{"?" + "&".join(query) if query else ""}"'])


def _value(document: Schema, schema: Schema, name: str = "", depth: int = 0) -> Any:
    """An example of a value; of an object, the fields that it must have."""
    schema = _resolved(document, schema)
    for known in ("const", "default"):
        if known in schema:
            return schema[known]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", ()) if depth < MAX_DEPTH else ()
        inner = schema.get("properties", {})
        # A body without required fields is shown with its first one.
        chosen = required or (list(inner)[:1] if depth == 0 else ())
        return {one: _value(document, inner[one], one, depth + 1) for one in chosen}
    if kind == "array":
        return [_value(document, schema["items"], name, depth + 1)] if depth < MAX_DEPTH else []
    if name in EXAMPLES:
        return EXAMPLES[name]
    if schema.get("format") == "date-time":
        return "2030-05-01T23:59:00Z"
    return {"integer": 1, "number": 1.0, "boolean": True}.get(str(kind), "text")
