"""Pulling workers, over a real socket, against the server's ledger."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from grader.board import BoardError
from grader.cli.app import main
from grader.cli.commands.worker import _announce
from grader.cli.local_grading import print_report
from grader.cli.remote_submit import as_report
from grader.fleet import Job, Lease, State, Worker
from grader.fleet.dispatch import NOT_RANKED, Dispatcher
from grader.fleet.job import LeaseKey
from grader.fleet.remote_ledger import RemoteLedger
from grader.judge import Progress
from grader.report import Verdict
from tests.fleet.fake import ROOT, FakeEngine
from tests.server.conftest import H100, KERNEL, World
from tests.waiting import PATIENCE_S, until

HOST = Worker("host", "http", "cuda", H100, 2)


@pytest.fixture
def remote(world: World) -> Iterator[RemoteLedger]:
    opened = RemoteLedger(world.url, world.tokens["wilma"])
    yield opened
    opened.close()


def claim(remote: RemoteLedger, world: World, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "lease_s": 60.0,
        "problems": {"softmax": world.problem.digest},
        "gpu": H100,
        "languages": None,
    }
    return remote.claim("host", **(fields | changes))


def job(world: World, number: int = 1) -> Job:
    found = world.services.ledger.job(number)
    assert found is not None
    return found


def test_a_worker_banned_during_a_claim_gets_no_job(
    world: World, remote: RemoteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, leased = world.services.ledger, world.services.ledger.claim

    def claimed(*arguments: Any, **more: Any) -> Any:
        # The ban comes after the request was admitted.
        world.services.admin.ban("wilma", "forged results", "root")
        return leased(*arguments, **more)

    world.submitted()
    monkeypatch.setattr(ledger, "claim", claimed)
    with pytest.raises(BoardError, match="forged results"):
        claim(remote, world)
    assert (job(world).state, job(world).leased_by) == (State.QUEUED, None)


def test_a_job_from_claim_to_finish(world: World, remote: RemoteLedger) -> None:
    remote.announce(HOST)
    (seen,) = world.services.ledger.workers(60)
    assert (seen.name, seen.via, seen.gpu, seen.slots) == ("wilma/host", "http", H100, 2)
    assert claim(remote, world) is None
    number = world.submitted(content=b"x = '\0\xff'", gpu="H100")
    lease = claim(remote, world)
    assert (lease.submission_id, lease.source) == (number, b"x = '\0\xff'")
    assert (lease.problem, lease.name, lease.gpu) == ("softmax", "kernel.py", "H100")
    assert (job(world).state, job(world).leased_by) == (State.LEASED, "wilma/host")
    assert job(world).lease_until == lease.until
    assert remote.begin(lease)
    world.clock.move(30)
    assert remote.heartbeat(lease, 60, Progress("test", "tiny", 1, 7))
    assert job(world).progress == Progress("test", "tiny", 1, 7)
    assert (job(world).lease_until or lease.until) > lease.until
    assert remote.finish(lease, world.report(lease)) == 1
    assert job(world).state is State.DONE
    assert remote.finish(lease, world.report(lease)) is None, "the answer may have been lost"
    assert not remote.heartbeat(lease, 60)


def test_a_result_shows_where_it_came_from(
    world: World, remote: RemoteLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker by its token; the rest is what it reports."""
    number = world.submitted()
    lease = claim(remote, world)
    assert remote.begin(lease)
    environment = {"gpu_uuid": "GPU-77", "driver": "570.86", "torch": "2.9.0", "grade": "0.1.0"}
    forged = world.report(lease, environment=environment, worker="root/trusted")
    assert remote.finish(lease, forged) == 1
    told = world.client("ada").get(f"/api/v1/submissions/{number}").json()
    assert told["worker"] == "wilma/host"
    assert told["environment"] == environment
    html = {"Accept": "text/html"}
    browser = world.client()
    assert browser.post("/login", data={"token": world.tokens["ada"]}, headers=html).is_redirect
    mine = browser.get(f"/submissions/{number}", headers=html).text
    assert "Graded by wilma/host. Its worker reports GPU GPU-77; " in mine
    page = world.client().get(f"/submissions/{number}", headers=html).text
    assert "Graded by" not in page
    assert "GPU GPU-77; driver 570.86; software grade 0.1.0, PyTorch 2.9.0." in page
    assert "root/trusted" not in page
    assert "root/trusted" not in world.services.ledger.board.result(1).report.model_dump_json()
    print_report(as_report(told), as_json=False)
    shown = capsys.readouterr().out
    for text in ("wilma/host", "GPU-77", "570.86", "grade 0.1.0, PyTorch 2.9.0"):
        assert text in shown


