"""Frozen standings: nothing that readers get depends on a later result.

Two servers differ only in what was graded after the freeze. Every public route must answer the same
on both, to everybody but admins and the authors of what is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from grader.judge import Progress
from grader.report import Report
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server.conftest import H100, PEOPLE, World, every_problem, running_world
from tests.server.test_access import API, TABLE, Access

LATER_GPU = "NVIDIA H200 141GB HBM3e"
LATER, RUNNING = 4, 9
"""A later submission of ada, and one that is graded now. Submission 3 is the rejudge's."""

LATE = ("eve", "cara")
"""Competitors besides `PEOPLE`."""
READERS = [None, "bob", "wilma"]
"""Who has no later result."""

FAST = {"score_us": 11.5, "score_ci_us": (11.4, 11.6)}
WRONG: dict[str, Any] = {
    "verdict": "wrong_answer",
    "ranked": False,
    "score_us": None,
    "score_ci_us": None,
    "reason": "column 3 is off",
}


@contextmanager
def opened(folder: Path, settings: Settings, make_report: Callable[..., Report]) -> Iterator[World]:
    """A server like that of the fixture `world`."""
    folder.mkdir()
    url = f"sqlite:///{folder}/server.sqlite3"
    migrate_by_copy(url)
    services = Services.open(url, dict(every_problem()), settings, Clock())
    with running_world(services, make_report, PEOPLE | dict.fromkeys(LATE, "competitor")) as world:
        yield world
    services.close()


def before(world: World) -> None:
    """What is graded before the freeze: submissions 1 and 2, and a copy of 2 in a rejudge."""
    world.graded("ada", score_us=50.0, score_ci_us=(49.5, 50.5))
    world.graded("cara", score_us=70.0, score_ci_us=(69.5, 70.5))
    digest = world.problem.digest
    world.services.admin.rejudges.start("softmax", digest, [2], reason="", by="root")
    world.clock.move(60)
    freeze_at = world.clock()
    world.clock.move(60)
    settings = BoardSettings(freeze_at=freeze_at, publish_sources=True)
    world.services.admin.set_board("softmax", settings, "root")


def after(world: World, *, fast: bool) -> None:
    """What happens after it: all that counts is faster, or all fails."""
    first, second = (FAST, WRONG) if fast else (WRONG, FAST)
    # Submissions go before the rejudge's copy. A result on a new GPU would make a new board.
    for name, changes in (("ada", first), ("eve", second), ("eve", first)):
        number = world.submitted(name)
        world.grade(**changes)
    if fast:
        world.services.withdrawals.withdraw(number, "eve")
    world.submitted("eve")
    world.grade(**(FAST | {"gpu": LATER_GPU} if fast else WRONG))
    # Faster than the hardware allows, so it is held.
    world.submitted("eve")
    above = [case.model_copy(update={"sol": 1.5}) for case in world.make_report().cases]
    world.grade(**(FAST | {"cases": above} if fast else FAST))
    world.grade(**(FAST if fast else {"score_us": 90.0, "score_ci_us": (89.0, 91.0)}))
    world.services.admin.rejudges.apply(1, "root")
    world.submitted("ada")
    progress = Progress("benchmark" if fast else "test", "a", 1, 4, "passed")
    world.services.ledger.heartbeat(world.lease(), 60, progress)


def public_pages() -> list[Access]:
    return [
        row
        for row in TABLE
        if row.method == "GET" and row.statuses[2] in (200, 403) and "{problem}" not in row.path
    ]


def answers(world: World, name: str | None) -> dict[str, str]:
    """What a reader gets: each address of a public route → the answer."""
    client, found = world.client(name), {}
    numbers = range(1, RUNNING + 1)
    for row in public_pages():
        if "/admin" in row.path or "/batches/" in row.path or row.path == "/static":
            continue
        names = row.fill or {}
        paths = [row.path]
        if "{number}" in row.path:
            others = (1, LATER) if "{other}" in row.path else (0,)
            pairs = [(one, other) for one in numbers for other in others]
            paths = [
                row.path.format(number=one, other=other)
                for one, other in pairs
                if not (
                    "/events" in row.path and one == RUNNING
                )  # it is being graded: it never ends
            ]
        elif row.path == "/users/{name}":
            paths = [f"/users/{user}" for user in ("ada", "cara", "eve")]
        elif "leaderboards" in row.path:
            path = row.path.format(**names)
            asked = ("", "?version=1", f"?gpu={H100}", "?gpu=H200", f"?gpu={LATER_GPU}")
            paths = [path + query for query in (*asked, "?user=eve", "?language=python")]
        elif row.path == f"{API}/submissions":
            paths = [row.path + query for query in ("", "?user=eve", "?state=done")]
        else:
            paths = [row.path.format(**names)]
        for path in paths:
            reply = client.get(path)
            text = reply.text.replace(world.url, "").replace(world.url.split("//")[1], "")
            if row.path == "/metrics":
                text = "\n".join(re.findall(r"(?m)^grade_(?:results|jobs).*$", text))
            found[path] = f"{reply.status_code} {text}"
    return found


