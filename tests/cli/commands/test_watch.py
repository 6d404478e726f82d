"""`grade watch`: its output for each save, and that it leaves no process behind."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.cli.commands import watch as module
from grader.cli.commands.watch import WatchedTime, change
from grader.cli.output.terminal import PlainConsole, reader_is_gone
from grader.judge import Progress
from grader.report import CaseResult, Mismatch, Report
from grader.sandbox.base import (
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
)
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[3]
Act = Callable[[dict[str, Any]], Report]
"""The judge for one save: its keyword arguments → a report."""
Once = Callable[[str, Callable[[], object]], None]
"""Calls a function once, after the watch has printed a line with this text, or a `REPORT`."""
REPORT = "<report>"


class IdleRunner(Runner):
    """A runner that hangs until it is stopped."""

    def __init__(self) -> None:
        self.channel, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stopped = threading.Event()

    def poll(self) -> RunnerExit | None:
        return RunnerExit(signal=9, stopped=True) if self.stopped.is_set() else None

    def log(self) -> bytes:
        return b""

    def stop(self) -> RunnerExit:
        self.channel.close()
        self._other.close()
        self.stopped.set()
        return RunnerExit(signal=9, stopped=True)


class IdleSandbox(Sandbox):
    name = "idle"

    def __init__(self) -> None:
        self.runners: list[IdleRunner] = []

    def describe(self) -> str:
        return "idle"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        self.runners.append(IdleRunner())
        return self.runners[-1]


class ScriptedJudge:
    """A judge that calls one function per save, and then interrupts."""

    def __init__(self, acts: list[Act]) -> None:
        self._acts = iter(acts)
        self.sources: list[bytes] = []

    def __call__(self, problem: Any, submission: Any, **options: Any) -> Report:
        self.sources.append(submission.source)
        act = next(self._acts, None)
        if act is None:
            raise KeyboardInterrupt
        return act(options)


@pytest.fixture
def sandbox() -> Iterator[IdleSandbox]:
    sandbox = IdleSandbox()
    yield sandbox
    assert sandbox.runners
    assert all(runner.stopped.is_set() for runner in sandbox.runners)


@pytest.fixture
def watching(
    shell: Shell, problem: Path, kernel: Path, sandbox: IdleSandbox
) -> Callable[..., tuple[str, ScriptedJudge]]:
    """Watch the kernel with these acts of the judge; returns the output and the judge."""

    def watch(*acts: Act) -> tuple[str, ScriptedJudge]:
        script = ScriptedJudge(list(acts))
        shell.change(grade=script, sandbox=lambda name: sandbox)
        status, out, err = shell("watch", problem, kernel)
        assert (status, err) == (0, "")
        return out, script

    return watch


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Once:
    waiting: list[tuple[str, Callable[[], object]]] = []
    print_line, print_report = module.Watch._print, module.Watch._print_report

    def printed(text: str) -> None:
        for one in [one for one in waiting if one[0] in text]:
            waiting.remove(one)
            # Some polls later, so that a wrong reaction would have happened by then.
            threading.Timer(6 * module.POLL_S, one[1]).start()

    def on_line(watch: module.Watch, line: str, style: str) -> None:
        print_line(watch, line, style)
        printed(line)

    def on_report(watch: module.Watch, report: Report) -> None:
        print_report(watch, report)
        printed(REPORT)

    monkeypatch.setattr(module.Watch, "_print", on_line)
    monkeypatch.setattr(module.Watch, "_print_report", on_report)
    return lambda text, action: waiting.append((text, action))


@pytest.fixture
def report(make_report: Callable[..., Report]) -> Callable[..., Report]:
    """A report with one benchmark case of that time, ± 1 %, of eight rounds."""

    def make(
        time_us: float = 10.0,
        ci_us: tuple[float, float] | None = None,
        rounds: int = 8,
        converged: bool = True,
        **changes: Any,
    ) -> Report:
        case = CaseResult(
            name="small",
            kind="benchmark",
            params={"n": 1024},
            status="passed",
            time_us=time_us,
            ci_us=ci_us or (0.99 * time_us, 1.01 * time_us),
            rounds=rounds,
            converged=converged,
            baseline_us={"eager": 2 * time_us},
        )
        return make_report(**{"cases": [case], "speedup": {"eager": 2.0}} | changes)

    return make


def report_tests(options: dict[str, Any], *statuses: str) -> None:
    """Report tests with these statuses, as the judge does."""
    on_progress = options["progress"]
    on_progress(Progress("sandbox_start"))
    on_progress(Progress("load"))
    for index, status in enumerate(statuses):
        on_progress(Progress("test", f"t{index}", index, len(statuses)))
        on_progress(Progress("test", f"t{index}", index, len(statuses), status))


def save(kernel: Path, text: str) -> None:
    """Replace the file by a new one, as most editors do."""
    other = kernel.with_suffix(".new")
    other.write_text(text)
    other.replace(kernel)


def test_each_save_is_graded_and_compared(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
) -> None:
    def graded(time_us: float, then: str) -> Act:
        def act(options: dict[str, Any]) -> Report:
            report_tests(options, "passed", "passed")
            once(REPORT, lambda: save(kernel, then))
            return report(time_us)

        return act

    out, judge = watching(graded(10, "two"), graded(8, "three"), graded(8.01, "four"))
    assert [source.decode()[:5] for source in judge.sources] == ["def d", "two", "three", "four"]
    assert out.count("✔ all 2 tests passed") == 3
    lines = [line for line in out.splitlines() if line.strip().startswith("small")]
    assert [line.split("eager")[1].strip() for line in lines] == ["", "25.0% faster", "same"]
    assert "10.00 µs ± 1.00%" in lines[0]
    assert "2.00× eager" in lines[0]


def test_a_time_that_did_not_converge_is_marked_and_its_change_unsure(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
) -> None:
    """On a CPU, adding a comment once made a file 112 times faster, ± 1976 %."""

    def graded(then: str, time_us: float, *times: Any) -> Act:
        def act(options: dict[str, Any]) -> Report:
            once(REPORT, lambda: save(kernel, then))
            return report(time_us, *times)

        return act

    out, _ = watching(
        graded("# 1", 1122.0, (1100.0, 1144.0), 3, True),
        graded("# 2", 10.0, (9.5, 15.0), 3, False),
        graded("# 3", 983.1, (900.0, 20400.0), 3, False),
    )
    lines = [line for line in out.splitlines() if line.strip().startswith("small")]
    assert [line.split("eager")[1].strip() for line in lines] == ["", "unsure", "unsure"]
    assert "1.122 ms ± 1.96%" in lines[0]
    assert "~10.00 µs ± 50.00%" in lines[1]
    assert ["~2.00× eager" in line for line in lines] == [False, True, True]
    assert "~983.1 µs  did not converge" in lines[2]
    assert out.count("~ had not converged when the time budget ended") == 2


def test_the_first_failed_test_is_printed_at_once(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []

    def act(options: dict[str, Any]) -> Report:
        report_tests(options, "passed", "wrong_answer", "wrong_answer")
        deadline = time.monotonic() + PATIENCE_S
        while "t1" not in "".join(seen):
            assert time.monotonic() < deadline, "it was not printed before the end"
            seen.append(capsys.readouterr().out)
            time.sleep(0.01)
        once(REPORT, lambda: save(kernel, "again"))
        mismatch = Mismatch(
            argument="out",
            shape=[4],
            index=[2],
            expected=1.5,
            got=2.5,
            wrong_elements=1,
            total_elements=4,
        )
        case = CaseResult(
            name="t1", kind="test", params={}, status="wrong_answer", mismatch=mismatch
        )
        return report(
            verdict="wrong_answer",
            reason="case 't1': off \x1b[31m by one",
            cases=[case],
            log="look\nlook\nhere",
        )

    out, _ = watching(act)
    first = "".join(seen)
    assert first.count("✘ wrong answer on test t1") == 1
    assert "✘" not in out
    assert "wrong answer: case 't1': off \\x1b[31m by one" in out
    assert "out[2]: expected 1.5, got 2.5; 1 of 4 elements are wrong" in out
    assert "│ look   (2 times)\n│ here\n" in out


def test_a_new_save_ends_a_call_that_hangs(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
) -> None:
    stopped = []

    def hangs(options: dict[str, Any]) -> Report:
        runner = options["sandbox"].start(LIMITS, options["device"])
        save(kernel, "mended")
        until(runner.poll)
        stopped.append(runner)
        return report(verdict="runtime_error", reason="killed by signal 9")

    out, judge = watching(hangs)
    assert judge.sources[1] == b"mended"
    assert stopped
    assert "killed" not in out


def test_a_new_save_ends_a_grading_between_cases(
    watching: Callable[..., tuple[str, ScriptedJudge]], kernel: Path
) -> None:
    ended = []

    def slow(options: dict[str, Any]) -> Report:
        save(kernel, "newer")
        deadline = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline:
                options["progress"](Progress("test", "t", 0, 9))
                time.sleep(0.01)
        except Exception as stop:
            ended.append(type(stop).__name__)
            raise
        raise AssertionError("it was not stopped")

    _, judge = watching(slow)
    assert ended == ["_Abandoned"]
    assert judge.sources[1] == b"newer"


def test_a_file_that_goes_away_is_waited_for(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
) -> None:
    def act(options: dict[str, Any]) -> Report:
        kernel.unlink()
        once("is gone; waiting", lambda: save(kernel, "back"))
        return report()

    out, judge = watching(act)
    assert judge.sources[1] == b"back"
    assert out.count("is gone; waiting for it") == 1


@pytest.mark.parametrize("keeps_its_inode", [True, False])
def test_a_file_that_comes_back_unchanged_is_not_graded_again(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
    keeps_its_inode: bool,
) -> None:
    aside = kernel.with_suffix(".aside")

    def back() -> None:
        if keeps_its_inode:
            aside.rename(kernel)
        else:
            save(kernel, aside.read_text())

    def act(options: dict[str, Any]) -> Report:
        kernel.rename(aside)
        once("is gone; waiting", back)
        once("is back", lambda: save(kernel, "another"))
        return report()

    out, judge = watching(act)
    assert judge.sources[1:] == [b"another"]
    assert out.count("is back, unchanged") == 1


def test_an_ungraded_file_that_comes_back_unchanged_is_graded(
    watching: Callable[..., tuple[str, ScriptedJudge]], kernel: Path, once: Once
) -> None:
    aside = kernel.with_suffix(".aside")

    def act(options: dict[str, Any]) -> Report:
        kernel.rename(aside)
        once("is gone; waiting", lambda: aside.rename(kernel))
        raise SandboxError("the engine is gone")

    out, judge = watching(act)
    assert judge.sources[1:] == [judge.sources[0]]
    assert "unchanged" not in out


def test_a_file_is_not_read_during_a_write(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_S", 1.0)  # a loaded machine may delay the writer that long

    def write() -> None:
        with kernel.open("w") as file:
            for part in range(30):
                file.write(f"{part} ")
                file.flush()
                time.sleep(0.01)

    def act(options: dict[str, Any]) -> Report:
        once(REPORT, threading.Thread(target=write).start)
        return report()

    _, judge = watching(act)
    assert judge.sources[-1].split()[-1] == b"29"


def test_a_file_too_large_is_reported_and_the_next_save_graded(
    watching: Callable[..., tuple[str, ScriptedJudge]],
    report: Callable[..., Report],
    kernel: Path,
    once: Once,
) -> None:
    def act(options: dict[str, Any]) -> Report:
        save(kernel, "x" * (2 << 20))
        once("larger", lambda: save(kernel, "small again"))
        return report()

    out, judge = watching(act)
    assert judge.sources[1] == b"small again"
    assert "larger" in out


def test_a_failed_sandbox_is_reported_and_the_next_save_graded(
    watching: Callable[..., tuple[str, ScriptedJudge]], kernel: Path, once: Once
) -> None:
    def act(options: dict[str, Any]) -> Report:
        once("no sandbox", lambda: save(kernel, "later"))
        raise SandboxError("the engine is gone")

    out, judge = watching(act)
    assert "no sandbox: the engine is gone" in out
    assert judge.sources[1] == b"later"


@pytest.mark.parametrize("name", ["missing.py", "kernel.txt"])
def test_an_invalid_file_is_wrong_usage(
    shell: Shell, problem: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "kernel.txt").write_text("")
    status, _, err = shell("watch", problem, name)
    assert status == 2
    assert name in err


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [
        (100.0, 100.9, "same"),
        (102.1, 100.0, "2.1% faster"),
        (100.0, 104.0, "4.0% slower"),
        (160.0, 100.0, "1.60× faster"),
        (100.0, 300.0, "3.00× slower"),
    ],
)
def test_change(before: float, now: float, word: str) -> None:
    def timed(us: float) -> WatchedTime:
        return WatchedTime(us, (0.995 * us, 1.005 * us), 5, True)

    assert change(timed(before), timed(now)) == word


def test_a_change_below_one_percent_is_the_same() -> None:
    before, now = (WatchedTime(us, (us, us), 5, True) for us in (100.0, 100.9))
    assert change(before, now) == "same"


@pytest.mark.parametrize(("rounds", "converged"), [(4, True), (5, False), (0, False)])
def test_a_change_from_an_uncertain_time_is_unsure(rounds: int, converged: bool) -> None:
    known = WatchedTime(100.0, (99.5, 100.5), 5, True)
    other = WatchedTime(10.0, (9.9, 10.1), rounds, converged)
    assert change(known, other) == change(other, known) == "unsure"


def test_a_pipe_without_its_reader() -> None:
    theirs, ours = os.pipe()
    with os.fdopen(ours, "w") as pipe:
        console = PlainConsole(pipe)
        assert not reader_is_gone(console)
        os.close(theirs)
        assert reader_is_gone(console)


def test_a_file_and_a_stream_without_descriptor_have_a_reader(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert not reader_is_gone(PlainConsole(file))
    assert not reader_is_gone(PlainConsole(io.StringIO()))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_real_watch(tmp_path: Path, number: signal.Signals, status: int) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("import torch\n\n\ndef softmax(x, out):\n    out.copy_(x.softmax(-1))\n")
    process = _watch(kernel)
    assert process.stdout is not None
    with process.stdout:
        _read_until(process.stdout, "tests passed")
        save(kernel, "def softmax(x, out):\n    out.zero_()\n    while x.shape[1] > 1: pass\n")
        _read_until(process.stdout, "wrong answer on test one_element")
        started = [int(pid) for pid in _children(process.pid)]
        assert started
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == status
    _wait_until_gone(started)


def test_an_interrupt_is_acknowledged_before_the_sandbox_has_started(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def softmax(x, out):\n    out.copy_(x.softmax(-1))\n")
    process = _watch(kernel)
    assert process.stdout is not None
    with process.stdout:
        _read_until(process.stdout, "watching")
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _read_until(process.stdout, "grade: ending")
        assert time.monotonic() - sent < 1
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("last_text", ["watching", "tests passed", "converged"])
def test_a_real_watch_ends_when_its_pipe_is_closed(tmp_path: Path, last_text: str) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("import torch\n\n\ndef softmax(x, out):\n    out.copy_(x.softmax(-1))\n")
    process = _watch(kernel)
    assert process.stdout is not None
    try:
        with process.stdout:
            _read_until(process.stdout, last_text)
            started = [int(pid) for pid in _children(process.pid)]
        assert process.wait(PATIENCE_S) == 0
        _wait_until_gone(started)
    finally:
        process.terminate()


def _read_until(lines: Any, text: str) -> None:
    for line in lines:
        if text in line:
            return
    raise AssertionError(f"it ended without printing {text!r}")


def _watch(kernel: Path) -> subprocess.Popen[str]:
    """`grade watch` as a subprocess, on the CPU."""
    command = [sys.executable, "-m", "grader.cli", "watch", "softmax", str(kernel)]
    return subprocess.Popen(
        # Tests started in a shell's background inherit an interrupt that is ignored.
        ["env", "--default-signal=INT", *command, "--device", "cpu", "--sandbox", "process"],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _wait_until_gone(pids: list[int]) -> None:
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def _children(pid: int) -> list[str]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for file in files for child in file.read_text().split()]


LIMITS = RunnerLimits(1, 1, 1, 1)
