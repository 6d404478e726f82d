from __future__ import annotations

from tests.server.conftest import World


def test_a_submission_is_stored_before_it_is_answered(world: World) -> None:
    reply = world.submit("ada")
    assert reply.status_code == 202
    body = reply.json()
    assert body["state"] == "queued"
    assert reply.headers["Location"] == body["url"]
    job = world.services.ledger.job(body["id"])
    assert job is not None
    assert (job.user, job.problem, job.name) == ("ada", "softmax", "kernel.py")


def test_its_report_comes_in_time(world: World) -> None:
    number = world.submitted("ada")
    ada = world.client("ada")
    waiting = ada.get(f"/api/v1/submissions/{number}").json()
    assert (waiting["state"], waiting["position"], waiting["verdict"]) == ("queued", 1, None)
    world.grade()
    done = ada.get(f"/api/v1/submissions/{number}").json()
    assert (done["state"], done["verdict"], done["rank"]) == ("done", "accepted", 1)
    assert done["id"] == number
    assert "seed" not in done
    assert [case["name"] for case in done["cases"]] == ["tiny", "square"]
