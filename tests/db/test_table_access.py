"""Only `grader.db` defines tables, and only the ledger's `job_updates` writes jobs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import grader

PACKAGE = Path(grader.__file__).parent
WRITES = {"insert", "update", "delete"}
JOB_TABLES = {"jobs", "submissions", "blobs"}
BATCH_TABLES = {"batches", "batch_items"}


def calls(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def writes(source: str, written: set[str]) -> bool:
    """Whether the source writes one of these tables, by SQLAlchemy or by SQL text."""
    for call in calls(source):
        if name_of(call.func) not in WRITES:
            continue
        tables = [name_of(argument) for argument in call.args[:1]]
        if isinstance(call.func, ast.Attribute):
            tables.append(name_of(call.func.value))
        if written & set(tables):
            return True
    raw_sql = rf"(?i)\b(INSERT INTO|UPDATE|DELETE FROM)\s+({'|'.join(written)})\b"
    return re.search(raw_sql, source) is not None


def writing(tables: set[str]) -> list[str]:
    """The modules that write one of these tables."""
    outside = modules_outside("db/migrations/")
    return [module for module in outside if writes((PACKAGE / module).read_text(), tables)]


def modules_outside(*rooms: str) -> list[str]:
    found = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return sorted(module for module in found if not module.startswith(rooms))


def test_only_the_database_room_defines_tables() -> None:
    defining = [
        module
        for module in modules_outside("db/")
        if any(name_of(call.func) == "Table" for call in calls((PACKAGE / module).read_text()))
        and "sqlalchemy" in (PACKAGE / module).read_text()
    ]
    assert defining == []


def test_only_job_updates_writes_jobs() -> None:
    assert writing(JOB_TABLES) == ["fleet/job_updates.py"]


def test_only_batch_updates_writes_batches() -> None:
    assert writing(BATCH_TABLES) == ["fleet/batch_updates.py"]


@pytest.mark.parametrize(
    "source",
    [
        "connection.execute(insert(jobs).values(state='queued'))",
        "connection.execute(sa.update(tables.submissions))",
        "connection.execute(jobs.delete())",
        "connection.execute(text('UPDATE jobs SET state = 1'))",
    ],
)
def test_a_write_is_recognized(source: str) -> None:
    assert writes(source, JOB_TABLES)


@pytest.mark.parametrize("source", ["select(jobs)", "insert(voids)", "digest.update(source)"])
def test_other_calls_are_not_writes_of_jobs(source: str) -> None:
    assert not writes(source, JOB_TABLES)
