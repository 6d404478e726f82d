"""The judged version of a problem: what changes a verdict or a time, and how two versions differ.

Title, summary, statement and comments of the spec are no part of it, so a comma in a text does not
open a new ranking.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grader.problem.spec import Spec

TEXT_KEYS = frozenset({"title", "summary", "topic", "difficulty", "limited_by"})
"""The keys of a spec that only describe the problem."""

JUDGED_FILES = ("reference.py", "inputs.py", "checks.py")
"""Files that run in the judge. The whole of `checks.py` counts: its `magnitude` feeds the error
bound."""

_NOT_SET = object()


@dataclass(frozen=True)
class JudgedVersion:
    """What the digest of a problem covers."""

    problem: str
    """The problem's name: two problems that differ only in their texts have a ranking each."""
    spec: dict[str, Any]
    """The spec as JSON data without `TEXT_KEYS` and without keys that have their default. So a new
    optional key changes no digest, but neither does a changed default: tests/problem has them all,
    and a new default needs a new `format`."""
    files: dict[str, str]
    """File → SHA-256 of its content, hexadecimal."""

    @classmethod
    def of(cls, problem: str, spec: Spec, contents: Mapping[str, bytes]) -> JudgedVersion:
        """The version of a problem with this parsed spec and these contents of its files."""
        fields = spec.model_dump(mode="json", exclude=set(TEXT_KEYS), exclude_defaults=True)
        # Their order decides what is drawn from a seed, so it must survive sorted keys.
        if "variants" in fields:
            fields["variants"] = _listed(
                {name: {"values": values} for name, values in fields["variants"].items()}
            )
        if "domain" in fields:
            fields["domain"] = [_listed(entry) for entry in fields["domain"]]
        present = [file for file in JUDGED_FILES if file in contents]
        hashes = {file: hashlib.sha256(contents[file]).hexdigest() for file in present}
        return cls(problem, fields, hashes)

    @cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal, over name, spec and files."""
        fields = {"problem": self.problem, "spec": self.spec, "files": self.files}
        return hashlib.sha256(_json(fields).encode()).hexdigest()

    def changes_since(self, old: JudgedVersion) -> list[str]:
        """What differs from an old version, a phrase for each change, such as ``limits.call_s: not
        set → 30``, ``tests[primes]: removed`` or ``reference.py: changed``."""
        found = list(_differences("", old.spec, self.spec))
        for file in dict.fromkeys([*JUDGED_FILES, *sorted({*old.files, *self.files})]):
            before, after = old.files.get(file), self.files.get(file)
            if before != after:
                verb = "added" if before is None else "removed" if after is None else "changed"
                found.append(f"{file}: {verb}")
        return found


def _listed(named: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, **fields} for name, fields in named.items()]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    if old is _NOT_SET and isinstance(new, dict):
        old = {}
    elif new is _NOT_SET and isinstance(old, dict):
        new = {}
    if _NOT_SET not in (old, new) and _json(old) == _json(new):  # 1, 1.0 and True are equal
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else str(key)
            yield from _differences(where, old.get(key, _NOT_SET), new.get(key, _NOT_SET))
    elif isinstance(old, list) and isinstance(new, list) and _all_named(old + new):
        yield from _differences_of_named(path, old, new)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}[{index}]", before, after)
    else:
        yield f"{path}: {_short(old)} → {_short(new)}"


def _differences_of_named(
    path: str, old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> Iterator[str]:
    """The differences of two lists whose elements have names, as cases and arguments do."""
    before, after = ({one["name"]: one for one in many} for many in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            yield f"{path}[{name}]: removed"
        elif name not in before:
            yield f"{path}[{name}]: added"
        else:
            yield from _differences(f"{path}[{name}]", before[name], after[name])
    if [name for name in before if name in after] != [name for name in after if name in before]:
        yield f"{path}: in another order"


def _all_named(values: list[Any]) -> bool:
    return all(isinstance(value, dict) and "name" in value for value in values)


def _short(value: Any) -> str:
    if value is _NOT_SET:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
