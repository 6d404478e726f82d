"""A sandbox in which the code of another set's problem runs: generators, references, checkers.

The judge imports none of it. Tensors come and go in lent memory, and are copied; what else the code
says is JSON of limited size, which the judge validates.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, TypeAdapter, ValidationError

from grader.arena import TensorSpec, Value, arrange, view
from grader.arena.layout import spec_of
from grader.judge.memory.shared_block import ReusedArena
from grader.judge.session import Session, blame_sandbox
from grader.judge.verdict import SubmissionFault
from grader.problem.imported import MOST_CASES, CaseForm, CaseHead, SetSource
from grader.problem.spec import ProblemError
from grader.report import one_line
from grader.sandbox.base import Device, RunnerLimits, Sandbox
from grader.wire import fixed_size_memfd, sealed_memfd

ANSWER_BYTES = 16 << 20
STEP_S = 120.0
"""How long the problem's code may take for one set of inputs or answers."""
SESSION_S = 1e9
KEPT_BYTES = 1 << 30
"""A larger lent block is freed after the request that it is for, by both sides."""
LIMITS = RunnerLimits(
    memory_bytes=12 << 30, scratch_bytes=1 << 30, output_bytes=64 << 20, pids=1024
)

Valid = TypeVar("Valid")


class SetProblemError(ProblemError):
    """The problem of a set cannot be judged, for a reason that its own code gave."""


class SetMemoryError(SetProblemError):
    """The problem's code ran out of device memory."""


