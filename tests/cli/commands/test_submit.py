from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grader.board import Board, BoardError
from grader.report import Report, Verdict
from grader.sandbox import Sandbox
from tests.cli.conftest import Shell

CONTRACT = {
    "problem",
    "submission_sha256",
    "language",
    "verdict",
    "reason",
    "device",
    "gpu",
    "sandbox",
    "ranked",
    "score_us",
    "score_ci_us",
    "rank",
    "speedup",
    "cases",
    "environment",
    "stages_s",
}
CASE_CONTRACT = {
    "name",
    "kind",
    "params",
    "status",
    "max_abs_err",
    "rel_l2",
    "worst_slice_rel_l2",
    "error_budget_used",
    "time_us",
    "ci_us",
    "external_us",
    "gb_per_s",
    "tflop_per_s",
    "sol",
}


def test_accepted(shell: Shell, problem: Path, kernel: Path) -> None:
    status, report = shell.json("submit", problem, kernel, "--user", "ada")
    assert status == 0
    assert report.keys() >= CONTRACT
    assert report["cases"][0].keys() >= CASE_CONTRACT
    assert (report["verdict"], report["rank"], report["id"]) == ("accepted", 1, 1)
    assert shell.judge.calls[0]["device"] == "cuda"
    assert shell.judge.calls[0]["seed"] is None


def test_text_output(shell: Shell, problem: Path, kernel: Path) -> None:
    status, out, err = shell("submit", "double", kernel, "--user", "ada")
    assert (status, err) == (0, "")
    for shown in ("accepted", "kernel.py", "50.00 µs", "#1 on NVIDIA H100", "1.25× eager", "25%"):
        assert shown in out


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in ("accepted", "judge_error")])
def test_every_other_verdict_is_status_1_and_recorded(
    shell: Shell, problem: Path, kernel: Path, verdict: Verdict
) -> None:
    shell.judge.changes = {"verdict": verdict, "ranked": False, "score_us": None}
    status, report = shell.json("submit", problem, kernel)
    assert status == 1
    assert (report["id"], report["rank"]) == (1, None)


def test_judge_error_is_3_and_not_recorded(shell: Shell, problem: Path, kernel: Path) -> None:
    shell.judge.changes = {"verdict": "judge_error", "ranked": False}
    status, report = shell.json("submit", problem, kernel)
    assert (status, report["verdict"], report["id"]) == (3, "judge_error", None)


def test_a_judge_that_raises_is_a_judge_error(shell: Shell, problem: Path, kernel: Path) -> None:
    shell.judge.error = RuntimeError("the tape\x1b[2J ran out")
    status, report = shell.json("submit", problem, kernel)
    assert (status, report["verdict"], report["id"]) == (3, "judge_error", None)
    assert report["reason"].startswith("RuntimeError: the tape\\x1b[2J ran out")


