from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from grader.board.store import clear_sources
from grader.cli import app, diagnostics
from grader.cli.app import COMMANDS
from grader.cli.help_examples import EXAMPLES
from grader.db.engine import open_engine, transaction
from grader.db.migrate import upgrade
from grader.judge.verification.result import VerificationResult, VerificationRow
from grader.problem import Problem
from grader.report import Report
from tests.cli.conftest import Shell

ROOT = Path(__file__).resolve().parents[2]


def grade(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grader.cli", *args], capture_output=True, text=True, check=False
    )


# The program -------------------------------------------------------------------------------------


def test_help_is_complete_and_imports_no_more_than_click() -> None:
    done = grade("--help")
    assert done.returncode == 0
    code = (
        # A system's Python may import things of its own as it starts.
        "import sys; began = {*sys.modules}; from grader.cli import main; main(['--help']); "
        "names = {name.partition('.')[0] for name in {*sys.modules} - began}; "
        "names -= sys.stdlib_module_names; "
        "print(*names, file=sys.stderr)"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert {"click", "grader"} == {n for n in imported.stderr.split() if n[0] != "_"}
    for command, (_, summary) in COMMANDS.items():
        assert f"{command} " in done.stdout
        assert summary in done.stdout


def test_every_command_has_help_without_torch() -> None:
    code = (
        "import sys; from grader.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    assert main([command, '--help']) == 0, command\n"
        "    assert not {'torch', 'triton', 'numpy'} & set(sys.modules), command\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMANDS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.findall("^Usage: grade (\\S+)", done.stdout, re.MULTILINE)
    assert shown == [*COMMANDS]


def every_command(command: click.Command, words: str = "") -> Iterator[tuple[str, click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, f"{words} {name}".strip())


EVERY_COMMAND = dict(every_command(app.grade))


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_every_help_ends_with_two_examples_that_parse(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(ROOT)
    for option in ("-h", "--help"):
        status, out, _ = shell(*words.split(), option)
        assert status == 0
    usage, _, examples = out.partition("Examples:\n")
    assert usage.startswith(f"Usage: grade {words}".strip())
    lines = [line.strip() for line in examples.splitlines()]
    assert len(lines) >= 2
    for line in lines:
        found = re.search(rf"(?:^|&& |\$\()grade ({words}\b[^>)]*)", line)
        assert found is not None, line
        *_, called = (w for w in EVERY_COMMAND if f"{found[1]} ".startswith(f"{w} ".lstrip()))
        arguments = shlex.split(found[1])[len(called.split()) :]
        parent = click.Context(app.grade, **app.grade.context_settings)
        EVERY_COMMAND[called].make_context(called, arguments, parent)


def test_examples_are_of_commands_that_exist() -> None:
    assert EXAMPLES.keys() == EVERY_COMMAND.keys()


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_calls_what_completes(shell_name: str) -> None:
    done = grade("completion", shell_name)
    assert done.returncode == 0
    assert f"_GRADE_COMPLETE={shell_name}_complete" in done.stdout
    asked = {
        "COMP_WORDS": "grade practice --ca",
        "COMP_CWORD": "2" if shell_name != "fish" else "--ca",
    }
    answer = subprocess.run(
        [sys.executable, "-m", "grader.cli"],
        env=os.environ | asked | {"_GRADE_COMPLETE": f"{shell_name}_complete"},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "--case" in answer.stdout


def test_completion_of_an_unknown_shell(shell: Shell) -> None:
    status, _, err = shell("completion", "tcsh")
    assert status == 2
    assert "bash" in err


def test_unknown_command(shell: Shell) -> None:
    assert shell("sumbit") == (2, "", "grade: no such command 'sumbit'; did you mean 'submit'?\n")


def test_no_command_shows_help(shell: Shell) -> None:
    status, _, err = shell()
    assert status == 2
    assert "Commands:" in err


def test_an_internal_error_is_one_line_and_a_hint(
    shell: Shell, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str | None) -> None:
        raise ZeroDivisionError("bad luck")

    shell.change(board=broken)
    status, _, err = shell("leaderboard", problem)
    assert status == 3
    assert err.startswith("grade: internal error, ZeroDivisionError: bad luck\n")
    assert "GRADE_DEBUG=1" in err
    assert "Traceback" not in err
    monkeypatch.setenv("GRADE_DEBUG", "1")
    assert "Traceback" in shell("leaderboard", problem)[2]


@pytest.mark.parametrize("command", [["show", "softmax"], ["doctor", "--json"]])
def test_a_full_disk_is_no_internal_error(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "grader.cli", *command],
            env=os.environ | {"PYTHONUNBUFFERED": ""},  # fails at once, and again at exit
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    message = "grade: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize(("args", "status"), [([], 2), (["nonsense"], 2), (["noted"], 3)])
@pytest.mark.parametrize("full", [True, False])
def test_unwritable_stderr_keeps_the_exit_status(args: list[str], status: int, full: bool) -> None:
    code = """
import sys
from grader.cli import __main__ as cli
from grader.cli.output.terminal import stderr

def noted():
    stderr().print("by rich")
    print("by print" * 10_000, file=sys.stderr)
    print("verdict")
    return 3

if "noted" in sys.argv:
    cli.main = noted
cli.program()
"""
    if full:
        unwritable = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, unwritable = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            stdout=subprocess.PIPE,
            stderr=unwritable,
            text=True,
        )
    finally:
        os.close(unwritable)
    assert (done.returncode, done.stdout) == (status, "verdict\n" if status == 3 else "")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.ENOSPC])
def test_an_unusable_file_is_no_internal_error(shell: Shell, problem: Path, number: int) -> None:
    def broken(_: str | None) -> None:
        raise OSError(number, os.strerror(number), "my\nfile")

    shell.change(board=broken)
    shown = f"my file cannot be used ({os.strerror(number)}); fix that, or choose another path"
    assert shell("leaderboard", problem) == (2, "", f"grade: {shown}\n")
    assert shell.json("leaderboard", problem) == (2, {"error": shown})


def test_a_worker_with_an_invalid_server(shell: Shell, problem: Path) -> None:
    status, _, err = shell("worker", "--server", "http://a..b", "--token", "t")
    assert (status, "is not a server" in err) == (2, True)


@pytest.mark.parametrize("odd", "\n\r\x01\x7fé")
def test_a_token_is_never_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    monkeypatch.setenv("GRADE_TOKEN", f"grade_se{odd}cret")
    message = "grade: the token has invalid characters; copy it again\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:  # headers are checked once connected
        server = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert shell("login", "--server", server) == (2, "", message)
        assert shell("admin", "user", "list", "--server", server) == (2, "", message)


def test_a_missing_file_of_grade_is_an_internal_error(shell: Shell, problem: Path) -> None:
    def broken(_: str | None) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file", "ours")

    shell.change(board=broken)
    assert shell("leaderboard", problem)[0] == 3


@pytest.mark.parametrize(("command", "status"), [("problems", 0), ("nonsense", 2)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(command: str, status: int, closed: str) -> None:
    line = f'exec "$0" -m grader.cli {command} {closed}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert bool(done.stdout) == (command == "problems" and closed == "2>&-")
    assert bool(done.stderr) == (command == "nonsense" and closed == ">&-")


def test_a_missing_working_directory_is_no_internal_error(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    message = "grade: the working directory no longer exists; change to another\n"
    assert shell("problems") == (2, "", message)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["problems"], 0),
        (["--help"], 0),
        (["show", "softmax"], 0),
        (["show", "softmacks", "--json"], 2),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(command: list[str], status: int, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grader.cli", *command],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (status, "")


def test_an_early_interrupt_is_one_line() -> None:
    code = """
import sys
class Interrupter:
    def find_spec(self, name, path, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupter())
from grader.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "grade: interrupted\n")


def test_exit_after_threads_without_tearing_objects_down() -> None:
    code = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from grader.cli import __main__ as cli

def say(word):
    sys.stdout.write(word + "\\n")  # in one call: other threads print too

def slow(word):
    time.sleep(0.2)
    say(word)

class Destructed:
    def __del__(self):
        print("torn down", flush=True)

def main():
    print("verdict")
    threading.Thread(target=slow, args=["thread"]).start()
    threading.Thread(target=time.sleep, args=[60], daemon=True).start()
    ThreadPoolExecutor(1).submit(slow, "worker").add_done_callback(lambda _: say("done"))
    atexit.register(print, "registered")
    return 3

kept = Destructed()
cli.main = main
cli.program()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    first, *middle, last = done.stdout.split("\n")[:-1]
    assert (first, set(middle), last) == ("verdict", {"thread", "worker", "done"}, "registered")


def test_an_exception_out_of_main_is_reported_by_python() -> None:
    code = """
from grader.cli import __main__ as cli

def main():
    raise RuntimeError("bad luck")

cli.main = main
cli.program()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: bad luck\n")


def test_a_terminal_without_unicode_is_no_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grader.cli", "problems"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


# Problems ----------------------------------------------------------------------------------------


def test_problems_lists_valid_ones_and_reports_the_others(shell: Shell, problem: Path) -> None:
    broken = problem.parent / "broken"
    broken.mkdir()
    (broken / "problem.yaml").write_text("format: 1\n")
    status, out, err = shell("problems")
    assert status == 0
    assert "Write twice x." in out
    assert "problems/broken/" in err


@pytest.mark.parametrize("width", [20, 30, 60])
def test_problem_names_are_never_cut(
    shell: Shell, problem: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", f"{width}")
    problem.rename(problem.with_name("twice_as_much_and_on"))
    _, out, _ = shell("problems")
    assert "twice_as_much_and_on" in out
    assert ("Write twice x." in out) == (width > 30)
    assert "…" not in out


def test_show(shell: Shell, problem: Path) -> None:
    status, out, _ = shell("show", "double")
    assert status == 0
    for shown in (
        "Doubling",
        "[n]",
        "n=4097 dtype=fp32",
        'extern "C" void doubled_fp16(',
        "64 MiB",
        "one call 20 s, compiling in first calls 120 s more",
    ):
        assert shown in " ".join(out.split())
    assert "Drawn tests" not in out


def test_show_lists_the_domain(shell: Shell, problem: Path) -> None:
    with (problem / "problem.yaml").open("a") as spec:
        spec.write("domain:\n  - {n: {max: 5000, multiple_of: 3}, dtype: [fp32]}\n")
    status, out, _ = shell("show", "double")
    assert status == 0
    text = " ".join(out.split())
    assert "also tests 8 cases on a GPU, 3 on a CPU, that its secret seed draws from:" in text
    assert "- n 1 … 5000, a multiple of 3; dtype fp32" in text


def test_show_has_readable_formulas_and_leaves_code_alone(shell: Shell, problem: Path) -> None:
    (problem / "statement.md").write_text(
        "$$\n\\text{out}_{ij} = 2 x_{ij} \\\\\n$$\n\nor $a_i \\cdot\nb_i$, `$x_1$ *y*`, *z*.\n"
    )
    _, out, _ = shell("show", "double")
    assert "outᵢⱼ = 2 xᵢⱼ" in out
    assert "or aᵢ · bᵢ, $x_1$ *y*, z." in out


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in ROOT.glob("problems/*/problem.yaml"))
)
def test_no_statement_shows_latex(shell: Shell, name: str) -> None:
    _, out, _ = shell("show", name)
    assert "\\" not in out
    assert "{" not in out.partition("Arguments")[0]


# The board ---------------------------------------------------------------------------------------


def change_reference(problem: Path) -> None:
    """Make another version of a problem."""
    with (problem / "reference.py").open("a") as file:
        file.write("# changed\n")


def test_leaderboard(shell: Shell, problem: Path, kernel: Path) -> None:
    for user, score_us in (("ada", 50.0), ("[red]bob", 50.4), ("cy", 60.0)):
        interval = (score_us - 0.5, score_us + 0.5)
        shell.judge.changes = {"score_us": score_us, "score_ci_us": interval}
        shell("submit", problem, kernel, "--user", user)
    status, shown = shell.json("leaderboard", "double")
    assert status == 0
    (board,) = shown["leaderboards"]
    assert board["gpu"] == "NVIDIA H100 80GB HBM3"
    assert [(e["rank"], e["user"]) for e in board["entries"]] == [
        (1, "ada"),
        (1, "[red]bob"),
        (3, "cy"),
    ]
    _, out, _ = shell("leaderboard", "double", "--gpu", "h100")
    assert "[red]bob" in out
    assert "90%" in out
    _, out, _ = shell("leaderboard", "double", "--gpu", "H200")
    assert "No ranked result" in out


def test_a_leaderboard_says_why_results_do_not_rank(
    shell: Shell, problem: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("submit", problem, kernel)
    on_cpu = {"device": "cpu", "gpu": None, "ranked": False, "score_us": None}
    noted = {"ranked": False, "notes": ["not ranked: known to ±0.9 % only; submit it again"]}
    for changes in (on_cpu, {"verdict": "wrong_answer", "ranked": False}, noted):
        shell.judge.changes = changes
        shell("submit", problem, kernel)
    _, out, _ = shell("leaderboard", "double")
    ranked, _, unranked = out.partition("Not ranked")
    assert "50.00 µs" in ranked
    rows = [line.split() for line in unranked.splitlines() if line.strip().startswith("#")]
    whys = [" ".join(row[row.index("no,") :]) for row in rows]
    assert [row[0] for row in rows] == ["#4", "#3", "#2"]
    assert whys == ["no, known to ±0.9 % only", "no, not accepted", "no, CPU times are practice"]
    _, board = shell.json("leaderboard", "double")
    assert [one["id"] for one in board["unranked"]] == [4, 3, 2]
    change_reference(problem)
    _, out, _ = shell("leaderboard", "double", "--gpu", "h100")
    assert "No ranked result for this version of double on a GPU" in out
    assert "#1" in out
    assert "no, of another version of the problem" in out
    assert "CPU times" not in out
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = shell("leaderboard", "double", "--gpu", "h100")
    assert "no, of another" in out, "a terminal of the usual width shows it too"


def test_a_changed_text_leaves_the_leaderboard_as_it_is(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    shell("submit", problem, kernel)
    before = shell.json("leaderboard", "double")
    (problem / "statement.md").write_text("# Doubling, with a comma\n")
    spec = (problem / "problem.yaml").read_text()
    (problem / "problem.yaml").write_text("# comment\n" + spec.replace("twice", "two times"))
    assert shell.json("leaderboard", "double") == before
    assert len(before[1]["leaderboards"]) == 1


def test_the_leaderboard_of_an_earlier_version(shell: Shell, problem: Path, kernel: Path) -> None:
    old = Problem.load(problem).digest
    shell("submit", problem, kernel, "--user", "ada")
    shell("submit", problem, kernel, "--user", "bob")
    shell.judge.changes = {"verdict": "wrong_answer", "ranked": False, "score_us": None}
    shell("submit", problem, kernel, "--user", "cy")
    change_reference(problem)
    _, out, _ = shell("leaderboard", "double")
    assert "No ranked result for this version" in out
    (row,) = [
        line.split() for line in out.partition("Other versions")[2].splitlines() if old[:12] in line
    ]
    assert row[:3] == ["1", "3", "2"]
    assert "grade leaderboard double --version 1 shows its ranking" in out
    shell.judge.changes = {"created_at": "2100-01-01T00:00:00Z"}
    shell("submit", problem, kernel, "--user", "dan")
    for version in ("1", old[:6], old):
        status, out, _ = shell("leaderboard", "double", "--version", version)
        assert status == 0
        assert f"version 1 ({old[:12]}) of double, which is not graded any more" in out
        ranked, _, rest = out.partition("Not ranked")
        unranked, _, others = rest.partition("Other versions")
        assert ["ada" in ranked, "bob" in ranked, "dan" in ranked] == [True, True, False]
        assert "#3" in unranked
        assert "#4" not in unranked
        assert "today's" in others
    _, shown = shell.json("leaderboard", "double", "--version", "1")
    assert (shown["problem_digest"], shown["version"]) == (old, 1)
    assert [one["user"] for one in shown["leaderboards"][0]["entries"]] == ["ada", "bob"]
    (other,) = shown["other_versions"]
    assert (other["number"], other["results"], other["users"]) == (2, 1, 1)
    assert other["last_at"] == "2100-01-01T00:00:00+00:00"
    _, current = shell.json("leaderboard", "double")
    assert (current["version"], current["problem_digest"]) == (2, Problem.load(problem).digest)
    assert shell.json("leaderboard", "double", "--version", "2") == (0, current)
    status, _, err = shell("leaderboard", "double", "--version", "3")
    assert status == 2
    assert "--version 3: there is no such version; name a number from 1 to 2" in err
    _, out, _ = shell("show", "1")
    assert f"its ranking: grade leaderboard double --version {old[:12]}" in out


def test_results_lists_every_verdict_newest_first(
    shell: Shell, problem: Path, kernel: Path
) -> None:
    _, out, err = shell("results")
    assert "there is no board" in err
    shell("submit", problem, kernel, "--user", "ada")
    shell.judge.changes = {"verdict": "wrong_answer", "ranked": False, "score_us": None}
    shell("submit", problem, kernel, "--user", "bob")
    _, out, _ = shell("results", "double")
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("#")]
    assert [row[0] for row in rows] == ["#2", "#1"]
    for word in ("wrong", "answer", "kernel.py", "bob"):
        assert word in rows[0]
    for word in ("accepted", "50.00", "yes", "ada"):
        assert word in rows[1]
    _, shown = shell.json("results", "--user", "ada")
    (one,) = shown["results"]
    assert (one["id"], one["verdict"], one["score_us"]) == (1, "accepted", 50.0)
    assert (one["file"], one["unranked"], shown["more"]) == ("kernel.py", None, False)
    _, out, _ = shell("results", "--last", 1)
    assert "#1" not in out
    assert "older ones are not listed" in out
    assert "No result of double of cy" in shell("results", "double", "--user", "cy")[1]


@pytest.mark.parametrize("number", ["2", "#2"])
def test_show_shows_a_recorded_result_again(
    shell: Shell, problem: Path, kernel: Path, number: str
) -> None:
    shell("submit", problem, kernel)
    shell.judge.changes = {"verdict": "wrong_answer", "reason": "off by one", "ranked": False}
    assert shell("submit", problem, kernel, "--user", "ada")[0] == 1
    status, out, _ = shell("show", number)
    assert status == 0
    for words in ("wrong answer", "off by one", "submitted by ada"):
        assert words in out
    _, shown = shell.json("show", number)
    assert (shown["id"], shown["verdict"]) == (2, "wrong_answer")
    status, _, err = shell("show", "#3")
    assert (status, "there is no result 3" in err) == (2, True)


def test_show_prints_a_problem_as_json(shell: Shell, problem: Path) -> None:
    status, shown = shell.json("show", "double")
    assert status == 0
    assert (shown["problem"], shown["spec"]["entry"]) == ("double", "doubled")
    assert shown["statement"].startswith("# Doubling")


def test_replay_from_the_board(shell: Shell, problem: Path, kernel: Path) -> None:
    shell.judge.changes = {"seed": 99, "device": "cpu", "gpu": None, "ranked": False}
    shell("submit", problem, kernel)
    for number in (2, 10**30):
        assert f"there is no result {number}" in shell("replay", number)[2]
    shell.judge.changes = {"device": "cpu", "gpu": None, "ranked": False}
    status, out, _ = shell("replay", 1)
    assert status == 0
    assert "the replay agrees" in out
    assert shell.judge.calls[-1]["seed"] == 99
    assert shell.judge.calls[-1]["device"] == "cpu"
    shell.judge.changes |= {"verdict": "wrong_answer"}
    status, out, _ = shell("replay", 1)
    assert status == 1
    assert "does NOT agree" in out
    status, _, err = shell("replay", 1, "--file", kernel)
    assert status == 2
    assert "the board holds the source of result 1" in err


def test_a_replay_has_the_cases_of_the_report(
    shell: Shell, problem: Path, kernel: Path, tmp_path: Path
) -> None:
    case = {"name": "one", "kind": "test", "params": {}, "status": "passed"}
    shell.judge.changes = {"device": "cpu", "gpu": None, "ranked": False, "cases": [case]}
    status, out, _ = shell("practice", problem, kernel, "--case", "one", "--json")
    assert status == 0
    report = tmp_path / "report.json"
    report.write_text(out)
    assert shell("replay", report, "--file", kernel)[0] == 0
    assert shell.judge.problems[-1].selected == {"one"}


def test_replay_without_the_source(
    shell: Shell, problem: Path, kernel: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/served.sqlite3"
    shell("submit", problem, kernel, "--db", url)
    engine = open_engine(url, create=False)
    upgrade(engine)
    with transaction(engine) as connection:
        clear_sources(connection, [1])
    engine.dispose()
    status, _, err = shell("replay", 1, "--db", url)
    assert status == 2
    assert "the source of result 1 was removed" in err


def test_a_replay_that_fails_is_a_judge_error(shell: Shell, problem: Path, kernel: Path) -> None:
    shell("submit", problem, kernel)
    shell.judge.error = RuntimeError("bad luck")
    status, out, _ = shell("replay", 1)
    assert status == 3
    assert "bad luck" in out
    assert "agree" not in out


def test_replay_from_a_file(shell: Shell, problem: Path, kernel: Path, tmp_path: Path) -> None:
    _, out, _ = shell("practice", problem, kernel, "--json")
    report = tmp_path / "report.json"
    report.write_text(out)
    assert shell("replay", report, "--file", kernel)[0] == 0
    no_seed = tmp_path / "from_a_server.json"
    no_seed.write_text(json.dumps({k: v for k, v in json.loads(out).items() if k != "seed"}))
    for args, message in (
        ((no_seed, "--file", kernel), "the report has no seed"),
        ((report,), "--file"),
        ((tmp_path / "absent.json", "--file", kernel), "not a readable file"),
        (("abc",), "abc: not a result's number, and not a readable file"),
        ((kernel, "--file", kernel), "not a report as --json prints it; wrong fields: 1"),
        ((report, "--file", problem / "inputs.py"), "sha256 differs"),
        (("12",), "there is no board"),
    ):
        status, _, err = shell("replay", *args)
        assert status == 2
        assert message in err
    change_reference(problem)
    status, _, err = shell("replay", report, "--file", kernel)
    assert status == 2
    assert "is version" in err


# verify ------------------------------------------------------------------------------------------


def write_examples(problem: Path) -> None:
    root = problem.parent.parent / "submissions" / "double"
    for path, text in {
        "accepted/good.py": "",
        "accepted/good.cu": "",
        "wrong_answer/on_a_gpu.py": "# grade: device=cuda\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_verify(shell: Shell, problem: Path) -> None:
    write_examples(problem)
    rows = [
        VerificationRow("zeros", "one", "fail", "failed", "off"),
        VerificationRow("zeros", "odd", "fail", "same as reference"),
        VerificationRow("eager", "one", "pass", "passed"),
    ]
    shell.change(verify=lambda *_: VerificationResult(rows))
    status, out, _ = shell("verify", "double", "--device", "cpu")
    assert status == 0
    assert "1 failed, 1 same as reference" in out
    assert "1 as expected, 0 not as expected, 2 not run" in out
    assert "double is verified on cpu" in out
    rows.append(VerificationRow("eager", "odd", "pass", "failed", "too strict"))
    status, out, _ = shell("verify", "double", "--device", "cpu")
    assert status == 1
    assert "odd: failed. too strict" in out


def test_a_bare_name_prefers_the_problem_over_a_folder_that_is_none(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "elsewhere"
    for name in ("softmax", "drafts"):
        (empty / name).mkdir(parents=True)
    monkeypatch.chdir(empty)
    status, out, _ = shell("show", "softmax")
    assert status == 0
    assert "Softmax over rows" in out
    status, _, err = shell("show", "drafts")
    assert (status, err.count("\n")) == (2, 1)
    assert "drafts/problem.yaml: missing" in err


def test_verify_detects_a_wrong_verdict(shell: Shell, problem: Path) -> None:
    write_examples(problem)
    shell.change(
        verify=lambda *_: VerificationResult([VerificationRow("eager", "one", "pass", "passed")])
    )
    status, out, _ = shell("verify", "double", "--device", "cuda")
    assert status == 1
    assert "2 as expected, 1 not as expected, 0 not run" in out


def test_verify_detects_a_mutant_that_is_never_caught(shell: Shell, problem: Path) -> None:
    rows = [VerificationRow("zeros", "one", "fail", "same as reference")]
    shell.change(verify=lambda *_: VerificationResult(rows))
    status, out, _ = shell("verify", "double")
    assert status == 1
    assert "never caught" in out


def test_verify_says_why_a_mutant_is_left_out(shell: Shell, problem: Path) -> None:
    rows = [
        VerificationRow("zeros", "one", "fail", "failed", "off"),
        VerificationRow("half precision", "one", "fail", "left out", "the outputs are integers"),
        VerificationRow("'x' without its sign", "one", "fail once", "same as reference"),
    ]
    shell.change(verify=lambda *_: VerificationResult(rows))
    status, out, _ = shell("verify", "double", "--no-examples")
    assert status == 0
    assert "left out: the outputs are integers" in out
    assert "changes no right answer" in out
    rows.append(VerificationRow("'factor' taken as 1", "one", "fail once", "passed", "it is 1"))
    status, out, _ = shell("verify", "double", "--no-examples")
    assert status == 1
    assert "never caught: it is 1" in out


def test_verify_without_examples_grades_nothing(shell: Shell, problem: Path) -> None:
    write_examples(problem)
    rows = [VerificationRow("eager", "one", "pass", "passed")]
    shell.change(verify=lambda *_: VerificationResult(rows))
    status, out, _ = shell("verify", "double", "--no-examples")
    assert (status, shell.judge.calls) == (0, [])
    assert "as expected" not in out


@pytest.mark.parametrize(("slow", "status"), [(1, 0), (2, 1)])
def test_verify_repeats_an_example_that_ran_out_of_time(
    shell: Shell, problem: Path, slow: int, status: int
) -> None:
    """Once: a busy machine explains no second time."""
    write_examples(problem)
    verdicts = iter(["time_limit_exceeded"] * slow + ["accepted"])

    def grade(*args: Any, **options: Any) -> Report:
        shell.judge.changes = {"verdict": next(verdicts), "ranked": False}
        return shell.judge(*args, **options)

    rows = [VerificationRow("eager", "one", "pass", "passed")]
    shell.change(verify=lambda *_: VerificationResult(rows), grade=grade)
    assert shell("verify", "double", "--device", "cpu")[0] == status
    assert len(shell.judge.calls) == 2


# doctor ------------------------------------------------------------------------------------------


def test_doctor(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = shell("doctor", "--json")
    shown = json.loads(out)
    assert (out.count("\n"), err) == (1, "")
    assert (status, shown["can_grade"]) == (0, True)
    findings = {one["name"]: one for one in shown["findings"]}
    assert findings["Docker"]["state"] == "ok"
    assert findings["torch"]["state"] in ("ok", "warn")
    shell.change(docker_missing=lambda: "no engine answers")
    monkeypatch.setattr(diagnostics, "import_failure", lambda *_: None)
    _, out, _ = shell("doctor")
    assert "no engine answers" in out
    assert "process sandbox, for your own code" in out
