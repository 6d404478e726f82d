"""Functions through which commands reach the judge, the sandboxes and the board; tests replace
them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.sandbox import Sandbox, make_sandbox
from grader.sandbox.gpu_info import cuda_missing

if TYPE_CHECKING:
    from grader.board import Board
    from grader.judge.ab_compare import ABComparison
    from grader.judge.profiling.kernel_report import Profile, ProfileArtifacts
    from grader.judge.timing.baselines import Baselines
    from grader.judge.verification.result import VerificationResult
    from grader.judge.verification.verify_all import VerifiedProblem
    from grader.report import Report


def _grade(*args: Any, **options: Any) -> Report:
    from grader.judge import grade

    return grade(*args, **options)


def _prestart(*args: Any) -> AbstractContextManager[Sandbox]:
    from grader.judge.grade import prestarted

    return prestarted(*args)


def _verify(*args: Any, **options: Any) -> VerificationResult:
    from grader.judge.verification.verify import verify

    return verify(*args, **options)


def _verify_all(*args: Any, **options: Any) -> Iterator[VerifiedProblem]:
    from grader.judge.verification.verify_all import verify_all

    return verify_all(*args, **options)


def _measure_baselines(*args: Any, **options: Any) -> Baselines:
    from grader.judge.timing.baselines import measure_baselines

    return measure_baselines(*args, **options)


def _profile(*args: Any, **options: Any) -> tuple[Profile, ProfileArtifacts]:
    from grader.judge.profiling.profile import profile

    return profile(*args, **options)


def _compare(*args: Any, **options: Any) -> ABComparison:
    from grader.judge.ab_compare import ab_compare

    return ab_compare(*args, **options)


def _docker_missing() -> str | None:
    from grader.sandbox.docker import DockerSandbox

    return DockerSandbox.available()


def _board(url: str | None, *, create: bool = False) -> Board:
    from grader.board import Board, default_url

    return Board.open(url or os.environ.get("GRADE_DB") or default_url(), create=create)


@dataclass(frozen=True)
class Dependencies:
    """The judge, the sandboxes, the board and the hardware probes that commands call.

    The defaults import their module when they are called: `grade --help` starts without torch.
    """

    grade: Callable[..., Report] = _grade
    """`grader.judge.grade`."""
    prestart: Callable[..., AbstractContextManager[Sandbox]] = _prestart
    """Starts a runner while the command is still preparing; see `grader.judge.grade.prestarted`."""
    verify: Callable[..., VerificationResult] = _verify
    """`grader.judge.verification.verify.verify`."""
    verify_all: Callable[..., Iterator[VerifiedProblem]] = _verify_all
    """`grader.judge.verification.verify_all.verify_all`."""
    measure_baselines: Callable[..., Baselines] = _measure_baselines
    """`grader.judge.timing.baselines.measure_baselines`."""
    profile: Callable[..., tuple[Profile, ProfileArtifacts]] = _profile
    """`grader.judge.profiling.profile.profile`."""
    compare: Callable[..., ABComparison] = _compare
    """Times two submissions against each other; see `grader.judge.ab_compare`."""
    sandbox: Callable[[str], Sandbox] = make_sandbox
    """``docker`` or ``process`` → the sandbox."""
    board: Callable[..., Board] = _board
    """Opens the board at a database URL; None means GRADE_DB, or the user's data directory. The
    board must exist unless ``create=True``."""
    docker_missing: Callable[[], str | None] = _docker_missing
    """Why Docker cannot be used; None when it can."""
    cuda_missing: Callable[[], str | None] = cuda_missing
    """Why no GPU can be used; None when one can."""