def test_a_board_failure_after_grading_does_not_hide_the_verdict(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    class FullDisk(Board):
        def record(self, report: Report, user: str, source: bytes) -> Report:
            raise BoardError("the disk is full")

    shell.change(board=lambda *_, **__: FullDisk.open("sqlite://"))
    status, report = shell.json("submit", problem, kernel)
    assert (status, report["verdict"], report["id"]) == (3, "accepted", None)
    assert report["notes"] == ["not recorded: the disk is full"]


def test_an_unwritable_board_is_an_error_before_grading(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    class ReadOnly(Board):
        def check_writable(self) -> None:
            raise BoardError("it may not be written by this user")

    shell.change(board=lambda *_, **__: ReadOnly.open("sqlite://"))
    status, _, err = shell("submit", problem, kernel)
    assert (status, err) == (2, "grade: it may not be written by this user\n")
    assert shell.judge.calls == []


def test_the_sandbox_starts_before_the_board_is_opened(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    events: list[str] = []

    @contextmanager
    def prestart(sandbox: Sandbox, *_: object) -> Iterator[Sandbox]:
        events.append(f"{sandbox.name} starts")
        yield sandbox
        events.append("graded")

    def board(*_: object, **__: object) -> Board:
        events.append("board")
        return Board.open("sqlite://")

    shell.change(prestart=prestart, board=board)
    assert shell("submit", problem, kernel)[0] == 0
    assert events == ["docker starts", "board", "graded"]
    events.clear()
    assert shell("submit", problem, "absent.py")[0] == 2
    assert events == [], "wrong usage starts no sandbox"


@pytest.mark.parametrize("command", ["submit", "practice"])
def test_no_verdict_possible(shell: Shell, problem: Path, kernel: Path, command: str) -> None:
    """Nobody can take it for accepted; what the compiler said is in the report all the same."""
    why = "compiled, not run: no GPU"
    shell.judge.changes = {"verdict": None, "reason": why, "log": "warned", "ranked": False}
    status, shown = shell.json(command, problem, kernel)
    assert status == 2
    assert shown["error"] == f"{why}; there is no verdict, and nothing was recorded"
    assert (shown["verdict"], shown["ranked"], shown["log"]) == (None, False, "warned")
    status, out, _ = shell(command, problem, kernel)
    assert status == 2
    assert "no verdict" in out
    assert "not recorded" in out
    boards = shell.json("leaderboard", problem)[1]
    assert not boards.get("leaderboards"), "practice makes no board, submit an empty one"


def test_practice_is_not_recorded(shell: Shell, problem: Path, kernel: Path) -> None:
    status, report = shell.json("practice", problem, kernel)
    assert (status, report["id"], report["ranked"]) == (0, None, False)
    status, shown = shell.json("leaderboard", problem)
    assert status == 2
    assert "yet; grade submit makes it" in shown["error"]


def test_text_of_a_submission_is_escaped(shell: Shell, problem: Path, kernel: Path) -> None:
    shell.judge.changes = {
        "verdict": "runtime_error",
        "reason": "[bold red]boo[/] \x1b]8;;http://x\x07link\u202etxt",
        "submission_name": "[link=http://x]k\x1b[31m.py",
        "log": "\x1b[2J[green]accepted[/green] :smile:\n",
    }
    _, out, _ = shell("submit", problem, kernel)
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\u202e" not in out
    for verbatim in (
        "[bold red]boo[/]",
        "[green]accepted[/green] :smile:",
        "[link=http://x]k\\x1b",
    ):
        assert verbatim in out


LONG = "a" * 300  # too long for a file name or a host name


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["submit", "doubel", "kernel.py"], "no problem 'doubel' here; did you mean 'double'?"),
        (["submit", "nowhere/double", "kernel.py"], "use the problem's name, 'double'"),
        (["submit", "nowhere/single", "kernel.py"], "no such problem folder"),
        (["submit", "double", "absent.py"], "absent.py"),
        (["submit", "double", "problems"], "problems"),
        (["submit", "double", "notes.txt"], ".py"),
        (["submit", "double", "large.py"], "large"),
        (["submit", "double"], "FILE"),
        (["submit", "double", "kernel.py", "--devise", "cpu"], "--device"),
        (["submit", "double", "kernel.py", "--device", "tpu"], "tpu"),
        (["submit", "double", "kernel.py", "--user", ""], "1 to 40 printable"),
        (["submit", "double", "kernel.py", "--user", "a\nb"], "1 to 40 printable"),
        (["submit", "double", "kernel.py", "--user", "a" * 41], "1 to 40 printable"),
        (["submit", "double", "kernel.py", "--server", "http://x"], "no token for http://x"),
        (["submit", "double", "kernel.py", "--server", "x"], "is not a server"),
        (["submit", "double", "kernel.py", "--gpu", "H100"], "--server"),
        (["submit", "double", "kernel.py", "--db", "notes.txt"], "no database URL"),
        (["submit", "double", "kernel.py", "--db", "sqlite:///large.py"], "not a database"),
        (["submit", "double", "kernel.py", "--db", "postgresql://h:port/d"], "wrong host or port"),
        (["submit", "double", "kernel.py", "--db", "postgresql://u:a@pw:@h/d"], "is %40"),
        (["submit", "double", "kernel.py", "--db", "postgresql://a..b/d"], "wrong host or port"),
        (
            ["submit", "double", "kernel.py", "--db", "sqlite:///new?timeout=x"],
            "an option is wrong",
        ),
        (["submit", "double", "kernel.py", "--db", f"sqlite:///{LONG}/b"], "File name too long"),
        (["submit", "double", "kernel.py", "--server", "http://a..b"], "is not a server"),
        (["submit", "double", "kernel.py", "--server", f"http://{LONG}"], "is not a server"),
        (["submit", "double", "kernel.py", "--server", "http://xn--a"], "is not a server"),
        (["submit", LONG, "kernel.py"], "cannot be used (File name too long)"),
    ],
)
def test_wrong_usage_is_status_2_and_one_line(
    shell: Shell, problem: Path, kernel: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "large.py").write_bytes(b"#" * (20 << 20))
    status, out, err = shell(*args)
    assert (status, out) == (2, "")
    assert err.startswith("grade: ")
    assert err.count("\n") == 1
    assert message in err
    as_json, shown = shell.json(*args)
    assert as_json == 2
    assert list(shown) == ["error"]
    assert message in shown["error"]
    assert shell.judge.calls == []
    assert not (tmp_path / "board.sqlite3").exists()