def test_a_worker_is_told_to_the_owner_and_to_admins(world: World) -> None:
    world.graded("ada", environment={"driver": "570.86"})

    def told(name: str) -> Any:
        return world.client(name).get("/api/v1/submissions/1").json()

    assert [told(name)["worker"] for name in ("ada", "root", "bob")] == ["w", "w", None]
    assert told("bob")["environment"] == {"driver": "570.86"}


def test_giving_back_and_failing(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    lease = claim(remote, world)
    assert remote.give_back(lease)
    assert job(world).state is State.QUEUED
    lease = claim(remote, world)
    assert remote.fail(lease, "no\nGPU" * 1000)
    assert job(world).failures == 1
    assert not remote.give_back(lease)


def test_only_the_leases_token_is_accepted(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    lease = claim(remote, world)
    guess = LeaseKey(lease.submission_id, "0" * 32)
    before = job(world)
    assert not remote.begin(guess)
    assert not remote.heartbeat(guess, 60)
    assert not remote.fail(guess, "")
    assert not remote.give_back(guess)
    assert remote.finish(guess, world.report(lease)) is None
    assert not remote.begin(LeaseKey(2**31 - 1, lease.token))
    assert job(world) == before


def test_a_lease_belongs_to_its_worker(world: World, remote: RemoteLedger) -> None:
    """Another worker's token does not report on it, even with the lease's secret."""
    world.tokens["wil"] = world.services.accounts.add_user("wil", "worker")
    world.submitted()
    lease = claim(remote, world)
    assert remote.begin(lease)
    before = job(world)
    with closing(RemoteLedger(world.url, world.tokens["wil"])) as other:
        assert not other.begin(lease)
        assert not other.heartbeat(lease, 600)
        assert not other.fail(lease, "")
        assert not other.give_back(lease)
        assert other.finish(lease, world.report(lease)) is None
    assert job(world) == before
    assert remote.finish(lease, world.report(lease)) == 1


def test_a_worker_leases_no_more_than_it_has_slots(world: World, remote: RemoteLedger) -> None:
    for _ in range(5):
        world.submitted()
    first = claim(remote, world)
    assert first is not None
    assert claim(remote, world) is None, "one that has announced nothing has one slot"
    remote.announce(HOST)  # 2 slots
    assert claim(remote, world) is not None
    assert claim(remote, world) is None
    remote.announce(replace(HOST, name="host L4", slots=1))  # its slots of another kind
    third = claim(remote, world)
    assert third is not None
    assert claim(remote, world) is None
    assert remote.give_back(third)
    remote.announce(replace(HOST, name="hostile", slots=100))
    assert claim(remote, world) is not None
    assert claim(remote, world) is None, "another worker's slots do not count"


def test_a_worker_gets_only_problems_of_its_versions(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    assert claim(remote, world, problems={}) is None
    assert claim(remote, world, problems={"softmax": "0" * 64}) is None
    digests = {name: problem.digest for name, problem in world.services.problems.items()}
    swapped = digests | {"softmax": digests["int4_matmul"], "int4_matmul": digests["softmax"]}
    assert claim(remote, world, problems=swapped) is None
    assert claim(remote, world, languages=["cuda"]) is None
    assert claim(remote, world, problems=digests, languages=["python"]) is not None


def test_a_worker_logs_other_versions_once_and_the_queue_shows_them(
    world: World, remote: RemoteLedger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "softmax"
    shutil.copytree(world.problem.folder, folder)
    with (folder / "reference.py").open("a") as file:
        file.write("# Changed.\n")
    admin = world.client("root")

    def why() -> Any:
        (waiting,) = admin.get("/api/v1/queue").json()["jobs"]
        return waiting["obstacle"]

    def on_page(text: str) -> bool:
        return text in admin.get("/queue", headers={"Accept": "text/html"}).text

    world.submitted()
    assert why() == "no worker is connected"
    assert on_page("no worker is connected")
    folders = {"softmax": folder}
    dispatcher = Dispatcher(remote, FakeEngine(1), folders, "host", "http", tick_s=0.01)
    dispatcher.start()
    until(lambda: why() == "no worker has this version of softmax")
    assert on_page("no worker has this version of softmax")
    dispatcher.drain(0)
    (worker,) = world.services.ledger.workers(60)
    logged = caplog.messages.copy()
    (softmax,) = (line for line in logged if "the server has version" in line)
    assert softmax.startswith("problem softmax: ")
    assert world.problem.digest[:12] in softmax
    assert [line for line in logged if "this worker does not" in line], (
        "the server has more problems"
    )
    remote.announce(replace(HOST, problems=worker.problems))
    assert caplog.messages == logged, "nothing is logged again"
    fits = {"softmax": world.problem.digest}
    remote.announce(replace(HOST, problems=fits))
    assert why() is None
    assert claim(remote, world) is not None
    assert why() is None


def test_a_report_of_another_submission_is_refused(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    lease = claim(remote, world)
    assert remote.begin(lease)
    with pytest.raises(ValueError, match="the report is not one of submission 1"):
        remote.finish(lease, world.report(lease, submission_sha256="0" * 64))
    assert job(world).state is State.RUNNING


def test_the_server_does_not_rank_a_process_sandbox(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    lease = claim(remote, world)
    assert remote.begin(lease)
    assert remote.finish(lease, world.report(lease, sandbox="process (namespaces)")) == 1
    report = world.services.ledger.board.result(1).report
    assert (report.ranked, report.notes) == (False, [NOT_RANKED])


@pytest.mark.parametrize(
    "fields",
    [
        {"score_us": 0.0},
        {"score_us": "NaN"},
        {"score_us": -5.0},
        {"score_ci_us": ["-Infinity", "Infinity"]},
        {"speedup": {"eager": 0.0}},
        {"sol": -1.0},
        {"language": "cuda"},
        {"verdict": "judge_error"},
        {"environment": {"x": [[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]}},
    ],
)
def test_an_invalid_report_is_refused(world: World, fields: dict[str, Any]) -> None:
    """One such number would break the board's page for good."""
    client = world.client("wilma")
    number = world.submitted()
    wish = {"worker": "w", "gpu": H100, "problems": {"softmax": world.problem.digest}}
    leased = client.post("/api/v1/work/claim", json=wish).json()
    hold = {"token": leased["token"]}
    assert client.post(f"/api/v1/work/{number}/begin", json=hold).json() == {"ok": True}
    lease = Lease(
        **{n: leased[n] for n in ("token", "problem", "problem_digest", "name", "gpu")},
        submission_id=number, language="python", source=KERNEL, until=world.clock(),
    )  # fmt: skip
    report = world.report(lease).model_dump(mode="json")
    if "sol" in fields:
        report["cases"][1] |= fields
    else:
        report |= fields
    reply = client.post(f"/api/v1/work/{number}/finish", json=hold | {"report": report})
    assert reply.status_code == 422, reply.text
    assert job(world).state is State.RUNNING
    for path in ("/", "/leaderboards/softmax", "/api/v1/leaderboards/softmax"):
        assert world.client("ada").get(path).status_code == 200


def test_text_of_a_worker_is_escaped(world: World, remote: RemoteLedger) -> None:
    odd = "\x1b[31m\u202e\x00"
    world.submitted()
    lease = claim(remote, world)
    assert remote.begin(lease)
    assert remote.heartbeat(lease, 60, Progress(f"test{odd}", odd * 100, 1, 2, odd))
    for path in ("/queue", "/api/v1/queue", "/submissions/1", "/api/v1/submissions/1"):
        text = world.client("ada").get(path).text
        assert not {*odd[:1], "\u202e", "\x00"} & set(text)
        assert "\\u001b" not in text
    report = world.report(lease, reason=odd, gpu=f"{odd}GPU", log=odd, notes=[odd])
    early = report.model_copy(update={"created_at": world.clock().replace(year=1)})
    assert remote.finish(lease, early) == 1
    for path in ("/submissions/1", "/api/v1/submissions/1", "/leaderboards/softmax"):
        reply = world.client("ada").get(path)
        assert reply.status_code == 200
        assert not {"\x1b", "\u202e", "\x00"} & set(reply.text)
        assert "\\u001b" not in reply.text
    assert world.services.ledger.board.result(1).report.created_at == world.clock()


@pytest.mark.parametrize(
    "progress",
    [{"stage": "test", "index": -1}, {"stage": "test", "total": 10**400}, {"stage": 5}],
)
def test_malformed_progress_is_refused(world: World, progress: dict[str, Any]) -> None:
    body = json.dumps({"token": "0" * 32, "progress": progress})
    headers = {"Content-Type": "application/json"}
    path = "/api/v1/work/1/heartbeat"
    assert world.client("wilma").post(path, content=body, headers=headers).status_code == 422


@pytest.mark.parametrize("token", ["", "x" * 32, "\x00" * 32, "\ud800", "0" * 33, "0" * 32 + "\n"])
def test_malformed_lease_tokens(world: World, token: str) -> None:
    content = json.dumps({"token": token})
    headers = {"Content-Type": "application/json"}
    for what in ("begin", "give-back"):
        reply = world.client("wilma").post(
            f"/api/v1/work/1/{what}", content=content, headers=headers
        )
        assert reply.status_code == 422


@pytest.mark.parametrize("who", ["ada", None])
def test_worker_routes_need_a_worker_token_and_others_refuse_it(
    world: World, who: str | None
) -> None:
    stranger = RemoteLedger(world.url, world.tokens[who] if who else "grade_guess")
    refused = r"answered 403: this needs a token with the role worker|answered 401: this token"
    with closing(stranger), pytest.raises(BoardError, match=refused):
        claim(stranger, world)
    worker = world.client("wilma")
    number = world.submitted()
    for path in (f"/api/v1/submissions/{number}/source", "/api/v1/admin/users"):
        assert worker.get(path).status_code in (403, 404)
    assert world.submit("wilma").status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"worker": "", "problems": {}},
        {"worker": "h", "problems": {"../etc": "0" * 64}},
        {"worker": "h", "problems": {"softmax": "x"}},
        {"worker": "h", "problems": {}, "lease_s": 1e9},
        {"worker": "h", "problems": {}, "lease_s": "NaN"},
        {"worker": "h", "problems": {}, "more": 1},
    ],
)
def test_a_malformed_claim_is_refused(world: World, body: dict[str, Any]) -> None:
    reply = world.client("wilma").post("/api/v1/work/claim", json=body)
    assert reply.status_code == 422
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize("number", ["0", "-1", "2147483648", "9" * 40, "x"])
def test_malformed_numbers(world: World, number: str) -> None:
    reply = world.client("wilma").post(f"/api/v1/work/{number}/begin", json={"token": "t"})
    assert reply.status_code == 422


def test_an_address_without_a_server(world: World) -> None:
    with pytest.raises(BoardError, match="cannot be reached"):
        RemoteLedger("http://127.0.0.1:9", "t").announce(HOST)
    with pytest.raises(BoardError, match="is no server"):
        RemoteLedger("ftp://127.0.0.1", "t")
    with pytest.raises(BoardError, match="this is no token") as caught:
        RemoteLedger(world.url, "grade_sécret")
    assert "cret" not in str(caught.value)
    lost = RemoteLedger(f"{world.url}/elsewhere", world.tokens["wilma"])
    with closing(lost), pytest.raises(BoardError, match="answered 404"):
        lost.announce(HOST)


def test_a_dispatcher_over_http(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    engine = FakeEngine(1, "cuda", H100)
    folders = {"softmax": world.problem.folder}
    dispatcher = Dispatcher(
        remote,
        engine,
        folders,
        "host",
        "http",
        tick_s=0.01,
        lease_s=600.0,  # long enough not to expire
    )
    dispatcher.start()
    engine.report_progress("load")
    until(lambda: job(world).progress == Progress("load"))
    report = world.make_report(
        problem_digest=world.problem.digest, submission_sha256=job(world).sha256
    )
    engine.end(report)
    until(lambda: job(world).state is State.DONE)
    world.submitted()
    engine.task()
    until(lambda: job(world, 2).state is State.RUNNING)
    dispatcher.drain(0)
    assert job(world, 2).state is State.QUEUED


def grade_worker(world: World) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "grader.cli", "worker", "--sandbox", "process", "--name", "host"],
        env=os.environ | {"GRADE_SERVER": world.url, "GRADE_TOKEN": world.tokens["wilma"]},
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )


def test_grade_worker_grades_and_stops_on_sigterm(world: World) -> None:
    """End to end: a submission, a worker process, a grading on a CPU."""
    source = (ROOT / "submissions/softmax/accepted/torch_softmax.py").read_bytes()
    number = world.submitted(content=source)
    worker = grade_worker(world)
    try:
        until(lambda: job(world).progress is not None)
        until(lambda: job(world).state is State.DONE)
        endless = (ROOT / "submissions/softmax/time_limit_exceeded/infinite_loop.py").read_bytes()
        world.submitted(content=endless)
        until(lambda: job(world, 2).state is State.RUNNING)
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        _, errors = worker.communicate(timeout=PATIENCE_S)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors
    assert b"host: 1 slot on CPU, for " in errors
    assert b"Traceback" not in errors
    assert world.tokens["wilma"].encode() not in errors
    shown = world.client("ada").get(f"/api/v1/submissions/{number}").json()
    assert (shown["verdict"], shown["ranked"]) == (Verdict.ACCEPTED, False)
    after = job(world, 2)
    assert (after.state, after.failures, after.deaths) == (State.QUEUED, 0, 0)


def test_grade_worker_says_what_is_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GRADE_SERVER", "GRADE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert main(["worker"]) == 2
    assert "--server or GRADE_SERVER is missing" in capsys.readouterr().err
    assert main(["worker", "--server", world.url]) == 2
    assert "--token or GRADE_TOKEN is missing" in capsys.readouterr().err
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])
    for name in ("x" * 101, "a\x1b[31m"):
        assert main(["worker", "--server", world.url, "--sandbox", "process", "--name", name]) == 2
        assert "--name must be at most 100 printable characters" in capsys.readouterr().err
    assert main(["worker", "--server", world.url, "--sandbox", "process"]) == 2
    assert "answered 403: this needs a token with the role worker" in capsys.readouterr().err


def test_a_worker_waits_for_its_server(
    world: World,
    remote: RemoteLedger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers: list[Any] = [httpx.ConnectError("refused"), 503, 429, 200]

    def respond(*_: Any, **__: Any) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        body = {"problems": {}} if answer == 200 else {"error": {"message": "so"}}
        return httpx.Response(answer, json=body)

    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(remote._client, "post", respond)
    _announce(remote, HOST)
    assert len(waits) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("cannot be reached: refused; waiting for it\n")
    answers += [401, 200]
    with pytest.raises(BoardError, match="answered 401"):  # waiting would not help
        _announce(remote, HOST)


def test_no_answer_shows_the_token_of_another_lease(world: World, remote: RemoteLedger) -> None:
    world.submitted()
    lease = claim(remote, world)
    admin: httpx.Client = world.client("root")
    for path in ("/api/v1/submissions/1", "/api/v1/queue", "/api/v1/submissions"):
        assert lease.token not in admin.get(path).text
