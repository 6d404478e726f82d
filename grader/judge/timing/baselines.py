"""What a kernel is measured against on this machine: every live baseline, and torch.compile."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from grader import __version__
from grader.judge.gpu.lock import exclusive
from grader.judge.record import Device, Progress, Watcher
from grader.judge.timing.baseline_store import COMPILED, Environment
from grader.problem import Problem, ProblemError
from grader.problem.spec import Case

if TYPE_CHECKING:
    from grader.judge.problem_code import ProblemCode

CPUINFO = Path("/proc/cpuinfo")


@dataclass
class Yardsticks:
    """What was measured, and on what."""

    hardware: str
    environment: Environment
    cases: dict[str, dict[str, float]] = field(default_factory=dict)
    """Benchmark case → baseline → microseconds per call, cold L2."""
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""


def measure(problem: Problem, device: Device, progress: Watcher = lambda _: None) -> Yardsticks:
    """Time every baseline of a problem, and its compiled eager function, on every benchmark case.

    Minutes rather than seconds: torch.compile works on each case anew. Raises `ProblemError` when
    a baseline fails; torch.compile failing is noted.
    """
    from grader.judge.gpu.environment import gpu_name
    from grader.judge.problem_code import ProblemCode
    from grader.judge.timing.eager_baseline import time_baselines

    code = ProblemCode(problem, device)
    found = Yardsticks(gpu_name(device) or processor(), environment(device))
    cases = problem.cases("benchmark", device)
    with exclusive(device):
        for index, case in enumerate(cases):
            progress(Progress("baseline", case.name, index, len(cases)))
            times = time_baselines(code, case)
            try:
                times |= _compiled(code, case)
            except ProblemError as error:
                found.notes.append(f"torch.compile, case '{case.name}': {error}")
            found.cases[case.name] = times
    return found


def _compiled(code: ProblemCode, case: Case) -> dict[str, float]:
    """Microseconds per call of torch.compile on the shapes of one case."""
    import torch

    from grader.judge.timing.eager_baseline import time_baselines

    torch._dynamo.reset()  # otherwise it gives up after the shapes of some cases
    compiled = torch.compile(code.eager, dynamic=False)
    return time_baselines(code, case, functions={COMPILED: compiled})


def environment(device: Device) -> Environment:
    """The versions on this machine, as of now."""
    import torch

    from grader.judge.gpu.state import gpu_state

    return Environment(
        driver=gpu_state().get("driver") if device == "cuda" else None,
        cuda=torch.version.cuda if device == "cuda" else None,
        torch=torch.__version__,
        triton=_version("triton"),
        python=platform.python_version(),
        grade=__version__,
        measured_at=datetime.now(UTC).replace(microsecond=0),
    )


def processor() -> str:
    """The processor's name, as Linux knows it."""
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else ():
        key, _, name = line.partition(":")
        if key.strip() == "model name":
            return " ".join(name.split())
    return platform.machine() or "unknown processor"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
