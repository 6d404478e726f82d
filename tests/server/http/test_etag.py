"""What a client keeps, and asks for anew: 304 while it is the same, the new one once it is not."""

from __future__ import annotations

import pytest

from tests.server.conftest import World
from tests.server.site import Site
from tests.server.site import site as site


@pytest.mark.parametrize("path", ["/api/v1/leaderboards/softmax", "/problems/softmax"])
def test_what_is_unchanged_is_not_sent_again(world: World, path: str) -> None:
    world.graded("ada", score_us=30.0)
    client = world.client()
    first = client.get(path)
    assert first.headers["cache-control"] == "private, no-cache"
    tag = {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["x-content-type-options"] == "nosniff"
    world.graded("bob", score_us=20.0)
    other = client.get("/api/v1/leaderboards/softmax", headers=tag)
    assert other.status_code == 200
    assert other.json()["entries"][0]["user"] == "bob"


@pytest.mark.parametrize("path", ["/api/v1/leaderboards/softmax", "/leaderboards/softmax"])
def test_it_is_packed_for_those_who_can_unpack(world: World, path: str) -> None:
    world.graded("ada", score_us=30.0)
    client = world.client()
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path, headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content)
    assert packed.headers["etag"] != plain.headers["etag"]
    for answer in (plain, packed):
        assert "Accept-Encoding" in answer.headers["vary"]
        assert "Cookie" in answer.headers["vary"]
        again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-encoding" not in again.headers


@pytest.mark.parametrize(
    ("accepts", "packs"),
    [
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("deflate, gzip ; q=1.0", True),
        ("gzip;q=0, identity", False),
        ("gzip; q=0.000", False),
        ("xgzip", False),
        ("*", False),
        ("", False),
        (";;,=,", False),
    ],
)
def test_who_takes_it_packed(world: World, accepts: str, packs: bool) -> None:
    answer = world.client().get("/", headers={"Accept-Encoding": accepts})
    assert ("content-encoding" in answer.headers) == packs


@pytest.mark.parametrize("path", ["/", "/leaderboards/softmax", "/healthz", "/nowhere"])
def test_pages_can_be_asked_for_without_their_body(world: World, path: str) -> None:
    client = world.client()
    whole, bare = client.get(path), client.head(path)
    assert (bare.status_code, bare.content) == (whole.status_code, b"")
    assert bare.headers["content-type"] == whole.headers["content-type"]
    assert bare.headers["content-length"] == whole.headers["content-length"]
    assert client.head("/api/v1/problems").status_code == 405


def test_what_one_alone_sees_is_not_packed(site: Site) -> None:
    """What is secret in it could be guessed by the length of what also holds another's words."""
    answer = site.browser("ada").get("/leaderboards/softmax", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers


def test_what_one_alone_sees_is_kept_nowhere(site: Site) -> None:
    answer = site.browser("ada").get("/leaderboards/softmax")
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers
    missing = site.browser().get("/problems/nothing")
    assert missing.headers["cache-control"] == "no-store"


def test_a_board_that_is_hidden_is_no_longer_what_it_was(site: Site) -> None:
    client = site.browser()
    tag = client.get("/leaderboards/softmax").headers["etag"]
    site.set_board(hidden=True)
    answer = client.get("/leaderboards/softmax", headers={"If-None-Match": tag})
    assert answer.status_code == 404


def test_strangers_see_changes_of_a_submission_at_once(site: Site) -> None:
    number = site.marks["best"]
    assert "does not count" not in site.page(f"/submissions/{number}")
    assert site.world.services.office.delete(number, "root")
    site.page(f"/submissions/{number}", status=404)
    assert "does not count" in site.page(f"/submissions/{number}", "root")


def test_a_result_that_is_not_its_users_best_is_ranked_among_the_others(world: World) -> None:
    scores = {"ada": (30.0, 50.0), "bob": (40.0,), "root": (60.0,)}
    numbers = [
        world.graded(name, score_us=score, score_ci_us=(score - 1, score + 1))
        for name, some in scores.items()
        for score in some
    ]
    client = world.client()
    ranks = [client.get(f"/api/v1/submissions/{number}").json()["rank"] for number in numbers]
    assert ranks == [1, 2, 2, 3]
