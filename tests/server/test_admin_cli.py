"""`grade admin` against a server on a real socket."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grader.fleet import Worker
from grader.problem import Problem
from grader.server.services.sign_in import Person
from tests.server.command_line import Grade, runner
from tests.server.conftest import H100, World
from tests.server.examples import queue_submission


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade admin` with the token of root in the environment."""
    monkeypatch.setenv("GRADE_SERVER", world.url)
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["root"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    return runner(capsys, "admin")


def test_user_add_prints_only_the_token(grade: Grade, world: World) -> None:
    added = grade("user", "add", "Grace", "--role", "worker")
    assert added.status == 0
    assert added.out.startswith("grade_")
    assert added.out.count("\n") == 1
    assert "this token of Grace is shown only this once" in added.err
    me = world.client(token=added.out.strip()).get("/api/v1/me").json()
    assert me == {"name": "Grace", "role": "worker", "team": None}
    again = grade("user", "add", "grace")
    assert (again.status, again.out) == (2, "")
    assert again.err == "grade: the name grace is taken; choose another\n"
    as_json = grade("user", "add", "Hedy", "--json").json
    assert set(as_json) == {"name", "token"}
    assert grade("user", "add", "Hedy", "--json").json == {
        "error": "the name Hedy is taken; choose another"
    }


def test_users_are_listed_without_secrets(grade: Grade, world: World) -> None:
    shown = grade("user", "list")
    assert shown.status == 0
    for name in world.tokens:
        assert name in shown.out
    assert "grade_" not in shown.out
    assert {one["name"] for one in grade("user", "list", "--json").json["users"]} == set(
        world.tokens
    )


def test_names_with_special_characters(grade: Grade, world: World) -> None:
    for name in ("a b", "100%", "who?", "x#y", "'; DROP TABLE users; --", "名"):
        assert grade("user", "add", name).status == 0, name
        assert grade("token", "new", name, "--label", "2").status == 0, name
        assert len(grade("token", "list", name, "--json").json["tokens"]) == 2, name
        assert grade("user", "ban", name, "--reason", "x").status == 0, name
        assert grade("user", "unban", name).status == 0, name
    for name in ("..", "a/b", "", "\x07"):
        assert grade("user", "add", "--", name).status == 2


def test_tokens(grade: Grade, world: World) -> None:
    new = grade("token", "new", "ada", "--label", "laptop").out.strip()
    listed = grade("token", "list", "ada")
    assert "laptop" in listed.out
    assert new not in listed.out
    first = grade("token", "list", "ada", "--json").json["tokens"][0]["id"]
    assert grade("token", "revoke", "--id", str(first)).err == "tokens and sessions ended: 1\n"
    assert world.client("ada").get("/api/v1/me").status_code == 401
    assert grade("token", "revoke", "ada").status == 0
    assert world.client(token=new).get("/api/v1/me").status_code == 401
    for words in ((), ("",), ("ada", "--id", "1")):
        assert "name a user, or one token" in grade("token", "revoke", *words).err
    assert "last token of an admin" in grade("token", "revoke", "root").err


def test_board_settings_are_shown_and_set_one_by_one(grade: Grade, world: World) -> None:
    assert grade("board", "set", "softmax", "--hide", "--note", "soon").status == 0
    set_ = grade(
        "board", "set", "softmax", "--deadline", "2031-01-01T12:00+02:00", "--publish-sources"
    )
    assert set_.status == 0
    for words in ("2031-01-01 10:00 UTC", "hidden", "published", "soon"):
        assert words in set_.out
    assert grade(
        "board", "set", "softmax", "--show", "--private-sources", "--note", "", "--deadline", "none"
    )
    advised = grade("board", "set", "softmax", "--deadline", "2031-01-01T00:00:00Z")
    assert "2031-01-01 00:00 UTC" in advised.out
    grade("board", "set", "softmax", "--deadline", "none")
    assert grade("board", "show", "softmax", "--json").json == {
        "problem": "softmax",
        "deadline": None,
        "hidden": False,
        "publish_sources": False,
        "note": None,
        "opens_at": None,
        "daily_limit": None,
        "team_size": None,
        "group": None,
        "freeze_at": None,
    }
    assert "20" in grade("board", "set", "softmax", "--daily", "20").out
    grade("board", "set", "softmax", "--note", "soon")
    assert world.services.admin.board("softmax").daily_limit == 20
    assert "any number" in grade("board", "set", "softmax", "--daily", "none").out
    assert world.services.admin.board("softmax").daily_limit is None
    opened = grade("board", "set", "softmax", "--opens", "2031-01-01T12:00+02:00")
    assert "2031-01-01 10:00 UTC" in opened.out
    grade("board", "set", "softmax", "--note", "soon")
    assert world.services.admin.board("softmax").opens_at is not None
    grade("board", "set", "softmax", "--opens", "none")
    assert world.services.admin.board("softmax").opens_at is None
    assert grade("group", "new", "course-a").status == 0
    assert "course-a" in grade("board", "set", "softmax", "--group", "course-a").out
    grade("board", "set", "softmax", "--note", "soon")
    assert world.services.admin.board("softmax").group == "course-a"
    assert "everyone" in grade("board", "set", "softmax", "--group", "none").out
    assert world.services.admin.board("softmax").group is None
    frozen = grade("board", "set", "softmax", "--freeze", "2031-01-01T12:00+02:00")
    assert "2031-01-01 10:00 UTC" in frozen.out
    for options in (["--unfreeze"], ["--freeze", "none"]):
        grade("board", "set", "softmax", "--freeze", "2031-01-01T12:00+02:00")
        assert world.services.admin.board("softmax").freeze_at is not None
        assert grade("board", "set", "softmax", *options).status == 0
        assert world.services.admin.board("softmax").freeze_at is None
    refusals: tuple[tuple[tuple[str, ...], str], ...] = (
        (("set", "softmax"), "nothing to set"),
        (("set", "softmax", "--deadline", "noon"), "'noon' is not a time"),
        (
            ("set", "softmax", "--deadline", "2031-01-01"),
            "'2031-01-01' has no time zone; write 2031-01-01T00:00:00Z for UTC",
        ),
        (("set", "softmax", "--opens", "soon"), "--opens: 'soon' is not a time"),
        (("set", "softmax", "--daily", "0"), "--daily: '0' is not a number from 1 on"),
        (("set", "softmax", "--daily", "few"), "write 20, or none"),
        (("set", "softmax", "--daily", "999999999"), "daily_limit"),
        (("set", "softmax", "--freeze", "soon"), "--freeze: 'soon' is not a time"),
        (("set", "softmax", "--freeze", "none", "--unfreeze"), "not both"),
        (("show", "nothing"), "there is no such problem here"),
    )
    for call, message in refusals:
        refused = grade("board", *call)
        assert refused.status == 2
        assert message in refused.err


def test_workers_are_drained(grade: Grade, world: World) -> None:
    assert grade("worker", "list").out == "none\n"
    world.services.ledger.announce(Worker("farm/a b", "http", "cuda", H100, 1))
    assert "connected" in grade("worker", "list").out
    drained = grade("worker", "drain", "farm/a b")
    assert drained.status == 0
    assert "farm/a b gets no further jobs" in drained.err
    assert "connected, drained" in grade("worker", "list").out
    world.clock.move(3 * 24 * 3600)
    assert "gone, drained" in grade("worker", "list").out
    (shown,) = grade("worker", "list", "--json").json["workers"]
    assert (shown["name"], shown["gpu"], shown["running"]) == ("farm/a b", H100, 0)
    assert shown["drained_at"] == "2030-01-01T00:00:00Z"
    assert grade("worker", "drain", "farm/a b").status == 2
    assert grade("worker", "undrain", "farm/a b").err == "farm/a b gets jobs again\n"
    assert "is not drained" in grade("worker", "undrain", "farm/a b").err
    assert "there is no worker nobody" in grade("worker", "drain", "nobody").err
    assert [act["action"] for act in grade("audit", "--json").json["acts"]][:2] == [
        "worker undrain",
        "worker drain",
    ]


def test_held_jobs(grade: Grade, world: World) -> None:
    assert grade("held").out == "none\n"
    number = world.submitted("ada")
    for _ in range(3):
        assert world.services.ledger.fail(world.lease(), "no GPU")
        world.clock.move(100)
    assert "no GPU" in grade("held").out
    assert grade("release", str(number)).err == f"submission {number} is queued again\n"
    assert grade("release", str(number)).status == 2
    assert grade("delete", str(number)).err == f"submission {number} is cancelled\n"
    done = world.graded("ada")
    assert grade("delete", str(done)).err == f"submission {done} is deleted\n"
    assert grade("delete", str(done)).status == 2


def test_a_rejudge(grade: Grade, world: World) -> None:
    world.graded("ada", score_us=50.0, score_ci_us=(49, 51))
    assert grade("rejudge", "start", "softmax", "--reason", "new driver").status == 0
    assert "queued" in grade("rejudge", "show", "1").out
    early = grade("rejudge", "apply", "1")
    assert (early.status, "rejudge 1 still has 1 to grade" in early.err) == (2, True)
    world.grade(score_us=70.0, score_ci_us=(69, 71))
    shown = grade("rejudge", "show", "1")
    assert "50.00 µs" in shown.out
    assert "70.00 µs" in shown.out
    assert shown.err == "rejudge 1 is in state preview: 1 of 1 graded\n"
    assert grade("rejudge", "apply", "1").err == "results replaced: 1\n"
    assert "new driver" in grade("rejudge", "list").out
    assert grade("rejudge", "start", "softmax", "--all", "--json").json == {"id": 2}
    assert grade("rejudge", "drop", "2").status == 0
    assert grade("rejudge", "start", "softmax", "2").status == 0
    assert "only one of them" in grade("rejudge", "start", "softmax", "2", "--all").err
    assert grade("rejudge", "show", "9").status == 2


def test_the_audit(grade: Grade) -> None:
    assert grade("user", "ban", "ada", "--reason", "\x1b[31mred").status == 2
    assert grade("user", "ban", "ada", "--reason", "red [bold]").status == 0
    shown = grade("audit", "--limit", "3")
    assert "red [bold]; 0 jobs cancelled" in shown.out
    newest = grade("audit", "--limit", "1", "--json").json["acts"][0]
    assert "ban" not in grade("audit", "--before", str(newest["id"]), "--json").out


def test_a_user_who_is_not_an_admin_is_refused(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])
    refused = grade("user", "list")
    assert (refused.status, refused.out) == (2, "")
    assert "competitor" in refused.err


