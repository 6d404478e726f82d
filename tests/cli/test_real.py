"""The command line as a subprocess, with the real judge and the process sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import INPUTS, SPEC
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
SOFTMAX = ROOT / "submissions" / "softmax"
SLEEPER = "import time\n\n\ndef softmax(x, out):\n    time.sleep(600)\n"


def start(tmp_path: Path, *args: object) -> subprocess.Popen[str]:
    environment = os.environ | {"GRADE_DB": f"sqlite:///{tmp_path}/board.sqlite3"}
    # Tests started in a shell's background inherit an interrupt that is ignored.
    listening = ["env", "--default-signal=INT"]
    return subprocess.Popen(
        [*listening, sys.executable, "-m", "grader.cli", *map(str, args)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def test_submit_leaderboard_replay(tmp_path: Path) -> None:
    cpu = ("--device", "cpu", "--sandbox", "process")
    kernel = SOFTMAX / "accepted" / "triton_softmax.py"
    status, out, err = finish(start(tmp_path, "submit", "softmax", kernel, *cpu, "--json"))
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["verdict"], report["ranked"], report["id"]) == ("accepted", False, 1)
    assert report["stages_s"].keys() >= {"sandbox_start", "load", "test", "benchmark", "total"}
    status, out, _ = finish(start(tmp_path, "replay", 1, "--sandbox", "process"))
    assert status == 0
    assert "the replay agrees" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_an_interrupted_grading(tmp_path: Path, number: signal.Signals) -> None:
    kernel = tmp_path / "sleeper.py"
    kernel.write_text(SLEEPER)
    process = start(
        tmp_path, "submit", "softmax", kernel, "--device", "cpu", "--sandbox", "process"
    )
    runners = _wait_for_runners(process)
    process.send_signal(number)
    status, out, err = finish(process)
    assert (status, out) == (128 + number, "")
    assert "Traceback" not in err
    assert not [runner for runner in runners if _is_alive(runner)]


@pytest.mark.parametrize("sandbox", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_board_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path, sandbox: str) -> None:
    """The sandbox starts while the board is opened, and must be removed too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    kernel = str(SOFTMAX / "accepted" / "triton_softmax.py")
    options = ["--device", "cpu", "--sandbox", sandbox, "--db", "sqlite:////proc/board.sqlite3"]
    done = subprocess.run(
        [sys.executable, "-m", "grader.cli", "submit", "softmax", kernel, *options],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("grade: ")
    assert done.stderr.count("\n") == 1
    assert not list(folder.iterdir())
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            assert f"TMPDIR={folder}".encode() not in environment.read_bytes()


@pytest.mark.parametrize("as_json", [False, True])
def test_code_of_the_problem_that_never_returns_ends_grade(
    problem: Path, kernel: Path, as_json: bool
) -> None:
    """One long sleep in C stands for it: no exception reaches the thread."""
    reference = problem / "reference.py"
    hangs = reference.read_text().replace(
        "    return", "    import time; time.sleep(600)\n    return"
    )
    reference.write_text(hangs)
    program = (
        "import sys\n"
        "from grader.cli import main\n"
        "from grader.judge import authors_code\n"
        "authors_code.LIMIT_S, authors_code.HUNG_S = 5.0, 0.5\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    options = ["--device", "cpu", "--sandbox", "process", *(["--json"] if as_json else [])]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "practice", str(problem), str(kernel), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    runners = _wait_for_runners(process)
    status, out, err = finish(process)
    assert status == 2
    line = json.loads(out)["error"] if as_json else err.removeprefix("grade: ").rstrip("\n")
    assert line.startswith(f"{reference}: reference() for case ")
    assert line.endswith(" took longer than 5 s, and cannot be stopped")
    assert (err if as_json else out) == ""
    until(lambda: not any(map(_is_alive, runners)))


def _wait_for_runners(process: subprocess.Popen[str]) -> list[int]:
    """The child processes of a grading, 2 s after the first appears: it is loading torch."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        files = Path(f"/proc/{process.pid}/task").glob("*/children")  # of each of its threads
        children = [int(child) for file in files for child in file.read_text().split()]
        if children:
            time.sleep(2)
            return children
        time.sleep(0.05)
    pytest.fail("no runner was started")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


BROKEN = """
import sys
from grader.sandbox import process
process.launcher_command = lambda _: ["/bin/false"]
from grader.cli.app import main
from grader.cli.dependencies import Dependencies
sys.exit(main(sys.argv[1:], Dependencies(docker_missing=lambda: "no engine")))
"""
"""The command line on a machine where no sandbox works."""


@pytest.mark.parametrize(
    "command",
    [
        ["practice", "softmax", "{kernel}", "--device", "cpu", "--sandbox", "process"],
        ["compare", "{kernel}", "{kernel}", "--device", "cpu", "--sandbox", "process"],
        ["profile", "softmax", "{kernel}", "--device", "cpu", "--sandbox", "process"],
        ["doctor"],
    ],
    ids=lambda command: command[0],
)
def test_a_broken_sandbox_is_reported_and_no_internal_error(
    tmp_path: Path, command: list[str]
) -> None:
    kernel = SOFTMAX / "accepted" / "torch_softmax.py"
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *(word.format(kernel=kernel) for word in command), "--json"],
        env=os.environ | {"GRADE_DB": f"sqlite:///{tmp_path}/board.sqlite3"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = json.loads(done.stdout)  # always one object
    assert "no process sandbox works here" in done.stdout
    assert "grade doctor" in done.stdout or command == ["doctor"]
    assert "bug" not in done.stdout + done.stderr
    assert done.returncode == (1 if command == ["doctor"] else 3), shown
    assert shown.get("can_grade", False) is False
    assert list(tmp_path.iterdir()) == [], "no partial files are left"


EXITS = "    os._exit(0)\n", "reference() for case 'one' called os._exit(0)"
INTERRUPTS = "    raise KeyboardInterrupt\n", "reference() for case 'one' raised KeyboardInterrupt"
CONVERTS = (
    "    x.add_(1)\n    return (2 * x).float()\n",
    "gave 'out' of case 'one' as torch.float32",
)


@pytest.mark.parametrize(
    ("command", "body", "message"),
    [
        ("practice", *EXITS),
        ("practice", *INTERRUPTS),
        ("practice", *CONVERTS),
        ("compare", *EXITS),
    ],
)
def test_a_problem_that_misbehaves_is_one_error_in_the_json(
    tmp_path: Path, command: str, body: str, message: str
) -> None:
    """What it prints is not on stdout."""
    folder, kernel = tmp_path / "double", tmp_path / "kernel.py"
    folder.mkdir()
    files = {
        "problem.yaml": SPEC,
        "inputs.py": INPUTS,
        "reference.py": f"import os\nprint('imported')\n\n\ndef reference(x):\n{body}",
        "statement.md": "Double it.",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    kernel.write_text("def doubled(x, out):\n    out.copy_(2 * x)\n")
    cpu = ("--device", "cpu", "--sandbox", "process", "--json")
    words = {
        "practice": ("practice", folder, kernel),
        "compare": ("compare", kernel, kernel, "--problem", folder),
    }
    status, out, err = finish(start(tmp_path, *words[command], *cpu))
    error = json.loads(out)["error"]
    assert (status, error.startswith(f"{folder / 'reference.py'}: ")) == (2, True)
    assert message in error
    assert "imported" in err
    assert "Traceback" not in err
