"""The judge's end of the wire against misbehaving runners: always a fault, never a hang."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from grader.judge.session import Session
from grader.judge.verdict import Fault, SubmissionFault
from grader.report import Verdict
from grader.sandbox.base import Runner, RunnerExit, SandboxError
from grader.wire import Reply, Status, WireError, receive_request, send_reply
from tests.waiting import PATIENCE_S, until

Script = Callable[[socket.socket], None]


class ScriptedRunner(Runner):
    """A runner that follows a function of the test."""

    def __init__(self, script: Script, ending: RunnerExit | None = None) -> None:
        self.channel, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ending = ending
        self.thread = threading.Thread(target=self._play, args=(script,), daemon=True)
        self.thread.start()

    def _play(self, script: Script) -> None:
        with contextlib.suppress(OSError, WireError):  # the judge may close the wire at any time
            script(self.far)

    def poll(self) -> RunnerExit | None:
        return self.ending

    def log(self) -> bytes:
        return b""

    def stop(self) -> RunnerExit:
        self.thread.join(5)
        self.channel.close()
        self.far.close()
        return RunnerExit(stopped=True)


@pytest.fixture
def fault_of() -> Iterator[Callable[..., Fault]]:
    runners: list[ScriptedRunner] = []

    def run(
        script: Script, ending: RunnerExit | None = None, loading: bool = False, limit_s: float = 20
    ) -> Fault:
        runners.append(ScriptedRunner(script, ending))
        session = Session(runners[-1], total_s=60)
        session.loading = loading
        with pytest.raises(SubmissionFault) as caught:
            two_calls(session, limit_s)
        return caught.value.fault

    yield run
    for runner in runners:
        runner.stop()


def two_calls(session: Session, limit_s: float) -> None:
    session.ask("call", {"set": 0}, limit_s, "the call")
    session.ask("call", {"set": 0}, limit_s, "the next call")


def answer(sock: socket.socket, **changes: object) -> None:
    request, _ = receive_request(sock)
    fields: dict[str, object] = {"sequence": request["sequence"], "status": Status.OK} | changes
    send_reply(sock, Reply(**fields))  # type: ignore[arg-type]


def test_an_honest_reply_is_accepted() -> None:
    with ScriptedRunner(lambda s: answer(s, reported_ns=12)) as runner:
        assert Session(runner, 60).ask("call", {}, 20, "the call").reported_ns == 12


def test_a_request_without_its_reply_is_known() -> None:
    with ScriptedRunner(lambda sock: answer(sock, status=Status.RUNTIME_ERROR)) as runner:
        session = Session(runner, 100)
        with pytest.raises(SubmissionFault):
            session.ask("one", {}, PATIENCE_S, "the step")
        assert session.has_answered
        with pytest.raises(SubmissionFault):
            session.ask("two", {}, 0.01, "the step")
        assert not session.has_answered


def test_silence_is_a_time_limit(fault_of: Callable[..., Fault]) -> None:
    fault = fault_of(lambda s: None, limit_s=0.3)
    assert fault.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert "0.3 s" in fault.reason


def test_the_whole_grading_has_its_own_limit() -> None:
    with ScriptedRunner(lambda s: None) as runner, pytest.raises(SubmissionFault) as caught:
        Session(runner, total_s=0.2).ask("call", {}, 60, "the call")
    assert caught.value.fault.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert "whole grading" in caught.value.fault.reason


@pytest.mark.parametrize(
    "frame",
    [b"nonsense", bytes(5000), b"", Reply(1, Status.OK).pack() + b"x"],
    ids=["text", "oversize", "empty", "trailing"],
)
def test_an_invalid_frame_is_abuse(fault_of: Callable[..., Fault], frame: bytes) -> None:
    def script(sock: socket.socket) -> None:
        receive_request(sock)
        sock.send(frame)
        time.sleep(1)

    # An empty message reads as a closed wire; the session then waits for the runner to end.
    fault = fault_of(script, RunnerExit(exit_code=0) if frame == b"" else None)
    assert fault.verdict is Verdict.RUNTIME_ERROR


def test_a_reply_to_another_request_is_abuse(fault_of: Callable[..., Fault]) -> None:
    fault = fault_of(lambda s: answer(s, sequence=12345))
    assert fault.verdict is Verdict.RUNTIME_ERROR
    assert "not made" in fault.reason


def test_a_second_reply_is_abuse(fault_of: Callable[..., Fault]) -> None:
    def script(sock: socket.socket) -> None:
        request, _ = receive_request(sock)
        for _ in range(2):
            send_reply(sock, Reply(request["sequence"], Status.OK))

    fault = fault_of(script)
    assert fault.verdict is Verdict.RUNTIME_ERROR


def test_a_reply_before_the_request_is_abuse() -> None:
    with ScriptedRunner(lambda s: send_reply(s, Reply(1, Status.OK))) as runner:
        runner.thread.join(PATIENCE_S)
        with pytest.raises(SubmissionFault) as caught:
            Session(runner, 5).ask("call", {}, 1, "the call")
    assert "an unrequested message" in caught.value.fault.reason


@pytest.mark.parametrize(
    ("status", "loading", "verdict"),
    [
        (Status.COMPILE_ERROR, True, Verdict.COMPILE_ERROR),
        (Status.COMPILE_ERROR, False, Verdict.RUNTIME_ERROR),
        (Status.RUNTIME_ERROR, True, Verdict.COMPILE_ERROR),
        (Status.RUNTIME_ERROR, False, Verdict.RUNTIME_ERROR),
        (Status.OUT_OF_MEMORY, False, Verdict.MEMORY_LIMIT_EXCEEDED),
    ],
)
def test_a_reported_failure_is_believed(
    fault_of: Callable[..., Fault], status: Status, loading: bool, verdict: Verdict
) -> None:
    text = "because\x1b[31m\nof this"
    fault = fault_of(lambda s: answer(s, status=status, text=text), loading=loading)
    assert fault.verdict is verdict
    assert fault.reason == "because\\x1b[31m of this"


@pytest.mark.parametrize(
    ("ending", "verdict", "words"),
    [
        (RunnerExit(exit_code=0), Verdict.RUNTIME_ERROR, "exited with status 0"),
        (RunnerExit(signal=11), Verdict.RUNTIME_ERROR, "SIGSEGV"),
        (RunnerExit(signal=9, out_of_memory=True), Verdict.MEMORY_LIMIT_EXCEEDED, "memory"),
        (RunnerExit(signal=9, output_exceeded=True), Verdict.OUTPUT_LIMIT_EXCEEDED, "printed"),
    ],
)
def test_the_sandbox_reports_how_a_runner_ended(
    fault_of: Callable[..., Fault], ending: RunnerExit, verdict: Verdict, words: str
) -> None:
    fault = fault_of(lambda s: s.close(), ending)
    assert fault.verdict is verdict
    assert words in fault.reason


@pytest.mark.parametrize(
    ("ending", "killed"),
    [
        (RunnerExit(signal=9), True),
        (RunnerExit(signal=9, stopped=True), False),
        (RunnerExit(signal=9, out_of_memory=True), False),
        (RunnerExit(signal=9, output_exceeded=True), False),
        (RunnerExit(signal=11), False),
        (RunnerExit(exit_code=1), False),
    ],
)
def test_only_an_unexplained_kill_may_come_from_the_host(
    fault_of: Callable[..., Fault], ending: RunnerExit, killed: bool
) -> None:
    assert fault_of(lambda s: s.close(), ending).killed == killed


@pytest.mark.parametrize(
    "ending",
    [RunnerExit(exit_code=0), RunnerExit(exit_code=3), RunnerExit(signal=11), RunnerExit(signal=9)],
)
def test_every_end_while_loading_is_a_compile_error(
    fault_of: Callable[..., Fault], ending: RunnerExit
) -> None:
    """One rule: a file that ends the runner while it is loaded has become no entry."""
    fault = fault_of(lambda s: s.close(), ending, loading=True)
    assert fault.verdict is Verdict.COMPILE_ERROR
    assert fault.killed == (ending.signal == 9), "the host may have sent it, so it is tried again"


@pytest.mark.parametrize(
    ("loading", "verdict"), [(True, Verdict.COMPILE_ERROR), (False, Verdict.RUNTIME_ERROR)]
)
def test_a_closed_wire_is_an_end_too(
    fault_of: Callable[..., Fault],
    monkeypatch: pytest.MonkeyPatch,
    loading: bool,
    verdict: Verdict,
) -> None:
    monkeypatch.setattr("grader.judge.session._ENDING_S", 0.05)
    fault = fault_of(lambda s: s.close(), loading=loading)
    assert (fault.verdict, "closed the wire" in fault.reason) == (verdict, True)


@pytest.mark.parametrize(
    ("ending", "verdict"),
    [
        (RunnerExit(signal=9, out_of_memory=True), Verdict.MEMORY_LIMIT_EXCEEDED),
        (RunnerExit(signal=9, output_exceeded=True), Verdict.OUTPUT_LIMIT_EXCEEDED),
    ],
)
def test_a_limit_exceeded_while_loading_is_that_limit(
    fault_of: Callable[..., Fault], ending: RunnerExit, verdict: Verdict
) -> None:
    assert fault_of(lambda s: s.close(), ending, loading=True).verdict is verdict


def test_a_message_out_of_turn_is_abuse_while_loading_too(fault_of: Callable[..., Fault]) -> None:
    fault = fault_of(lambda s: answer(s, sequence=12345), loading=True)
    assert fault.verdict is Verdict.RUNTIME_ERROR


def test_an_end_is_noticed_while_a_child_keeps_the_wire_open(
    fault_of: Callable[..., Fault],
) -> None:
    fault = fault_of(lambda s: None, RunnerExit(signal=9), limit_s=30)
    assert fault.verdict is Verdict.RUNTIME_ERROR


def test_a_sandbox_limit_outweighs_the_runner_s_reply(fault_of: Callable[..., Fault]) -> None:
    fault = fault_of(
        lambda s: answer(s, status=Status.RUNTIME_ERROR, text="Broken pipe"),
        RunnerExit(signal=9, output_exceeded=True),
    )
    assert fault.verdict is Verdict.OUTPUT_LIMIT_EXCEEDED


def test_no_descriptor_leaks() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ScriptedRunner(answer) as runner:
        Session(runner, 5).ask("call", {}, 1, "the call")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lost_runner_is_the_sandbox_s_fault() -> None:
    """Such as when the container engine goes away: it is unknown whether and how it ended."""
    with (
        ScriptedRunner(lambda s: s.close(), RunnerExit()) as runner,
        pytest.raises(SandboxError) as caught,
    ):
        Session(runner, 60).ask("call", {}, 20, "the call")
    assert "the sandbox lost track of its runner" in str(caught.value)


def test_a_failed_send_to_a_live_runner_is_the_sandbox_s_fault() -> None:
    with ScriptedRunner(answer) as runner, pytest.raises(SandboxError) as caught:
        Session(runner, 60).ask("load", {}, 20, "loading the file", (-1,))
    assert str(caught.value) == "loading the file could not be requested: Bad file descriptor"


def test_the_remaining_time_ends_a_grading_and_the_reason_names_the_limit() -> None:
    with ScriptedRunner(lambda _: time.sleep(2)) as runner, pytest.raises(SubmissionFault) as stop:
        Session(runner, total_s=60, left_s=0.2).ask("call", {}, 50, "the call")
    assert stop.value.fault.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert "60 s" in stop.value.fault.reason


def test_first_calls_may_take_longer_until_their_budget_is_used_up() -> None:
    def script(sock: socket.socket) -> None:
        request, _ = receive_request(sock)
        time.sleep(0.7)  # the session's clock may start a little after this one
        send_reply(sock, Reply(request["sequence"], Status.OK))
        time.sleep(10)

    with ScriptedRunner(script) as runner:
        session = Session(runner, total_s=PATIENCE_S, compile_s=3)
        with session.calling(is_first=True):
            session.ask("call", {}, 0.2, "the call")
        assert 0.4 <= session.compiled_s < 3
        with session.calling(is_first=True), pytest.raises(SubmissionFault) as caught:
            session.ask("call", {}, 0.2, "the call")
        assert session.compiled_s == 3
    fault = caught.value.fault
    assert fault.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert fault.reason.startswith("the call took longer than 0.2 s (limits.call_s), and than the ")
    assert fault.reason.endswith(" s left of 3 s to compile (limits.compile_s)")


@pytest.mark.parametrize("is_first", [False, None])
def test_other_steps_may_not_compile(is_first: bool | None) -> None:
    with ScriptedRunner(lambda _: time.sleep(2)) as runner, pytest.raises(SubmissionFault) as stop:
        session = Session(runner, total_s=60, compile_s=50)
        calling = contextlib.nullcontext() if is_first is None else session.calling(is_first)
        with calling:
            session.ask("call", {}, 0.2, "the call")
    limit = "" if is_first is None else " (limits.call_s)"
    assert stop.value.fault.reason == f"the call took longer than 0.2 s{limit}"


def test_the_total_limit_does_not_run_while_the_clock_is_stopped() -> None:
    def script(sock: socket.socket) -> None:
        answer(sock)
        time.sleep(2)

    with ScriptedRunner(script) as runner:
        session = Session(runner, total_s=0.5)
        with session.stopped(), session.stopped():  # counts once
            time.sleep(1)
        session.ask("call", {}, PATIENCE_S, "the call")
        assert 1 <= session.stopped_s < 1.4
        with pytest.raises(SubmissionFault, match=r"the whole grading took longer than 0\.5 s"):
            session.ask("call", {}, PATIENCE_S, "the call")


def test_the_total_limit_holds_even_if_every_reply_is_immediate() -> None:
    """The judge's own steps may be slow, such as on a busy device."""
    with ScriptedRunner(answer) as runner:
        session = Session(runner, total_s=0.3)
        sequence = session.send("call", {}, "the call")
        until(session.has_reply)
        time.sleep(0.4)
        with pytest.raises(SubmissionFault) as caught:
            session.receive(sequence, PATIENCE_S, "the call")
    assert caught.value.fault.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert "the whole grading" in caught.value.fault.reason
