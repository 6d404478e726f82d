"""ETags, gzip and cache headers of public answers."""

from __future__ import annotations

import pytest

from grader.server.http.etag import personal_content
from tests.server.conftest import World
from tests.server.site import Site
from tests.server.site import site as site


@pytest.mark.parametrize("path", ["/api/v1/leaderboards/softmax", "/problems/softmax"])
def test_unchanged_content_is_answered_with_304(world: World, path: str) -> None:
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
def test_content_is_compressed_for_clients_that_accept_gzip(world: World, path: str) -> None:
    world.graded("ada", score_us=30.0)
    client = world.client()
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    compressed = client.get(path, headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.content == plain.content
    assert int(compressed.headers["content-length"]) < len(plain.content)
    assert compressed.headers["etag"] != plain.headers["etag"]
    for answer in (plain, compressed):
        assert "Accept-Encoding" in answer.headers["vary"]
        assert "Cookie" in answer.headers["vary"]
        again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-encoding" not in again.headers


@pytest.mark.parametrize(
    ("accept_encoding", "is_compressed"),
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
def test_accept_encoding_is_parsed(world: World, accept_encoding: str, is_compressed: bool) -> None:
    answer = world.client().get("/", headers={"Accept-Encoding": accept_encoding})
    assert ("content-encoding" in answer.headers) == is_compressed


@pytest.mark.parametrize("path", ["/", "/leaderboards/softmax", "/healthz", "/nowhere"])
def test_pages_answer_head_requests(world: World, path: str) -> None:
    client = world.client()
    get, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["content-length"] == get.headers["content-length"]
    assert client.head("/api/v1/problems").status_code == 405


def test_a_page_for_one_user_is_not_compressed(site: Site) -> None:
    """The length of a compressed page that contains another's text gives away its secrets."""
    answer = site.browser("ada").get("/leaderboards/softmax", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers


def test_a_page_for_one_user_is_not_cached(site: Site) -> None:
    answer = site.browser("ada").get("/leaderboards/softmax")
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers
    missing = site.browser().get("/problems/nothing")
    assert missing.headers["cache-control"] == "no-store"


def test_the_etag_of_a_hidden_board_is_not_confirmed(site: Site) -> None:
    client = site.browser()
    tag = client.get("/leaderboards/softmax").headers["etag"]
    site.set_board(hidden=True)
    answer = client.get("/leaderboards/softmax", headers={"If-None-Match": tag})
    assert answer.status_code == 404


def test_a_deleted_submission_disappears_for_others_at_once(site: Site) -> None:
    number = site.marks["best"]
    assert "does not count" not in site.page(f"/submissions/{number}")
    assert site.world.services.admin.delete(number, "root")
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


def test_regions_of_a_page_are_replaced() -> None:
    page = b"a<!--one-->x<!--/one-->b<!--two--><!--/two-->c<!--three-->"
    made = personal_content(page, {"one": "1", "two": "<!--one-->2", "three": "3", "four": "4"})
    assert made == b"a<!--one-->1<!--/one-->b<!--two--><!--one-->2<!--/two-->c<!--three-->"
