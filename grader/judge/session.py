"""The judge's end of the wire to one runner: requests, replies, time limits, and faults."""

from __future__ import annotations

import contextlib
import secrets
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grader.judge.verdict import Fault, SubmissionFault
from grader.report import Verdict, one_line
from grader.sandbox.base import Device, Runner, RunnerExit, SandboxError
from grader.submission import Submission
from grader.wire import (
    Reply,
    Status,
    WireClosed,
    WireError,
    WireTimeout,
    pack_request,
    receive_reply,
    refuse_descriptors,
    send_packed,
)

_POLL_S = 0.1
"""How often a waiting session checks whether the runner has ended."""
_ENDING_S = 5.0
"""How long a runner may take to end after it closed the wire."""


@dataclass(frozen=True)
class PreparedRequest:
    """A packed request. Packing it beforehand keeps that work out of a measured interval."""

    sequence: int
    payload: bytes


class Session:
    """One conversation with one runner. Every fault of the submission is a `SubmissionFault`."""

    def __init__(
        self,
        runner: Runner,
        total_s: float,
        left_s: float | None = None,
        compile_s: float = 0.0,
    ) -> None:
        """`left_s` is what remains of the grading's `total_s`; None means all of it. `compile_s` is
        the time beyond their limits that all first calls together may take."""
        self.runner = runner
        refuse_descriptors(runner.channel)
        self._end_s = time.monotonic() + (total_s if left_s is None else left_s)
        self._total_s = total_s
        self.stopped_s = 0.0
        """Seconds in `stopped`, which do not count as time of the grading."""
        self._compile_s = compile_s
        self._compile_left_s = compile_s
        self._is_call = self._is_first_call = False
        self.busy_wait = False
        """Whether to wait for replies without sleeping, for the sake of a running clock."""
        self.has_answered = True
        """Whether the last request had its reply, so that the next one will not get that."""
        self.loading = False
        """While true, a runner that ends is a `compile_error`: the file did not become an entry."""

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock of the grading during the block, in which the problem's own code runs. Its
        time is not the submission's. Nested blocks count once."""
        before_s, start_s = self.stopped_s, time.monotonic()
        try:
            yield
        finally:
            self.stopped_s = before_s + time.monotonic() - start_s

    @property
    def _deadline(self) -> float:
        """When the time of the grading is used up, by `time.monotonic`."""
        return self._end_s + self.stopped_s

    @property
    def compiled_s(self) -> float:
        """Seconds beyond their limits that the first calls have taken so far."""
        return self._compile_s - self._compile_left_s

    @contextlib.contextmanager
    def calling(self, is_first: bool) -> Iterator[None]:
        """Inside, steps are calls of the entry. The first call of a case may compile: it may exceed
        its limit by what is left of `compile_s`, which it uses up."""
        self._is_call, self._is_first_call = True, is_first
        try:
            yield
        finally:
            self._is_call = self._is_first_call = False

    def ask(
        self,
        kind: str,
        request: dict[str, Any],
        limit_s: float,
        what: str,
        fds: tuple[int, ...] = (),
    ) -> Reply:
        """Send one request and wait for its one reply.

        `what` names the step in a reason, such as ``the call on test 'tiny'``. Raises
        `SubmissionFault` when the runner fails, breaks the wire, ends, or takes too long.
        """
        return self.receive(self.send(kind, request, what, fds), limit_s, what)

    def send(self, kind: str, request: dict[str, Any], what: str, fds: tuple[int, ...] = ()) -> int:
        """Send one request without waiting. Returns its number, for `receive`."""
        return self.send_prepared(self.prepare(kind, request), what, fds)

    def prepare(self, kind: str, request: dict[str, Any]) -> PreparedRequest:
        """Pack a request. Raises `SubmissionFault` if the runner sent an unrequested message."""
        self.has_answered = False
        self.expect_silence()
        sequence = secrets.randbits(32)
        return PreparedRequest(
            sequence, pack_request({"kind": kind, "sequence": sequence, **request})
        )

    def send_prepared(self, prepared: PreparedRequest, what: str, fds: tuple[int, ...] = ()) -> int:
        """Send a prepared request. Returns its number, for `receive`.

        Raises `SubmissionFault` when the runner is gone, `SandboxError` when sending fails for
        another reason.
        """
        try:
            send_packed(self.runner.channel, prepared.payload, fds)
        except WireClosed:
            raise self._ended(what) from None
        except WireError as error:
            raise self._abuse(str(error)) from None
        except OSError as error:
            raise SandboxError(f"{what} could not be requested: {error.strerror}") from None
        return prepared.sequence

    def has_reply(self) -> bool:
        """Whether a message waits, or the runner has closed its end."""
        poller = select.poll()
        poller.register(self.runner.channel, select.POLLIN)
        return bool(poller.poll(0))

    def receive(self, sequence: int, limit_s: float, what: str) -> Reply:
        """Wait for the reply to the request numbered `sequence`. Raises as `ask` does."""
        if time.monotonic() >= self._deadline:  # checked even if every reply comes at once
            raise self._timed_out(False, limit_s, what)
        try:
            reply = self._receive(limit_s, what)
        except WireClosed:
            raise self._ended(what) from None
        except WireError as error:
            raise self._abuse(str(error)) from None
        if reply.sequence != sequence:
            raise self._abuse("a reply to a request that was not made")
        self.has_answered = True
        if reply.status is not Status.OK:
            reason = one_line(reply.text) or f"{what} failed"
            raise self._fault(self._verdict_of(reply.status), reason)
        return reply

    def expect_silence(self) -> None:
        """Raise `SubmissionFault` if an unrequested message waits."""
        if not self.has_reply():
            return
        try:
            receive_reply(self.runner.channel, 0)
        except WireClosed:
            raise self._ended("between calls, the runner") from None
        except (WireError, WireTimeout):
            pass
        raise self._abuse("an unrequested message")

    def _receive(self, limit_s: float, what: str) -> Reply:
        start = time.monotonic()
        step_deadline = start + limit_s + self._extra_s
        try:
            while True:
                deadline = min(step_deadline, self._deadline)
                try:
                    return receive_reply(
                        self.runner.channel,
                        max(0.0, min(_POLL_S, deadline - time.monotonic())),
                        self.busy_wait,
                    )
                except WireTimeout:
                    if self.runner.poll() is not None:
                        raise self._ended(what) from None
                    if time.monotonic() >= deadline:
                        raise self._timed_out(deadline == step_deadline, limit_s, what) from None
        finally:
            beyond_s = time.monotonic() - start - limit_s
            self._compile_left_s -= min(max(beyond_s, 0.0), self._extra_s)

    @property
    def _extra_s(self) -> float:
        """Seconds by which the present step may exceed its limit."""
        return self._compile_left_s if self._is_first_call else 0.0

    def _verdict_of(self, status: Status) -> Verdict:
        if status is Status.OUT_OF_MEMORY:
            return Verdict.MEMORY_LIMIT_EXCEEDED
        return self._end_verdict

    @property
    def _end_verdict(self) -> Verdict:
        return Verdict.COMPILE_ERROR if self.loading else Verdict.RUNTIME_ERROR

    def _timed_out(self, is_step: bool, limit_s: float, what: str) -> SubmissionFault:
        if is_step:
            reason = f"{what} took longer than {limit_s:g} s"
            if self._is_call:
                reason += " (limits.call_s)"
            if self._is_first_call:
                left_s = f"{self._compile_left_s:.3g} s left of {self._compile_s:g} s"
                reason += f", and than the {left_s} to compile (limits.compile_s)"
        else:
            reason = f"the whole grading took longer than {self._total_s:g} s, at {what}"
        return self._fault(Verdict.TIME_LIMIT_EXCEEDED, reason)

    def _abuse(self, how: str) -> SubmissionFault:
        return self._fault(Verdict.RUNTIME_ERROR, f"it abused the wire to the judge: {how}")

    def _ended(self, what: str) -> SubmissionFault:
        """The wire is closed: wait briefly for the runner to end, then report how it ended."""
        deadline = time.monotonic() + _ENDING_S
        ending = self.runner.poll()
        while ending is None and time.monotonic() < deadline:
            time.sleep(0.01)
            ending = self.runner.poll()
        if ending is None:
            self.runner.stop()
            return self._fault(self._end_verdict, f"{what} closed the wire to the judge")
        return SubmissionFault(self._classify(ending, what))

    def _classify(self, ending: RunnerExit, what: str) -> Fault:
        if ending.output_exceeded:
            return Fault(Verdict.OUTPUT_LIMIT_EXCEEDED, f"{what} printed more than allowed")
        if ending.out_of_memory:
            return Fault(Verdict.MEMORY_LIMIT_EXCEEDED, f"{what} used more memory than allowed")
        if ending.exit_code is None and ending.signal is None and not ending.stopped:
            raise SandboxError(
                f"the sandbox lost track of its runner ({what}){self.last_log_line()}"
            )
        if ending.signal is not None:
            name = _signal_name(ending.signal)
            killed = ending.signal == signal.SIGKILL and not ending.stopped
            return Fault(self._end_verdict, f"{what} was killed by {name}", killed=killed)
        return Fault(self._end_verdict, f"{what} exited with status {ending.exit_code}")

    def last_log_line(self) -> str:
        """``: `` and the last line that the runner printed; empty if it printed none."""
        log = self.runner.log().decode("utf-8", "replace").strip().splitlines()
        return f": {one_line(log[-1])}" if log else ""

    def _fault(self, verdict: Verdict, reason: str) -> SubmissionFault:
        """A fault seen on the wire. A limit that the sandbox saw exceeded takes precedence."""
        ending = self.runner.poll()
        if ending is not None and (ending.output_exceeded or ending.out_of_memory):
            return SubmissionFault(self._classify(ending, "the submission"))
        return SubmissionFault(Fault(verdict, one_line(reason)))


def greet(session: Session, submission: Submission, device: Device) -> int:
    """Ask the runner to import what this submission will need. Returns the request's number."""
    request = {"device": device, "triton": submission.uses_triton}
    with blame_sandbox(session):
        return session.send("hello", request, "starting up")


@contextlib.contextmanager
def blame_sandbox(session: Session) -> Iterator[None]:
    """Turn a `SubmissionFault` into a `SandboxError`. The submission is not loaded yet, so it has
    not made the runner fail."""
    try:
        yield
    except SubmissionFault as stop:
        reason = f"the runner failed at start: {stop.fault.reason}{session.last_log_line()}"
        raise SandboxError(reason) from None


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
