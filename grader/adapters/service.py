"""Gradings that event loops await, many at a time, on the sandboxes of one `Grader`."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from typing import Self

from grader.adapters.prompts import NoSourceError, source_of
from grader.adapters.rewards import reward
from grader.automation import (
    AnyProblem,
    AnySource,
    Grader,
    Item,
    Result,
    SandboxName,
    load_problem,
    load_submission,
)
from grader.explanation import explain
from grader.report import Report, one_line
from grader.submission import Language, SubmissionError

EXIT_S = 10.0
"""Wait for sandboxes to end when the process exits. Worker processes end with it in any case."""


class GradingFault(Exception):
    """A fault of the judge, the problem or this machine, in one line. It says nothing about the
    submission, so that the sample has no reward: raise it, or leave the sample out."""


@dataclass(frozen=True)
class Outcome:
    """What became of a model's answer."""

    reward: float
    """From 0 to 1; see `grader.adapters.rewards`."""
    text: str
    """One screen for the model to read."""
    report: Report | None = None
    """None if the answer has no source that can be graded."""


class GradingService:
    """Grades what is handed to it, by a thread that has a `Grader`. What comes while a batch is
    graded is the next batch."""

    def __init__(
        self,
        *,
        devices: Sequence[str] | None = None,
        sandbox: SandboxName = "docker",
        tests_at_once: int | None = None,
    ) -> None:
        """The options of `Grader`. Processes start with the first grading."""
        self._new: Callable[[], Grader] = partial(
            Grader, devices=devices, sandbox=sandbox, tests_at_once=tests_at_once
        )
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, wait_s: float | None = None) -> None:
        """End the sandboxes when the batch that runs has ended; wait at most `wait_s` for it."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(wait_s)
            self._thread = None

    async def grade(
        self,
        problem: AnyProblem,
        source: AnySource,
        *,
        language: Language | None = None,
        benchmarks: bool = True,
    ) -> Report:
        """Grade one submission. Raises `ProblemError`, `SubmissionError` for a source that cannot
        be handed in, ValueError for a device that is not there, and `GradingFault`."""
        found = load_problem(problem)
        load_submission(found, source, language)  # so that what remains is no fault of the source
        self._start()
        request = _Request(Item("", source, found, language, benchmarks), Future())
        self._waiting.put(request)
        result = await asyncio.wrap_future(request.future)
        if result.report is None:
            raise GradingFault(one_line(result.error or "no report"))
        return result.report

    async def judge_answer(
        self,
        problem: AnyProblem,
        answer: str,
        *,
        language: Language = "python",
        benchmarks: bool = True,
    ) -> Outcome:
        """Grade the source in a model's answer. An answer without one, or with one that is too
        large, has no report and no reward. Raises `ProblemError` and `GradingFault`, and
        `NoVerdictError` where no verdict is possible."""
        try:
            source = source_of(answer)
            report = await self.grade(problem, source, language=language, benchmarks=benchmarks)
        except (NoSourceError, SubmissionError) as refused:
            return Outcome(0.0, one_line(str(refused)))
        return Outcome(reward(report), explain(report), report)

    def _start(self) -> None:
        """Start the thread, unless it runs."""
        with self._starting:
            if self._thread is None:
                run = threading.Thread(target=self._run, args=(self._new(),), daemon=True)
                run.start()
                self._thread = run

    def _run(self, grader: Grader) -> None:
        """Grade batches until None comes."""
        with grader:
            while (first := self._waiting.get()) is not None:
                batch = [first]
                while not self._waiting.empty():
                    if (more := self._waiting.get()) is None:
                        self._waiting.put(None)
                        break
                    batch.append(more)
                _grade(grader, batch)


@cache
def shared_service(sandbox: SandboxName, devices: tuple[str, ...] = ()) -> GradingService:
    """The service of this process with these options. It ends with the process."""
    service = GradingService(devices=devices or None, sandbox=sandbox)
    atexit.register(service.close, EXIT_S)
    return service


@dataclass(frozen=True)
class _Request:
    item: Item
    future: Future[Result]


def _grade(grader: Grader, batch: list[_Request]) -> None:
    """Give each request its result. One whose caller has gone is left out."""
    futures = {
        str(number): request.future
        for number, request in enumerate(batch)
        if request.future.set_running_or_notify_cancel()
    }
    items = [
        dataclasses.replace(request.item, key=str(number))
        for number, request in enumerate(batch)
        if str(number) in futures
    ]
    try:
        for result in grader.map(items):
            futures.pop(result.key).set_result(result)
    except Exception as error:  # noqa: BLE001  # the thread goes on; the callers have the error
        for future in futures.values():
            future.set_exception(GradingFault(f"{type(error).__name__}: {error}"))
