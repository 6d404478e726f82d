"""A task for Inspect: each problem is a sample, and the scorer calls the grader.

A fault of the judge is an error of the sample, which then has no score; never a zero.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState, generate

from grader.adapters.prompts import prompt
from grader.adapters.service import shared_service
from grader.automation import SandboxName, load_problem
from grader.problem_folders import problem_folders
from grader.submission import Language


@task
def kernels(
    problems: str | Sequence[str] = (),
    language: Language = "python",
    sandbox: SandboxName = "docker",
    device: str | None = None,
    benchmarks: bool = True,
) -> Task:
    """Write kernels, one answer each.

    `problems` are names that `grade problems` lists; none for all. `device` is as of
    `grader.Grader`. Without `benchmarks`, no score is above `TESTS_SHARE`.
    """
    names = [problems] if isinstance(problems, str) else list(problems)
    samples = [
        Sample(
            id=name,
            input=prompt(load_problem(name), language),
            metadata={"problem": name, "language": language},
        )
        for name in names or [folder.name for folder in problem_folders()]
    ]
    return Task(
        dataset=MemoryDataset(samples, name="kernels"),
        solver=generate(),
        scorer=kernel_scorer(sandbox, device, benchmarks),
    )


@scorer(metrics=[mean(), stderr()])
def kernel_scorer(
    sandbox: SandboxName = "docker", device: str | None = None, benchmarks: bool = True
) -> Scorer:
    """The reward of the answer, from 0 to 1; see `grader.adapters.rewards`. A sample's metadata
    has its `problem` and `language`."""
    service = shared_service(sandbox, (device,) if device else ())

    async def score(state: TaskState, target: Target) -> Score:
        outcome = await service.judge_answer(
            state.metadata["problem"],
            state.output.completion,
            language=state.metadata["language"],
            benchmarks=benchmarks,
        )
        report = outcome.report
        return Score(
            value=outcome.reward,
            explanation=outcome.text,
            metadata={"report": json.loads(report.model_dump_json()) if report else None},
        )

    return score
