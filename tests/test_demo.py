"""The demo server's example data: every board is filled, and nothing passes for a measurement."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import sync_playwright

from grader.board import StoredResult
from grader.fleet.validate_report import validate_report
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.server.services.container import Services, load_problems
from grader.server.settings import Settings
from scripts import demo_server
from scripts.demo import reports
from scripts.demo.attempts import DAYS, GPUS, MARK, USERS
from scripts.demo.fill import NOTE, fill
from tests.chromium import CHROMIUM
from tests.problem.conftest import MakeFolder
from tests.problem.conftest import make_folder as make_folder
from tests.server.conftest import PROBLEMS, Server
from tests.server.site import check, words

UNTIL = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = [path.parent.name for path in sorted(PROBLEMS.glob("*/problem.yaml"))]
HEAD = re.compile(
    r"(#|//) Example data of the demo server, submission \d+: its result is made up\."
)

OUTSIDE = """
[...document.querySelectorAll(".narrow-only svg.chart text")].filter(text => {
    const chart = text.ownerSVGElement.getBoundingClientRect(), box = text.getBoundingClientRect();
    return box.width === 0 || box.left < chart.left || box.right > chart.right;
}).map(text => text.textContent)
"""
"""The labels of the record on a phone that are cut off."""


@dataclass
class Demo:
    """The demo server's boards, served, and a client without an account."""

    services: Services
    client: httpx.Client
    tokens: dict[str, str]

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, path: str) -> str:
        answer = self.client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200, answer.text
        check(answer.text)
        return answer.text

    @cached_property
    def results(self) -> list[StoredResult]:
        """Every result, oldest first."""
        board = self.services.ledger.board
        count = sum(board.count(name) for name in NAMES)
        return [board.result(number) for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    file = tmp_path_factory.mktemp("demo") / "board.sqlite3"
    tokens = demo_server.prepare(file)
    settings = Settings(requests_per_minute=10_000)
    services = Services.open(f"sqlite:///{file}", load_problems(PROBLEMS), settings)
    with Server(services) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield Demo(services, client, tokens)
    services.close()


@pytest.mark.parametrize("name", NAMES)
def test_every_board_has_ranks_a_tie_intervals_and_several_gpus(demo: Demo, name: str) -> None:
    assert demo.get(f"/leaderboards/{name}")["gpus"] == sorted(gpu.name for gpu in GPUS)
    for gpu in GPUS:
        board = demo.get(f"/leaderboards/{name}?gpu={gpu.name}")
        entries = board["entries"]
        assert len(entries) == board["total"] == gpu.entrants
        ranks = [entry["rank"] for entry in entries]
        assert ranks[0] == 1
        assert len(set(ranks)) >= 3
        assert any(ranks.count(rank) > 1 for rank in ranks), "no tie"
        for entry in entries:
            low_us, high_us = entry["ci_us"]
            assert 0 < low_us < entry["score_us"] < high_us
            assert 0 < entry["sol"] <= 1
        assert {entry["language"] for entry in entries} == {"python", "cuda"}


@pytest.mark.parametrize("name", NAMES)
def test_every_board_has_a_record_of_several_weeks(demo: Demo, name: str) -> None:
    for gpu in GPUS:
        html = demo.page(f"/leaderboards/{name}?gpu={gpu.name}")
        chart = re.search(r'<svg class="chart".*?</svg>', html, re.DOTALL)
        assert chart is not None
        assert len(re.findall(r'<circle class="dot', chart.group())) == gpu.records
        assert f"{gpu.records} improvements" in words(html)
    leaderboards = demo.services.standings.snapshot()(demo.services.problems[name].digest, None)
    assert {one.gpu for one in leaderboards} == {gpu.name for gpu in GPUS}
    for one in leaderboards:
        times_us = [step.time_us for step in one.steps]
        assert times_us == sorted(times_us, reverse=True)
        assert one.steps[-1].at - one.steps[0].at > timedelta(weeks=3)


def test_no_problem_is_empty_on_the_home_page(demo: Demo) -> None:
    text = words(demo.page("/"))
    assert "No ranked result yet" not in text
    assert len(re.findall(rf"led by \w+{MARK}", text)) == len(NAMES)


def test_pages_say_that_the_data_is_made_up(demo: Demo) -> None:
    for name in NAMES:
        for path in (f"/leaderboards/{name}", f"/problems/{name}"):
            assert NOTE in words(demo.page(path))
        assert demo.get(f"/problems/{name}")["board"]["note"] == NOTE
    for user in USERS:
        assert f"H100{MARK}" in demo.page(f"/users/{user}")
    graded = re.findall(r'href="/users/([^"]+)"', demo.page("/queue"))
    assert graded
    assert set(graded) <= set(USERS)


def test_all_who_share_the_first_rank_lead(demo: Demo) -> None:
    for user in USERS:
        text = words(demo.page(f"/users/{user}"))
        assert text.count("leads") == len(re.findall(r"\b1 of \d", text))


def test_every_result_says_that_it_is_made_up(demo: Demo) -> None:
    for result in demo.results:
        assert result.user in USERS
        assert str(result.report.gpu).endswith(MARK)
        assert reports.NOTE in result.report.notes
        assert result.report.environment["example_data"] is True
        assert HEAD.match(result.source.decode())


def test_who_logs_in_is_no_made_up_user(demo: Demo) -> None:
    assert demo.tokens.keys() == demo_server.LIVE.keys()
    assert not demo.tokens.keys() & set(USERS)
    for user, token in demo.tokens.items():
        found = demo.services.accounts.whoami(token)
        assert found is not None
        assert found.name == user


def test_every_report_is_one_that_a_worker_may_send(demo: Demo) -> None:
    for result in demo.results:
        report = result.report
        again = validate_report(report, report.created_at)
        assert again == report.model_copy(update={"worker": None})
        if report.verdict is Verdict.ACCEPTED:
            assert report.ranked
            assert [case.status for case in report.cases] == ["passed"] * len(report.cases)
        else:
            assert not report.ranked
    assert demo.services.admin.held_results() == []


def test_some_results_are_wrong_and_some_rejected(demo: Demo) -> None:
    found = {(one.report.problem, one.report.verdict): one.report for one in demo.results}
    for name in NAMES:
        assert (name, Verdict.WRONG_ANSWER) in found
    assert ("softmax", Verdict.REJECTED) in found
    assert ("softmax", Verdict.COMPILE_ERROR) in found
    for report in found.values():
        assert report.id is not None
        # Reasons and notes are for the submitter alone.
        text = words(demo.page(f"/submissions/{report.id}"))
        assert re.search(rf"by \w+{MARK}", text)
        assert f"Ran on {report.gpu}" in text
        assert demo.get(f"/submissions/{report.id}")["environment"]["example_data"] is True


def test_numbers_of_submissions_grow_with_their_dates(demo: Demo) -> None:
    dates = [result.report.created_at for result in demo.results]
    assert dates == sorted(dates)
    now = datetime.now(UTC)
    assert now - timedelta(days=DAYS + 1) < dates[0] < dates[-1] < now


@pytest.mark.chromium
def test_labels_of_charts_stay_inside_on_a_phone(demo: Demo) -> None:
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 900})
        for name in NAMES:
            for gpu in GPUS:
                page.goto(f"{demo.client.base_url}/leaderboards/{name}?gpu={gpu.name}")
                outside = page.evaluate(OUTSIDE)
                assert outside == [], (name, gpu.name)
        browser.close()


