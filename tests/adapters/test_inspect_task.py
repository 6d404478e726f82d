"""The task, in the real package with its mock model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.adapters import service
from grader.adapters.rewards import TESTS_SHARE
from tests.adapters.conftest import RIGHT, WRONG, answer, run_example

pytestmark = [
    pytest.mark.inspect,
    # Of tenacity, which inspect_ai calls in an older way.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    # inspect_ai leaves streams of its own open.
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]


def run(tmp_path: Path, answers: list[str], **options: Any) -> Any:
    """Evaluate one sample for each answer of a mock model."""
    from inspect_ai import eval as evaluate
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from grader.adapters.inspect_task import kernels

    outputs = [ModelOutput.from_content("mockllm/model", one) for one in answers]
    for output in outputs:
        output.usage = ModelUsage()  # else the mock model counts tokens, by a table of the Internet
    (log,) = evaluate(
        kernels("softmax", sandbox="process", device="cpu", benchmarks=False),
        model=get_model("mockllm/model", custom_outputs=outputs),
        epochs=len(answers),
        max_samples=1,
        log_dir=str(tmp_path),
        display="none",
        **options,
    )
    return log


def test_scores_come_from_reports(tmp_path: Path) -> None:
    log = run(tmp_path, [answer(RIGHT), answer(WRONG), "I cannot."])
    assert log.status == "success", log.error
    scores = [sample.scores["kernel_scorer"] for sample in log.samples]
    verdicts = [
        score.metadata["report"] and score.metadata["report"]["verdict"] for score in scores
    ]
    assert verdicts == ["accepted", "wrong_answer", None]
    assert scores[0].value == TESTS_SHARE
    assert scores[1].value < TESTS_SHARE
    assert scores[2].value == 0
    assert "wrong_answer: " in scores[1].explanation
    assert "softmax" in log.samples[0].input


def test_a_fault_is_an_error_without_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: Any, **__: Any) -> None:
        raise service.GradingFault("no sandbox starts")

    monkeypatch.setattr(service.GradingService, "grade", fault)
    log = run(tmp_path, [answer(RIGHT)], fail_on_error=False)
    (sample,) = log.samples
    assert "no sandbox starts" in sample.error.message
    assert not sample.scores


def test_the_example_of_the_page(tmp_path: Path) -> None:
    assert run_example("A task for Inspect", tmp_path)[-1] == str(TESTS_SHARE)
