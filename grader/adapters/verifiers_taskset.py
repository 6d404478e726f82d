"""A taskset for `verifiers`: each problem is a task, and its reward comes from the report.

A fault of the judge is an error of the rollout, whose reward stays unset; never a zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf
from pydantic import Field

from grader.adapters.prompts import prompt
from grader.adapters.service import shared_service
from grader.automation import SandboxName, load_problem
from grader.problem_folders import problem_folders
from grader.submission import Language

__all__ = ["KernelTaskset"]


class KernelData(vf.TaskData):
    """One problem and what it is to be written in."""

    problem: str
    language: Literal["python", "cuda"] = "python"


class KernelTaskConfig(vf.TaskConfig):
    """How answers are graded."""

    sandbox: SandboxName = "docker"
    devices: list[str] | None = None
    """As of `grader.Grader`."""
    benchmarks: bool = True
    """Whether to time what passes its tests. Without, no reward is above `TESTS_SHARE`."""


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    """Write one kernel; the last reply counts."""

    @vf.reward
    async def kernel_reward(self, trace: vf.Trace) -> float:
        """See `grader.adapters.rewards`. The trace's `info` has the text for the model, and the
        report."""
        config = self.config
        service = shared_service(config.sandbox, tuple(config.devices or ()))
        outcome = await service.judge_answer(
            self.data.problem,
            trace.last_reply,
            language=self.data.language,
            benchmarks=config.benchmarks,
        )
        report = outcome.report
        trace.info["grade"] = {
            "text": outcome.text,
            "report": json.loads(report.model_dump_json()) if report is not None else None,
        }
        return outcome.reward


class KernelTasksetConfig(vf.TasksetConfig):
    """Which problems there are."""

    problems: list[str] = Field(default_factory=list)
    """Names, as `grade problems` lists them; empty for all."""
    language: Language = "python"
    task: KernelTaskConfig = KernelTaskConfig()


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    """The problems of this machine."""

    def load(self) -> Iterator[KernelTask]:
        language = self.config.language
        for name in self.config.problems or [folder.name for folder in problem_folders()]:
            asked = prompt(load_problem(name), language)
            data = KernelData(name=name, prompt=asked, problem=name, language=language)
            yield KernelTask(data, self.config.task)
