"""A server of the Model Context Protocol: an agent lists problems, and checks, grades and profiles
its kernels. `grade mcp` runs it on stdin and stdout.

The client is not trusted. It names problems of this machine, never folders, since the judge runs a
problem's code; and it names files only below one folder.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from grader.adapters.service import EXIT_S, GradingFault, GradingService
from grader.automation import SandboxName, load_problem, profile
from grader.explanation import explain
from grader.problem import Problem, ProblemError
from grader.problem.scaffold import scaffold
from grader.problem_folders import problem_folders
from grader.report import Report, one_line
from grader.sandbox import Device, SandboxError
from grader.submission import Language, SubmissionError, language_of

SOURCE_CHARS = 4 << 20
"""Longest source of a call; the limit of the problem, 1 MiB by default, counts besides."""
ERROR_CHARS = 1000
MOST_KERNELS = 8
"""Kernels of a profile that its text shows."""

INSTRUCTIONS = (
    "Write GPU kernels for the problems of `list`. `show` has the statement and a starter file, "
    "`check` says whether a kernel is right, `grade` also times it, `profile` says what limits it."
)

ProblemName = Annotated[str, Field(max_length=64, description="A name of `list`.")]
Source = Annotated[
    str | None, Field(max_length=SOURCE_CHARS, description="The whole text of the submission.")
]
FilePath = Annotated[
    str | None,
    Field(max_length=4096, description="Instead of `source`: a .py or .cu file of the server."),
]
SourceLanguage = Annotated[
    Literal["python", "cuda"], Field(description="Of `source`; of a file, its extension says it.")
]


class ProblemLine(BaseModel):
    """One problem of the list."""

    name: str
    title: str
    summary: str
    topic: str | None
    level: int | None
    """From 1, a first kernel, to 5, days for an expert."""


class ProblemNames(BaseModel):
    """All problems that can be named."""

    problems: list[ProblemLine]


class ProblemPage(BaseModel):
    """A problem: the object of ``grade show --json``, and a starter file."""

    problem: str
    problem_digest: str
    statement: str
    spec: dict[str, Any]
    starter: str


def make_server(
    root: Path,
    *,
    device: Device | None = None,
    sandbox: SandboxName = "docker",
    more: Mapping[str, Problem] | None = None,
) -> MCPServer[None]:
    """The server. Files of submissions are read below `root` only. It has the problems that are
    found by their names, and `more` by name."""
    of_sets = more or {}
    service = GradingService(devices=[device] if device else None, sandbox=sandbox)
    profiling = asyncio.Lock()

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(service.close, EXIT_S)

    server = _Server("grade", instructions=INSTRUCTIONS, lifespan=lifespan, log_level="ERROR")
    reads = ToolAnnotations(read_only_hint=True)

    async def report_of(
        problem: str, source: str | None, path: str | None, language: Language, benchmarks: bool
    ) -> CallToolResult:
        one = _problem(problem, of_sets)
        text, of = _source(root, source, path, language)
        report = await service.grade(one, text, language=of, benchmarks=benchmarks)
        return _result(report, explain(report))

    @server.tool(name="list", annotations=reads)
    def list_problems() -> Annotated[CallToolResult, ProblemNames]:
        """List the problems: name, title, summary, topic and level."""
        every = [*_loadable(), *of_sets.values()]
        found = ProblemNames(problems=[_line(problem) for problem in every])
        lines = [f"{one.name}: {one.summary}" for one in found.problems]
        return _result(found, "\n".join(lines))

    @server.tool(annotations=reads)
    def show(
        problem: ProblemName, starter: Literal["triton", "torch", "cuda"] = "triton"
    ) -> Annotated[CallToolResult, ProblemPage]:
        """Show a problem: statement, arguments, cases, limits, and a starter file that loads."""
        one = _problem(problem, of_sets)
        page = ProblemPage(
            problem=one.name,
            problem_digest=one.digest,
            statement=one.statement,
            spec=one.spec.model_dump(mode="json"),
            starter=scaffold(one, starter),
        )
        return _result(page, f"{page.statement}\n\nA starter file:\n\n{page.starter}")

    @server.tool(annotations=reads)
    async def check(
        problem: ProblemName,
        source: Source = None,
        path: FilePath = None,
        language: SourceLanguage = "python",
    ) -> Annotated[CallToolResult, Report]:
        """Test a kernel: is it right? Quicker than `grade`, as nothing is timed."""
        return await report_of(problem, source, path, language, benchmarks=False)

    @server.tool(annotations=reads)
    async def grade(
        problem: ProblemName,
        source: Source = None,
        path: FilePath = None,
        language: SourceLanguage = "python",
    ) -> Annotated[CallToolResult, Report]:
        """Grade a kernel: is it right, and how fast is it? Nothing is recorded on a board."""
        return await report_of(problem, source, path, language, benchmarks=True)

    @server.tool(name="profile", annotations=reads)
    async def profile_kernel(
        problem: ProblemName,
        source: Source = None,
        path: FilePath = None,
        language: SourceLanguage = "python",
        case: Annotated[str | None, Field(max_length=64, description="A benchmark.")] = None,
    ) -> Annotated[CallToolResult, dict[str, Any]]:
        """Say what limits a kernel: registers, occupancy, rates against ceilings. The result is the
        object of `grade profile --json`, or the report if the kernel fails."""
        one = _problem(problem, of_sets)
        text, of = _source(root, source, path, language)
        async with profiling:
            found = await asyncio.to_thread(
                profile, one, text, case=case, language=of, device=device, sandbox=sandbox
            )
        if isinstance(found, Report):
            return _result(found, explain(found))
        kernels = [
            one_line(f"  {kernel.name}: {kernel.registers} registers, {kernel.occupancy}", 200)
            for kernel in found.kernels[:MOST_KERNELS]
        ]
        lines = [f"{found.problem}, case {found.case}: {found.limit}", *kernels, *found.notes]
        return _result(found, "\n".join(lines))

    return server


class _Server(MCPServer[None]):
    """Every error of a tool is one line, and a number may be infinite."""

    async def list_tools(self) -> list[Tool]:
        tools = await super().list_tools()
        for tool in tools:
            schema = tool.output_schema
            if schema is not None and schema.get("title") == Report.__name__:
                # With what is computed as it is written: its reward.
                schema = Report.model_json_schema(mode="serialization")
            tool.output_schema = _widened(schema)
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            raise ToolError(_message(name, error.__cause__ or error)) from None


def _widened(schema: Any) -> Any:
    """A JSON schema in which a number may be a string: JSON has no infinity."""
    if isinstance(schema, list):
        return [_widened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _widened(value) for key, value in schema.items()}
    return found | {"type": ["number", "string"]} if schema.get("type") == "number" else found


def _message(tool: str, error: BaseException) -> str:
    """What was wrong, in one line."""
    expected = (ProblemError, SubmissionError, SandboxError, GradingFault, ToolError)
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        text = f"{tool}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(error, expected):
        text = f"{tool}: {error}"
    else:
        text = f"{tool}: a fault of grade, {type(error).__name__}: {error}"
    return one_line(text, ERROR_CHARS)


def _result(found: BaseModel, text: str) -> CallToolResult:
    """The object, and its text. By way of JSON, in which infinity is a string."""
    content = TextContent(type="text", text=text)
    return CallToolResult(content=[content], structured_content=json.loads(found.model_dump_json()))


def _loadable() -> Iterator[Problem]:
    """The problems that are found by name, without those that `grade problems` says are broken."""
    for folder in problem_folders():
        with suppress(ProblemError):
            yield Problem.load(folder)


def _line(problem: Problem) -> ProblemLine:
    spec = problem.spec
    return ProblemLine(
        name=problem.name,
        title=spec.title,
        summary=spec.summary,
        topic=spec.topic,
        level=spec.difficulty,
    )


def _problem(name: str, of_sets: Mapping[str, Problem]) -> Problem:
    """A listed problem by its name, never a folder: the judge runs a problem's code."""
    if name in of_sets:
        return of_sets[name]
    folders = {folder.name: folder for folder in problem_folders()}
    if name not in folders:
        near = difflib.get_close_matches(name, [*folders, *of_sets], 1)
        hint = f"did you mean '{near[0]}'?" if near else "`list` has the names"
        raise ProblemError(f"no problem '{name}'; {hint}")
    return load_problem(folders[name])


def _source(
    root: Path, source: str | None, path: str | None, language: Language
) -> tuple[str | Path, Language]:
    """The text or the file to grade, and its language. Raises `SubmissionError`."""
    if (source is None) == (path is None):
        raise SubmissionError("give `source`, the text of a submission, or `path`, its file")
    if path is None:
        assert source is not None
        return source, language
    file = (root / path).resolve()
    if not file.is_relative_to(root.resolve()):
        raise SubmissionError(f"{path}: not below the server's folder; give its text as `source`")
    found = language_of(file)
    if found is None:
        raise SubmissionError(f"{path}: a submission is a .py or .cu file")
    return file, found
