"""What a dispatcher grades, while the folders of problems change."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import cast

import pytest

from grader.fleet import Ledger, State
from grader.fleet.dispatch import Dispatcher, JobSource
from grader.fleet.loaded_problems import ProblemFolders, WatchedProblems
from grader.problem import Problem
from tests.fleet.conftest import a_submission
from tests.fleet.fake import PROBLEM, FakeEngine
from tests.fleet.test_dispatch import LEASE_S, MakeReport
from tests.fleet.test_ledger import job
from tests.waiting import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one problem."""
    shutil.copytree(PROBLEM.folder, tmp_path / "problems" / "softmax")
    return tmp_path / "problems"


def find(root: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in root.glob("*/problem.yaml")}


def change(folder: Path) -> None:
    with (folder / "reference.py").open("a") as file:
        file.write("\n# changed\n")


def test_problems_are_loaded_again_when_they_change(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedProblems(lambda: find(root))
    first = watched.look()["softmax"]
    assert first.digest == PROBLEM.digest
    assert watched.look()["softmax"] is first, "an unchanged folder is not read again"
    change(root / "softmax")
    second = watched.look()["softmax"]
    assert second.digest == Problem.load(root / "softmax").digest != first.digest
    shutil.copytree(PROBLEM.folder.parent / "square", root / "square")
    assert set(watched.look()) == {"softmax", "square"}
    (root / "softmax" / "problem.yaml").write_text("title: [")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert watched.look()["softmax"] is second, "a broken one stays as it was"
    assert caplog.text.count("problem softmax: stays as it was") == 1
    shutil.rmtree(root / "square")
    assert set(watched.look()) == {"softmax"}


def test_a_version_has_a_folder_of_its_own(root: Path) -> None:
    folders = ProblemFolders()
    old = Problem.load(root / "softmax")
    change(root / "softmax")
    new = Problem.load(root / "softmax")
    kept = folders.folder_of(old), folders.folder_of(new)
    assert [Problem.load(folder).digest for folder in kept] == [old.digest, new.digest]
    assert folders.folder_of(old) == kept[0]
    (kept[0] / "inputs.py").unlink()
    assert Problem.load(folders.folder_of(old)).files == old.files, "what is missing is written"
    shutil.rmtree(kept[1].parents[1])
    again = folders.folder_of(new)
    assert Problem.load(again).files == new.files, "and also if all was removed"
    folders.close()
    assert not again.exists()


def submit(ledger: Ledger, problem: Problem, source: str) -> int:
    return ledger.submit("ada", problem.name, problem.digest, a_submission(source))


def test_a_dispatcher_grades_what_was_loaded_until_it_is_replaced(
    ledger: Ledger, root: Path, report_of: MakeReport
) -> None:
    old = Problem.load(root / "softmax")
    engine = FakeEngine()
    dispatcher = Dispatcher(
        cast(JobSource, ledger),
        engine,
        {"softmax": root / "softmax"},
        "host",
        lease_s=LEASE_S,
        tick_s=0.01,
    )
    dispatcher.start()
    try:
        change(root / "softmax")
        submit(ledger, old, "x = 1")
        task = engine.task()
        assert Problem.load(task.folder).digest == task.digest == old.digest
        new = Problem.load(root / "softmax")
        dispatcher.set_problems({"softmax": new})
        number = submit(ledger, new, "x = 2")
        engine.end(report_of("x = 1", problem_digest=old.digest))
        task = engine.task()
        assert Problem.load(task.folder).digest == task.digest == new.digest
        until(lambda: job(ledger, 1).state is State.DONE)  # a job that ran goes on
        engine.end(report_of("x = 2", problem_digest=new.digest))
        until(lambda: job(ledger, number).state is State.DONE)
        folder = task.folder
        outdated = submit(ledger, old, "x = 3")
        ledger.hold_outdated({"softmax": new.digest})
        assert job(ledger, outdated).state is State.HELD
    finally:
        dispatcher.drain(0)
    assert not folder.exists()


def test_a_worker_sees_when_its_folder_changes(ledger: Ledger, root: Path) -> None:
    engine = FakeEngine()
    found = [{"softmax": Problem.load(root / "softmax")}]
    looks = iter([{}, *found])
    dispatcher = Dispatcher(
        cast(JobSource, ledger),
        engine,
        {"softmax": root / "softmax"},
        "host",
        look=lambda: next(looks),
        lease_s=LEASE_S,
        tick_s=0.01,
    )
    submit(ledger, found[0]["softmax"], "x = 1")
    dispatcher._round()
    assert engine.tasks == {}, "the folder of the problem is gone"
    assert ledger.workers(60)[0].problems == {}
    dispatcher._looks._last = dispatcher._announcements._last = float("-inf")
    dispatcher._round()
    assert ledger.workers(60)[0].problems == {"softmax": PROBLEM.digest}
    (task,) = engine.tasks.values()
    assert task.digest == PROBLEM.digest
    dispatcher._folders.close()
