"""`grade mcp`, by the real client of the package, over stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from grader.report import Report
from tests.adapters.conftest import RIGHT, ROOT, WRONG, run_example
from tests.sets import made_up

pytestmark = pytest.mark.mcp

Talk = Callable[[Any], Coroutine[Any, Any, None]]


def converse(talk: Talk, root: Path, *options: str) -> str:
    """Start a server, let `talk` use its client, and return what the server wrote to stderr."""
    from mcp import Client, StdioServerParameters, stdio_client

    log = root / "stderr"
    server = StdioServerParameters(
        command=sys.executable,
        args=[
            *("-m", "grader.cli", "mcp", "--device", "cpu", "--sandbox", "process", "--root", "."),
            *options,
        ],
        cwd=root,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )

    async def run() -> None:
        with log.open("w") as stderr:
            async with Client(stdio_client(server, errlog=stderr)) as client:
                await talk(client)

    asyncio.run(asyncio.wait_for(run(), 500))
    return log.read_text()


def text(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


def test_tools_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)

    async def talk(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"list", "show", "check", "grade", "profile"}
        assert "verdict" in tools["grade"].output_schema["properties"]

        listed = await client.call_tool("list", {})
        names = [one["name"] for one in listed.structured_content["problems"]]
        assert "softmax" in names
        assert len(text(listed).splitlines()) == len(names)

        shown = await client.call_tool("show", {"problem": "softmax", "starter": "torch"})
        assert shown.structured_content["spec"]["entry"] == "softmax"
        assert "def softmax(" in shown.structured_content["starter"]
        assert shown.structured_content["statement"] in text(shown)

        checked = await client.call_tool("check", {"problem": "softmax", "source": WRONG})
        assert not checked.is_error
        report = Report.model_validate(checked.structured_content)
        assert report.verdict == "wrong_answer"
        assert {case.kind for case in report.cases} == {"test"}
        assert text(checked).splitlines()[1].startswith("wrong_answer: ")
        assert len(text(checked).splitlines()) <= 40

        graded = await client.call_tool("grade", {"problem": "softmax", "path": "right.py"})
        report = Report.model_validate(graded.structured_content)
        assert report.verdict == "accepted"
        assert {case.kind for case in report.cases} == {"test", "benchmark"}
        assert report.submission_name == "right.py"

        profiled = await client.call_tool("profile", {"problem": "softmax", "source": RIGHT})
        assert profiled.structured_content["problem"] == "softmax", text(profiled)
        assert profiled.structured_content["limit"] in text(profiled)
        broken = await client.call_tool("profile", {"problem": "softmax", "source": "def ("})
        assert Report.model_validate(broken.structured_content).verdict == "compile_error"

    assert converse(talk, tmp_path) == ""


def test_problems_of_other_sets(tmp_path: Path) -> None:
    """Those that the operator names, and no others: a client cannot name a path."""
    file = made_up.kernelbench(tmp_path)
    problem = {"problem": "kernelbench_level1_7_linear_norm"}
    right = made_up.MODEL.replace("class Model(", "class ModelNew(")

    async def talk(client: Any) -> None:
        listed = await client.call_tool("list", {})
        assert problem["problem"] in text(listed)
        shown = await client.call_tool("show", problem)
        assert "class ModelNew" in shown.structured_content["starter"]
        checked = await client.call_tool("check", problem | {"source": right})
        assert Report.model_validate(checked.structured_content).verdict == "accepted"
        profiled = await client.call_tool("profile", problem | {"source": right})
        assert profiled.structured_content["problem"] == problem["problem"], text(profiled)
        named = await client.call_tool("show", {"problem": f"kernelbench:{file}"[-64:]})
        assert named.is_error

    log = converse(talk, tmp_path, "--problem", f"kernelbench:{tmp_path}")
    assert log == "importing the problems of other sets; this may take minutes\n"


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link.py").symlink_to("/etc/passwd")
    outside = ROOT / "submissions" / "softmax" / "accepted" / "torch_softmax.py"
    softmax = {"problem": "softmax"}
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("show", {"problem": "softmix"}, "show: no problem 'softmix'; did you mean 'softmax'?"),
        ("check", {"problem": str(ROOT / "problems" / "softmax"), "source": RIGHT}, "no problem"),
        ("check", {"problem": "../../softmax", "source": RIGHT}, "no problem '../../softmax'"),
        ("check", softmax, "check: give `source`, the text of a submission, or `path`, its file"),
        ("check", softmax | {"path": str(outside)}, "not below the server's folder"),
        ("check", softmax | {"path": "../x.py"}, "not below the server's folder"),
        ("check", softmax | {"path": "inside/link.py"}, "not below the server's folder"),
        ("grade", softmax | {"path": "notes.txt"}, "a submission is a .py or .cu file"),
        ("grade", softmax | {"path": "gone.py"}, "no such file"),
        ("grade", softmax | {"source": "x" * (1 << 21)}, "1,048,576 are allowed"),
        ("grade", softmax | {"source": "x" * (5 << 20)}, "grade: source: String should have"),
        ("grade", softmax | {"source": "x", "language": "c"}, "grade: language: Input should be"),
        ("profile", softmax | {"source": "x", "case": "smal"}, "no benchmark case 'smal'"),
    ]

    async def talk(client: Any) -> None:
        for tool, arguments, expected in calls:
            result = await client.call_tool(tool, arguments)
            assert result.is_error, (tool, expected)
            assert expected in text(result)
            assert "\n" not in text(result)
            assert "Traceback" not in text(result)

    assert "Traceback" not in converse(talk, tmp_path)


def test_the_example_of_the_page(tmp_path: Path) -> None:
    assert run_example("An agent (MCP)", tmp_path) == ["accepted"]
