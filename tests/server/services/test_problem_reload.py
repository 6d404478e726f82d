"""Problems that are added and changed while a server runs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grader.cli.commands import admin_problem
from grader.fleet import State
from grader.problem import Problem
from grader.report import Report
from grader.server.services import Conflict, Invalid
from grader.server.services.container import Services, load_problems
from grader.server.services.problem_reload import (
    FolderChange,
    ProblemReload,
    VerifyOutcome,
    verify_in_child,
)
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server.command_line import runner
from tests.server.conftest import PEOPLE, PROBLEMS, Server, World
from tests.server.pages.test_admin_pages import Browser
from tests.waiting import PATIENCE_S

HOLDS = VerifyOutcome((), "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server's folder of problems."""
    root = tmp_path / "problems"
    for name in ("softmax", "square"):
        shutil.copytree(PROBLEMS / name, root / name)
    return root


@pytest.fixture
def world(
    folder: Path, database: str, settings: Settings, make_report: Callable[..., Report]
) -> Iterator[World]:
    clock = Clock()
    migrate_by_copy(database)
    services = Services.open(database, load_problems(folder), settings, clock, folder=folder)
    server = Server(services)
    with server as url:
        made = World(services, server, url, clock, make_report)
        for name, role in PEOPLE.items():
            made.tokens[name] = services.accounts.add_user(name, role)  # type: ignore[arg-type]
        yield made
        for client in made.clients:
            client.close()
    services.close()


@pytest.fixture
def reload(world: World) -> ProblemReload:
    """The reloads of a server. Every check holds."""
    world.services.reload.verify = lambda *_: HOLDS
    return world.services.reload


def append(folder: Path, file: str, text: str = "\n# changed\n") -> None:
    with (folder / file).open("a") as opened:
        opened.write(text)


def add(folder: Path, name: str) -> None:
    shutil.copytree(PROBLEMS / name, folder / name)


def done(reload: ProblemReload) -> None:
    reload.join(PATIENCE_S)
    assert reload.last is not None
    assert reload.last.ended_at is not None


def kinds(reload: ProblemReload) -> dict[str, str]:
    return {change.problem: change.kind for change in reload.preview()}


def test_a_preview_says_what_a_reload_would_do(
    world: World, folder: Path, reload: ProblemReload
) -> None:
    assert reload.preview() == []
    world.graded("ada")
    world.submitted("bob")
    append(folder, "softmax/reference.py")
    append(folder, "square/statement.md")
    add(folder, "vector_add")
    add(folder, "gelu")
    append(folder, "gelu/problem.yaml", "\nno_such_key: 1\n")
    (softmax,) = (one for one in reload.preview() if one.problem == "softmax")
    digest = Problem.load(folder / "softmax").digest
    assert softmax == FolderChange(
        "softmax", "version", digest, 2, ["reference.py: changed"], waiting=1
    )
    assert kinds(reload) == {
        "gelu": "broken",
        "softmax": "version",
        "square": "texts",
        "vector_add": "new",
    }
    (gelu,) = (one for one in reload.preview() if one.problem == "gelu")
    assert "no_such_key" in gelu.changes[0]
    shutil.rmtree(folder / "square")
    assert kinds(reload)["square"] == "missing"
    assert set(world.services.problems) == {"softmax", "square"}, "nothing was taken"


