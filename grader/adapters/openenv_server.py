"""An OpenEnv server: an episode is one problem; `reset` asks, and each `step` grades an answer.

A fault of the judge is an error of the step, which the client raises; never a reward of zero.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from grader.adapters.prompts import ANSWER_CHARS, prompt
from grader.adapters.service import GradingService, shared_service
from grader.automation import SandboxName, load_problem
from grader.problem_folders import problem_folders
from grader.report import one_line
from grader.submission import Language


class KernelAction(Action):
    """A model's answer, with the source in its last fenced block of code."""

    answer: str = Field(max_length=ANSWER_CHARS)


class KernelObservation(Observation):
    """The prompt after `reset`, and after a step what became of the answer."""

    problem: str
    text: str
    """For the model to read."""
    report: dict[str, Any] | None = None
    """The report's JSON; null if there was no source to grade."""


class KernelEnvironment(Environment[KernelAction, KernelObservation, State]):
    """One session. Its sandboxes are those of all sessions."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        service: GradingService,
        problems: Sequence[str],
        language: Language,
        turns: int,
        benchmarks: bool,
    ) -> None:
        super().__init__()
        self._service = service
        self._problems = problems
        self._language = language
        self._turns = turns
        self._benchmarks = benchmarks
        self._problem: str | None = None
        self._state = State()

    @property
    def state(self) -> State:
        return self._state

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        problem: str | None = None,
        **_: Any,
    ) -> KernelObservation:
        """Begin an episode on `problem`, or on one that `seed` chooses."""
        name = problem if problem is not None else random.Random(seed).choice(self._problems)
        if name not in self._problems:
            shown = one_line(str(name), 64)
            raise ValueError(f"no problem '{shown}'; there are: {', '.join(self._problems)}")
        self._problem = name
        self._state = State(episode_id=episode_id or uuid4().hex, step_count=0)
        asked = prompt(load_problem(name), self._language)
        return KernelObservation(problem=name, text=asked)

    async def step_async(
        self, action: KernelAction, timeout_s: float | None = None, **_: Any
    ) -> KernelObservation:
        """Grade an answer. The episode is done after the last turn."""
        if self._problem is None or self._state.step_count >= self._turns:
            raise RuntimeError("the episode is over, or has not begun; call reset")
        outcome = await self._service.judge_answer(
            self._problem, action.answer, language=self._language, benchmarks=self._benchmarks
        )
        self._state.step_count += 1
        report = outcome.report
        return KernelObservation(
            problem=self._problem,
            text=outcome.text,
            report=json.loads(report.model_dump_json()) if report is not None else None,
            reward=outcome.reward,
            done=self._state.step_count >= self._turns,
        )

    def step(self, action: KernelAction, timeout_s: float | None = None, **_: Any) -> Any:
        raise NotImplementedError("the server calls step_async")


def make_app(
    problems: Sequence[str] = (),
    *,
    language: Language = "python",
    sandbox: SandboxName = "docker",
    devices: Sequence[str] = (),
    turns: int = 1,
    benchmarks: bool = True,
    sessions: int = 64,
) -> FastAPI:
    """The server, for uvicorn.

    `problems` are names that `grade problems` lists; none for all. `devices` are as of
    `grader.Grader`. `turns` is the number of answers in an episode, `sessions` the most clients at
    a time.
    """
    names = list(problems) or [folder.name for folder in problem_folders()]
    for name in names:
        load_problem(name)
    service = shared_service(sandbox, tuple(devices))
    app = create_fastapi_app(
        lambda: KernelEnvironment(service, names, language, turns, benchmarks),
        KernelAction,
        KernelObservation,
        max_concurrent_envs=sessions,
    )
    assert isinstance(app, FastAPI)
    return app
