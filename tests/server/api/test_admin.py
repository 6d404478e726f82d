from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.conftest import World

API = "/api/v1/admin"


def ok(reply: httpx.Response, status: int = 200) -> Any:
    """The body of an answer of this status."""
    assert reply.status_code == status, reply.text
    return reply.json() if reply.content else None


def refused(reply: httpx.Response, status: int, *words: str) -> None:
    body = ok(reply, status)
    assert set(body) == {"error"}
    for word in words:
        assert word in body["error"]["message"], body


@pytest.fixture
def root(world: World) -> httpx.Client:
    return world.client("root")


def board(world: World) -> list[tuple[int, str]]:
    reply = ok(world.client().get("/api/v1/leaderboards/softmax"))
    return [(entry["rank"], entry["user"]) for entry in reply["entries"]]


def test_a_user_is_added_and_may_come_in(world: World, root: httpx.Client) -> None:
    new = ok(root.post(f"{API}/users", json={"name": "Grace", "role": "worker"}), 201)
    assert set(new) == {"name", "token"}
    me = ok(world.client(token=new["token"]).get("/api/v1/me"))
    assert me == {"name": "Grace", "role": "worker", "team": None}
    listed = ok(root.get(f"{API}/users"))["users"]
    assert {user["name"]: user["role"] for user in listed}["Grace"] == "worker"
    assert new["token"] not in root.get(f"{API}/users").text
    refused(root.post(f"{API}/users", json={"name": "grace"}), 409, "is taken")


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "a/b"},
        {"name": "x" * 41},
        {"name": "\x00"},
        {"name": "ok", "role": "emperor"},
        {"name": None},
        {},
        [],
    ],
)
def test_odd_users_are_refused(root: httpx.Client, body: object) -> None:
    refused(root.post(f"{API}/users", json=body), 422)


def test_an_error_message_has_no_pydantic_prefix(root: httpx.Client) -> None:
    reply = root.post(f"{API}/users", json={"name": "\x00"})
    refused(reply, 422)
    assert reply.json()["error"]["message"] == "name: must be printable characters"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "boards/softmax", {"hiden": True}),
        ("POST", "rejudges", {"problem": "softmax", "wich": "accepted"}),
        ("POST", "users", {"name": "eve", "rôle": "worker"}),
        ("POST", "users/ada/tokens", {"lable": "laptop"}),
        ("POST", "users/ada/ban", {"why": "cheated"}),
    ],
)
def test_an_unknown_field_is_refused(
    world: World, root: httpx.Client, method: str, path: str, body: dict[str, object]
) -> None:
    world.graded("ada")
    refused(root.request(method, f"{API}/{path}", json=body), 422, list(body)[-1])
    assert ok(root.get(f"{API}/audit"))["acts"][0]["action"] == "user add"


def test_tokens_are_made_and_revoked(world: World, root: httpx.Client) -> None:
    more = ok(root.post(f"{API}/users/ADA/tokens", json={"label": "laptop"}), 201)["token"]
    first, second = ok(root.get(f"{API}/users/ada/tokens"))["tokens"]
    assert (first["label"], second["label"]) == ("first", "laptop")
    assert "hash" not in first
    assert ok(root.delete(f"{API}/tokens/{first['id']}")) == {"ended": 1}
    refused(world.client("ada").get("/api/v1/me"), 401)
    ok(world.client(token=more).get("/api/v1/me"))
    assert ok(root.delete(f"{API}/users/ada/tokens")) == {"ended": 1}
    refused(world.client(token=more).get("/api/v1/me"), 401)
    refused(root.delete(f"{API}/users/root/tokens"), 409, "last token of an admin")
    for reply in (
        root.post(f"{API}/users/eve/tokens", json={}),
        root.get(f"{API}/users/eve/tokens"),
        root.delete(f"{API}/users/eve/tokens"),
        root.delete(f"{API}/tokens/{2**70}"),
    ):
        refused(reply, 404, "there is no")


def test_a_ban_hides_results_and_refuses_the_user(world: World, root: httpx.Client) -> None:
    number = world.graded("ada", score_us=40.0, score_ci_us=(39, 41))
    world.graded("bob")
    waiting = world.submitted("ada")
    assert board(world) == [(1, "ada"), (2, "bob")]
    assert root.post(f"{API}/users/ada/ban", json={"reason": "cheated"}).status_code == 204
    assert board(world) == [(1, "bob")]
    assert world.submit("ada").status_code in (401, 403)
    assert ok(root.get(f"/api/v1/submissions/{waiting}"))["state"] == "cancelled"
    (ada,) = [u for u in ok(root.get(f"{API}/users"))["users"] if u["name"] == "ada"]
    assert ada["banned_reason"] == "cheated"
    assert root.post(f"{API}/users/ada/unban").status_code == 204
    assert board(world) == [(1, "ada"), (2, "bob")]
    assert world.client("ada").get(f"/api/v1/submissions/{number}").status_code == 200
    refused(root.post(f"{API}/users/ada/unban"), 409, "ada is not banned")
    refused(root.post(f"{API}/users/root/ban", json={}), 409, "cannot ban yourself")
    refused(root.post(f"{API}/users/eve/ban", json={}), 404, "no user eve")