def test_what_holds_is_taken(world: World, folder: Path, reload: ProblemReload) -> None:
    taken: list[dict[str, str]] = []
    reload.watch(lambda problems: taken.append({n: p.digest for n, p in problems.items()}))
    number = world.graded("ada")
    waiting = world.submitted("bob")
    readers = [world.client(), world.client("ada")]
    for reader in readers:
        assert "Vector addition" not in reader.get("/").text
        assert reader.get("/problems/vector_add").status_code == 404
    before = world.problem.digest
    append(folder, "softmax/reference.py")
    append(folder, "square/statement.md", "\nMind the gap.\n")
    add(folder, "vector_add")
    reload.start("root")
    done(reload)
    run = reload.last
    assert run is not None
    assert run.ok
    assert run.by == "root"
    assert [one.state for one in run.problems] == ["taken"] * 3
    assert "softmax: version 2" in run.notes[0]
    assert "1 waiting submissions of old versions are held" in run.notes
    assert list(world.services.problems) == ["softmax", "square", "vector_add"]
    assert world.problem.digest == Problem.load(folder / "softmax").digest != before
    assert taken == [{name: one.digest for name, one in world.services.problems.items()}]
    assert reload.preview() == []
    for reader in readers:
        assert "Vector addition" in reader.get("/").text
        assert "Mind the gap" in reader.get("/problems/square").text
        assert reader.get("/problems/vector_add").status_code == 200
        assert "version=1" in reader.get("/leaderboards/softmax").text
    held, old = world.services.ledger.job(waiting), world.services.ledger.job(number)
    assert held is not None
    assert (held.state, held.held_reason) == (
        State.HELD,
        "the problem has changed since this was submitted",
    )
    assert old is not None
    assert old.state is State.DONE
    job = world.services.ledger.job(world.submitted("bob"))
    assert job is not None
    assert job.problem_digest == world.problem.digest
    acts = [(act.actor, act.action, act.subject) for act in world.services.admin.audit()]
    names = ("vector_add", "square", "softmax")
    assert acts[:3] == [("root", "problem reload", name) for name in names]
    # A change that is taken back brings its ranking back.
    shutil.copy(PROBLEMS / "softmax/reference.py", folder / "softmax/reference.py")
    assert kinds(reload) == {"softmax": "returning"}
    reload.start("root", ["softmax"])
    done(reload)
    assert world.problem.digest == before


def test_what_does_not_hold_stays_as_it_was(
    world: World, folder: Path, reload: ProblemReload
) -> None:
    def verify(checked: Path, *_: object) -> VerifyOutcome:
        if checked.name == "square":
            return VerifyOutcome(["zeros, tiny: passed."], "Traceback: of the author")
        return HOLDS

    reload.verify = verify
    before = world.services.problems["square"]
    waiting = world.submitted("ada", problem="square", content=b"def square(x, out): ...\n")
    append(folder, "square/inputs.py")
    add(folder, "vector_add")
    reload.start("root")
    done(reload)
    run = reload.last
    assert run is not None
    assert not run.ok
    states = {one.problem: one.state for one in run.problems}
    assert states == {"square": "refused", "vector_add": "taken"}
    (square,) = (one for one in run.problems if one.problem == "square")
    assert (list(square.findings), square.output) == (
        ["zeros, tiny: passed."],
        "Traceback: of the author",
    )
    assert world.services.problems["square"] is before
    job = world.services.ledger.job(waiting)
    assert job is not None
    assert job.state is State.QUEUED
    assert kinds(reload) == {"square": "version"}


def test_the_files_that_are_verified_are_taken(
    world: World, folder: Path, reload: ProblemReload
) -> None:
    """A folder that changes meanwhile is not taken without a check."""
    append(folder, "square/inputs.py")
    digest = Problem.load(folder / "square").digest

    def verify(checked: Path, *_: object) -> VerifyOutcome:
        append(folder, "square/inputs.py", "\nraise SystemExit\n")
        assert Problem.load(checked).digest == digest
        return HOLDS

    reload.verify = verify
    reload.start("root")
    done(reload)
    assert world.services.problems["square"].digest == digest
    assert kinds(reload) == {"square": "version"}


def test_refusals(world: World, folder: Path, reload: ProblemReload) -> None:
    with pytest.raises(Conflict, match="no problem has changed"):
        reload.start("root")
    with pytest.raises(Invalid, match="has no problem nothing"):
        reload.start("root", ["nothing"])
    add(folder, "vector_add")
    append(folder, "square/problem.yaml", "\nno_such_key: 1\n")
    with pytest.raises(Conflict, match=r"square cannot be loaded: .*no_such_key"):
        reload.start("root", ["square"])
    begun, go_on = threading.Event(), threading.Event()

    def verify(*_: object) -> VerifyOutcome:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return HOLDS

    reload.verify = verify
    reload.start("root")
    assert begun.wait(PATIENCE_S)
    with pytest.raises(Conflict, match="a reload runs already"):
        reload.start("root")
    assert reload.last is not None
    assert [one.state for one in reload.last.problems] == ["running"]
    go_on.set()
    done(reload)
    with pytest.raises(Conflict, match="these cannot be loaded: square"):
        reload.start("root")


def test_a_server_that_stops_takes_nothing(
    world: World, folder: Path, reload: ProblemReload
) -> None:
    def verify(_folder: Path, _limit_s: float, stopping: threading.Event) -> VerifyOutcome:
        assert stopping.wait(PATIENCE_S)
        return HOLDS

    reload.verify = verify
    add(folder, "vector_add")
    reload.start("root")
    reload.stop()
    done(reload)
    assert "vector_add" not in world.services.problems


