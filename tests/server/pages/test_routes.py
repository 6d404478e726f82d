"""Every page in each of its states, for callers who may see it and for others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from grader.fleet.job import State, Worker
from grader.judge import Progress
from grader.judge.timing import baseline_store
from grader.problem import Problem
from grader.problem.catalogue import TOPICS, learning_path
from grader.server.http.auth import COOKIE
from grader.server.pages.board_views import _with_baselines
from grader.server.services.container import Services
from tests.fleet.conftest import Clock
from tests.server.conftest import H100, PROBLEMS, Server, World
from tests.server.examples import (
    A100,
    accepted,
    cpu_accepted,
    failed,
    finish,
    queue_submission,
    two_weeks,
    wrong,
)
from tests.server.site import PageParser, Site, check, everywhere, words
from tests.server.site import site as site
from tests.waiting import PATIENCE_S

# Boards ------------------------------------------------------------------------------------------


def test_home_shows_the_leader_and_the_number_of_entrants(site: Site) -> None:
    text = words(site.page("/"))
    assert "led by katherine" in text
    assert "7 entrants" in text
    assert text.count("No ranked result yet") == len(site.world.services.problems) - 1


def test_home_groups_the_problems_and_says_how_hard_they_are(site: Site) -> None:
    page = site.page("/")
    topics = re.findall(r'class="topic">([^<]*?) <', page)
    assert topics == [topic.capitalize() for topic in TOPICS if topic.capitalize() in topics]
    assert {"Fusion", "Quantization", "Optimizers", "Attention"} <= set(topics)
    assert "Difficulty 2 of 5 Memory-bound fp32 fp16 bf16" in words(page)
    assert "Difficulty 5 of 5 Compute-bound bf16 fp16" in words(page)
    path = page.split("<ol>")[1].split("</ol>")[0]
    names = re.findall(r'href="/problems/(\w+)"', path)
    steps = [step.problem for step in learning_path()]
    assert names == [name for name in steps if name in site.world.services.problems]


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("topic=attention", "Flash attention", "Softmax over rows"),
        ("dtype=uint8", "Matmul with int4 weights", "Flash attention"),
        ("limited_by=compute", "Flash attention", "Softmax over rows"),
        ("q=ROWS+softmax", "Softmax over rows", "Flash attention"),
        ("q=&topic=fusion&dtype=&limited_by=", "Softmax over rows", "Flash attention"),
        ("topic=fusion&dtype=uint8", "No problem matches", "Softmax over rows"),
        ("topic=nonsense", "No problem matches", "Softmax over rows"),
        ("q=%3Cscript%3E", "No problem matches", "<script>"),
        ("unknown=1", "Softmax over rows", "No problem matches"),
    ],
)
def test_home_is_filtered_without_scripts(site: Site, query: str, shown: str, hidden: str) -> None:
    for _ in range(2):
        for name in (None, "ada"):
            page = site.page(f"/?{query}", name)
            assert shown in words(page)
            assert hidden not in page.split("<main")[1]


def test_the_form_keeps_what_was_asked_for(site: Site) -> None:
    page = site.page("/?q=a%22b&topic=fusion&dtype=fp32&limited_by=memory")
    assert 'value="a&#34;b"' in page
    chosen = re.findall(r"<option selected>([^<]+)</option>", page)
    assert chosen == ["fusion", "fp32", "memory"]
    site.page(f"/?q={'a' * 101}", status=422)


def test_home_shows_each_reader_their_own_state(site: Site) -> None:
    world, ledger = site.world, site.world.services.ledger
    number = queue_submission(ledger, world.services.problems["int4_matmul"], "ada")
    while (job := ledger.job(number)) and job.state is not State.DONE:
        finish(ledger, world.clock, wrong(world.problem))
    for query in ("", "?topic=fusion", "?q=softmax"):
        for _ in range(3):
            ada = site.page(f"/{query}", "ada")
            assert "Your best:" in words(ada)
            assert "Your best:" not in site.page(f"/{query}")
            assert "Your best:" not in words(site.page(f"/{query}", "newcomer"))
    text = words(site.page("/", "ada"))
    total = len(world.services.problems)
    assert f"You: 1 of {total} accepted, 1 tried." in text
    assert f"You: 0 of {total} accepted." in words(site.page("/", "newcomer"))
    assert "✓ Accepted: a row's maximum" in text
    assert "Next on the learning path" in text
    assert "You: 0 of" in words(site.page("/", "root")), "an admin’s page is not shared"


def test_a_hidden_board_is_in_no_list_of_a_reader(site: Site) -> None:
    site.set_board(hidden=True)
    assert "oftmax over rows" not in site.page("/", "ada")
    assert '"/problems/softmax"' not in site.page("/", "ada")
    assert "Softmax over rows" in site.page("/?topic=fusion", "root")
    assert "Softmax over rows" not in site.page("/?topic=fusion", "ada")


def test_a_change_is_visible_at_once(site: Site) -> None:
    world, ledger = site.world, site.world.services.ledger
    site.page("/")
    before = site.page("/leaderboards/softmax")
    finish(ledger, world.clock, accepted(world.problem, 0.96))  # by linus, who was last
    assert "led by linus" in words(site.page("/"))
    assert site.page("/leaderboards/softmax") != before
    world.services.accounts.add_user("linus")
    world.services.admin.ban("linus", "cheating", "root")
    assert "led by katherine" in words(site.page("/"))
    site.set_board(hidden=True)
    assert "Softmax over rows" not in words(site.page("/"))


def test_home_shows_the_deadline_and_hides_a_hidden_board(site: Site) -> None:
    site.set_board(deadline=site.world.clock() + timedelta(days=3, hours=1))
    assert "Closes in 3" in words(site.page("/"))
    site.set_board(hidden=True)
    assert "Softmax" in words(site.page("/", "root"))
    assert site.page("/leaderboards/softmax", status=404)
    assert site.page("/problems/softmax", status=404)


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in PROBLEMS.glob("*/problem.yaml"))
)
def test_problem_shows_statement_math_commands_and_cases(site: Site, name: str) -> None:
    page = site.page(f"/problems/{name}")
    assert '<math display="block">' in page
    assert f"grade submit {name} " in words(page)
    text = words(page)
    assert "further cases test correctness, and 8 more that each grading draws" in text
    domain = {
        "softmax": "rows 1 … 100003; cols 1 … 262144; dtype fp32 | bf16; values normal |",
        "int4_matmul": "k 128 … 16384, a multiple of 128; n max(2, ceil_div(256, m)) … 16384,",
        "multi_tensor_adamw": "sizes equal | mixed; state zero; grads normal | tiny;",
        "flash_attention": "heads kv_heads … 32, a multiple of kv_heads; q_len 1 … 16384;",
    }
    assert domain.get(name, " … ") in text


def test_problem_shows_baselines_and_the_leader(site: Site) -> None:
    text = words(site.page("/problems/softmax"))
    assert "compiled" in text
    assert "katherine on NVIDIA H100" in text


def test_each_baseline_is_on_one_page_of_a_leaderboard() -> None:
    def page(scores_us: Sequence[float], is_first: bool, next_us: float | None) -> list[float]:
        rows: list[Any] = [SimpleNamespace(entry=SimpleNamespace(score_us=s)) for s in scores_us]
        found: list[Any] = list(
            _with_baselines(rows, times, None, is_first=is_first, next_us=next_us)
        )
        return [row.baseline.time_us for row in found if row not in rows]

    times: list[Any] = [SimpleNamespace(time_us=t) for t in (1.0, 15.0, 25.0, 30.0, 99.0)]
    assert page((10.0, 20.0), True, 30.0) == [1.0, 15.0, 25.0]
    assert page((30.0, 40.0), False, None) == [30.0, 99.0]


def test_leaderboard_orders_users_and_baselines_by_time(site: Site) -> None:
    page = site.page("/leaderboards/softmax")
    body = page.split('<table class="standings">')[1].split("<tbody>")[1].split("</tbody>")[0]
    standing = [" ".join(PageParser.words_of(row)) for row in body.split("</tr>")[:-1]]
    order = ["katherine", "ada", "compiled", "barbara", "edsger", "eager", "<img", "grace", "linus"]
    assert [name for row in standing for name in order if f" {name} " in f" {row} "] == order
    assert "margaret" not in body  # accepted on a CPU: never ranked


def test_the_record_chart_names_every_improvement(site: Site) -> None:
    chart = site.page("/leaderboards/softmax").split('class="chart"')[1].split("</svg>")[0]
    named = re.findall(r'<text class="name[^"]*"[^>]*>([^<]*)</text>', chart)
    assert sorted(named) == ["ada", "ada", "ada", "barbara", "grace", "katherine"]


def test_leaderboard_of_another_gpu_and_of_an_unknown_gpu(site: Site) -> None:
    path = "/leaderboards/softmax?gpu=NVIDIA+A100-SXM4-80GB"
    assert "ada" not in words(site.page(path)).split("Standings")[1]
    site.page("/leaderboards/softmax?gpu=nothing", status=404)
    site.page("/leaderboards/softmax?page=0", status=422)
    assert "Standings" in site.page("/leaderboards/softmax?page=99999")


def test_times_by_shape_are_hidden_before_the_deadline(site: Site) -> None:
    def shows(who: str | None = None) -> bool:
        return "By shape" in site.page("/leaderboards/softmax", who)

    assert shows()
    site.set_board(deadline=site.world.services.now() + timedelta(minutes=1))
    assert not shows()
    assert not shows("ada")
    assert "Standings" in site.page("/leaderboards/softmax")
    site.world.clock.move(61)
    assert shows()


def test_leaderboard_marks_the_caller(site: Site) -> None:
    assert 'class="me" id="me"' in site.page("/leaderboards/softmax", "ada")
    assert 'class="me"' not in site.page("/leaderboards/softmax")


def _long_board(world: World, users: int = 53) -> Site:
    """A board with a user for each microsecond from 100 on; every third entry is in CUDA C++."""
    fields = accepted(world.problem, 0.5)
    for number in range(users):
        file = "softmax.py" if number % 3 else "softmax.cu"
        queue_submission(world.services.ledger, world.problem, f"user{number:02}", name=file)
        score_us = 100.0 + number
        changed = {"score_us": score_us, "score_ci_us": (score_us - 0.1, score_us + 0.1)}
        finish(world.services.ledger, world.clock, fields | changed)
    return Site(world, {})


def _rows(page: str) -> list[str]:
    """The text of each entry of the standings on a page."""
    rows = re.findall(r'(?s)<tr class="(?:first )?(?:me)?".*?</tr>', page.split('"standings"')[-1])
    return [" ".join(PageParser.words_of(row)) for row in rows]


def test_standings_show_the_gap_to_the_leader(world: World) -> None:
    rows = _rows(_long_board(world, 5).page("/leaderboards/softmax"))
    assert rows[0].startswith("1 user00 100.0 µs ± 0.10 % – ")
    assert "+4.0 % 4.00 µs" in rows[4]


def test_standings_are_filtered_without_scripts(world: World) -> None:
    site = _long_board(world, 7)
    for _ in range(2):
        for name in (None, "user03", "stranger"):
            page = site.page("/leaderboards/softmax?language=cuda", name)
            assert [row.split()[:2] for row in _rows(page)] == [
                ["1", "user00"], ["4", "user03"], ["7", "user06"],
            ]  # fmt: skip
            assert "3 of 7 users" in words(page)
            page = site.page("/leaderboards/softmax?user=+USER05&language=", name)
            assert [row.split()[:2] for row in _rows(page)] == [["6", "user05"]]
            assert 'value="USER05"' in page
            page = site.page("/leaderboards/softmax?user=5&language=cuda", name)
            assert "No entry matches" in words(page)
            assert 'class="standings"' not in page
            assert len(_rows(site.page("/leaderboards/softmax?language=nonsense", name))) == 7
    page = site.page("/leaderboards/softmax?user=%22%3E%3Cscript%3E")
    assert "<script>" not in page
    site.page(f"/leaderboards/softmax?user={'a' * 101}", status=422)


def test_standings_are_filtered_by_the_language_of_kernels(world: World) -> None:
    names: tuple[object, ...] = ("tilelang", "triton", None, ["tilelang"], "no such")
    for number, kernels in enumerate(names):
        queue_submission(world.services.ledger, world.problem, f"user{number:02}")
        environment = {} if kernels is None else {"kernel_language": kernels}
        fields = accepted(world.problem, 100.0 + number) | {"environment": environment}
        finish(world.services.ledger, world.clock, fields)
    site = Site(world, {})
    for _ in range(2):
        page = site.page("/leaderboards/softmax?language=tilelang")
        assert [row.split()[1] for row in _rows(page)] == ["user00"]
        assert '<option value="tilelang" selected>TileLang</option>' in page
        assert "1 of 5 users" in words(page)
        page = site.page("/leaderboards/softmax?language=triton&user=0")
        assert [row.split()[1] for row in _rows(page)] == ["user01"]
        assert "No entry matches" in words(site.page("/leaderboards/softmax?language=helion"))
    rows = _rows(site.page("/leaderboards/softmax?language=python"))
    shown = {row.split()[1]: row.split()[-2] for row in rows}  # before "now"
    assert shown == {
        "user00": "TileLang", "user01": "Triton", "user02": "Python", "user03": "Python",
        "user04": "Python",
    }  # fmt: skip
    assert "TileLang" in words(site.page("/submissions/1"))
    assert "Python" in words(site.page("/submissions/4"))


def test_a_filter_stays_on_the_next_page_and_on_another_gpu(world: World) -> None:
    site = _long_board(world)
    queue_submission(world.services.ledger, world.problem, "ada")
    finish(world.services.ledger, world.clock, accepted(world.problem, 0.5, A100))
    page = site.page("/leaderboards/softmax?user=user")
    following = re.search(r'href="([^"]*page=2)"', page)
    assert following is not None
    second = site.page("/leaderboards/softmax" + following[1].replace("&amp;", "&"))
    assert [row.split()[1] for row in _rows(second)] == ["user50", "user51", "user52"]
    other = re.search(r'href="([^"]*)">NVIDIA A100', page)
    assert other is not None
    assert "user=user" in other[1]


def test_what_readers_search_for_stays_out_of_the_caches(world: World) -> None:
    site = _long_board(world, 3)
    kept = len(world.app.state.fragment_cache._entries)
    for number in range(5):
        for name in (None, "user01"):
            site.page(f"/leaderboards/softmax?user=user0{number}", name)
    assert len(world.app.state.fragment_cache._entries) == kept


def test_a_user_finds_their_row(world: World) -> None:
    site = _long_board(world)
    link = r'<p><a href="([^"]*)">Go to your row</a>'
    for path, at in (("", "page=2#me"), ("?page=2", "#me"), ("?language=cuda", "page=2#me")):
        for _ in range(3):  # made, kept, and sent from the cache
            page = site.page(f"/leaderboards/softmax{path}", "user52")
            found = re.search(link, page)
            assert found is not None
            assert found[1].endswith(at)
            assert ('id="me"' in page) == (found[1] == "#me")
            assert "rank 53, +52 % or 52.0 µs behind user00." in words(page)
            for stranger in (None, "newcomer"):
                assert "your row" not in site.page(f"/leaderboards/softmax{path}", stranger)
    assert "rank 1." in words(site.page("/leaderboards/softmax?page=2", "user00"))
    assert "your row" in site.page("/leaderboards/softmax", "user52")


def test_ties_share_a_rank(site: Site) -> None:
    ledger, clock = site.world.services.ledger, site.world.clock
    for number in (site.marks["waiting"], site.marks["waiting_attack"]):
        ledger.cancel(number, "root")
    best = accepted(site.world.problem, 0.93)
    queue_submission(ledger, site.world.problem, "zoe")
    finish(ledger, clock, best | {"score_us": best["score_us"] * 1.0001})
    page = site.page("/leaderboards/softmax")
    ranks = re.findall(r'<td class="rank num">(\d+)</td>', page)
    assert ranks[:3] == ["1", "1", "3"]


def test_board_without_ranks_shows_results_on_a_cpu(world: World) -> None:
    site = Site(world, {})
    assert "No ranked result yet" in words(site.page("/leaderboards/softmax"))
    queue_submission(world.services.ledger, world.problem, "margaret")
    finish(world.services.ledger, world.clock, cpu_accepted(world.problem))
    text = words(site.page("/leaderboards/softmax", "ada"))
    assert "Practice, not ranked" in text
    assert "margaret" in text


def test_pages_of_a_long_leaderboard(world: World) -> None:
    site = _long_board(world)
    first, second = (site.page(f"/leaderboards/softmax?page={page}") for page in (1, 2))
    assert first.count('<td class="rank') == 50
    assert second.count('<td class="rank') == 3
    assert "Page 2 of 2" in words(second)
    assert "user52" in words(second)


# Submissions -------------------------------------------------------------------------------------


def test_accepted_submission_shows_rank_times_and_distributions(site: Site) -> None:
    page = site.page(f"/submissions/{site.marks['leader']}")
    text = words(page)
    assert "Accepted" in text
    assert "Rank 1" in text
    assert page.count('class="distribution"') == 6
    assert page.count('class="narrow-only"><svg class="strip"') == 6
    assert text.count("129 rounds") == 6
    assert "SM clock around the rounds was 1,973 to 1,980 MHz" in text
    assert "30 of 30 passed" in text


def test_owner_sees_the_errors_of_a_wrong_answer_and_the_source(site: Site) -> None:
    page = site.page(f"/submissions/{site.marks['wrong']}", "grace")
    text = words(page)
    assert "What went wrong" in text
    assert "412 of 1,651" in text
    assert 'class="errors"' in page
    assert 'class="location"' in page
    assert "next_power_of_2" in text


def test_a_failed_case_shows_its_reason_and_only_an_exceeded_budget(world: World) -> None:
    fields = wrong(world.problem, "NaN where the reference has none")
    passed, kept, over, *rest = fields["cases"]
    assert over.error_budget_used > 1
    kept = kept.model_copy(
        update={"status": "wrong_answer", "reason": "row 2 is off", "error_budget_used": 0.04}
    )
    number = queue_submission(world.services.ledger, world.problem, "grace")
    finish(world.services.ledger, world.clock, fields | {"cases": [passed, kept, over, *rest]})
    page = Site(world, {}).page(f"/submissions/{number}", "grace")
    tests = words(page).split("Error budget")[1]
    assert "– row 2 is off" in tests
    assert ">999 % NaN where the reference has none" in tests
    assert "4 %" not in tests


def test_ratios_of_a_time_that_did_not_converge_are_marked(world: World) -> None:
    fields = accepted(world.problem, 0.5)
    *cases, last = fields["cases"]
    fields["cases"] = [*cases, last.model_copy(update={"converged": False})]
    number = queue_submission(world.services.ledger, world.problem, "ada")
    finish(world.services.ledger, world.clock, fields)
    text = words(Site(world, {}).page(f"/submissions/{number}", "ada"))
    assert text.count("not converged") == 1
    assert text.count("≈") == len(last.baseline_us)


def test_others_see_no_reason_errors_log_or_source(site: Site) -> None:
    for name in (None, "ada"):
        text = words(site.page(f"/submissions/{site.marks['wrong']}", name))
        assert "Wrong answer" in text
        for private in ("412 of", "is off by", "next_power_of_2", "Program output"):
            assert private not in text


def test_published_sources_are_shown_to_everyone(site: Site) -> None:
    site.set_board(publish_sources=True)
    assert "next_power_of_2" in words(site.page(f"/submissions/{site.marks['best']}"))


def test_before_the_deadline_others_see_no_verdict(site: Site) -> None:
    site.set_board(deadline=site.world.clock() + timedelta(days=1), publish_sources=True)
    text = words(site.page(f"/submissions/{site.marks['best']}", "grace"))
    assert "after the deadline" in text
    assert "Accepted" not in text
    for path in ("/queue", "/users/ada"):
        assert "Accepted" not in words(site.page(path, "grace"))
    assert "Accepted" in words(site.page(f"/submissions/{site.marks['best']}", "ada"))


def test_the_first_ranked_result_is_visible_at_once(world: World) -> None:
    site = Site(world, {})
    site.page("/leaderboards/softmax")
    number = queue_submission(world.services.ledger, world.problem, "ada")
    finish(world.services.ledger, world.clock, accepted(world.problem, 0.5))
    assert "Rank 1" in words(site.page(f"/submissions/{number}", "ada"))


def test_a_rejudged_submission_and_its_replacement_link_to_each_other(world: World) -> None:
    site, rejudges = Site(world, {}), world.services.admin.rejudges
    first, digest = world.graded("ada"), world.problem.digest
    dropped = rejudges.start("softmax", digest, [first], reason="tried", by="root")
    world.grade()
    rejudges.drop(dropped, "root")
    number = rejudges.start("softmax", digest, [first], reason="clock drifted", by="root")
    world.grade()
    assert "graded again" not in site.page(f"/submissions/{first}")
    rejudges.apply(number, "root")
    for name in (None, "ada"):
        page = site.page(f"/submissions/{first}", name)
        assert f'graded again as <a href="/submissions/{first + 2}">' in page
        assert f'<a href="/submissions/{first}">' in site.page(f"/submissions/{first + 2}", name)


def test_a_rejection_shows_its_rule(site: Site) -> None:
    """After the reason, which says it in words; and to those who may not read that."""
    text = words(site.page(f"/submissions/{site.marks['rejected']}"))
    assert "The rule: time claim." in text
    text = words(site.page(f"/submissions/{site.marks['rejected']}", "dorothy"))
    assert "below what the clock allows" in text[: text.index("The rule: time claim.")]


def test_waiting_running_held_and_cancelled(site: Site) -> None:
    ledger, number = site.world.services.ledger, site.marks["waiting"]
    assert "Next in the queue" in words(site.page(f"/submissions/{number}"))
    lease = ledger.claim("w", lease_s=60)
    assert lease is not None
    assert ledger.begin(lease)
    ledger.heartbeat(lease, 60, Progress("test", "masked", 10, 22, None))
    mine = words(site.page(f"/submissions/{number}", "linus"))
    assert "Testing: masked 11 of 22" in mine
    assert "Cancel" in mine
    assert "Cancel" not in words(site.page(f"/submissions/{number}", "ada"))
    for _ in range(3):
        ledger.fail(lease, "the device fell off the bus")
        site.world.clock.move(100)
        again = ledger.claim("w", lease_s=60)
        while again is not None and again.submission_id != number:
            again = ledger.claim("w", lease_s=60)
        lease = again or lease
    held = words(site.page(f"/submissions/{number}", "linus"))
    assert "It is not your fault" in held
    assert "fell off" not in held
    ledger.cancel(number, "root")
    assert "Cancelled" in words(site.page(f"/submissions/{number}", "linus"))
    site.page(f"/submissions/{number}", status=404)


def test_an_unfinished_submission_reloads_without_scripts(site: Site) -> None:
    page = site.page(f"/submissions/{site.marks['waiting']}")
    assert '<noscript><meta http-equiv="refresh"' in page
    assert "refresh" not in site.page(f"/submissions/{site.marks['best']}")


def test_unknown_numbers(site: Site) -> None:
    for number in ("0", "-1", "99999", "99999999999999999999999"):
        site.page(f"/submissions/{number}", status=404)
    site.page("/submissions/x", status=422)


def test_compare_says_which_is_faster_by_shape(site: Site) -> None:
    best, old = site.marks["best"], site.marks["old"]
    page = site.page(f"/submissions/{best}/compare/{old}", "ada")
    text = words(page)
    assert page.count(" best") == 7
    assert f"{best} is faster in 6, {old} in 0 of 6 shapes" in text
    assert re.search(rf"All shapes [\d.]+ µs [\d.]+ µs {best} by [\d.]+× [\d.]+ µs", text)
    assert '<td class="del">' in page
    assert "# faster" in text.split("Sources")[1]
    turned = words(site.page(f"/submissions/{old}/compare/{best}", "ada"))
    assert f"{old} is faster in 0, {best} in 6 of 6 shapes" in turned
    same = words(site.page(f"/submissions/{best}/compare/{best}", "ada"))
    assert same.count(" tie ") == 7
    assert "Shown only if you may read both" in words(
        site.page(f"/submissions/{best}/compare/{old}", "grace")
    )
    assert "No case has times of both" in words(site.page(f"/submissions/{best}/compare/3", "ada"))
    site.page(f"/submissions/{best}/compare/9999", status=404)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("x = 1\ny = 2\n", "The sources are identical."),
        ("x = 1\r\ny = 2\r\n", "The sources differ in line endings, or further on."),
        ("x = 1\ny = 2", "The sources differ in line endings, or further on."),
        ("x = 1 \ny = 2\n", "1 x = 1 1 x = 1"),
    ],
)
def test_only_identical_sources_are_called_identical(
    world: World, other: str, message: str
) -> None:
    first = world.submitted("ada", content=b"x = 1\ny = 2\n")
    second = world.submitted("ada", content=other.encode())
    page = Site(world, {}).page(f"/submissions/{second}/compare/{first}", "ada")
    assert message in words(page)


def test_sources_have_a_numbered_anchor_for_each_line(world: World) -> None:
    number = world.submitted("ada", content=b'"""a\r\nb"""\rx = "<b>"\n\n')
    page = Site(world, {}).page(f"/submissions/{number}", "ada")
    code = page.split('<pre class="code tall" tabindex="0"><code>')[1].split("</code>")[0]
    assert [
        (found[1], " ".join(PageParser.words_of(found[2])))
        for found in re.finditer(r'(?s)<span class="line" id="(L\d+)">(.*?)\n</span>', code)
    ] == [("L1", '1 """a'), ("L2", '2 b"""'), ("L3", '3 x = "<b>"'), ("L4", "4")]


def test_a_diff_shows_changed_lines_side_by_side(world: World) -> None:
    lines = [f"x{number} = {number}\n" for number in range(20)]
    left = world.submitted("ada", content="".join(lines).encode())
    lines[5] = "x5 = <5>\n"
    del lines[15]
    right = world.submitted("ada", content="".join(lines).encode())
    page = Site(world, {}).page(f"/submissions/{left}/compare/{right}", "ada")
    rows = re.findall(r"(?s)<tr[^>]*>(.*?)</tr>", page.split('class="diff"')[1].split("<tbody>")[1])
    shown = [" ".join(PageParser.words_of(row)) for row in rows]
    assert shown[:5] == ["⋯", "3 x2 = 2 3 x2 = 2", "4 x3 = 3 4 x3 = 3", "5 x4 = 4 5 x4 = 4",
                         "6 x5 = 5 6 x5 = <5>"]  # fmt: skip
    assert "x5 = <mark>5</mark>" in page
    assert "x5 = <mark>&lt;5&gt;</mark>" in page
    assert page.count("<mark>") == 2
    assert "16 x15 = 15" in shown
    assert "17 x16 = 16 16 x16 = 16" in shown
    assert shown.count("⋯") == 2


def test_user_page(site: Site) -> None:
    text = words(site.page("/users/ada"))
    assert "2 of 7" in text
    assert "Accepted" in text
    site.page("/users/nobody", status=404)
    assert "No submissions yet" in words(site.page("/users/bob", "bob"))


def test_a_user_sees_their_best_over_time(world: World) -> None:
    site, ledger = Site(world, {}), world.services.ledger
    for score_us in (90.0, 120.0, 60.0, 30.0):
        queue_submission(ledger, world.problem, "ada")
        changed = {"score_us": score_us, "score_ci_us": (score_us - 0.1, score_us + 0.1)}
        finish(ledger, world.clock, accepted(world.problem, 0.5) | changed)
        world.clock.move(3600)
    for name in (None, "ada", "grace"):
        page = site.page("/users/ada", name)
        chart = page.split('class="chart"')[1].split("</svg>")[0]
        named = re.findall(r'<text class="name[^"]*"[^>]*>([^<]*)</text>', chart)
        assert sorted(named) == ["30.0\xa0µs", "60.0\xa0µs", "90.0\xa0µs"]
        assert "The best of ada went from" in page
        assert f"{H100}, 3.00×" in words(page)
    site.set_board(deadline=world.clock() + timedelta(days=1))
    assert "Best over time" in words(site.page("/users/ada", "ada"))
    for name in (None, "grace"):
        assert "Best over time" not in words(site.page("/users/ada", name))


def test_a_single_result_makes_no_chart(world: World) -> None:
    world.graded("ada")
    assert "Best over time" not in Site(world, {}).page("/users/ada", "ada")


def test_two_of_ones_own_results_are_compared_without_scripts(site: Site) -> None:
    page = site.page("/users/ada", "ada")
    picks = re.findall(r'name="pick" value="(\d+)"', page)
    assert {str(site.marks["best"]), str(site.marks["old"])} <= set(picks)
    answer = site.browser("ada").get(f"/compare?pick={picks[0]}&pick={picks[1]}")
    assert answer.headers["location"] == f"/submissions/{picks[0]}/compare/{picks[1]}"
    for query in ("", "?pick=1", "?pick=1&pick=2&pick=3"):
        assert "Go back and tick two results." in words(
            site.page(f"/compare{query}", "ada", status=422)
        )
    for name in (None, "grace"):
        assert 'name="pick"' not in site.page("/users/ada", name)
    waiting = site.marks["waiting"]
    assert f'value="{waiting}"' not in site.page("/users/linus", "linus")


def test_a_narrow_user_page_tells_boards_and_problems_apart(site: Site) -> None:
    page = site.page("/users/katherine")  # on two GPUs
    standings, submissions = page.split("<h2>Submissions</h2>")
    narrow = re.compile(r'<span class="narrow-only soft small">([^<]+)</span>')
    assert sorted(narrow.findall(standings)) == [A100, H100]
    assert narrow.findall(submissions) == ["Softmax over rows"] * 2


def test_queue_shows_waiting_jobs_and_workers(site: Site) -> None:
    site.world.services.ledger.announce(Worker("w", "local", "cuda", H100, 2))
    text = words(site.page("/queue"))
    assert "0 being graded, 2 waiting. 2 slots on NVIDIA H100" in text
    fragment = site.browser().get("/queue", headers={"HX-Request": "true"}).text
    assert "<html" not in fragment
    assert "2 waiting" in fragment


# Safety ------------------------------------------------------------------------------------------


def test_hostile_text_is_shown_as_text(site: Site) -> None:
    client = site.browser("root")
    attacked = 0
    for path in everywhere(site):
        page = client.get(path).text
        check(page)
        attacked += "onerror=alert" in page
    assert attacked >= 8


def test_no_page_contains_a_seed_or_a_token(site: Site) -> None:
    client = site.browser("root")
    secrets = ["4242424242", client.cookies[COOKIE], *site.world.tokens.values()]
    for path in everywhere(site):
        page = client.get(path).text
        assert not [secret for secret in secrets if secret in page], path


def test_static_files_are_served_with_their_licences(site: Site) -> None:
    client = site.browser()
    page = client.get("/").text
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        assert client.get(path).status_code == 200, path
    for name in ("htmx", "htmx-ext-sse"):
        assert "BSD" in client.get(f"/static/vendor/{name}.LICENSE").text
    assert "MIT License" in client.get("/static/vendor/codemirror.LICENSE").text
    assert client.get("/static/../pages.py").status_code == 404
    assert client.get("/static/%2e%2e/pages.py").status_code == 404


def test_a_report_with_odd_numbers_is_shown(site: Site, make_report: Callable[..., Any]) -> None:
    ledger, clock, problem = site.world.services.ledger, site.world.clock, site.world.problem
    for number in (site.marks["waiting"], site.marks["waiting_attack"]):
        ledger.cancel(number, "root")
    for fields in (
        failed("memory_limit_exceeded", ""),
        wrong(problem) | {"cases": []},
        accepted(problem, 0.3) | {"score_us": 1e-3, "score_ci_us": None, "speedup": {}},
        accepted(problem, 0.3) | {"score_us": 1e9, "stages_s": {}, "environment": {}},
    ):
        number = queue_submission(ledger, problem, "bob")
        finish(ledger, clock, fields)
        site.page(f"/submissions/{number}", "bob")
    fields = wrong(problem)
    case = fields["cases"][2]
    changes: list[dict[str, Any]] = [
        {"shape": [], "index": []},
        {"shape": [0, 4], "index": [0, 0]},
        {"shape": [5], "index": [2], "worst_slice": "column 77"},
        {"expected": float("inf"), "histogram": [("nan or inf", 3)], "total_elements": 0},
    ]
    for change in changes:
        odd = replace_case(fields, case.mismatch.model_copy(update=change))
        number = queue_submission(ledger, problem, "bob")
        finish(ledger, clock, odd)
        site.page(f"/submissions/{number}", "bob")


def replace_case(fields: dict[str, Any], mismatch: Any) -> dict[str, Any]:
    cases = list(fields["cases"])
    cases[2] = cases[2].model_copy(update={"mismatch": mismatch})
    return fields | {"cases": cases}


def test_recorded_times_are_shown_on_an_empty_and_on_a_filled_board(tmp_path: Path) -> None:
    shutil.copytree(PROBLEMS / "softmax", tmp_path / "problems/softmax")
    problem = Problem.load(tmp_path / "problems/softmax")
    environment = baseline_store.BaselineEnvironment(
        driver="1", cuda="13.0", torch="2.11", triton="3.6", python="3.12", grade="0",
        measured_at=datetime(2030, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    cases = problem.cases("benchmark", "cuda")
    times = baseline_store.ProblemBaselines(
        digest=problem.times_digest, environment=environment, experts=["ours.cu"],
        cases={case.name: {"eager": 120.0, "ours.cu": 95.0} for case in cases},
    )  # fmt: skip
    record = baseline_store.BaselineFile(hardware=H100, device="cuda", ranked=True)
    baseline_store.save(baseline_store.folder_of(problem), record.updated("softmax", times))
    clock = Clock()
    services = Services.open(f"sqlite:///{tmp_path}/b.sqlite3", {"softmax": problem}, now=clock)
    with Server(services) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for path in ("/problems/softmax", "/leaderboards/softmax"):
            text = words(client.get(path).text)
            assert "ours.cu" in text
            assert "95.00 µs" in text
            assert H100 in text
        two_weeks(services.ledger, clock, problem)
        standing = words(client.get("/leaderboards/softmax").text).split("Standings")[1]
        assert re.search(r" ada .* ours\.cu recorded .* compiled baseline .* barbara ", standing)
    services.close()
