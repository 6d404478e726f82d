"""The rankings of earlier versions of a problem: pages, API, and links between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from grader.problem import Problem
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server.conftest import H100, PROBLEMS, World, every_problem
from tests.server.examples import (
    A100,
    accepted,
    cpu_accepted,
    finish,
    queue_submission,
    two_weeks,
    wrong,
)
from tests.server.site import Site, words

OLD = "0123456789abcdef" * 4


@pytest.fixture
def older() -> Problem:
    """The problem as it was when the two weeks of results were graded."""
    return replace(Problem.load(PROBLEMS / "softmax"), digest=OLD)


@pytest.fixture
def services(settings: Settings, database: str, older: Problem) -> Iterator[Services]:
    """Services over a database that had served another version of the problem."""
    clock = Clock()
    problems = every_problem()
    migrate_by_copy(database)
    Services.open(database, problems | {"softmax": older}, settings, clock).close()
    clock.move(60)
    opened = Services.open(database, problems, settings, clock)
    yield opened
    opened.close()


@pytest.fixture
def site(world: World, older: Problem) -> Site:
    """Two weeks of results of version 1. Version 2 is current, and has none."""
    return Site(world, two_weeks(world.services.ledger, world.clock, older))


def add(site: Site, problem: Problem, user: str, sol: float, gpu: str = H100) -> int:
    """The number of a new graded submission."""
    for job in site.world.services.ledger.queue():
        site.world.services.ledger.cancel(job.submission_id, "root")
    number = queue_submission(site.world.services.ledger, problem, user)
    finish(site.world.services.ledger, site.world.clock, accepted(problem, sol, gpu))
    return number


def test_an_empty_board_links_to_the_earlier_version(site: Site) -> None:
    page = site.page("/leaderboards/softmax")
    assert "No ranked result yet" in words(page)
    row = "Version Results Users ranked Graded Version 1 17 7 2030-01-01 to 2030-01-11"
    assert row in words(page).split("Other versions")[1]
    assert '<a href="/leaderboards/softmax?version=1">Version 1</a>' in page
    assert "Other versions" not in site.page("/leaderboards/int4_matmul")


def test_the_ranking_of_an_earlier_version_stays_readable(site: Site, older: Problem) -> None:
    add(site, site.world.problem, "edsger", 0.9)
    current = words(site.page("/leaderboards/softmax"))
    assert "edsger" in current
    assert "katherine" not in current
    for version in ("1", OLD[:12], OLD):
        page = site.page(f"/leaderboards/softmax?version={version}")
        text = words(page)
        assert "This is the ranking of version 1 of the problem" in text
        assert re.search(r"Standings .* 1 katherine .* ada .* barbara ", text)
        assert "By shape" in text
        assert '<a href="/leaderboards/softmax">The current ranking</a>' in page
        assert "Version 2, the current one 1 1" in text
        assert '<a href="/leaderboards/softmax">Version 2, the current one</a>' in page
    other_gpu = f'href="?version=1&amp;gpu={A100.replace(" ", "%20")}"'
    assert other_gpu in page
    text = words(site.page(f"/leaderboards/softmax?version=1&gpu={A100}"))
    assert "katherine" in text
    assert "barbara" not in text
    same = site.page("/leaderboards/softmax?version=2")
    assert "This is the ranking of version" not in same
    assert "edsger" in same
    for odd in ("3", "0", "abc", "fedcba98", "' OR 1=1", "%"):
        assert "no such version" in site.page(
            f"/leaderboards/softmax?version={odd.replace('%', '%25')}", status=404
        )


def test_the_pages_of_a_long_earlier_ranking(world: World, older: Problem) -> None:
    site = Site(world, {})
    fields = accepted(older, 0.5)
    for number in range(53):
        queue_submission(world.services.ledger, older, f"user{number:02}")
        score_us = 100.0 + number
        changed = {"score_us": score_us, "score_ci_us": (score_us - 0.1, score_us + 0.1)}
        finish(world.services.ledger, world.clock, fields | changed)
    first = site.page("/leaderboards/softmax?version=1")
    (link,) = re.findall(r'<a href="(\?[^"]*)">Slower</a>', first)
    second = site.page("/leaderboards/softmax" + link.replace("&amp;", "&"))
    assert "user52" in words(second)
    assert "This is the ranking of version 1" in words(second)


def test_an_earlier_version_without_a_ranking(world: World, older: Problem) -> None:
    site = Site(world, {})
    queue_submission(world.services.ledger, older, "margaret")
    finish(world.services.ledger, world.clock, cpu_accepted(older))
    text = words(site.page("/leaderboards/softmax?version=1", "ada"))
    assert "No ranked result No result of this version" in text
    assert "margaret" in text
    assert "Submit a file" not in text
    assert "margaret" not in words(site.page("/leaderboards/softmax", "ada"))


def test_a_result_links_to_the_ranking_of_its_version(site: Site) -> None:
    old = site.page(f"/submissions/{site.marks['best']}")
    assert "This is for another version of the problem" in words(old)
    assert '<a href="/leaderboards/softmax?version=1">The ranking of its version</a>' in old
    gpu = H100.replace(" ", "%20")
    assert f'<a href="/leaderboards/softmax?version=1&amp;gpu={gpu}">2</a>' in old
    assert "the leader" in words(old), "of its own version"
    unranked = site.page(f"/submissions/{site.marks['wrong']}")
    assert '<a href="/leaderboards/softmax?version=1">The ranking of its version</a>' in unranked
    new = site.page(f"/submissions/{add(site, site.world.problem, 'edsger', 0.5)}")
    assert f'<a href="/leaderboards/softmax?gpu={gpu}">1</a>' in new
    assert "another version" not in new


def test_an_earlier_ranking_changes_with_its_results(site: Site) -> None:
    """Answers are cached, but none is older than its request."""
    path = "/leaderboards/softmax?version=1"
    assert "katherine" in words(site.page(path))
    best = site.page(f"/submissions/{site.marks['best']}")
    site.world.services.accounts.add_user("katherine")
    site.world.services.admin.ban("katherine", "cheating", "root")
    assert "katherine" not in words(site.page(path))
    assert site.page(f"/submissions/{site.marks['best']}") != best
    assert "Version 1 15 6 " in words(site.page("/leaderboards/softmax"))


def test_an_earlier_version_is_as_hidden_as_its_board(site: Site) -> None:
    path = "/leaderboards/softmax?version=1"
    settings = BoardSettings(deadline=site.world.clock().replace(year=2031))
    site.world.services.admin.set_board("softmax", settings, "root")
    assert "By shape" not in site.page(path)
    site.set_board(hidden=True)
    site.page(path, status=404)
    for name in ("leaderboards/softmax?version=1", "problems/softmax/versions"):
        assert site.world.client().get(f"/api/v1/{name}").status_code == 404


def test_versions_over_the_api(site: Site) -> None:
    world, client = site.world, site.world.client()
    add(site, world.problem, "edsger", 0.9)
    answer = client.get("/api/v1/problems/softmax/versions").json()
    first, second = answer["versions"]
    assert answer["problem"] == "softmax"
    assert (first["number"], first["digest"], first["is_current"]) == (1, OLD, False)
    assert (first["results"], first["users"]) == (17, 7)
    assert (first["first_at"], first["last_at"][:10]) == ("2030-01-01T00:01:25Z", "2030-01-11")
    assert (second["number"], second["is_current"], second["results"]) == (2, True, 1)
    assert second["digest"] == world.problem.digest

    def board(**params: object) -> tuple[str, int, list[str]]:
        found = client.get("/api/v1/leaderboards/softmax", params=params).json()  # type: ignore[arg-type]
        return found["digest"], found["total"], [one["user"] for one in found["entries"][:1]]

    assert board() == (world.problem.digest, 1, ["edsger"])
    assert board(version=1) == board(version=OLD[:6]) == (OLD, 1, ["katherine"])
    assert board(version=1, gpu="H100") == (OLD, 7, ["katherine"])
    assert board(version=2) == board()
    refused = client.get("/api/v1/leaderboards/softmax?version=9")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "no_such_version"
    assert "from 1 to 2" in refused.json()["error"]["message"]
    refused = client.get("/api/v1/leaderboards/softmax?version=1&gpu=B200")
    assert refused.json()["error"]["code"] == "no_such_gpu"


def test_the_api_counts_what_counts(site: Site, older: Problem) -> None:
    def results() -> list[int]:
        answer = site.world.client().get("/api/v1/problems/softmax/versions").json()
        return [one["results"] for one in answer["versions"]]

    assert results() == [17, 0]
    site.world.services.admin.delete(site.marks["wrong"], "root")
    assert results() == [16, 0]
    for job in site.world.services.ledger.queue():
        site.world.services.ledger.cancel(job.submission_id, "root")
    queue_submission(site.world.services.ledger, site.world.problem, "ada")
    finish(site.world.services.ledger, site.world.clock, wrong(older))
    assert results() == [16, 1]


def test_an_admin_gets_what_the_current_version_consists_of(world: World) -> None:
    answer = world.client("root").get("/api/v1/admin/boards/softmax/versions").json()
    judged = world.problem.judged
    assert answer["current"] == {"spec": judged.spec, "files": judged.files}
    assert [one["is_current"] for one in answer["versions"]] == [False, True]
    assert world.client("root").get("/api/v1/admin/boards/x/versions").status_code == 404