# Problems that come later ------------------------------------------------------------------------


def filled(file: Path, folder: Path) -> tuple[int, list[Report]]:
    """The number of results that `fill` made of one problem, and their reports."""
    problem = Problem.load(folder)
    count = fill(file, {problem.name: problem}, UNTIL)
    services = Services.open(f"sqlite:///{file}", {problem.name: problem})
    try:
        board = services.ledger.board
        found = [board.result(number).report for number in range(1, count + 1)]
        assert board.count(problem.name) == count
    finally:
        services.close()
    return count, found


def test_the_same_problem_and_end_give_the_same_results(tmp_path: Path) -> None:
    softmax = PROBLEMS / "softmax"
    once = filled(tmp_path / "a.sqlite3", softmax)
    assert once == filled(tmp_path / "b.sqlite3", softmax)


def test_a_problem_without_examples_is_filled_with_starter_files(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    count, found = filled(tmp_path / "a.sqlite3", make_folder())
    assert count > sum(gpu.entrants for gpu in GPUS)
    names = {report.submission_name for report in found}
    assert names <= {"scale_cuda.cu", "scale_triton.py", "scale_torch.py"}
    assert {report.gpu for report in found if report.ranked} == {gpu.name for gpu in GPUS}
    assert {report.verdict for report in found} == {Verdict.ACCEPTED, Verdict.WRONG_ANSWER}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  flops: rows * cols", "  flops: 0"),
        ("  flops: rows * cols", "  flops: 4096 * rows * cols\n  unit: tensor"),
        ("rows: 4096, cols: 4096", "rows: 1, cols: 1"),
        ("role: out, dtype: dtype", "role: out, dtype: int64"),
    ],
    ids=["no operations", "tensor cores", "tiny", "exact"],
)
def test_a_problem_of_another_kind_ranks(
    make_folder: MakeFolder, tmp_path: Path, old: str, new: str
) -> None:
    _, found = filled(tmp_path / "a.sqlite3", make_folder(old, new))
    for report in found:
        assert validate_report(report, report.created_at) == report
        assert report.ranked == (report.verdict is Verdict.ACCEPTED)
        assert all(case.sol is None or 0 < case.sol <= 1 for case in report.cases)


def test_a_problem_that_no_gpu_times_stays_empty(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder("device: cuda, params", "device: cpu, params")
    assert filled(tmp_path / "a.sqlite3", folder) == (0, [])


def test_the_server_ends_with_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """At SIGTERM too, of which Python's default would leave the server running."""
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        wait = "import time; print('http://127.0.0.1:1', flush=True); time.sleep(600)"
        started.append(real([sys.executable, "-c", wait], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(demo_server, "prepare", lambda _: {})
    monkeypatch.setattr(demo_server, "submit_all", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stopped:
        demo_server.main.main(["--port", "0"], standalone_mode=False)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert [server.poll() for server in started] == [-signal.SIGTERM]
