"""The server over a real socket, with the package's own client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.adapters import service
from grader.adapters.rewards import TESTS_SHARE
from tests.adapters.conftest import RIGHT, WRONG, answer, run_example

pytestmark = pytest.mark.openenv


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    import uvicorn

    from grader.adapters.openenv_server import make_app

    app = make_app(
        ["softmax", "square"], sandbox="process", devices=["cpu"], turns=2, benchmarks=False
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        deadline_s = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline_s:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def client(url: str) -> Any:
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url, message_timeout_s=240).sync()


def test_an_episode(url: str) -> None:
    with client(url) as env:
        began = env.reset(problem="softmax")
        assert "def softmax(x, out)" in began.observation["text"]
        assert (began.reward, began.done) == (None, False)
        wrong = env.step({"answer": answer(WRONG)})
        assert wrong.observation["report"]["verdict"] == "wrong_answer"
        assert 0 <= wrong.reward < TESTS_SHARE
        assert not wrong.done
        right = env.step({"answer": answer(RIGHT)})
        assert right.observation["report"]["verdict"] == "accepted"
        assert right.observation["text"].splitlines()[1].startswith("accepted: ")
        assert (right.reward, right.done) == (TESTS_SHARE, True)
        assert env.state()["step_count"] == 2
        with pytest.raises(RuntimeError, match="the episode is over"):
            env.step({"answer": answer(RIGHT)})


def test_a_seed_chooses_the_problem(url: str) -> None:
    with client(url) as env:
        chosen = [env.reset(seed=seed).observation["problem"] for seed in (1, 1, 2, 3, 4, 5)]
    assert chosen[0] == chosen[1]
    assert set(chosen) == {"softmax", "square"}


@pytest.mark.parametrize("name", ["matmul", "/etc", "../problems/softmax"])
def test_only_problems_of_the_server(url: str, name: str) -> None:
    with client(url) as env, pytest.raises(RuntimeError, match="there are: softmax, square"):
        env.reset(problem=name)


def test_an_answer_without_a_source_and_one_that_is_too_long(url: str) -> None:
    with client(url) as env:
        env.reset(problem="softmax")
        none = env.step({"answer": "I cannot."})
        assert (none.reward, none.observation["report"]) == (0.0, None)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            env.step({"answer": "x" * (5 << 20)})


def test_a_fault_is_an_error_without_a_reward(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(*_: Any, **__: Any) -> None:
        raise service.GradingFault("no sandbox starts")

    monkeypatch.setattr(service.GradingService, "grade", fault)
    with client(url) as env:
        env.reset(problem="softmax")
        with pytest.raises(RuntimeError, match="no sandbox starts"):
            env.step({"answer": answer(RIGHT)})
        assert env.state()["step_count"] == 0


def test_the_example_of_the_page(tmp_path: Path) -> None:
    assert run_example("An OpenEnv server", tmp_path) == [
        "# Softmax over",
        f"{TESTS_SHARE} accepted",
    ]
