"""Processes that run torch.compile, one per benchmark case (`compiled_worker`).

The cases compile at the same time while nothing is timed: the graphs of AdamW's lists of 1,000
tensors take torch most of a minute in one thread. The processes then wait, and time their cases one
after the other. A process can be ended at any moment, so neither a slow compilation nor Ctrl-C
leaves a broken torch behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from grader.judge.record import Progress, ProgressCallback
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import one_line

COMPILE_S = 40.0
"""The most that compiling all cases of a problem may take, starting the processes included. `grade
baseline` should end within 120 s; the rest of AdamW's took 61 s on an H100, 75 in a busy host."""
TIMING_S = 30.0
"""The most that timing one compiled case may take; a few seconds are usual."""
SHOWN_EVERY_S = 1.0
COMMAND = (sys.executable, "-m", "grader.judge.timing.compiled_worker")


class NotCompiledError(Exception):
    """One case has no time of torch.compile. Its text says why."""


class CompiledCase:
    """The process of one benchmark case, in a process group of its own."""

    def __init__(self, problem: Problem, case: Case, device: str) -> None:
        self.case = case
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [*COMMAND, str(problem.folder), problem.digest, case.name, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def fileno(self) -> int:
        """Readable when a reply waits, or the process has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def time_us(self) -> float:
        """Microseconds per call. Raises `NotCompiledError`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` says how the process ended
            self._process.stdin.write(b"time\n")
            self._process.stdin.flush()
        if not select.select([self], [], [], TIMING_S)[0]:
            raise NotCompiledError(f"timing it took longer than {TIMING_S:g} s; left out")
        return float(self.receive()["time_us"])

    def receive(self) -> dict[str, Any]:
        """The next reply. Raises `NotCompiledError` if that is a failure, or there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotCompiledError(f"its process ended: {self._ending()}")
        reply = json.loads(line)
        if "error" in reply:
            raise NotCompiledError(reply["error"])
        assert isinstance(reply, dict)
        return reply

    def end(self) -> None:
        """End the process and what it has started. Idempotent."""
        if not self._log.closed:
            # Its id is also its group's, and is not reused until we have waited for it.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for file in (self._process.stdin, self._process.stdout, self._log):
                assert file is not None
                with suppress(BrokenPipeError):  # a request that the process never read
                    file.close()

    def _ending(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        log = self._log.read().decode("utf-8", "replace").strip().splitlines()
        ending = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"{ending}: {one_line(log[-1])}" if log else ending


@contextmanager
def compiled_cases(
    problem: Problem,
    cases: Sequence[Case],
    device: str,
    notes: list[str],
    progress: ProgressCallback,
) -> Iterator[list[CompiledCase]]:
    """Compile all `cases` at the same time, as many as there are processors. Yields those that were
    compiled within `COMPILE_S`, in order; a note on every other one says why it is left out. All
    processes end with the block."""
    waiting = deque(cases)
    compiling: list[CompiledCase] = []
    compiled: list[CompiledCase] = []
    start_s = time.monotonic()
    try:
        while waiting or compiling:
            passed_s = time.monotonic() - start_s
            if passed_s >= COMPILE_S:
                break
            while waiting and len(compiling) < len(os.sched_getaffinity(0)):
                compiling.append(CompiledCase(problem, waiting.popleft(), device))
            names = ", ".join(process.case.name for process in compiling)
            done = len(cases) - len(waiting) - len(compiling)
            shown = f"{passed_s:.0f} s of {COMPILE_S:g} s: {names}"
            progress(Progress("compile", shown, done, len(cases)))
            wait_s = min(SHOWN_EVERY_S, COMPILE_S - passed_s)
            for process in select.select(compiling, [], [], wait_s)[0]:
                compiling.remove(process)
                try:
                    process.receive()
                    compiled.append(process)
                except NotCompiledError as error:
                    notes.append(note(process.case, error))
                    process.end()
        for case in [*(process.case for process in compiling), *waiting]:
            late = NotCompiledError(f"not compiled within {COMPILE_S:g} s; left out")
            notes.append(note(case, late))
        for process in compiling:  # they would disturb the times
            process.end()
        yield sorted(compiled, key=lambda process: cases.index(process.case))
    finally:
        for process in [*compiling, *compiled]:
            process.end()


def note(case: Case, error: NotCompiledError) -> str:
    """Why torch.compile has no time for a case."""
    return f"torch.compile, case '{case.name}': {error}"
