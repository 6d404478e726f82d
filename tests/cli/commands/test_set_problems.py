"""Problems of other sets on the command line: ``kernelbot:PATH``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grader.cli import main
from grader.cli.dependencies import Dependencies
from grader.cli.remote import problem_name
from grader.problem import ProblemError
from tests.cli.conftest import Shell
from tests.forked_sandbox import ForkedSandbox
from tests.sets import made_up


def test_a_folder_lists_its_problems(shell: Shell, tmp_path: Path) -> None:
    folder = made_up.kernelbot(tmp_path)
    status, out, _ = shell("problems", f"kernelbot:{tmp_path}")
    assert status == 0
    assert out.splitlines() == [
        f"kernelbot:{folder}",
        "1 problem of KernelBot, licence: Researcher Reciprocity License 1.0; nothing is copied",
    ]
    status, listed = shell.json("problems", f"kernelbot:{tmp_path}")
    assert (status, listed["problems"]) == (0, [f"kernelbot:{folder}"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["problems", "leetgpu:{}"], "no problem here; a LeetGPU challenge is a folder with"),
        (["problems", "softmax", "--report"], "--report is for the problems of another set"),
        (["show", "kernelbot:{}"], "a KernelBot board is a folder with task.yml"),
        (["show", "kernelbot:{}/nothing"], "no such file or folder"),
        (["show", "kernelbench:{}/made.py"], "a KernelBench problem is a Python file with a class"),
    ],
)
def test_what_is_no_problem_is_one_line(
    shell: Shell, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "made.py").write_text("x = 1\n")
    status, _, err = shell(*(argument.format(tmp_path) for argument in arguments))
    assert status == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_root_is_not_a_problem(shell: Shell, tmp_path: Path) -> None:
    folder = made_up.kernelbot(tmp_path)
    status, _, err = shell("show", f"kernelbot:{tmp_path}")
    assert status == 2
    assert f"holds 1 problems; name one of them, such as kernelbot:{folder}" in err


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("files: [", "not readable as YAML"),
        ("- 1", "must be keys and values"),
        ("files: 3", "files: must be a list of mappings"),
        (made_up.TASK.replace('"py"', '"cu"'), "submissions in cu are not supported"),
        (made_up.TASK + "multi_gpu: true\n", "it needs several GPUs"),
        (made_up.TASK.replace("../helpers.py", "../gone.py"), "gone.py: missing"),
        (made_up.TASK.replace("reference.py", "other.py"), "other.py: missing"),
    ],
)
def test_a_broken_task_is_one_line(shell: Shell, tmp_path: Path, task: str, message: str) -> None:
    folder = made_up.kernelbot(tmp_path, task=task)
    status, _, err = shell("show", f"kernelbot:{folder}")
    assert status == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_commands_take_a_problem_of_a_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With real gradings. `grade submit` runs in a process of its own, as typed."""
    name = f"leetgpu:{made_up.leetgpu(tmp_path)}"
    kernel = tmp_path / "kernel.py"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    forked = Dependencies(sandbox=lambda _: ForkedSandbox())

    def grade(*arguments: str) -> tuple[int, str]:
        status = main(list(arguments), forked)
        return status, "".join(capsys.readouterr())

    status, out = grade("show", name)
    assert (status, "Scaled Rows" in out, "CC BY-NC-ND 4.0" in out) == (0, True, True)
    status, out = grade("new", name, "--lang", "torch", "-o", str(kernel))
    assert status == 0, out
    submit = ("submit", name, str(kernel), "--sandbox", "process", "--json")
    command = [sys.executable, "-m", "grader.cli", *submit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["problem"], report["verdict"]) == ("leetgpu_1_scaled_rows", "wrong_answer")
    status, out = grade("verify", name, "--sandbox", "process")
    assert status == 0, out
    status, out = grade("baseline", name, "--sandbox", "process")
    assert status == 2
    assert "the code of another set does not run in the judge" in out
    status, out = grade("batch", name, str(kernel), "--sandbox", "process", "--tests-only")
    assert status == 0, out
    (line,) = (json.loads(text) for text in out.splitlines() if text.startswith("{"))
    assert line["report"]["verdict"] == "wrong_answer"
    status, out = grade("results", name)
    assert status == 0
    assert "#1  wrong answer" in out
    status, out = grade("replay", "1", "--sandbox", "process")
    assert status == 2
    assert "leetgpu_1_scaled_rows is a problem of another set" in out
    assert "say where it is: --problem leetgpu:PATH" in out
    status, out = grade("replay", "1", "--problem", name, "--sandbox", "process")
    assert status == 0, out
    assert "the replay agrees" in out


def test_the_name_on_a_server_is_read_from_the_checkout(tmp_path: Path) -> None:
    assert problem_name(f"kernelbot:{made_up.kernelbot(tmp_path)}") == "kernelbot_made_up_rms_py"
    with pytest.raises(ProblemError, match="holds 1 problems; name one of them"):
        problem_name(f"kernelbot:{tmp_path}")


@pytest.mark.parametrize("command", ["serve", "worker", "mcp"])
def test_what_is_no_set_is_refused(shell: Shell, command: str) -> None:
    status, out, err = shell(command, "--problem", "softmax")
    assert (status, out) == (2, "")
    assert "--problem softmax: names a problem of another set" in err
    assert "kernelbench:PATH" in err
