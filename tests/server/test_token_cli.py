"""`grade token`, against a server on a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.cli.remote import Credentials
from tests.server.command_line import Grade, runner
from tests.server.conftest import World


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade` as ada, who has logged in."""
    monkeypatch.delenv("GRADE_TOKEN", raising=False)
    monkeypatch.delenv("GRADE_SERVER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    run = runner(capsys)
    assert run("login", "--server", world.url, "--token", world.tokens["ada"]).status == 0
    return run


def test_tokens_are_made_listed_and_revoked(grade: Grade, world: World) -> None:
    made = grade("token", "new", "--label", "laptop")
    token = made.out.strip()
    assert made.status == 0
    assert "shown only this once" in made.err
    assert world.client(token=token).get("/api/v1/me").json()["name"] == "ada"
    listed = grade("token", "list")
    assert "laptop" in listed.out
    assert token not in listed.out
    rows = grade("token", "list", "--json").json["tokens"]
    assert [row["label"] for row in rows] == ["first", "laptop"]
    assert grade("token", "revoke", str(rows[1]["id"])).status == 0
    assert world.client(token=token).get("/api/v1/me").status_code == 401


def test_a_rotated_token_is_stored_in_place_of_the_old_one(grade: Grade, world: World) -> None:
    (first,) = grade("token", "list", "--json").json["tokens"]
    other = grade("token", "new", "--json").json["token"]
    rotated = grade("token", "rotate", str(first["id"]))
    assert rotated.status == 0
    assert Credentials.load().tokens[world.url] == rotated.out.strip()
    assert grade("token", "list").status == 0
    assert world.client("ada").get("/api/v1/me").status_code == 401
    number = grade("token", "list", "--json").json["tokens"][1]["id"]
    replaced = grade("token", "rotate", str(number), "--json").json["token"]
    assert Credentials.load().tokens[world.url] == rotated.out.strip(), "that one is still valid"
    assert world.client(token=other).get("/api/v1/me").status_code == 401
    assert world.client(token=replaced).get("/api/v1/me").status_code == 200


def test_a_rotated_token_of_the_environment_is_not_stored(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Credentials.load().tokens
    monkeypatch.setenv("GRADE_TOKEN", world.services.accounts.new_token("ada", "script"))
    number = grade("token", "list", "--json").json["tokens"][1]["id"]
    assert "set it to the new one" in grade("token", "rotate", str(number)).err
    assert Credentials.load().tokens == before


def test_tokens_of_others_are_not_touched(grade: Grade, world: World) -> None:
    (bobs,) = world.services.accounts.tokens("bob")
    for command in ("rotate", "revoke"):
        refused = grade("token", command, str(bobs.id))
        assert refused.status == 2
        assert f"token {bobs.id}" in refused.err
    assert world.client("bob").get("/api/v1/me").status_code == 200
