"""Compile a submission before it is tested, in a sandbox without a device.

So processors compile one submission while another has the GPU. It decides nothing: what fails here
is compiled again, and reported, by the grading that tests the submission.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import torch

from grader.judge.case_shapes import Shape, case_shapes, shapes_are_known
from grader.judge.compile import START_S, start_compile
from grader.judge.gpu.lock import gpu_lock
from grader.judge.grading import given_files, load_request
from grader.judge.kept_kernels import KeptKernels
from grader.judge.problem_code import ProblemCode
from grader.judge.record import Device
from grader.judge.session import Session, blame_sandbox
from grader.judge.verdict import SubmissionFault
from grader.problem import Problem, ProblemError
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.sandbox.gpu_info import driver
from grader.submission import Submission
from grader.wire import sealed_memfd

COMPILE_S = 30.0
"""The longest that kernels are compiled. What is compiled by then is kept."""
LOAD_S = 30.0
"""The longest that the sandbox loads the compiler before."""


def compile_ahead(
    problem: Problem, submission: Submission, *, sandbox: Sandbox, device: Device, kernels: Path
) -> None:
    """Compile a `.cu` file, or the Triton kernels of a problem's listed cases, and leave the result
    in the file `kernels` for the gradings that test and time the submission.

    Uses no GPU, except to learn the shapes of a problem's cases, once in a process. Raises
    `SandboxError` when no sandbox can be started.
    """
    kept = KeptKernels(kernels)
    with contextlib.suppress(SubmissionFault):
        if submission.language == "cuda":
            with start_compile(problem, submission, sandbox, device, kept) as compilation:
                compilation.library()
        elif submission.uses_triton and device == "cuda" and (shapes := _shapes(problem)):
            _compile_triton(problem, submission, sandbox, shapes, kept)


def _shapes(problem: Problem) -> list[Shape]:
    """The shapes of all listed cases; of a problem of another set only if a grading of this process
    has made them, since its code runs in a sandbox."""
    if shapes_are_known(problem, "cuda"):
        return case_shapes(problem, None, "cuda").shapes
    if problem.imported is not None:
        return []
    with gpu_lock("cuda", shared=True), contextlib.suppress(ProblemError, torch.OutOfMemoryError):
        shapes = case_shapes(problem, ProblemCode(problem, "cuda"), "cuda").shapes
        torch.cuda.empty_cache()  # the grading that is timed next may need the memory
        return shapes
    return []  # its tests will say what is wrong, or have the memory


def _compile_triton(
    problem: Problem,
    submission: Submission,
    sandbox: Sandbox,
    shapes: list[Shape],
    kept: KeptKernels,
) -> None:
    limits = problem.spec.limits
    cases = json.dumps(shapes).encode()
    request = load_request(problem, submission) | {
        "cases_bytes": len(cases),
        "capability": driver().gpus[0].capability,
        "limit_s": COMPILE_S,
    }
    with contextlib.ExitStack() as stack:
        session = Session(
            stack.enter_context(sandbox.start(RunnerLimits.of(limits), "none")), limits.total_s
        )
        with blame_sandbox(session):
            session.ask("hello", {}, START_S, "starting up")

        def lent(name: str, content: bytes) -> int:
            fd = sealed_memfd(name, content)
            stack.callback(os.close, fd)
            return fd

        what = "compiling its kernels"
        before = lent("source", submission.source), lent("cases", cases)
        files = given_files(problem)
        after = (lent("files", b"".join(files.values())),) if files else ()
        kept.receive_reply(
            lambda fd: session.ask(
                "compile_triton", request, LOAD_S + COMPILE_S, what, fds=(*before, fd, *after)
            )
        )