def test_the_server_option(grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADE_SERVER")
    assert "no server given" in grade("user", "list").err
    assert grade("user", "list", "--server", world.url).status == 0


def test_a_rejudge_of_a_workers_results(grade: Grade, world: World) -> None:
    world.graded("ada")  # by the worker w
    started = grade("rejudge", "start", "softmax", "--worker", "w", "--json")
    assert started.json == {"id": 1}
    assert grade("rejudge", "show", "1").err.endswith("0 of 1 graded\n")
    none = grade("rejudge", "start", "softmax", "--worker", "farm")
    assert (none.status, "of a worker farm" in none.err) == (2, True)
    for words in (("1", "--worker", "w"), ("--all", "--worker", "w"), ("1", "--all")):
        refused = grade("rejudge", "start", "softmax", *words)
        assert (refused.status, "only one of them" in refused.err) == (2, True)
    body = {"problem": "softmax", "worker": "w", "submissions": [1]}
    both = world.client("root").post("/api/v1/admin/rejudges", json=body)
    assert both.status_code == 422
    long = world.client("root").post(
        "/api/v1/admin/rejudges", json={"problem": "softmax", "worker": "%" * 60_000}
    )
    assert long.status_code == 422


def test_a_rejudge_says_which_sources_were_removed(grade: Grade, world: World) -> None:
    world.graded("ada", score_us=50.0, score_ci_us=(49, 51))
    slower = world.graded("ada", score_us=60.0, score_ci_us=(59, 61))
    world.clock.move(86_400)
    world.services.ledger.remove_old_sources(world.clock(), after=0, limit=10)
    refused = grade("rejudge", "start", "softmax", str(slower))
    assert refused.status == 2
    assert f"sources were removed, so these cannot be graded again: {slower}" in refused.err
    started = grade("rejudge", "start", "softmax", "--all")
    assert started.status == 0
    assert started.err.endswith("left out, since their sources were removed: 1\n")
    again = grade("rejudge", "start", "softmax", "--all", "--json")
    assert again.json == {"id": 2, "without_source": 1}


def test_banning_a_worker_offers_to_hold_its_results(grade: Grade, world: World) -> None:
    number = world.submitted("ada")
    lease = world.services.ledger.claim("wilma/host", lease_s=60, gpu=H100)
    assert lease is not None
    assert world.services.ledger.begin(lease)
    assert world.services.ledger.finish(lease, world.report(lease))
    assert grade("user", "ban", "bob").err.count("\n") == 1, "he graded nothing"
    banned = grade("user", "ban", "wilma", "--reason", "forged")
    assert "its workers graded 1 results, which still count" in banned.err
    assert "grade admin user hold wilma takes them off the boards" in banned.err
    assert grade("user", "hold", "wilma").err.startswith("results held: 1;")
    listed = grade("held")
    assert "result of the worker wilma/host, held by root" in listed.out
    (row,) = grade("held", "--json").json["held"]
    assert (row["id"], row["result_id"], row["worker"]) == (number, 1, "wilma/host")
    told = world.client("ada").get(f"/api/v1/submissions/{number}").json()
    assert (told["counts"], told["verdict"]) == (False, "accepted")
    page = world.client("ada").get(f"/submissions/{number}", headers={"Accept": "text/html"}).text
    assert "This result does not count: held. An admin will look at it." in page
    assert grade("release", str(number)).err == f"submission {number} is no longer held\n"
    assert world.client("ada").get(f"/api/v1/submissions/{number}").json()["counts"]
    assert grade("user", "hold", "wilma").status == 0
    assert grade("user", "unhold", "wilma").err == "results released: 1\n"
    assert grade("held").out == "none\n"


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    """A copy of the folder of the problems that the server has read."""
    copy = tmp_path / "problems"
    for problem in world.services.problems.values():
        shutil.copytree(problem.folder, copy / problem.name)
    return copy


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_versions_are_listed(grade: Grade, world: World) -> None:
    world.graded("ada")
    world.graded("bob", verdict="wrong_answer", ranked=False)
    shown = grade("board", "versions", "softmax")
    assert (shown.status, shown.err) == (0, "")
    (row,) = [line.split() for line in shown.out.splitlines() if "softmax" in line]
    assert row[:5] == ["softmax", "1", "current", "2", "1"]
    assert row[-1] == world.problem.digest[:12]
    every = grade("board", "versions", "--json").json["problems"]
    assert [one["problem"] for one in every] == sorted(world.services.problems)
    assert set(every[0]) == {"problem", "versions"}
    refused = grade("board", "versions", "nothing")
    assert refused.status == 2
    assert "no such problem here" in refused.err


def test_an_organiser_sees_which_change_opens_a_new_ranking(
    grade: Grade, world: World, folder: Path
) -> None:
    world.graded("ada")
    unchanged = grade("board", "versions", "--problems", str(folder))
    assert "new ranking, version" not in unchanged.out
    assert unchanged.out.count("no new ranking") == len(world.services.problems)
    change(folder / "softmax" / "statement.md", "\n", "\n, \n")
    change(folder / "softmax" / "problem.yaml", "title:", "# a comment\ntitle: A")
    texts = grade("board", "versions", "softmax", "--problems", str(folder))
    assert "softmax: no new ranking\n" in texts.out
    change(
        folder / "softmax" / "problem.yaml",
        "name: primes, params: {rows: 13",
        "name: primes, params: {rows: 17",
    )
    change(folder / "softmax" / "inputs.py", "\n", "\n# changed\n")
    changed = grade("board", "versions", "softmax", "--problems", str(folder))
    assert changed.out.endswith(
        "softmax: opens a new ranking, version 2\n"
        "  tests[primes].params.rows: 13 → 17\n"
        "  inputs.py: changed\n"
    )
    (one,) = grade("board", "versions", "softmax", "--problems", str(folder), "--json").json[
        "problems"
    ]
    assert one["next"] == {
        "digest": Problem.load(folder / "softmax").digest,
        "version": 2,
        "is_current": False,
        "opens_new_ranking": True,
        "results": 0,
        "changes": ["tests[primes].params.rows: 13 → 17", "inputs.py: changed"],
    }
    board = world.client().get("/api/v1/leaderboards/softmax").json()
    assert board["total"] == 1, "nothing has changed on the server"


def test_a_folder_with_more_with_fewer_and_with_older_problems(
    grade: Grade, world: World, folder: Path
) -> None:
    change(folder / "softmax" / "reference.py", "\n", "\n# older\n")
    older = Problem.load(folder / "softmax")
    queue_submission(world.services.ledger, older, "ada")
    world.grade()
    shutil.copytree(folder / "softmax", folder / "softmax_again")
    shutil.rmtree(folder / "int4_matmul")
    shown = grade("board", "versions", "--problems", str(folder)).out
    assert "int4_matmul: not in this folder, so its board would disappear\n" in shown
    assert "softmax_again: a new problem\n" in shown
    assert "softmax: version 1 returns with its 1 result\n  reference.py: changed\n" in shown
    alone = grade("board", "versions", "softmax_again", "--problems", str(folder), "--json").json
    (one,) = alone["problems"]
    assert (one["versions"], one["next"]["opens_new_ranking"]) == ([], True)
    empty = folder / "softmax"
    assert "holds no problem" in grade("board", "versions", "--problems", str(empty)).err
    change(empty / "problem.yaml", "format: 1", "format: 2")
    broken = grade("board", "versions", "--problems", str(folder))
    assert (broken.status, "format" in broken.err) == (2, True)


def test_groups_and_invitations(grade: Grade, world: World) -> None:
    assert grade("group", "new", "course-a").status == 0
    assert grade("group", "add", "course-a", "ada", "bob").status == 0
    assert grade("group", "remove", "course-a", "bob").status == 0
    assert "course-a" in grade("group", "list").out
    (group,) = grade("group", "list", "--json").json["groups"]
    assert group["members"] == ["ada"]
    assert "no group course-b" in grade("group", "add", "course-b", "ada").err
    made = grade("invite", "new", "--group", "course-a", "--uses", "3", "--until", "2031-01-01Z")
    assert made.status == 2
    assert "--until" in made.err
    until = "2031-01-01T12:00+02:00"
    made = grade("invite", "new", "--group", "course-a", "--uses", "3", "--until", until)
    code = made.out.strip().removeprefix(f"{world.url}/join/")
    assert world.services.invitations.find(code).group == "course-a"
    listed = grade("invite", "list")
    assert "0 of 3" in listed.out
    assert "2031-01-01 10:00 UTC" in listed.out
    assert code not in listed.out
    assert grade("invite", "new", "--json").json.keys() == {"code", "url"}
    assert grade("invite", "revoke", "1").status == 0
    assert grade("invite", "revoke", "1").status == 2
    assert grade("group", "delete", "course-a").status == 0
    assert grade("group", "list", "--json").json["groups"] == []


def test_accounts_of_other_sites(grade: Grade, world: World) -> None:
    refused = grade("user", "link", "ada", "--provider", "github", "--subject", "1")
    assert "it has: none" in refused.err
    person = Person("https://github.com", "583231")
    world.services.sign_ins.link_by_admin("ada", person, "root")
    assert "583231" in grade("user", "links", "ada").out
    (found,) = grade("user", "links", "ada", "--json").json["identities"]
    assert grade("user", "unlink", "ada", str(found["id"])).status == 0
    assert grade("user", "links", "ada", "--json").json["identities"] == []
