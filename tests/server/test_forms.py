"""The pages' forms: submitting, cancelling, logging in, and requests from other sites."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from grader.cli.commands.new import new
from grader.fleet import Worker
from grader.server.http.auth import COOKIE
from grader.submission import STARTERS, Submission
from tests.server.conftest import PROBLEMS, World
from tests.server.site import Site, check, words
from tests.server.site import site as site

# Submitting ---------------------------------------------------------------------------------------


def csrf_of(client: httpx.Client) -> str:
    return hashlib.sha256(f"csrf{client.cookies[COOKIE]}".encode()).hexdigest()


def send(client: httpx.Client, csrf: str, origin: str | None = None, **more: Any) -> httpx.Response:
    return client.post(
        "/submit",
        data={"problem": "softmax", "csrf": csrf} | more.get("form", {}),
        files={"file": more.get("file", ("k.py", b"x = 1"))},
        headers={"Origin": origin or str(client.base_url).rstrip("/")} | more.get("headers", {}),
    )


def test_submit_redirects_to_login_and_back(site: Site) -> None:
    answer = site.browser().get("/submit?problem=softmax")
    assert answer.status_code == 303
    page = site.page(answer.headers["location"])
    assert 'value="/submit?problem=softmax"' in page


def test_submit_without_scripts_redirects_to_the_submission(site: Site) -> None:
    client = site.browser("ada")
    assert '<option value="softmax" selected>' in client.get("/submit?problem=softmax").text
    answer = send(client, csrf_of(client))
    assert answer.status_code == 303
    assert "In progress" in words(client.get(answer.headers["location"]).text)


def test_submit_with_htmx_answers_with_a_live_fragment(site: Site) -> None:
    client = site.browser("ada")
    answer = send(client, csrf_of(client), headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "<html" not in answer.text
    assert re.search(r'sse-connect="/api/v1/submissions/\d+/events"', answer.text)


@pytest.mark.parametrize(
    ("language", "name"),
    [("triton", "submission.py"), ("cuda", "submission.cu"), ("torch", "submission.py")],
)
def test_typed_text_is_submitted_as_a_file(site: Site, language: str, name: str) -> None:
    """A browser sends the field of the file without a name, and each line end as CRLF."""
    client = site.browser("ada")
    form = {"source": "a = 1\r\n\r\nµ = 2\r\n", "language": language}
    answer = send(client, csrf_of(client), file=("", b""), form=form)
    assert answer.status_code == 303
    number = int(answer.headers["location"].rsplit("/", 1)[1])
    assert site.world.services.submissions.source(number) == "a = 1\n\nµ = 2\n".encode()
    summary = site.world.services.submissions.summary(number)
    assert summary is not None
    assert summary.name == name


def test_a_chosen_file_goes_before_the_text(site: Site) -> None:
    client = site.browser("ada")
    answer = send(client, csrf_of(client), form={"source": "typed", "language": "cuda"})
    number = int(answer.headers["location"].rsplit("/", 1)[1])
    assert site.world.services.submissions.source(number) == b"x = 1"


@pytest.mark.parametrize("source", ["", " \r\n"])
def test_neither_a_file_nor_a_text_is_refused(site: Site, source: str) -> None:
    client = site.browser("ada")
    answer = send(client, csrf_of(client), file=("", b""), form={"source": source})
    assert answer.status_code == 422
    assert "Choose a file, or type a source" in words(answer.text)


def test_a_long_text_is_refused_with_the_limit(site: Site) -> None:
    client = site.browser("ada")
    limit_bytes = site.world.problem.spec.limits.source_bytes
    form = {"source": "x" * (limit_bytes + 1)}
    answer = send(client, csrf_of(client), file=("", b""), form=form)
    assert answer.status_code in (400, 413)
    check(answer.text)


def test_the_starters_are_those_of_grade_new(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, suffix in STARTERS.items():
        new.main([str(PROBLEMS / "softmax"), "--lang", language], standalone_mode=False)
        for name in (None, "ada", "ada"):
            answer = site.browser(name).get(f"/problems/softmax/starters/{language}")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.text == Path(f"softmax_{language}{suffix}").read_text()
    assert site.browser().get("/problems/softmax/starters/cobol").status_code == 422


def test_the_starter_of_a_hidden_board_is_not_found(site: Site) -> None:
    site.set_board(hidden=True)
    for name, status in ((None, 404), ("ada", 404), ("root", 200)):
        answer = site.browser(name).get("/problems/softmax/starters/cuda")
        assert answer.status_code == status


def test_a_source_is_opened_to_be_edited(site: Site) -> None:
    """By its author, and by others once sources are published; the first line break is kept."""
    services = site.world.services
    submission = Submission("k.cu", "cuda", b"\n\n</textarea><b>&amp;")
    problem = site.world.problem
    number = services.ledger.submit("ada", problem.name, problem.digest, submission)
    path = f"/submit?from={number}"
    text = "\n\n\n&lt;/textarea&gt;&lt;b&gt;&amp;amp;</textarea>"
    page = site.page(path, "ada")
    assert text in page
    assert '<option value="cuda" selected>' in page
    assert '<option value="softmax" selected>' in page
    assert site.browser("bob").get(path).status_code == 403
    assert site.browser().get(path).status_code == 303
    assert site.browser("ada").get("/submit?from=999").status_code == 404
    site.set_board(publish_sources=True)
    assert text in site.page(path, "bob")
    assert "Edit and resubmit" in words(site.page(f"/submissions/{number}", "ada"))
    assert "Edit and resubmit" not in words(site.page(f"/submissions/{number}"))
    site.set_board(deadline=site.world.clock() - timedelta(days=1))
    assert "Edit and resubmit" not in words(site.page(f"/submissions/{number}", "ada"))


@pytest.mark.parametrize(
    ("csrf", "origin", "status"),
    [
        (None, None, 303),
        ("", None, 403),
        ("0" * 64, None, 403),
        (None, "https://elsewhere.example", 403),
        (None, "null", 403),
    ],
)
def test_forms_of_other_sites_are_refused(
    site: Site, csrf: str | None, origin: str | None, status: int
) -> None:
    client = site.browser("ada")
    before = len(site.world.services.ledger.queue())
    own = csrf_of(client) if csrf is None else csrf
    assert send(client, own, origin).status_code == status
    assert len(site.world.services.ledger.queue()) == before + (status == 303)


def test_the_csrf_token_of_another_session_is_refused(site: Site) -> None:
    ada, bob = site.browser("ada"), site.browser("bob")
    assert send(ada, csrf_of(bob)).status_code == 403
    number = site.marks["best"]
    refused = bob.post(f"/submissions/{number}/cancel", data={"csrf": csrf_of(bob)},
                       headers={"Origin": str(bob.base_url).rstrip("/")})  # fmt: skip
    assert refused.status_code == 403


def test_a_refused_file_shows_the_reason(site: Site) -> None:
    client = site.browser("ada")
    answer = send(client, csrf_of(client), file=("k.txt", b""))
    assert answer.status_code == 415
    assert "files end in .py and .cu" in words(answer.text)


@pytest.mark.parametrize("field", ["problem", "gpu"])
@pytest.mark.parametrize("text", ["H100 " * 100, "H100\x00", "H100\u202e", "\n"])
def test_malformed_fields_are_refused(site: Site, field: str, text: str) -> None:
    site.world.services.ledger.announce(Worker("w", "local", "cuda", "NVIDIA H100", 1))
    client = site.browser("ada")
    before = len(site.world.services.ledger.queue())
    answer = client.post(
        "/submit",
        data={"problem": "softmax", "csrf": csrf_of(client)} | {field: text},
        files={"file": ("k.py", b"x = 1")},
        headers={"Origin": str(client.base_url).rstrip("/")},
    )
    assert answer.status_code == 422
    assert len(site.world.services.ledger.queue()) == before


def test_an_admins_cancel_is_audited(site: Site) -> None:
    client = site.browser("root")
    number = site.marks["waiting"]
    form = {"csrf": csrf_of(client)}
    origin = {"Origin": str(client.base_url).rstrip("/")}
    for _ in range(2):
        path = f"/submissions/{number}/cancel"
        assert client.post(path, data=form, headers=origin).status_code == 303
    acts = [(act.actor, act.action, act.subject) for act in site.world.services.admin.audit()]
    assert acts.count(("root", "cancel", str(number))) == 1


def test_cancelling_with_htmx_leaves_the_page(site: Site) -> None:
    client = site.browser("linus")
    number = site.marks["waiting"]
    headers = {"Origin": str(client.base_url).rstrip("/"), "HX-Request": "true"}
    path, form = f"/submissions/{number}/cancel", {"csrf": csrf_of(client)}
    assert client.post(path, data=form, headers=headers).status_code == 204
    state = client.get(f"/submissions/{number}/state?on=submit").text
    assert "Cancelled" in state
    assert f"/submit?from={number}" in state


def test_an_author_can_cancel(site: Site) -> None:
    client = site.browser("linus")
    number = site.marks["waiting"]
    form = {"csrf": csrf_of(client)}
    origin = {"Origin": str(client.base_url).rstrip("/")}
    answer = client.post(f"/submissions/{number}/cancel", data=form, headers=origin)
    assert answer.status_code == 303
    assert "Cancelled" in words(client.get(f"/submissions/{number}").text)


def test_an_author_withdraws_a_result_and_takes_that_back(world: World) -> None:
    site, number = Site(world, {}), world.graded("ada")
    ada, bob = site.browser("ada"), site.browser("bob")
    path = f"/submissions/{number}"

    def send_form(client: httpx.Client, what: str) -> int:
        origin = {"Origin": str(client.base_url).rstrip("/")}
        form = {"csrf": csrf_of(client)}
        return client.post(f"{path}/{what}", data=form, headers=origin).status_code

    assert "Withdraw this result" in words(ada.get(path).text)
    for reader in (bob, site.browser("root"), site.browser()):
        assert "Withdraw this result" not in reader.get(path).text
    assert send_form(bob, "withdraw") == 403
    assert ada.post(f"{path}/withdraw", data={"csrf": ""}).status_code == 403
    assert send_form(ada, "withdraw") == 303
    for reader in (ada, bob, site.browser()):
        page = words(reader.get(path).text)
        assert "This result does not count: withdrawn by its author." in page
        assert "withdrawn by its author" in reader.get("/users/ada").text
    assert "Take the withdrawal back" in words(ada.get(path).text)
    assert send_form(bob, "restore") == 403
    assert send_form(ada, "restore") == 303
    for reader in (ada, bob, site.browser()):
        assert "does not count" not in reader.get(path).text
    wrong = world.graded("ada", verdict="wrong_answer", ranked=False, score_us=None)
    assert "Withdraw this result" not in ada.get(f"/submissions/{wrong}").text
    site.set_board(deadline=world.clock())
    assert "Withdraw this result" not in ada.get(path).text
    assert send_form(ada, "withdraw") == 403


# Sessions ----------------------------------------------------------------------------------------


def test_logout_ends_the_session(site: Site) -> None:
    client = site.browser("ada")
    cookie = client.cookies[COOKIE]
    assert cookie != site.world.tokens["ada"]
    assert "Log out" in words(client.get("/").text)
    origin = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/logout", data={"csrf": ""}, headers=origin).status_code == 403
    answer = client.post("/logout", data={"csrf": csrf_of(client)}, headers=origin)
    assert answer.status_code == 303
    assert COOKIE not in client.cookies
    client.cookies.set(COOKIE, cookie)
    assert "Log in" in words(client.get("/").text)


def test_the_session_cookie_is_httponly_and_samesite(site: Site) -> None:
    answer = site.browser().post("/login", data={"token": site.world.tokens["ada"]})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie


@pytest.mark.parametrize("token", ["", "grade_nothing", "grad\u00e9", "x" * 199])
def test_wrong_tokens_are_refused(site: Site, token: str) -> None:
    answer = site.browser().post("/login", data={"token": token})
    assert answer.status_code == 401
    assert "not valid" in words(answer.text)
    assert "set-cookie" not in answer.headers


def test_guessing_is_throttled(site: Site) -> None:
    statuses = [
        site.browser().post("/login", data={"token": f"guess{n}"}).status_code for n in range(14)
    ]
    assert statuses[0] == 401
    assert statuses[-1] == 429


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/\rX: 1",
    ],
)
def test_login_redirects_only_to_local_paths(site: Site, to: str) -> None:
    data = {"token": site.world.tokens["ada"], "to": to}
    assert site.browser().post("/login", data=data).headers["location"] == "/"
