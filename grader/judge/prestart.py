"""A runner that starts while the rest is made ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from grader.judge.gpu.lock import exclusive
from grader.problem import Problem
from grader.sandbox.base import Device, RunnerLimits, Sandbox, SandboxError
from grader.sandbox.pool import RunnerPool


@contextmanager
def ahead(sandbox: Sandbox, problem: Problem, device: Device) -> Iterator[Sandbox]:
    """`sandbox`, in which a runner for `problem` starts from now on; for one grading, by this
    thread. It is ended with this at the latest.

    The GPU is held meanwhile. Where another holds it, nothing starts before its time, since that
    would disturb what is measured there.
    """
    with ExitStack() as stack:
        try:
            ours = stack.enter_context(exclusive(device, wait=False))
        except (SandboxError, OSError):  # the grading will come upon it too, and tell
            ours = False
        if ours:
            limits = RunnerLimits.of(problem.spec.limits)
            sandbox = stack.enter_context(RunnerPool(sandbox, limits, device, refill=False))
        yield sandbox
