"""What the judge makes of the answers of a set's sandbox, which nothing guarantees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from grader.judge.set_host import SetHost, SetProblemError
from grader.problem.imported import CaseForm, SetSource
from grader.wire import fixed_size_memfd

CASE = b'{"name": "test_1", "kind": "test", "params": {}}'


class Answering(SetHost):
    """A host whose sandbox answers with these bytes, and says that they are so long."""

    def __init__(self, content: bytes, length: int | None = None) -> None:
        self.source = SetSource("made", "Made", "", "", "made", "Made", Path("made"), {})
        self.device = "cpu"
        self._answer = fixed_size_memfd("answer", 1 << 20)
        os.pwrite(self._answer, content, 0)
        self._length = len(content) if length is None else length
        session: Any = SimpleNamespace(ask=lambda *_, **__: None)
        self._session = session

    def _guarded(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(calls=self._length)


@pytest.fixture
def close() -> Iterator[list[SetHost]]:
    hosts: list[SetHost] = []
    yield hosts
    for host in hosts:
        os.close(host._answer)


@pytest.mark.parametrize(
    ("content", "length", "message"),
    [
        (b"", None, "its answer is no JSON"),
        (b"[[[[", None, "its answer is no JSON"),
        (b"\xff\xfe{}", None, "its answer is no JSON"),
        (b"[" * 200_000, None, "its answer is no JSON"),
        (b'{"answer": []}', 5, "its answer is no JSON"),
        (b'{"answer": []}', 2**63, "its answer is no JSON"),
        (b"[]", None, "its answer is no object"),
        (b'{"unsupported": "\\u001b[31mtwo\\nlines"}', None, "two"),
        (b"{}", None, "describing itself"),
        (b'{"answer": {}}', None, "describing itself"),
        (b'{"answer": [{"name": "A b", "kind": "test", "params": {}}]}', None, "0.name: String"),
        (b'{"answer": [{"name": "a", "kind": "all", "params": {}}]}', None, "0.kind: Input"),
        (b'{"answer": [{"name": "a", "kind": "test", "params": {}, "b": 1}]}', None, "0.b: Extra"),
        (b'{"answer": [' + b", ".join([CASE] * 2) + b"]}", None, "two cases are named 'test_1'"),
        (b'{"answer": [' + b", ".join([CASE] * 999) + b"]}", None, "at most 200 items"),
    ],
)
def test_an_answer_of_another_form_is_one_line(
    content: bytes, length: int | None, message: str, close: list[SetHost]
) -> None:
    host = Answering(content, length)
    close.append(host)
    with pytest.raises(SetProblemError) as caught:
        host.open()
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


VALUE: dict[str, Any] = {"name": "x", "role": "in", "weight": False, "form": {"scalar": 1}}


def nested(levels: int) -> dict[str, Any]:
    """A tree of lists in lists."""
    return {"list": [nested(levels - 1)]} if levels else {"value": 0}


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"value": 0, "list": []},
        {"value": 1},
        {"value": -1},
        {"value": "0"},
        {"tuple": {"value": 0}},
        {"dict": [{"value": 0}]},
        {"literal": [1]},
        {"code": "1"},
        {"object": ["Config", {"dict": {}}]},
        {"object": ["os.path.join", {"dict": {}}]},
        {"object": ["reference.Config", {"value": 0}]},
        {"object": ["reference.Config", {"dict": {"a": {"value": 1}}}]},
        {"object": {"dict": {}}},
        {"list": [{"list": [[]]}]},
        nested(50),
    ],
)
def test_a_tree_of_another_form_is_refused(tree: dict[str, Any]) -> None:
    form: dict[str, Any] = {
        "values": [VALUE],
        "data": {"value": 0},
        "result": tree,
        "fixed": [],
        "unique": True,
    }
    with pytest.raises(ValidationError, match="no tree"):
        CaseForm.model_validate(form)
    form["result"] = {"dict": {"a": {"list": [{"value": 0}]}}}
    form["data"] = {"object": ["reference.Config", {"dict": {"a": {"value": 0}}}]}
    CaseForm.model_validate(form)


def test_a_right_answer_is_taken(close: list[SetHost]) -> None:
    host = Answering(b'{"answer": [' + CASE + b"]}")
    close.append(host)
    assert [head.name for head in host.open()] == ["test_1"]
