"""Batches over HTTP: what is taken, who sees it, and how results are read."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from grader.report import Verdict
from grader.server.services.admin_service import BoardSettings
from grader.server.settings import Settings
from tests.server.conftest import H100, SEED, World

API = "/api/v1/batches"
DAY_S = 86_400.0


@pytest.fixture
def settings() -> Settings:
    return Settings(
        requests_per_minute=10_000,
        batch_items=4,
        batch_items_in_flight=6,
        max_batch_queue=8,
        submissions_per_minute=50,
        batch_days=7.0,
    )


def post(world: World, who: str = "ada", key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    body = {"problem": "softmax", "items": [item("a")]} | body
    return world.client(who).post(API, json=body, headers=headers)


def item(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "source": f"x = {key!r}"} | more


def error(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def status(world: World, number: int, who: str = "ada") -> dict[str, Any]:
    reply = world.client(who).get(f"{API}/{number}")
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert isinstance(found, dict)
    return found


def lines(world: World, number: int, **params: int) -> list[dict[str, Any]]:
    reply = world.client("ada").get(f"{API}/{number}/results", params=params)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/jsonl")
    return [json.loads(line) for line in reply.text.splitlines()]


def test_a_batch_from_beginning_to_end(world: World) -> None:
    reply = post(world, items=[item("a"), item("b", language="cuda", benchmarks=False)])
    assert reply.status_code == 202
    body = reply.json()
    assert set(body) == {"id", "items", "url", "results_url"}
    assert reply.headers["Location"] == body["url"]
    number = body["id"]
    assert world.client("ada").get(body["url"]).json()["state"] == "queued"
    assert world.client("ada").get(body["results_url"]).text == ""

    first = world.lease()
    assert (first.name, first.language, first.benchmarks) == ("submission.py", "python", True)
    found = status(world, number)
    assert (found["state"], found["ended"]) == ("running", 0)
    assert (found["counts"]["running"], found["counts"]["queued"]) == (1, 1)
    second = world.lease()
    assert (second.name, second.language, second.benchmarks) == ("submission.cu", "cuda", False)
    for lease in (second, first):
        assert world.services.ledger.finish(lease, world.report(lease))

    found = status(world, number)
    assert (found["state"], found["ended"], found["counts"]["done"]) == ("done", 2, 2)
    assert found["ended_at"] is not None
    both = lines(world, number)
    assert [(one["place"], one["key"]) for one in both] == [(1, "b"), (2, "a")]
    report = both[1]["report"]
    assert report["gpu"] == H100
    assert report["ranked"] is False
    assert report["worker"] == "w"
    assert not {"seed", "id", "rank"} & set(report)
    assert str(SEED) not in json.dumps(both)
    assert lines(world, number, after=1) == both[1:]
    assert lines(world, number, limit=1) == both[:1]
    assert lines(world, number, after=2) == []


def test_tests_only_times_none(world: World) -> None:
    world.batch("ada", "a", "b", tests_only=True)
    assert [world.lease().benchmarks for _ in range(2)] == [False, False]


def test_results_are_on_no_board_and_no_page(world: World) -> None:
    number = world.batch("ada")
    lease = world.lease()
    world.services.ledger.finish(lease, world.report(lease, verdict=Verdict.ACCEPTED, ranked=True))
    for who in (None, "bob", "ada", "root"):
        client = world.client(who)
        assert client.get("/api/v1/leaderboards/softmax").json()["total"] == 0
        assert client.get("/api/v1/submissions").json()["submissions"] == []
        assert client.get("/api/v1/queue").json()["jobs"] == []
        for path in ("/api/v1/submissions", "/submissions"):
            assert client.get(f"{path}/{lease.submission_id}").status_code == 404
        reply = client.get(f"/api/v1/submissions/{lease.submission_id}/source")
        assert reply.status_code == 404
        reply = client.get(f"/api/v1/submissions/{lease.submission_id}/events")
        assert reply.status_code == 404
    assert status(world, number, "root")["state"] == "done"
    assert error(world.client("bob").get(f"{API}/{number}")) == (404, "no_such_batch")
    assert error(world.client("bob").get(f"{API}/{number}/results")) == (404, "no_such_batch")
    assert error(world.client("bob").delete(f"{API}/{number}")) == (404, "no_such_batch")


def test_a_repeated_request_submits_once(world: World) -> None:
    first = post(world, key="k").json()["id"]
    assert post(world, key="k").json()["id"] == first
    assert error(post(world, key="k", items=[item("b")])) == (409, "key_reused")
    assert error(post(world, key="k", tests_only=True)) == (409, "key_reused")
    assert post(world, "bob", key="k").json()["id"] != first
    # After the deadline too, when its answer was lost.
    settings = BoardSettings(deadline=world.clock() - timedelta(seconds=1))
    world.services.admin.set_board("softmax", settings, "root")
    assert post(world, key="k").json()["id"] == first
    assert error(post(world, key="other")) == (403, "deadline_passed")
    assert error(post(world)) == (403, "deadline_passed")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"items": []}, "items: List should have at least 1 item"),
        ({"items": [item("a"), item("a")]}, "two items have the key a"),
        ({"items": [item("")]}, "items.0.key: "),
        ({"items": [item("a\n")]}, "items.0.key: must be printable"),
        ({"items": [{"key": "a"}]}, "items.0.source: Field required"),
        ({"items": [item("a", language="c")]}, "items.0.language: Input should be"),
        ({"items": [item("a", problem="gelu")]}, "items.0.problem: Extra inputs"),
        ({"gpu": "H100"}, "no worker has the GPU type 'H100'"),
    ],
)
def test_an_invalid_batch(world: World, body: dict[str, Any], message: str) -> None:
    reply = post(world, **body)
    assert reply.status_code == 422
    assert message in reply.json()["error"]["message"]
    assert world.client("ada").get(API).json() == {"batches": [], "before": None}


def test_a_body_of_another_form(world: World) -> None:
    client = world.client("ada")
    for content in (b"", b"no json", b"[]", b"\xff", b'{"items": [{"source": "\\ud800"}]}'):
        reply = client.post(API, content=content)
        assert error(reply) == (422, "invalid"), content
    assert error(post(world, problem="softmaks")) == (404, "no_such_problem")


def test_limits(world: World) -> None:
    items = [item(str(n)) for n in range(5)]
    assert error(post(world, items=items)) == (413, "too_large")
    large = "#" * (1 + world.problem.spec.limits.source_bytes)
    reply = post(world, items=[item("a"), {"key": "b", "source": large}])
    assert error(reply) == (413, "too_large")
    assert reply.json()["error"]["message"].startswith("b: softmax takes files of up to")
    assert post(world, items=items[:4]).status_code == 202
    reply = post(world, items=items[:3])
    assert error(reply) == (429, "too_many_in_flight")
    assert int(reply.headers["Retry-After"]) > 0
    assert post(world, "bob", items=items[:4]).status_code == 202
    assert error(post(world, "root", items=items[:1])) == (503, "queue_full")


def test_cancelling(world: World) -> None:
    number = world.batch("ada", "a", "b", "c")
    lease = world.lease()
    world.services.ledger.finish(lease, world.report(lease))
    client = world.client("ada")
    assert client.delete(f"{API}/{number}").status_code == 204
    found = status(world, number)
    assert (found["state"], found["ended"], found["counts"]["cancelled"]) == ("cancelled", 3, 2)
    assert [one["key"] for one in lines(world, number)] == ["a"]
    assert error(client.delete(f"{API}/{number}")) == (409, "not_running")
    assert error(client.delete(f"{API}/99")) == (404, "no_such_batch")


def test_a_fault_of_ours_is_an_error_and_no_report(world: World) -> None:
    number = world.batch("ada")
    for _ in range(3):
        world.services.ledger.fail(world.lease(), "no sandbox starts")
        world.clock.move(100)
    found = status(world, number)
    assert (found["state"], found["ended"], found["counts"]["held"]) == ("done", 1, 1)
    assert lines(world, number) == [{"place": 1, "key": "a", "error": "no sandbox starts"}]


def test_a_ban_ends_batches(world: World) -> None:
    world.services.accounts.add_user("eve")
    world.tokens["eve"] = world.services.accounts.new_token("eve")
    number = world.batch("eve")
    world.services.admin.ban("eve", "spam", "root")
    found = status(world, number, "root")
    assert (found["state"], found["counts"]["cancelled"]) == ("done", 1)


def test_listing(world: World) -> None:
    numbers = [world.batch("ada", "a") for _ in range(3)]
    world.batch("bob")
    first = world.client("ada").get(API, params={"limit": 2}).json()
    assert [one["id"] for one in first["batches"]] == numbers[:0:-1]
    rest = world.client("ada").get(API, params={"before": first["before"]}).json()
    assert [one["id"] for one in rest["batches"]] == numbers[:1]
    assert rest["before"] is None


def test_old_results_are_removed(world: World) -> None:
    number = world.batch("ada")
    lease = world.lease()
    world.services.ledger.finish(lease, world.report(lease))
    world.clock.move(6 * DAY_S)
    assert world.services.retention.remove_batches(pause_s=0) == 0
    world.clock.move(2 * DAY_S)
    assert world.services.retention.remove_batches(pause_s=0) == 1
    reply = world.client("ada").get(f"{API}/{number}/results")
    assert error(reply) == (410, "results_removed")
    found = status(world, number)
    assert (found["state"], found["counts"]["done"]) == ("done", 1)
    assert found["removed_at"] is not None


def test_many_results_are_read_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.server.api.batches.RESULTS_READ", 2)
    number = world.batch("ada", "a", "b", "c", "d")
    for _ in range(4):
        lease = world.lease()
        world.services.ledger.finish(lease, world.report(lease))
    assert [one["key"] for one in lines(world, number)] == ["a", "b", "c", "d"]
    assert [one["key"] for one in lines(world, number, limit=3)] == ["a", "b", "c"]


def test_a_pulling_worker_is_told_what_not_to_time(world: World) -> None:
    """An older worker knows no `benchmarks`, and refuses fields that it does not know."""
    claim = {"worker": "w", "problems": {"softmax": world.problem.digest}}
    world.submitted("ada")
    world.batch("ada", "a", tests_only=True)
    client = world.client("wilma")
    first = client.post("/api/v1/work/claim", json=claim).json()
    assert "benchmarks" not in first
    client.post(f"/api/v1/work/{first['id']}/give-back", json={"token": first["token"]})
    world.services.ledger.cancel(first["id"], "root")
    second = client.post("/api/v1/work/claim", json=claim).json()
    assert second["benchmarks"] is False
