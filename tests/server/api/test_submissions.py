from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from grader.board.store import insert_result
from grader.db.engine import transaction
from grader.fleet import Ledger, State
from grader.fleet.job import Worker
from grader.judge import Progress
from grader.report import CaseResult, Report
from grader.server.services.admin_service import BoardSettings
from grader.server.settings import Settings
from tests.server.conftest import H100, KERNEL, World

HTML = {"Accept": "text/html"}


def report(world: World, number: int, who: str | None = "ada") -> dict[str, Any]:
    reply = world.client(who).get(f"/api/v1/submissions/{number}")
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert isinstance(found, dict)
    return found


def error(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def set_board(world: World, **settings: Any) -> None:
    world.services.admin.set_board("softmax", BoardSettings(**settings), "root")


# Submitting ---------------------------------------------------------------------------------------


def test_a_submission_is_stored_before_it_is_answered(world: World) -> None:
    reply = world.submit("ada")
    assert reply.status_code == 202
    body = reply.json()
    assert set(body) == {"id", "state", "url"}
    assert body["state"] == "queued"
    assert reply.headers["Location"] == body["url"]
    assert world.client("ada").get(body["url"]).json()["id"] == body["id"]
    job = world.services.ledger.job(body["id"])
    assert job is not None
    assert (job.user, job.problem, job.name) == ("ada", "softmax", "kernel.py")
    assert job.problem_digest == world.problem.digest


@pytest.mark.parametrize("name", ["kernel.c", "kernel", ".py.txt", "", "PY"])
def test_an_unknown_extension(world: World, name: str) -> None:
    reply = world.submit("ada", file=name)
    assert reply.status_code in (415, 422)
    assert world.services.ledger.queue() == []


def test_an_extension_may_be_in_upper_case(world: World) -> None:
    job = world.services.ledger.job(world.submitted("ada", file="KERNEL.PY"))
    assert job is not None
    assert (job.name, job.language) == ("KERNEL.PY", "python")


def test_an_unknown_problem(world: World) -> None:
    reply = world.submit("ada", problem="softmaks")
    assert error(reply) == (404, "no_such_problem")
    assert "softmax" in reply.json()["error"]["message"]


def test_a_cuda_file_waits_for_a_worker_with_a_gpu(world: World) -> None:
    """As a Python file waits for any worker; the queue says why."""
    assert world.submit("ada", file="k.cu").status_code == 202
    (waiting,) = world.client().get("/api/v1/queue").json()["jobs"]
    assert waiting["obstacle"] == "no worker is connected"
    world.services.ledger.announce(Worker("c", "local", "cpu", None, 1))
    (waiting,) = world.client().get("/api/v1/queue").json()["jobs"]
    assert waiting["obstacle"] == "no worker has a GPU, which a .cu file needs"


def test_a_type_of_gpu_needs_a_worker_that_has_it(world: World) -> None:
    assert error(world.submit("ada", gpu="H100")) == (422, "no_worker")
    world.services.ledger.announce(Worker("w", "local", "cuda", H100, 1))
    assert world.submit("ada", gpu="H100").status_code == 202
    reply = world.submit("ada", gpu="A100")
    assert error(reply) == (422, "no_worker")
    assert H100 in reply.json()["error"]["message"]
    world.clock.move(3600)
    assert error(world.submit("ada", gpu="H100")) == (422, "no_worker")


def test_a_board_past_its_deadline(world: World) -> None:
    set_board(world, deadline=world.clock() + timedelta(seconds=10))
    assert world.submit("ada").status_code == 202
    world.clock.move(10)
    assert error(world.submit("ada")) == (403, "deadline_passed")
    assert world.submit("root").status_code == 202


def test_the_deadline_is_checked_first(world: World) -> None:
    set_board(world, deadline=world.clock() - timedelta(seconds=1))
    for file, gpu in ("kernel.txt", ""), ("kernel.cu", "B200"):
        assert error(world.submit("ada", file=file, gpu=gpu)) == (403, "deadline_passed")


def test_the_deadline_may_pass_while_the_request_waits_for_the_ledger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, submit = world.services.ledger, Ledger.submit

    def waits(*args: Any, **more: Any) -> int:
        world.clock.move(10)
        return submit(ledger, *args, **more)

    set_board(world, deadline=world.clock() + timedelta(seconds=10))
    monkeypatch.setattr(ledger, "submit", waits)
    assert error(world.submit("ada")) == (403, "deadline_passed")
    assert ledger.queue() == []


def test_a_daily_limit(world: World) -> None:
    set_board(world, daily_limit=2)

    def left(name: str | None) -> object:
        return world.client(name).get("/api/v1/problems/softmax").json()["daily_left"]

    assert [left(name) for name in ("ada", "root", None)] == [2, None, None]
    for _ in range(2):
        assert world.submit("ada").status_code == 202
        world.clock.move(60)
    assert (left("ada"), left("bob")) == (0, 2)
    reply = world.submit("ada")
    assert error(reply) == (429, "daily_quota")
    wait_s = int(reply.headers["Retry-After"])
    assert wait_s == 24 * 3600 - 120
    assert world.submit("bob").status_code == 202
    assert world.submit("ada", problem="gelu").status_code == 202
    assert [world.submit("root").status_code for _ in range(3)] == 3 * [202]
    world.clock.move(wait_s - 1)
    assert error(world.submit("ada")) == (429, "daily_quota")
    world.clock.move(1)
    assert world.submit("ada").status_code == 202
    board = world.client().get("/api/v1/leaderboards/softmax").json()["board"]
    assert board["daily_limit"] == 2


def test_a_result_is_withdrawn_until_the_deadline(world: World) -> None:
    number = world.graded("ada")
    set_board(world, deadline=world.clock() + timedelta(seconds=10))
    path = f"/api/v1/submissions/{number}"
    assert world.client("ada").post(f"{path}/withdraw").status_code == 204
    shown = report(world, number)
    assert (shown["withdrawn"], shown["counts"], shown["rank"]) == (True, False, None)
    assert error(world.client("bob").post(f"{path}/restore")) == (403, "not_yours")
    assert error(world.client("root").post(f"{path}/restore")) == (403, "not_yours")
    waiting = world.submitted("ada")
    reply = world.client("ada").post(f"/api/v1/submissions/{waiting}/withdraw")
    assert error(reply) == (409, "conflict")
    world.clock.move(10)
    assert error(world.client("ada").post(f"{path}/restore")) == (403, "deadline_passed")
    (listed,) = [
        one
        for one in world.client().get("/api/v1/submissions").json()["submissions"]
        if one["id"] == number
    ]
    assert (listed["withdrawn"], listed["ranked"], listed["verdict"]) == (True, False, "accepted")


class TestBounds:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(max_in_flight=2, max_queue=3, submissions_per_minute=100)

    def test_in_flight_and_queue(self, world: World) -> None:
        assert [world.submit("ada").status_code for _ in range(2)] == [202, 202]
        reply = world.submit("ada")
        assert error(reply) == (429, "too_many_in_flight")
        assert reply.headers["Retry-After"]
        assert world.submit("bob").status_code == 202
        reply = world.submit("bob")
        assert error(reply) == (503, "queue_full")
        assert reply.headers["Retry-After"]


class TestQuota:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(source_bytes_per_user=len(KERNEL) + 1)

    def test_stored_sources_of_a_user(self, world: World) -> None:
        assert world.submit("ada").status_code == 202
        reply = world.submit("ada", content=b"xx")
        assert error(reply) == (403, "quota_exceeded")
        message = reply.json()["error"]["message"]
        assert f"take {len(KERNEL)} of {len(KERNEL) + 1} bytes, and this one has 2" in message
        assert "ask an admin for more" in message
        assert world.submit("bob").status_code == 202
        assert len(world.services.ledger.queue()) == 2


class TestRefused:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(submissions_per_minute=1, source_bytes_per_user=len(KERNEL))

    def test_refused_submissions_do_not_use_up_the_minute(self, world: World) -> None:
        """Whatever the reason is. One that is stored does."""
        set_board(world, deadline=world.clock())
        assert error(world.submit("ada")) == (403, "deadline_passed")
        set_board(world)
        assert error(world.submit("ada", file="k.rs")) == (415, "unknown_language")
        assert error(world.submit("ada", gpu="B200")) == (422, "no_worker")
        assert error(world.submit("ada", problem="no")) == (404, "no_such_problem")
        assert error(world.submit("ada", content=KERNEL + b"#")) == (403, "quota_exceeded")
        too_large = b"#" * (world.problem.spec.limits.source_bytes + 1)
        assert error(world.submit("ada", content=too_large)) == (413, "too_large")
        assert world.submit("ada").status_code == 202
        assert error(world.submit("ada")) == (429, "too_often")


# Reports -----------------------------------------------------------------------------------------


def test_a_report_from_queued_to_done(world: World) -> None:
    number = world.submitted("ada")
    waiting = report(world, number)
    assert (waiting["state"], waiting["position"], waiting["verdict"]) == ("queued", 1, None)
    lease = world.lease()
    world.services.ledger.heartbeat(lease, 60, Progress("test", "tiny", 1, 3))
    running = report(world, number)
    assert running["state"] == "running"
    assert running["progress"] == {
        "stage": "test",
        "case": "tiny",
        "index": 1,
        "total": 3,
        "status": None,
    }
    world.services.ledger.finish(lease, world.report(lease))
    done = report(world, number)
    assert (done["state"], done["verdict"], done["rank"]) == ("done", "accepted", 1)
    assert (done["reward"]["stage"], done["reward"]["speedup"]) == ("accepted", 1.25)
    assert (done["id"], done["user"], done["counts"]) == (number, "ada", True)
    assert [case["name"] for case in done["cases"]] == ["tiny", "square"]


def test_a_submission_has_every_field_of_a_report_but_the_seed(world: World) -> None:
    for number in (world.submitted("ada"), world.graded("ada")):
        assert set(Report.model_fields) - set(report(world, number)) == {"seed"}


def test_non_finite_numbers_are_strings(world: World) -> None:
    case = CaseResult(
        name="odd", kind="test", params={}, status="wrong_answer", max_abs_err=float("nan")
    )
    number = world.graded("ada", verdict="wrong_answer", cases=[case], ranked=False)
    assert report(world, number)["cases"][0]["max_abs_err"] == "NaN"


def test_what_others_see(world: World) -> None:
    number = world.graded("ada", log="my prints")
    for who in ("bob", None):
        visible = report(world, number, who)
        assert (visible["verdict"], visible["score_us"], visible["rank"]) == ("accepted", 50.0, 1)
        assert (visible["log"], visible["reason"], visible["submission_name"]) == (None, None, None)
        assert visible["notes"] is None
    set_board(world, deadline=world.clock() + timedelta(hours=1))
    for who in ("bob", None):
        visible = report(world, number, who)
        shown = {key for key, value in visible.items() if value is not None}
        public = {"id", "state", "user", "submitted_at", "url", "problem", "problem_digest"}
        assert shown == public
        listed = world.client(who).get("/api/v1/submissions").json()["submissions"]
        assert (listed[0]["state"], listed[0]["verdict"]) == ("done", None)
    assert report(world, number, "ada")["log"] == "my prints"
    set_board(world, hidden=True)
    for who in ("bob", None):
        assert world.client(who).get(f"/api/v1/submissions/{number}").status_code == 404
        assert world.client(who).get("/api/v1/submissions").json()["submissions"] == []
        assert world.client(who).get("/api/v1/problems/softmax").status_code == 404
        assert world.client(who).get("/api/v1/leaderboards/softmax").status_code == 404
        names = [p["name"] for p in world.client(who).get("/api/v1/problems").json()["problems"]]
        assert "softmax" not in names
    assert report(world, number, "ada")["verdict"] == "accepted"


def test_a_source_is_private_until_the_board_publishes_it(world: World) -> None:
    number = world.graded("ada")
    address = f"/api/v1/submissions/{number}/source"
    assert world.client("ada").get(address).content == KERNEL
    assert world.client("root").get(address).content == KERNEL
    assert error(world.client("bob").get(address)) == (403, "private_source")
    set_board(world, publish_sources=True, deadline=world.clock() + timedelta(hours=1))
    assert world.client("bob").get(address).status_code == 403
    world.clock.move(3600)
    assert world.client("bob").get(address).content == KERNEL


def test_a_removed_source(world: World) -> None:
    set_board(world, publish_sources=True)
    kept, removed = world.graded("ada"), world.graded("ada", verdict="wrong_answer", ranked=False)
    world.clock.move(86_400 * 36_500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.services.retention, "_keep_days", 365.0)
        assert world.services.retention.run_pass(pause_s=0) == 1
    client = world.client("ada")
    assert client.get(f"/api/v1/submissions/{kept}/source").content == KERNEL
    reply = client.get(f"/api/v1/submissions/{removed}/source")
    assert error(reply) == (410, "source_removed")
    assert reply.json()["error"]["message"].endswith(
        "was removed on 2129-12-08, since it was old and did not rank"
    )
    found = report(world, removed)
    assert found["source_removed_at"].startswith("2129-12-08")
    assert found["verdict"] == "wrong_answer"
    assert found["submission_sha256"] == report(world, kept)["submission_sha256"]
    assert report(world, kept)["source_removed_at"] is None
    set_board(world, publish_sources=False)
    assert report(world, removed, "bob")["source_removed_at"] is None
    page = client.get(f"/submissions/{removed}", headers=HTML).text
    assert "The source was removed on 2129-12-08, since it was old and did not rank." in page
    assert found["submission_sha256"] in page
    assert "/source" not in page
    compared = client.get(f"/submissions/{removed}/compare/{kept}", headers=HTML).text
    assert "neither was removed" in compared


def test_a_deleted_submission_is_visible_to_admins_only(world: World) -> None:
    number = world.graded("ada")
    assert world.client("root").delete(f"/api/v1/submissions/{number}").status_code == 204
    for who in ("ada", "bob", None):
        reply = world.client(who).get(f"/api/v1/submissions/{number}")
        assert error(reply) == (404, "no_such_submission")
        assert world.client(who).get("/api/v1/submissions").json()["submissions"] == []
    assert report(world, number, "root")["counts"] is False
    assert world.client().get("/api/v1/leaderboards/softmax").json()["entries"] == []


def test_cancelling(world: World) -> None:
    number = world.submitted("ada")
    address = f"/api/v1/submissions/{number}"
    assert error(world.client("bob").delete(address)) == (403, "not_yours")
    assert world.client("ada").delete(address).status_code == 204
    assert report(world, number)["state"] == "cancelled"
    assert error(world.client("ada").delete(address)) == (409, "not_running")


# Lists -------------------------------------------------------------------------------------------


def test_lists_have_pages(world: World) -> None:
    numbers = [world.submitted("ada" if i % 2 else "bob") for i in range(5)]
    client = world.client()
    first = client.get("/api/v1/submissions", params={"limit": 2}).json()
    assert [one["id"] for one in first["submissions"]] == [numbers[4], numbers[3]]
    rest = client.get("/api/v1/submissions", params={"before": first["before"]}).json()
    assert [one["id"] for one in rest["submissions"]] == numbers[2::-1]
    assert rest["before"] is None
    mine = client.get("/api/v1/submissions", params={"user": "ada"}).json()
    assert {one["user"] for one in mine["submissions"]} == {"ada"}
    world.services.ledger.cancel(numbers[0], "root")
    cancelled = {"state": State.CANCELLED}
    gone = world.client("bob").get("/api/v1/submissions", params=cancelled).json()
    assert [one["id"] for one in gone["submissions"]] == [numbers[0]]
    assert client.get("/api/v1/submissions", params=cancelled).json()["submissions"] == []


def test_what_one_may_not_see_does_not_shorten_a_page(world: World) -> None:
    """Neither others' cancelled submissions nor those of banned users take places of the page."""
    seen = [world.graded("ada"), world.graded("ada")]
    mine = world.submitted("bob")
    assert world.client("bob").delete(f"/api/v1/submissions/{mine}").status_code == 204
    world.tokens["eve"] = world.services.accounts.add_user("eve")
    for _ in range(3):
        world.graded("eve")
    world.services.admin.ban("eve", "", "root")

    def page(name: str | None) -> list[int]:
        answer = world.client(name).get("/api/v1/submissions?limit=2").json()
        return [one["id"] for one in answer["submissions"]]

    assert page(None) == page("ada") == seen[::-1]
    assert page("bob") == [mine, seen[1]]
    assert page("root") == [6, 5]


def test_a_filter_does_not_shorten_a_page(world: World) -> None:
    """Filters, hidden boards and deletions apply before the limit: pages are full to the last."""
    mine = [world.submitted("ada") for _ in range(3)]
    deleted = world.graded("bob")
    assert world.services.admin.delete(deleted, "root") is not None
    for _ in range(3):
        world.submitted("bob", problem="flash_attention")
    world.services.admin.set_board("flash_attention", BoardSettings(hidden=True), "root")

    def page(filters: str = "", name: str | None = None) -> list[int]:
        answer = world.client(name).get(f"/api/v1/submissions?limit=2{filters}").json()
        return [one["id"] for one in answer["submissions"]]

    assert page() == page("&user=ada", "root") == page("&problem=softmax&state=queued") == [3, 2]
    assert page("&state=done", "root") == [mine[0]]


def test_the_leaderboard(world: World) -> None:
    world.graded("ada", score_us=50.0)
    best = world.graded("ada", score_us=30.0, score_ci_us=(29.9, 30.1))
    tied = world.graded("bob", score_us=30.1, score_ci_us=(30.0, 30.2))
    board = world.client().get("/api/v1/leaderboards/softmax").json()
    assert board["gpu"] == H100
    assert [(e["rank"], e["user"], e["submission_id"]) for e in board["entries"]] == [
        (1, "ada", best),
        (1, "bob", tied),
    ]
    assert report(world, tied)["rank"] == 1
    same = world.client().get("/api/v1/leaderboards/softmax", params={"gpu": "h100"}).json()
    assert same["entries"] == board["entries"]
    reply = world.client().get("/api/v1/leaderboards/softmax", params={"gpu": "B200"})
    assert error(reply) == (404, "no_such_gpu")


def test_a_large_leaderboard_has_pages(world: World) -> None:
    client = world.client()

    def part(**params: int) -> tuple[int, list[str]]:
        board = client.get("/api/v1/leaderboards/softmax", params=params).json()
        return board["total"], [entry["user"] for entry in board["entries"]]

    assert part(offset=5) == (0, [])
    names = [f"user{number:04}" for number in range(1003)]
    with transaction(world.services.ledger.board._engine) as connection:
        for number, name in enumerate(names):
            score_us = 50.0 + number
            report = world.make_report(
                problem_digest=world.problem.digest,
                score_us=score_us,
                score_ci_us=(score_us, score_us),
            )
            insert_result(connection, report, name, b"")
    assert part() == (1003, names[:1000])
    assert part(offset=1000) == (1003, names[1000:])
    assert part(limit=2, offset=500) == (1003, names[500:502])
    assert part(limit=2) == (1003, names[:2])
    assert part(offset=10**30) == (1003, [])
    last = client.get("/api/v1/leaderboards/softmax?limit=1&offset=700").json()["entries"]
    assert [entry["rank"] for entry in last] == [701], "as on the whole board"
    for odd in ("limit=0", "limit=1001", "offset=-1", "limit=x"):
        assert error(client.get(f"/api/v1/leaderboards/softmax?{odd}")) == (422, "invalid")


def test_a_leaderboard_changes_at_once(world: World) -> None:
    number = world.graded("ada")
    client = world.client()

    def users() -> list[str]:
        entries = client.get("/api/v1/leaderboards/softmax").json()["entries"]
        return [entry["user"] for entry in entries]

    assert users() == ["ada"]
    world.graded("bob")
    assert users() == ["ada", "bob"]
    world.services.admin.delete(number, "root")
    assert users() == ["bob"]
    world.services.admin.ban("bob", "", "root")
    assert users() == []
    world.services.admin.unban("bob", "root")
    assert users() == ["bob"]


def test_problems(world: World) -> None:
    found = world.client().get("/api/v1/problems").json()["problems"]
    softmax = next(problem for problem in found if problem["name"] == "softmax")
    fields = [softmax[key] for key in ("topic", "difficulty", "limited_by", "dtypes")]
    assert fields == ["fusion", 2, "memory", ["fp32", "fp16", "bf16"]]
    assert [one["name"] for one in found] == sorted(world.services.problems)
    whole = world.client().get("/api/v1/problems/softmax").json()
    assert whole["digest"] == world.problem.digest
    assert whole["statement"] == world.problem.statement
    assert whole["spec"]["limits"]["source_bytes"] == 1 << 20


def test_the_queue(world: World) -> None:
    first, second = world.submitted("ada"), world.submitted("bob")
    world.lease()
    jobs = world.client().get("/api/v1/queue").json()["jobs"]
    assert [(j["id"], j["state"], j["position"]) for j in jobs] == [
        (first, "running", None),
        (second, "queued", 1),
    ]
    assert all("name" not in job for job in jobs)


# Operation ---------------------------------------------------------------------------------------


def test_the_queue_shows_no_more_than_the_submission_does(world: World) -> None:
    """A submission that is timed has passed its tests, which is secret before the deadline."""
    set_board(world, deadline=world.clock() + timedelta(days=1))
    number = world.submitted("ada")
    lease = world.lease()
    step = Progress("benchmark", "widest", 2, 5, "passed")
    world.services.ledger.heartbeat(lease, 60, step)
    for who, stage in (("ada", "benchmark"), ("root", "benchmark"), ("bob", None), (None, None)):
        client = world.client(who)
        (job,) = client.get("/api/v1/queue").json()["jobs"]
        assert (job["progress"] or {}).get("stage") == stage
        assert (report(world, number, who)["progress"] or {}).get("stage") == stage
        assert ("timing" in client.get("/queue").text) == (stage is not None)
        for page in (f"/submissions/{number}", f"/submissions/{number}/state"):
            assert ('value="0.000"' in client.get(page, headers=HTML).text) == (stage is None)


def test_a_user_banned_during_an_upload_cannot_submit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, submit = world.services.ledger, Ledger.submit

    def banned_first(*args: Any, **more: Any) -> int:
        world.services.admin.ban("ada", "sold the answers", "root")
        return submit(ledger, *args, **more)

    monkeypatch.setattr(ledger, "submit", banned_first)
    reply = world.submit("ada")
    assert error(reply) == (403, "banned")
    assert "sold the answers" in reply.json()["error"]["message"]
    assert ledger.queue() == []


def test_health(world: World) -> None:
    reply = world.client().get("/healthz")
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


def test_metrics(world: World) -> None:
    world.graded("ada")
    world.submitted("ada")
    world.clock.move(7)
    world.services.metrics.watch_sweeps(lambda: 3)
    world.client("ada").get("/api/v1/submissions/1")
    text = world.client().get("/metrics").text
    for line in (
        'grade_jobs{state="queued"} 1.0',
        'grade_results{verdict="accepted"} 1.0',
        "grade_queue_age_seconds 7.0",
        "grade_swept_jobs_total 3.0",
        'grade_http_request_seconds_count{method="GET",route="/api/v1/submissions/{number}",'
        'status="200"} 1.0',
    ):
        assert line in text.splitlines(), text
    assert "ada" not in text


def test_a_repeated_request_needs_no_worker(world: World) -> None:
    """The first was stored, and its answer lost; meanwhile the worker has gone."""

    def post(key: str) -> httpx.Response:
        return world.client("ada").post(
            "/api/v1/submissions",
            data={"problem": "softmax", "gpu": "H100"},
            files={"file": ("kernel.py", b"x = 1")},
            headers={"Idempotency-Key": key},
        )

    world.services.ledger.announce(Worker("w", "local", "cuda", H100, 1))
    first = post("k")
    world.clock.move(3600)
    assert (first.status_code, post("k").json()) == (202, first.json())
    assert error(post("another")) == (422, "no_worker")


def test_a_repeated_request_makes_one_submission(world: World) -> None:
    def post(content: bytes, key: str = "k") -> httpx.Response:
        return world.client("ada").post(
            "/api/v1/submissions",
            data={"problem": "softmax"},
            files={"file": ("kernel.py", content)},
            headers={"Idempotency-Key": key},
        )

    first = post(b"x = 1")
    assert (first.status_code, post(b"x = 1").json()) == (202, first.json())
    set_board(world, deadline=world.clock() - timedelta(seconds=1))
    assert post(b"x = 1").json() == first.json(), "after the deadline, too"
    assert error(post(b"x = 1", "new")) == (403, "deadline_passed")
    set_board(world)
    assert error(post(b"x = 2")) == (409, "key_reused")
    assert error(post(b"x = 1", "k" * 101)) == (422, "invalid")
