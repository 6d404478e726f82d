"""What a server records of its problems when it starts, and what it says of changed ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from grader.db.engine import connect, transaction
from grader.db.tables import problem_versions
from grader.problem import Problem
from grader.report import Report
from grader.server.services.container import Services
from tests.db.conftest import migrate_by_copy
from tests.db.conftest import url as url
from tests.fleet.conftest import Clock
from tests.server.conftest import PROBLEMS


class Site:
    """A server that is started again and again with the folder of one problem."""

    def __init__(self, url: str, folder: Path, make_report: Callable[..., Report]) -> None:
        self.url = url
        self.folder = folder
        self.clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
        self._make_report = make_report
        self.opened: list[Services] = []
        migrate_by_copy(url)

    def start(self) -> list[str]:
        """Start a server. Returns the lines that it prints."""
        self.clock.move(3600)
        problems = {"softmax": Problem.load(self.folder)}
        services = Services.open(self.url, problems, now=self.clock)
        self.opened.append(services)
        return [change.line() for change in services.version_changes]

    def change(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def grade(self, user: str = "ada", digest: str = "", **changes: Any) -> None:
        """Record a result of the version in the folder, or of another one."""
        self.clock.move(60)
        report = self._make_report(
            problem_digest=digest or Problem.load(self.folder).digest,
            created_at=self.clock(),
            **changes,
        )
        self.opened[-1].ledger.board.record(report, user, b"")

    def rows(self) -> list[Any]:
        table = problem_versions
        with connect(self.opened[-1].ledger._engine) as connection:
            query = select(table).order_by(table.c.first_served_at)
            return list(connection.execute(query).mappings())


@pytest.fixture
def site(url: str, tmp_path: Path, make_report: Callable[..., Report]) -> Iterator[Site]:
    folder = tmp_path / "softmax"
    shutil.copytree(PROBLEMS / "softmax", folder)
    made = Site(url, folder, make_report)
    yield made
    for services in made.opened:
        services.close()


def test_a_start_records_what_it_serves(site: Site) -> None:
    assert site.start() == []
    assert site.start() == []
    (row,) = site.rows()
    problem = Problem.load(site.folder)
    assert (row["problem"], row["digest"]) == ("softmax", problem.digest)
    assert (row["spec"], row["files"]) == (problem.judged.spec, problem.judged.files)
    assert (row["last_served_at"] - row["first_served_at"]).total_seconds() == 3600


def test_a_start_says_which_change_opens_a_new_ranking(site: Site) -> None:
    site.start()
    old = Problem.load(site.folder)
    site.grade()
    site.grade("bob", verdict="wrong_answer", ranked=False)
    site.change("statement.md", "\n", "\n\nA comma, and more.\n")
    site.change("problem.yaml", "title: ", "title: The ")
    assert site.start() == [], "texts are no part of a version"
    site.change("problem.yaml", "entry: softmax", "entry: softmax\ngpu: H100")
    site.change("reference.py", "\n", "\n# changed\n")
    new = Problem.load(site.folder)
    (line,) = site.start()
    assert line == (
        f"softmax: version 2 ({new.digest[:12]}) opens a new ranking (gpu: not set → H100, "
        "reference.py: changed); the ranking of version 1, with 2 results, stays at "
        "/leaderboards/softmax?version=1"
    )
    assert site.start() == [], "it is said once"
    assert [row["digest"] for row in site.rows()] == [old.digest, new.digest]


def test_a_change_of_a_problem_without_results_opens_nothing(site: Site) -> None:
    site.start()
    site.change("inputs.py", "\n", "\n# changed\n")
    assert site.start() == []


def test_a_start_says_that_an_old_ranking_returns(site: Site) -> None:
    site.start()
    site.grade()
    site.change("reference.py", "\n", "\n# changed\n")
    site.start()
    site.grade()
    site.grade()
    site.change("reference.py", "\n# changed\n", "\n")
    old = Problem.load(site.folder)
    assert site.start() == [
        f"softmax: version 1 ({old.digest[:12]}) returns with its 1 result (reference.py: "
        "changed); the ranking of version 2, with 2 results, stays at "
        "/leaderboards/softmax?version=2"
    ]


def test_a_version_without_results_is_passed_over(site: Site) -> None:
    """The line is about the ranking that users had."""
    site.start()
    site.grade()
    site.change("reference.py", "\n", "\n# changed\n")
    site.start()
    site.change("inputs.py", "\n", "\n# changed\n")
    (line,) = site.start()
    assert "version 3 " in line
    assert "(reference.py: changed, inputs.py: changed); the ranking of version 1, with 1 " in line


def test_a_long_list_of_changes_is_cut(site: Site) -> None:
    site.start()
    site.grade()
    spec = Problem.load(site.folder).spec
    for case in spec.benchmarks:
        site.change("problem.yaml", f"name: {case.name},", f"name: {case.name}_again,")
    (line,) = site.start()
    assert line.count("removed") + line.count("added") == 4
    assert f"{2 * len(spec.benchmarks) - 4} more)" in line


def test_results_of_an_older_grade(site: Site) -> None:
    """It did not record what it served."""
    site.start()
    site.grade(digest="0" * 64)
    with transaction(site.opened[-1].ledger._engine) as connection:
        connection.execute(delete(problem_versions))
    (line,) = site.start()
    assert "version 2 " in line
    assert "opens a new ranking (what changed is not known, since an older grade served" in line
    assert "the ranking of version 1, with 1 result, stays at /leaderboards/softmax?vers" in line
    assert site.start() == []


def test_results_of_this_version_from_before_a_server(site: Site) -> None:
    """`grade submit` has recorded them: nothing changes."""
    site.start()
    site.grade()
    site.grade(digest="0" * 64)
    with transaction(site.opened[-1].ledger._engine) as connection:
        connection.execute(delete(problem_versions))
    assert site.start() == []


def test_each_problem_has_its_own_versions(site: Site, tmp_path: Path) -> None:
    site.start()
    site.grade()
    shutil.copytree(site.folder, tmp_path / "other" / "other")
    other = Problem.load(tmp_path / "other" / "other")
    services = Services.open(
        site.url, {"other": other, "softmax": Problem.load(site.folder)}, now=site.clock
    )
    site.opened.append(services)
    assert services.version_changes == []
    (version,) = services.standings.versions(other)
    assert (version.number, version.results) == (1, 0)
    assert [one.results for one in services.standings.versions(Problem.load(site.folder))] == [1]
    assert replace(version, number=2).label == f"version 2 ({other.digest[:12]})"
