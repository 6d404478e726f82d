"""The taskset in a rollout of the real package: its environment, its interception server, a harness
that makes one call, and a model that answers as an OpenAI endpoint does."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grader.adapters import service
from grader.adapters.rewards import TESTS_SHARE
from tests.adapters.conftest import RIGHT, WRONG, answer, example

pytestmark = pytest.mark.verifiers

HARNESS = """
import httpx
import verifiers.v1 as vf


class OneCall(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt_text}]
        async with httpx.AsyncClient(timeout=60) as client:
            answered = await client.post(
                endpoint + "/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": "Bearer " + secret},
            )
        answered.raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["OneCall"]
"""


class Model(ThreadingHTTPServer):
    """Answers each call with `answer`, and keeps the last prompt."""

    answer = ""
    prompt = ""


class Completions(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.prompt = asked["messages"][-1]["content"]
        message = {"role": "assistant", "content": self.server.answer}
        body = json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "model",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def model() -> Iterator[Model]:
    with Model(("127.0.0.1", 0), Completions) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that a user of verifiers names: a taskset and a harness."""
    names = {"kernel_tasks": example("A taskset for verifiers"), "one_call": HARNESS}
    for name, text in names.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in names:
        sys.modules.pop(name, None)


def rollout(model: Model, text: str) -> Any:
    """The trace of one rollout in which the model answers with `text`."""
    import verifiers.v1 as vf

    model.answer = text
    taskset = {
        "id": "kernel-tasks",
        "problems": ["softmax"],
        "task": {"sandbox": "process", "devices": ["cpu"], "benchmarks": False},
    }
    agent = {"harness": {"id": "one-call"}, "runtime": {"type": "subprocess"}}
    config = vf.SingleAgentEnvConfig.model_validate({"taskset": taskset, "agent": agent})
    endpoint = f"http://127.0.0.1:{model.server_port}/v1"
    client = vf.EvalClientConfig(base_url=endpoint)
    env = vf.SingleAgentEnv(config)

    async def run() -> Any:
        (task,) = env.taskset
        async with env.serving():
            return await env.run_episode(task, vf.ModelContext("model", client))

    (trace,) = asyncio.run(run()).traces
    return trace


@pytest.mark.usefixtures("plugins")
def test_rewards_come_from_reports(model: Model) -> None:
    right = rollout(model, answer(RIGHT))
    assert right.ok, right.errors
    assert "def softmax(x, out)" in model.prompt
    assert right.reward == TESTS_SHARE
    assert right.info["grade"]["report"]["verdict"] == "accepted"
    wrong = rollout(model, answer(WRONG))
    assert 0 <= wrong.reward < TESTS_SHARE
    assert "wrong_answer: " in wrong.info["grade"]["text"]
    none = rollout(model, "I cannot.")
    assert none.ok
    assert none.reward == 0
    assert none.rewards["kernel_reward"].score == 0
    assert none.info["grade"]["report"] is None


@pytest.mark.usefixtures("plugins")
def test_a_fault_is_an_error_without_a_reward(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: Any, **__: Any) -> None:
        raise service.GradingFault("no sandbox starts")

    monkeypatch.setattr(service.GradingService, "grade", fault)
    trace = rollout(model, answer(RIGHT))
    assert not trace.ok
    assert trace.rewards == {"kernel_reward": None}
    assert trace.last_error.type == "TaskError"
    assert "no sandbox starts" in trace.last_error.message


@pytest.mark.usefixtures("plugins")
def test_all_problems_by_default() -> None:
    import verifiers.v1 as vf

    tasks = list(vf.load_taskset(vf.taskset_config_type("kernel-tasks")(id="kernel-tasks")))
    names = [task.data.problem for task in tasks]
    assert {"softmax", "square"} <= set(names)
    assert len({task.key for task in tasks}) == len(names)
    assert all(task.data.prompt_text for task in tasks)