def test_over_the_api(world: World, folder: Path, reload: ProblemReload) -> None:
    root = world.client("root")
    path = "/api/v1/admin/problems/reload"
    add(folder, "vector_add")
    shown = root.get(path).json()
    assert (shown["folder"], shown["last"]) == (str(folder), None)
    assert [(one["problem"], one["kind"]) for one in shown["changes"]] == [("vector_add", "new")]
    started = root.post(path, json={})
    assert started.status_code == 202
    assert started.json()["by"] == "root"
    done(reload)
    last = root.get(path).json()["last"]
    assert last["ok"]
    assert [(one["problem"], one["state"]) for one in last["problems"]] == [("vector_add", "taken")]
    again = root.post(path, json={})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    seen = world.client("wilma").post(
        "/api/v1/work/seen", json={"worker": "w", "device": "cpu", "slots": 1}
    )
    assert "vector_add" in seen.json()["problems"]


def test_the_check_runs_in_a_process_of_its_own(folder: Path) -> None:
    never = threading.Event()
    assert verify_in_child(folder / "square", 600, never).findings == ()
    append(folder, "square/reference.py", "\nraise RuntimeError('of the author')\n")
    broken = verify_in_child(folder / "square", 600, never)
    assert len(broken.findings) == 1
    assert "of the author" in broken.findings[0]


def test_a_check_has_a_time_limit(folder: Path) -> None:
    append(folder, "square/reference.py", "\nimport time\ntime.sleep(10_000)\n")
    slow = verify_in_child(folder / "square", 8, threading.Event())
    assert slow.findings == ["its check took longer than 8 s"]
    stopping = threading.Event()
    stopping.set()
    stopped = verify_in_child(folder / "square", 600, stopping)
    assert stopped.findings == ["the server is stopping"]


def test_the_page(world: World, folder: Path, reload: ProblemReload) -> None:
    root = Browser(world)
    assert "Nothing differs from what is served" in root.get("/admin/problems")
    world.submitted("ada")
    append(folder, "softmax/reference.py")
    add(folder, "vector_add")
    shown = root.get("/admin/problems")
    assert "softmax opens a new ranking, version 2" in shown
    assert "1 waiting submission would be held" in shown
    assert "vector_add adds it" in shown
    hostile = "<script>alert(1)</script>"
    reload.verify = lambda checked, *_: (
        HOLDS if checked.name == "vector_add" else VerifyOutcome([hostile], hostile)
    )
    answer = root.post("/admin/problems/reload")
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin/problems")
    done(reload)
    shown = root.get("/admin/problems")
    assert "verified and taken" in shown
    assert "softmax" in shown
    assert "not taken" in shown
    assert hostile not in root.html("/admin/problems")
    assert "no problem has changed" not in shown
    refused = root.post("/admin/problems/reload", csrf="wrong")
    assert refused.status_code == 403


def test_the_command(
    world: World,
    folder: Path,
    reload: ProblemReload,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADE_SERVER", world.url)
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["root"])
    monkeypatch.setattr(admin_problem, "POLL_S", 0.01)
    grade = runner(capsys, "admin")
    assert "nothing has changed" in grade("problem", "reload", "--preview").out
    assert grade("problem", "reload").status == 2, "there is nothing to take"
    world.submitted("ada")
    append(folder, "softmax/reference.py")
    add(folder, "vector_add")
    preview = grade("problem", "reload", "--preview")
    assert preview.status == 0
    assert "vector_add: a new problem\n" in preview.out
    line = "softmax: opens a new ranking, version 2; 1 waiting submissions would be held\n"
    assert line in preview.out
    assert "reference.py: changed" in preview.out
    assert "vector_add" not in world.services.problems
    one = grade("problem", "reload", "vector_add")
    assert (one.status, set(world.services.problems)) == (0, {"softmax", "square", "vector_add"})
    assert "vector_add: verified and taken" in one.out
    reload.verify = lambda *_: VerifyOutcome(["zeros, tiny: passed."], "what it printed")
    refused = grade("problem", "reload")
    assert refused.status == 1
    for text in ("softmax: NOT taken", "zeros, tiny: passed.", "what it printed"):
        assert text in refused.out
    as_json = grade("problem", "reload", "--json")
    assert (as_json.status, as_json.json["ok"]) == (1, False)
    changes = grade("problem", "reload", "--preview", "--json").json["changes"]
    assert [change["problem"] for change in changes] == ["softmax"]