def test_a_broken_spec_is_status_2(shell: Shell, problem: Path, kernel: Path) -> None:
    spec = problem / "problem.yaml"
    spec.write_text(spec.read_text().replace("entry:", "entri:"))
    status, _, err = shell("submit", problem, kernel)
    assert status == 2
    assert "did you mean 'entry'?" in err


def test_requested_hardware_is_missing(shell: Shell, problem: Path, kernel: Path) -> None:
    shell.change(cuda_missing=lambda: "no NVIDIA GPU", docker_missing=lambda: "no engine answers")
    _, _, err = shell("submit", problem, kernel, "--device", "cuda")
    assert err == "grade: --device cuda: no NVIDIA GPU; use --device cpu to practise\n"
    _, _, err = shell("submit", problem, kernel, "--sandbox", "docker")
    assert err == "grade: --sandbox docker: no engine answers\n"


def test_auto_chooses_the_best_available(shell: Shell, problem: Path, kernel: Path) -> None:
    assert shell.json("practice", problem, kernel)[1]["sandbox"] == "docker (fake)"
    shell.change(cuda_missing=lambda: "no NVIDIA GPU", docker_missing=lambda: "no engine answers")
    status, out, err = shell("practice", problem, kernel)
    assert status == 0
    assert "process (fake)" in out
    assert "without Docker: no engine answers" in err
    assert shell.judge.calls[-1]["device"] == "cpu"


def test_interrupted(shell: Shell, problem: Path, kernel: Path) -> None:
    shell.judge.error = KeyboardInterrupt()
    status, out, err = shell("submit", problem, kernel)
    assert (status, out, err.strip()) == (130, "", "grade: interrupted")


def test_infinite_errors_are_valid_json(
    shell: Shell, problem: Path, kernel: Path, make_report: Callable[..., Report]
) -> None:
    case: dict[str, Any] = make_report().cases[0].model_dump()
    case |= {"max_abs_err": float("inf"), "rel_l2": float("nan"), "status": "wrong_answer"}
    shell.judge.changes = {
        "verdict": "wrong_answer",
        "cases": [case],
        "environment": {"x": float("nan")},
    }
    _, out, _ = shell("practice", problem, kernel, "--json")
    shown = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert shown["cases"][0]["max_abs_err"] == "Infinity"
    assert shell("practice", problem, kernel)[0] == 1


def test_practice_is_quick_unless_full(shell: Shell, problem: Path, kernel: Path) -> None:
    for command in (("practice",), ("practice", "--full"), ("submit",)):
        status, report = shell.json(*command, problem, kernel)
        assert (status, report["ranked"]) == (0, command == ("submit",))
    assert [call["effort"] for call in shell.judge.calls] == ["quick", "full", "full"]


def test_practice_runs_the_named_cases_with_the_given_seed(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    status, report = shell.json(
        "practice", problem, kernel, "--case", "odd", "--case", "one", "--seed", 4711
    )
    assert (status, report["seed"]) == (0, 4711)
    (call,) = shell.judge.calls
    assert call["seed"] == 4711
    assert [case.name for case in shell.judge.problems[0].cases("test", "cuda")] == ["one", "odd"]
    assert shell.judge.problems[0].cases("benchmark", "cpu") == []
    _, out, _ = shell("practice", problem, kernel, "--seed", 12)
    assert " seed     12 " in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--case", "evne"), "--case evne: no such case on a CPU; choose from one, odd, small"),
        (("--case", "one", "--case", "x"), "--case x: no such case"),
        (("--seed", "-1"), "--seed"),
        (("--seed", f"{2**53}"), "--seed"),
    ],
)
def test_an_unknown_case_is_refused_with_the_choices(
    shell: Shell, problem: Path, kernel: Path, args: tuple[str, ...], message: str
) -> None:
    status, _, err = shell("practice", problem, kernel, "--device", "cpu", *args)
    assert status == 2
    assert message in err
    assert shell.judge.calls == []
