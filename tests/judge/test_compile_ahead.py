"""Compiling a submission before its tests: what the compiler is asked, and that nothing it does
decides anything."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch

from grader.judge import case_shapes as shapes_module
from grader.judge import compile_ahead as module
from grader.judge.case_shapes import case_shapes
from grader.judge.compile_ahead import compile_ahead
from grader.judge.problem_code import ProblemCode
from grader.problem import Problem, ProblemError
from grader.sandbox.base import SandboxError
from grader.sandbox.gpu_info import Gpu, GpuDriver
from grader.submission import Submission
from grader.wire import Reply, Status, receive_request, send_reply
from tests.judge.conftest import SPEC, WriteProblem
from tests.judge.test_compile import CUDA, Scripted, dies, greeted, writes

TRITON = Submission("kernel.py", "python", b"import triton\n")
PLAIN = Submission("kernel.py", "python", b"import torch\n")


@pytest.fixture
def problem(write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A problem on a machine whose driver sees an H200. The shapes of its cases are known."""
    problem = write_problem(spec=SPEC)
    gpus = GpuDriver(None, gpus=(Gpu("NVIDIA H200", 1 << 37, (9, 0)),))
    monkeypatch.setattr(module, "driver", lambda: gpus)
    monkeypatch.setattr("grader.judge.compile.driver", lambda: gpus)
    monkeypatch.setattr(shapes_module, "_KNOWN", {})
    case_shapes(problem, ProblemCode(problem, "cpu"), "cuda")
    return problem


def hands_over(sock: socket.socket) -> None:
    """Writes what it was asked in place of kernels."""
    request, (source, cases, memory) = receive_request(sock)
    seen = request | {"cases": json.loads(os.pread(cases, request["cases_bytes"], 0))}
    seen["source"] = os.pread(source, request["source_bytes"], 0).decode()
    content = json.dumps(seen).encode()
    os.pwrite(memory, content, 0)
    for fd in (source, cases, memory):
        os.close(fd)
    send_reply(sock, Reply(request["sequence"], Status.OK, calls=len(content)))


def test_the_kernels_of_all_listed_cases_are_kept(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    sandbox = Scripted(greeted(hands_over))
    compile_ahead(problem, TRITON, sandbox=sandbox, device="cuda", kernels=path)
    seen = json.loads(path.read_bytes())
    assert (seen["kind"], seen["source"]) == ("compile_triton", TRITON.source.decode())
    assert (seen["capability"], seen["entry"]) == ([9, 0], problem.spec.entry)
    shapes = case_shapes(problem, None, "cuda").shapes
    assert seen["cases"] == json.loads(json.dumps(shapes))
    assert len(seen["cases"]) > 1
    assert sandbox.started[0].is_stopped


def test_the_library_of_a_cuda_file_is_kept(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    compile_ahead(problem, CUDA, sandbox=Scripted(greeted(writes)), device="cuda", kernels=path)
    assert path.read_bytes().endswith(b"\nELF")


@pytest.mark.parametrize("submission", [TRITON, CUDA])
def test_a_failure_is_left_to_the_tests(
    problem: Problem, tmp_path: Path, submission: Submission
) -> None:
    path = tmp_path / "kernels"
    sandbox = Scripted(greeted(dies))
    compile_ahead(problem, submission, sandbox=sandbox, device="cuda", kernels=path)
    assert not path.exists()
    assert sandbox.started[0].is_stopped


def test_a_sandbox_that_does_not_start_is_no_failure_of_the_file(
    problem: Problem, tmp_path: Path
) -> None:
    sandbox = Scripted(hands_over)
    sandbox.error = SandboxError("no space left")
    with pytest.raises(SandboxError, match="no space left"):
        compile_ahead(problem, TRITON, sandbox=sandbox, device="cuda", kernels=tmp_path / "k")


def test_other_files_need_no_compiler(problem: Problem, tmp_path: Path) -> None:
    sandbox = Scripted(hands_over)
    compile_ahead(problem, PLAIN, sandbox=sandbox, device="cuda", kernels=tmp_path / "k")
    compile_ahead(problem, TRITON, sandbox=sandbox, device="cpu", kernels=tmp_path / "k")
    assert sandbox.started == []


@pytest.mark.parametrize("error", [ProblemError("no rows"), torch.OutOfMemoryError("no memory")])
def test_shapes_that_cannot_be_made_now_are_left_to_the_tests(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(shapes_module, "_KNOWN", {})
    monkeypatch.setattr(module, "case_shapes", fail)
    monkeypatch.setattr("grader.judge.gpu.lock.FOLDER", tmp_path)
    sandbox = Scripted(hands_over)
    compile_ahead(problem, TRITON, sandbox=sandbox, device="cuda", kernels=tmp_path / "k")
    assert sandbox.started == []