class SetHost:
    """One problem's code in its sandbox. Every failure is a `ProblemError`, but running out of
    memory here is not."""

    def __init__(self, source: SetSource, sandbox: Sandbox, device: Device) -> None:
        self.source = source
        self.device = device
        self._sandbox = sandbox
        self._answer = fixed_size_memfd("answer", ANSWER_BYTES)
        self._start()
        self.peak_bytes = 0
        """Most device memory that the last reference took in the sandbox, with its inputs in
        float64 and its outputs, and without lent memory; 0 on a CPU."""
        self.heads: list[CaseHead] = []
        """The problem's cases, once it is open."""

    def _start(self) -> None:
        self._arena = ReusedArena(self.device)
        self._lent: Any = None
        self._runner = self._sandbox.start(LIMITS, self.device)
        self._session = Session(self._runner, SESSION_S)

    def _restart(self) -> None:
        self._runner.stop()
        self._arena.close()
        self._start()
        self.open()

    def open(self) -> list[CaseHead]:
        """Have the problem imported. Returns its cases."""
        files = self.source.files
        fd = sealed_memfd("files", b"".join(files.values()))
        request = {
            "set": self.source.set,
            "options": dict(self.source.options),
            "files": {name: len(content) for name, content in files.items()},
        }
        try:
            with blame_sandbox(self._session):
                self._session.ask(
                    "hello", {"device": self.device, "triton": False}, STEP_S, "starting up"
                )
            heads = self._ask("open", request, "importing it", (fd, self._answer))
        finally:
            os.close(fd)
        found = self._valid(
            TypeAdapter(Annotated[list[CaseHead], Field(max_length=MOST_CASES)]), heads
        )
        names = [head.name for head in found]
        if twice := [name for name in names if names.count(name) > 1]:
            raise self._error("describing itself", f"two cases are named '{twice[0]}'")
        return found

    def memory_bytes(self) -> int:
        """About what the tensors of the largest case take, as far as its code says."""
        found = self._ask("memory", {}, "estimating its memory")
        return _bytes_of(found)

    def describe(self, number: int) -> CaseForm:
        """What the values of a case are made of."""
        found = self._ask("describe", {"case": number}, f"describing case {number + 1}")
        return self._valid(TypeAdapter(CaseForm), found)

    def generate(self, number: int, specs: list[TensorSpec], seed: int) -> list[torch.Tensor]:
        """A case's input tensors for a seed, on the judge's device."""
        request = {"case": number, "seed": seed}
        return self._ask_with([], specs, "generate", request, "generating inputs")[1]

    def reference(
        self, number: int, inputs: Sequence[torch.Tensor], outputs: list[TensorSpec], wide: bool
    ) -> list[torch.Tensor]:
        """The outputs for these inputs; with `wide`, computed in float64."""
        request, what = {"case": number, "wide": wide}, "computing the reference"
        found, _ = self._ask_with(inputs, [], "reference", request, what)
        peak_bytes = found.get("peak_bytes") if isinstance(found, dict) else None
        self.peak_bytes = _bytes_of(peak_bytes)
        # In a block of their own: by now the sandbox has freed what it needed of the inputs.
        return self._ask_with([], outputs, "collect", request, what)[1]

    def check(
        self, number: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> tuple[bool, str]:
        """Whether the set's own check finds the outputs right, and its message."""
        given = [*inputs, *outputs]
        found, _ = self._ask_with(given, [], "check", {"case": number}, "running its check")
        if isinstance(found, dict) and found.get("lost") is True:
            self._restart()  # for the next output
        right = isinstance(found, dict) and found.get("right") is True
        return right, one_line(str(found.get("message", "")) if isinstance(found, dict) else "")

    def close(self) -> None:
        """End the sandbox."""
        self._runner.stop()
        self._arena.close()
        with suppress(OSError):
            os.close(self._answer)
        self._answer = -1

    @property
    def is_running(self) -> bool:
        """Whether it can still be asked."""
        return self._answer >= 0 and self._runner.poll() is None

    def _ask_with(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: list[TensorSpec],
        do: str,
        request: dict[str, Any],
        what: str,
    ) -> tuple[Any, list[torch.Tensor]]:
        """Ask with a lent block of these inputs and of room for outputs. Returns the answer, and
        private copies of the outputs."""
        places = self._lend(inputs, outputs)
        is_large = self._lent.nbytes > KEPT_BYTES
        try:
            answer = self._ask(do, request | {"release": is_large}, what)
            return answer, [place.clone() for place in places]
        finally:
            if is_large:
                self._arena.close()
                self._lent = None

    def _lend(
        self, inputs: Sequence[torch.Tensor], outputs: list[TensorSpec]
    ) -> list[torch.Tensor]:
        """Lend a block with the inputs and with room for the outputs, which is returned."""
        specs = list(map(spec_of, inputs))
        values: list[tuple[bool, Value]] = [(False, spec) for spec in specs]
        layout = arrange([values + [(True, spec) for spec in outputs]])
        if self.device == "cuda" and layout.nbytes > KEPT_BYTES:
            torch.cuda.empty_cache()  # the sandbox will need about as much
        arena = self._arena.arena(layout.nbytes)
        tensors = [view(arena.buffer, spec) for spec in layout.sets[0]]  # type: ignore[arg-type]
        for place, tensor in zip(tensors, inputs, strict=False):
            place.copy_(tensor)
        if self.device == "cuda":
            torch.cuda.synchronize()
        text = layout.to_json()
        fd = sealed_memfd("layout", text)
        fds = (fd,) if arena is self._lent else (fd, arena.fd)
        request = {"layout_bytes": len(text), "arena_bytes": arena.nbytes, "shape": None}
        try:
            self._guarded("lend", request, "taking the lent memory", fds)
        finally:
            os.close(fd)
        self._lent = arena
        return tensors[len(inputs) :]

    def _ask(self, do: str, request: dict[str, Any], what: str, fds: tuple[int, ...] = ()) -> Any:
        reply = self._guarded("set", {"do": do} | request, what, fds)
        text = os.pread(self._answer, min(reply.calls, ANSWER_BYTES), 0)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            raise self._error(what, "its answer is no JSON") from None
        if not isinstance(answer, dict):
            raise self._error(what, "its answer is no object")
        if "unsupported" in answer:
            raise SetProblemError(f"{self.source.folder}: {one_line(str(answer['unsupported']))}")
        if "out_of_memory" in answer:
            how = one_line(str(answer["out_of_memory"]))
            raise SetMemoryError(f"{self.source.folder}: {what}: out of device memory: {how}")
        return answer.get("answer")

    def _guarded(
        self, kind: str, request: dict[str, Any], what: str, fds: tuple[int, ...] = ()
    ) -> Any:
        try:
            return self._session.ask(kind, request, STEP_S, what, fds=fds)
        except SubmissionFault as stop:
            if not self._session.has_answered:  # it may yet, in place of a later one
                self._runner.stop()
            reason = stop.fault.reason + self._session.last_log_line()
            raise self._error(what, reason) from None

    def _error(self, what: str, reason: str) -> SetProblemError:
        return SetProblemError(f"{self.source.folder}: {what}: {one_line(reason)}")

    def _valid(self, adapter: TypeAdapter[Valid], found: Any) -> Valid:
        try:
            return adapter.validate_python(found)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise self._error("describing itself", f"{where}: {first['msg']}") from None


def _bytes_of(found: object) -> int:
    """A number of bytes that the sandbox named, or 0 if it is none."""
    return found if isinstance(found, int) and 0 <= found < 2**50 else 0


_LOCK = threading.Lock()
_KEPT: list[tuple[tuple[str, Device, str], SetHost]] = []


def open_host(source: SetSource, sandbox: Sandbox, device: Device) -> SetHost:
    """A host of this problem. The last one is kept until the process ends, since starting one
    takes seconds."""
    key = (f"{source.folder} {source.digest()}", device, sandbox.describe())
    with _LOCK:
        if _KEPT and (_KEPT[0][0] != key or not _KEPT[0][1].is_running):
            _KEPT.pop()[1].close()
        if not _KEPT:
            host = SetHost(source, sandbox, device)
            try:
                host.heads = host.open()
            except BaseException:
                host.close()
                raise
            _KEPT.append((key, host))
        return _KEPT[0][1]


@atexit.register
def close_hosts() -> None:
    """End the sandbox of the problem that is kept, if there is one."""
    while _KEPT:
        _KEPT.pop()[1].close()