@pytest.fixture
def worlds(
    tmp_path: Path, settings: Settings, make_report: Callable[..., Report]
) -> Iterator[tuple[World, World]]:
    # Of the same moment, since reports have the judge's.
    created_at = datetime(2029, 1, 1, tzinfo=UTC)

    def make(**changes: Any) -> Report:
        return make_report(created_at=created_at, **changes)

    with (
        opened(tmp_path / "one", settings, make) as one,
        opened(tmp_path / "other", settings, make) as other,
    ):
        yield one, other


def test_no_answer_depends_on_a_later_result(worlds: tuple[World, World]) -> None:
    for world, fast in zip(worlds, (True, False), strict=True):
        before(world)
        for name in READERS:  # so that caches hold the answers of before
            answers(world, name)
        after(world, fast=fast)
    for name in READERS:
        one, other = (answers(world, name) for world in worlds)
        assert one == other
        assert len(one) > 90
        assert one[f"{API}/leaderboards/softmax"].count('"rank"') == 2
        assert "Frozen since 1 January 2030" in one["/leaderboards/softmax"]
        assert "final standings follow" in one["/problems/softmax"]
        assert ">frozen</span>" in one["/"]
        assert one[f"{API}/submissions/{LATER}"].startswith("200")
        assert '"score_us":50.0' in one[f"{API}/submissions/1"]
    admins = [answers(world, "root") for world in worlds]
    for path in ("/", "/leaderboards/softmax", f"{API}/submissions/{LATER}"):
        assert admins[0][path] != admins[1][path], "an admin sees it all"
    for world in worlds:
        root = world.client("root")
        settings = {"publish_sources": True}
        assert root.put(f"{API}/admin/boards/softmax", json=settings).status_code == 200
    for name in READERS:
        one, other = (answers(world, name) for world in worlds)
        for path in ("/", "/leaderboards/softmax", "/users/ada", f"{API}/submissions/{LATER}"):
            assert one[path] != other[path], "after unfreezing all see it"
        assert "Frozen since" not in one["/leaderboards/softmax"]


def test_a_competitor_sees_their_own_later_result_without_a_rank(
    worlds: tuple[World, World],
) -> None:
    world = worlds[0]
    before(world)
    after(world, fast=True)
    ada = world.client("ada")
    own = ada.get(f"{API}/submissions/{LATER}").json()
    assert (own["verdict"], own["score_us"], own["rank"]) == ("accepted", 11.5, None)
    page = ada.get(f"/submissions/{LATER}").text
    assert "11.5" in page
    assert "The rank of this result follows with the final standings" in page
    assert ">Rank<" not in page
    events = ada.get(f"{API}/submissions/{LATER}/events").text
    assert '"score_us":11.5' in events
    assert '"rank":null' in events
    assert ada.get(f"{API}/submissions/1").json()["rank"] == 1, "in the frozen standings"
    assert "11.5" not in ada.get("/leaderboards/softmax").text
    assert "11.5" in ada.get("/users/ada").text, "their own page lists their own results"
    assert "11.5" not in world.client("bob").get("/users/ada").text
    assert world.client("root").get(f"{API}/submissions/{LATER}").json()["rank"] == 1


def test_a_freeze_begins_at_its_moment(worlds: tuple[World, World]) -> None:
    world = worlds[0]
    world.graded("ada")
    moment = world.clock() + timedelta(minutes=10)
    world.services.admin.set_board("softmax", BoardSettings(freeze_at=moment), "root")
    readers = [world.client(), world.client("bob")]

    def users(client: httpx.Client) -> int:
        board = client.get(f"{API}/leaderboards/softmax").json()
        page = client.get("/leaderboards/softmax").text
        assert board["board"]["frozen"] is (world.clock() >= moment)
        assert ("Frozen since" in page) is board["board"]["frozen"]
        assert ("The standings freeze on" in page) is not board["board"]["frozen"]
        return int(board["total"])

    assert [users(one) for one in readers] == [1, 1]
    world.graded("bob")
    assert [users(one) for one in readers] == [2, 2]
    world.clock.move(600)
    world.submitted("eve")
    world.grade()
    assert [users(one) for one in readers] == [2, 2]
    root = world.client("root")
    assert root.get(f"{API}/leaderboards/softmax").json()["total"] == 3
    assert "Frozen for all but admins" in root.get("/leaderboards/softmax").text
    assert world.submit("bob").status_code == 202, "submissions go on"


def test_a_ban_acts_on_frozen_standings(worlds: tuple[World, World]) -> None:
    world = worlds[0]
    before(world)
    world.services.admin.ban("ada", "", "root")
    board = world.client().get(f"{API}/leaderboards/softmax").json()
    assert [entry["user"] for entry in board["entries"]] == ["cara"]


def test_practice_on_a_cpu_is_not_kept_for_others(world: World) -> None:
    """A page that its author made first shows others no result that they may not see."""
    deadline = world.clock() + timedelta(days=1)
    world.services.admin.set_board("softmax", BoardSettings(deadline=deadline), "root")
    changes = {"device": "cpu", "gpu": None, "ranked": False, "score_us": None}
    world.graded("ada", score_ci_us=None, **changes)
    for name in ("root", "ada", "bob", None):
        page = world.client(name).get("/leaderboards/softmax").text
        assert ("Accepted on a CPU" in page) is (name == "root"), name