def test_settings_of_a_board(world: World, root: httpx.Client) -> None:
    blank = {
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
    assert ok(root.get(f"{API}/boards/softmax")) == {"problem": "softmax", **blank}
    wanted = {"deadline": "2031-01-01T12:00:00+02:00", "hidden": True, "note": "soon"}
    wanted |= {"opens_at": "2030-12-01T12:00:00+01:00", "daily_limit": 20}
    wanted["freeze_at"] = "2030-12-31T12:00:00.5+01:00"
    set_ = ok(root.put(f"{API}/boards/softmax", json=wanted))
    assert set_ == {
        "problem": "softmax",
        "deadline": "2031-01-01T10:00:00Z",
        "hidden": True,
        "publish_sources": False,
        "note": "soon",
        "opens_at": "2030-12-01T11:00:00Z",
        "daily_limit": 20,
        "team_size": None,
        "group": None,
        "freeze_at": "2030-12-31T11:00:00Z",
    }
    assert ok(root.get(f"{API}/boards/softmax")) == set_
    refused(world.client().get("/api/v1/leaderboards/softmax"), 404)
    assert ok(root.put(f"{API}/boards/softmax", json={})) == {"problem": "softmax", **blank}
    assert world.client().get("/api/v1/leaderboards/softmax").status_code == 200
    refused(root.get(f"{API}/boards/nothing"), 404, "there are:", "bias_gelu")
    refused(root.put(f"{API}/boards/nothing", json={}), 404)


@pytest.mark.parametrize(
    "deadline",
    ["tomorrow", "2031-01-01T12:00:00", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00"],
)
def test_malformed_deadlines_are_refused(root: httpx.Client, deadline: str) -> None:
    refused(root.put(f"{API}/boards/softmax", json={"deadline": deadline}), 422, "deadline")


def test_held_jobs_are_listed_and_released(world: World, root: httpx.Client) -> None:
    number = world.submitted("ada")
    for _ in range(3):
        lease = world.lease()
        assert world.services.ledger.fail(lease, "no GPU")
        world.clock.move(100)
    (held,) = ok(root.get(f"{API}/held"))["held"]
    assert (held["id"], held["user"], held["reason"], held["failures"]) == (
        number,
        "ada",
        "no GPU",
        3,
    )
    assert root.post(f"{API}/submissions/{number}/release").status_code == 204
    assert ok(root.get(f"{API}/held"))["held"] == []
    refused(root.post(f"{API}/submissions/{number}/release"), 409, "is not held")
    refused(root.post(f"{API}/submissions/{2**70}/release"), 409)


def test_a_deleted_submission_is_visible_to_admins_only(world: World, root: httpx.Client) -> None:
    number = world.graded("ada")
    waiting = world.submitted("ada")
    assert ok(root.delete(f"{API}/submissions/{number}")) == {"became": "deleted"}
    assert ok(root.delete(f"{API}/submissions/{waiting}")) == {"became": "cancelled"}
    assert board(world) == []
    for client in (world.client("ada"), world.client("bob"), world.client()):
        refused(client.get(f"/api/v1/submissions/{number}"), 404)
    assert ok(root.get(f"/api/v1/submissions/{number}"))["verdict"] == "accepted"
    refused(root.delete(f"{API}/submissions/{number}"), 404, "deleted already")
    refused(root.delete(f"{API}/submissions/{-(2**70)}"), 404)


def test_a_rejudge_from_start_to_end(world: World, root: httpx.Client) -> None:
    world.graded("ada", score_us=50.0, score_ci_us=(49, 51))
    world.graded("bob", score_us=60.0, score_ci_us=(59, 61))
    asked = {"problem": "softmax", "reason": "the clock was changed"}
    number = ok(root.post(f"{API}/rejudges", json=asked), 201)["id"]
    again = ok(root.get(f"{API}/rejudges/{number}"))
    assert [change["new"] for change in again["changes"]] == [None, None]
    refused(root.post(f"{API}/rejudges/{number}/apply"), 409, "still has 2 to grade")
    world.grade(score_us=70.0, score_ci_us=(69, 71))
    world.grade(score_us=60.0, score_ci_us=(59, 61))
    shown = ok(root.get(f"{API}/rejudges/{number}"))
    assert (shown["rejudge"]["done"], shown["rejudge"]["unfinished"]) == (2, 0)
    assert [(c["user"], c["old"]["rank"], c["new"]["rank"]) for c in shown["changes"]] == [
        ("ada", 1, 2),
        ("bob", 2, 1),
    ]
    assert board(world) == [(1, "ada"), (2, "bob")]
    hidden = shown["changes"][0]["submission_id"]
    refused(world.client("ada").get(f"/api/v1/submissions/{hidden}"), 404)
    assert ok(root.post(f"{API}/rejudges/{number}/apply")) == {"exchanged": 2}
    assert board(world) == [(1, "bob"), (2, "ada")]
    assert ok(world.client("ada").get(f"/api/v1/submissions/{hidden}"))["rank"] == 2
    refused(root.post(f"{API}/rejudges/{number}/drop"), 409, "applied already")
    (only,) = ok(root.get(f"{API}/rejudges"))["rejudges"]
    assert (only["state"], only["by"], only["reason"]) == (
        "applied",
        "root",
        "the clock was changed",
    )


def test_a_rejudge_is_dropped(world: World, root: httpx.Client) -> None:
    first = world.graded("ada")
    number = ok(
        root.post(f"{API}/rejudges", json={"problem": "softmax", "submissions": [first]}), 201
    )["id"]
    assert root.post(f"{API}/rejudges/{number}/drop").status_code == 204
    assert board(world) == [(1, "ada")]


def test_malformed_rejudges(root: httpx.Client) -> None:
    refused(root.post(f"{API}/rejudges", json={"problem": "nothing"}), 404, "no such problem")
    refused(root.post(f"{API}/rejudges", json={"problem": "softmax"}), 422, "no such results")
    more: dict[str, Any]
    for more in ({"submissions": []}, {"which": "worst"}, {"submissions": [2**70]}):
        refused(root.post(f"{API}/rejudges", json={"problem": "softmax", **more}), 422)
    for number in (1, 0, -(2**70), 2**70):
        refused(root.get(f"{API}/rejudges/{number}"), 404)
        refused(root.post(f"{API}/rejudges/{number}/apply"), 404)
        refused(root.post(f"{API}/rejudges/{number}/drop"), 404)


def test_each_action_is_audited(world: World, root: httpx.Client) -> None:
    done, waiting, held = world.graded("bob"), world.submitted("ada"), 0
    before = {act["id"] for act in ok(root.get(f"{API}/audit"))["acts"]}
    token = ok(root.post(f"{API}/users", json={"name": "cy"}), 201)["token"]
    more = ok(root.post(f"{API}/users/cy/tokens", json={"label": "x"}), 201)["token"]
    last = ok(root.get(f"{API}/users/cy/tokens"))["tokens"][-1]["id"]
    root.delete(f"{API}/tokens/{last}")
    root.delete(f"{API}/users/cy/tokens")
    root.post(f"{API}/users/cy/ban", json={"reason": "r"})
    root.post(f"{API}/users/cy/unban")
    root.put(f"{API}/boards/softmax", json={"note": "n"})
    root.delete(f"{API}/submissions/{waiting}")
    held = world.submitted("ada")
    for _ in range(3):
        assert world.services.ledger.fail(world.lease(), "no GPU")
        world.clock.move(100)
    root.post(f"{API}/submissions/{held}/release")
    world.grade()
    root.post(f"{API}/rejudges", json={"problem": "softmax", "submissions": [done]})
    root.post(f"{API}/rejudges/1/drop")
    root.post(f"{API}/rejudges", json={"problem": "softmax", "submissions": [done]})
    world.grade()
    root.post(f"{API}/rejudges/2/apply")
    root.delete(f"{API}/submissions/{held}")
    acts = [act for act in ok(root.get(f"{API}/audit"))["acts"] if act["id"] not in before]
    assert {act["actor"] for act in acts} == {"root"}
    assert [(act["action"], act["subject"]) for act in reversed(acts)] == [
        ("user add", "cy"),
        ("token new", "cy"),
        ("token revoke", str(last)),
        ("token revoke", "cy"),
        ("ban", "cy"),
        ("unban", "cy"),
        ("board set", "softmax"),
        ("cancel", str(waiting)),
        ("release", str(held)),
        ("rejudge start", "softmax"),
        ("rejudge drop", "1"),
        ("rejudge start", "softmax"),
        ("rejudge apply", "2"),
        ("delete", str(held)),
    ]
    whole = root.get(f"{API}/audit?limit=1000").text
    assert token not in whole
    assert more not in whole
    newest = ok(root.get(f"{API}/audit?limit=1"))["acts"]
    older = ok(root.get(f"{API}/audit?limit=1&before={newest[0]['id']}"))["acts"]
    assert [act["action"] for act in newest + older] == ["delete", "rejudge apply"]
    refused(root.get(f"{API}/audit?limit=0"), 422)
    assert ok(root.get(f"{API}/audit?before={2**70}"))["acts"]


def test_admin_routes_are_for_admins_only(world: World) -> None:
    paths = world.client().get("/api/v1/openapi.json").json()["paths"]
    ours = {path: methods for path, methods in paths.items() if path.startswith(API)}
    assert len(ours) == 33
    for path, methods in ours.items():
        names = {"name": "ada", "problem": "softmax", "group": "course", "team": "tile"}
        address = path.format(number=1, **names)
        for method in methods:
            assert world.client().request(method, address).status_code == 401, path
            for name in ("ada", "wilma"):
                assert world.client(name).request(method, address).status_code == 403, path
