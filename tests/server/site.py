"""A served board with two weeks of data, browsers without scripts, and a checker of pages."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from datetime import datetime
from html.parser import HTMLParser
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import Connection, Table, insert, select

from grader.db.engine import connect, transaction
from grader.db.tables import metadata
from grader.fleet import Ledger
from grader.problem import Problem
from grader.server.services.admin_service import BoardSettings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server.conftest import World
from tests.server.examples import ATTACK, ATTACK_NAME, two_weeks

VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@dataclass
class Site:
    """A board with two weeks of data, and browsers without scripts."""

    world: World
    marks: dict[str, int]

    def browser(self, name: str | None = None) -> httpx.Client:
        """A browser that is logged in as `name`, or not logged in."""
        client = self.world.client()
        client.headers["Accept"] = "text/html"
        if name is not None:
            services = self.world.services
            if services.accounts.user(name) is None:
                self.world.tokens[name] = services.accounts.add_user(name)
            answer = client.post("/login", data={"token": self.world.tokens[name]})
            assert answer.status_code == 303, answer.text
        return client

    def page(self, path: str, name: str | None = None, status: int = 200) -> str:
        """The text of a page, after asserting that `check` passes."""
        answer = self.browser(name).get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        check(answer.text)
        return answer.text

    def set_board(self, **settings: Any) -> None:
        """Change the softmax board's settings."""
        self.world.services.admin.set_board("softmax", BoardSettings(**settings), "root")


@pytest.fixture
def site(world: World) -> Site:
    engine = world.services.ledger.board._engine
    if engine.dialect.name != "sqlite":  # whose sequences do not follow inserted numbers
        return Site(world, two_weeks(world.services.ledger, world.clock, world.problem))
    board = _two_weeks(world.problem, world.clock())
    with transaction(engine) as connection:
        for table, rows in board.rows:
            connection.execute(insert(table), rows)
    world.clock.move((board.end - world.clock()).total_seconds())
    return Site(world, dict(board.marks))


class FilledBoard(NamedTuple):
    """What `two_weeks` adds to a database."""

    rows: list[tuple[Table, list[dict[str, Any]]]]
    marks: dict[str, int]
    end: datetime


def _two_weeks(problem: Problem, start: datetime) -> FilledBoard:
    key = problem.digest, start
    if key not in _BOARDS:
        _BOARDS[key] = _filled(problem, start)
    return _BOARDS[key]


_BOARDS: dict[tuple[str, datetime], FilledBoard] = {}
"""Kept, since to fill a board takes half a second of CPU time, and many tests want the same one."""


def _filled(problem: Problem, start: datetime) -> FilledBoard:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/board.sqlite3"
        migrate_by_copy(url)
        clock = Clock(start)
        ledger = Ledger.open(url, clock)
        with connect(ledger.board._engine) as connection:
            before = {table for table in metadata.sorted_tables if _rows(connection, table)}
        marks = two_weeks(ledger, clock, problem)
        with connect(ledger.board._engine) as connection:
            rows = [(table, _rows(connection, table)) for table in metadata.sorted_tables]
        ledger.close()
    return FilledBoard(
        [(table, some) for table, some in rows if some and table not in before], marks, clock()
    )


def _rows(connection: Connection, table: Table) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


class PageParser(HTMLParser):
    """Parses a page, and collects its faults."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.fields: list[str | None] = []
        self.headings: list[int] = []
        self.faults: list[str] = []
        self.text: list[str] = []

    @classmethod
    def words_of(cls, html: str) -> list[str]:
        """The words of a fragment of a page."""
        reader = cls()
        reader.feed(html)
        return " ".join(reader.text).split()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.faults += [name for name in named if name == "style" or name.startswith("on")]
        if tag in ("style", "iframe", "object") or (tag == "script" and "src" not in named):
            self.faults.append(tag)
        for name in ("src", "href", "action"):
            # A page may lead to another site, and loads nothing from it.
            elsewhere = ("https://",) if (tag, name) == ("a", "href") else ()
            if not (named.get(name) or "/").startswith(("/", "#", "?", "http://", *elsewhere)):
                self.faults.append(f"{name}={named[name]}")
        if tag == "img" or (tag == "svg" and not {"aria-label", "aria-hidden"} & set(named)):
            self.faults.append(f"{tag} without a label")
        if "id" in named:
            self.ids.append(named["id"] or "")
        if tag == "label":
            self.labels.append(named.get("for") or "")
        if tag in ("input", "select", "textarea") and named.get("type") != "hidden":
            self.fields.append(named.get("id"))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> PageParser:
    """Assert that a page is well-formed and accessible, and within the content policy."""
    reader = PageParser()
    reader.feed(page)
    assert reader.faults == []
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert all(field in reader.labels for field in reader.fields)
    assert reader.headings.count(1) == 1
    steps = zip(reader.headings, reader.headings[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps), reader.headings
    return reader


def words(page: str) -> str:
    """The visible text of a page."""
    return " ".join(" ".join(check(page).text).split())


def everywhere(site: Site) -> list[str]:
    """The address of every page."""
    numbers = sorted(site.marks.values())
    return [
        "/", "/queue", "/verdicts", "/submit", "/login", "/rules", "/api",
        "/leaderboards/softmax", "/problems/softmax", "/users/ada",
        f"/users/{ATTACK_NAME}".replace("<", "%3C").replace(">", "%3E"),
        f"/nothing/{ATTACK}", f"/login?to=/{ATTACK}",
        *(f"/submissions/{number}" for number in numbers),
        f"/submissions/{site.marks['attack']}/compare/{site.marks['best']}",
    ]  # fmt: skip
