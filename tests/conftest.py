"""Shared by all tests: a factory of reports, and skips of tests that cannot run here."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from grader.report import CaseResult, Report
from grader.sandbox.gpu_info import cuda_missing
from tests.chromium import CHROMIUM

hypothesis.settings.register_profile("grade", deadline=None)  # a slow machine is not a failure
hypothesis.settings.load_profile("grade")


PACKAGES = {
    "mcp": "mcp",
    "inspect": "inspect_ai",
    "openenv": "openenv",
    "verifiers": "verifiers",
}
"""Marker → the package that its tests need."""

AXE = Path(__file__).parent / "server/axe"
"""The folder that axe-core is installed in."""


@cache
def _docker_missing() -> str | None:
    from grader.sandbox.docker import DockerSandbox

    return DockerSandbox.available()


def _missing(marker: str) -> str | None:
    """What this machine lacks for tests with this marker; None when nothing."""
    if marker == "docker":
        return _docker_missing()
    if marker == "cuda":
        return cuda_missing()
    if marker == "nvcc" and shutil.which("nvcc") is None:
        return "no nvcc on PATH"
    if marker == "gcc" and shutil.which("gcc") is None:
        return "no gcc on PATH"
    if (
        marker == "gcc"
        and not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists()
    ):
        return "no headers of this Python; apt-get install python3-dev"
    if marker == "chromium" and CHROMIUM is None:
        return "no Chromium on PATH; apt-get install chromium-headless-shell"
    if marker == "axe" and not (AXE / "node_modules/axe-core/axe.min.js").exists():
        return "no axe-core; npm ci --prefix tests/server/axe"
    if marker in PACKAGES and find_spec(PACKAGES[marker]) is None:
        return f"no package {PACKAGES[marker]}; docs/contributing.md says how to test adapters"
    if marker == "postgres" and not os.environ.get("GRADE_TEST_POSTGRES"):
        return "no GRADE_TEST_POSTGRES; scripts/start-postgres.sh starts one and prints its URL"
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Let each of several processes compute with one thread. With more threads than cores they spin
    while they wait for each other, which made verification take six times as long."""
    if getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes that they start inherit it


LONGEST = (
    "tests/fleet/test_ray_engine.py",
    "tests/runner/test_nvcc.py",
    "tests/test_corpus.py",
    "tests/server/api/test_openapi.py",
    "tests/cli/test_real.py",
    "tests/judge/test_grade.py",
    "tests/judge/test_reference.py",
    "tests/judge/test_verif",
    "tests/runner/test_prototype_check.py",
    "tests/server/pages/test_routes.py",
    "tests/server/test_access",
    "tests/server/test_browser.py",
    "tests/server/test_editor.py",
    "tests/server/test_run.py",
    "tests/server/test_several.py",
    "tests/fleet/test_local_engine.py",
    "tests/test_automation.py",
    "tests/test_demo.py",
    "tests/cli/test_scaffold.py",
)
"""Files of more than half a minute, the longest ahead. They come first, lest one is left alone at
the end."""


def _place(nodeid: str) -> int:
    """The index in `LONGEST` of the file of this test; after them all for another file."""
    found = (i for i, start in enumerate(LONGEST) if nodeid.startswith(start))
    return next(found, len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave the tests, half a million objects, out of garbage collection: each full one took 0.3 s
    longer with them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests to processes by `scope_of`."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduling(config, log)


def scope_of(nodeid: str) -> str:
    """The tests with the same scope run in one process: those of a file; of the examples, those of
    a folder; of verification, each alone; and all with Docker, as they check which containers the
    engine has."""
    if "docker" in nodeid:
        return "docker"
    if nodeid.startswith("tests/test_corpus.py::"):
        return nodeid.rpartition("/")[0]
    if nodeid.startswith("tests/judge/test_verification.py::"):
        return nodeid
    return nodeid.split("::")[0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in ("docker", "cuda", "nvcc", "gcc", "postgres", "chromium", "axe", *PACKAGES):
        if item.get_closest_marker(marker) is None:
            continue
        reason = _missing(marker)
        if reason is None:
            continue
        required = f"GRADE_REQUIRE_{marker.upper()}"
        if marker not in ("cuda", "nvcc") and os.environ.get(required) == "1":
            pytest.fail(f"{required}=1, but: {reason}", pytrace=False)
        pytest.skip(f"not run, needs {marker}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def no_data_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hides the board and the times of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """End the sandbox of a set's own code that is kept for the next grading, and the process that
    runners are forked from, since other tests look for processes that were left behind."""
    yield
    if host := sys.modules.get("grader.judge.set_host"):
        host.close_hosts()
    if forked := sys.modules.get("tests.forked_sandbox"):
        forked.end_template()


@pytest.fixture
def make_report() -> Callable[..., Report]:
    """A factory of accepted, ranked reports; keyword arguments override fields."""

    def make(**changes: Any) -> Report:
        fields: dict[str, Any] = {
            "problem": "softmax",
            "problem_digest": "d" * 64,
            "submission_sha256": "5" * 64,
            "submission_name": "kernel.py",
            "language": "python",
            "verdict": "accepted",
            "reason": "all 2 cases passed",
            "device": "cuda",
            "gpu": "NVIDIA H100 80GB HBM3",
            "sandbox": "docker",
            "ranked": True,
            "score_us": 50.0,
            "score_ci_us": (49.5, 50.5),
            "speedup": {"eager": 1.25},
            "cases": [
                CaseResult(
                    name="tiny",
                    kind="test",
                    params={"rows": 1, "cols": 7, "dtype": "fp32"},
                    status="passed",
                    max_abs_err=1e-7,
                    rel_l2=2e-7,
                    worst_slice_rel_l2=3e-7,
                    error_budget_used=0.25,
                ),
                CaseResult(
                    name="square",
                    kind="benchmark",
                    params={"rows": 4096, "cols": 4096, "dtype": "fp32"},
                    status="passed",
                    time_us=50.0,
                    ci_us=(49.5, 50.5),
                    external_us=49.0,
                    gb_per_s=2684.0,
                    sol=0.9,
                ),
            ],
            "seed": 7,
            "stages_s": {"sandbox_start": 0.5, "load": 1.0, "test": 1.0, "total": 3.0},
        }
        return Report.model_validate(fields | changes)

    return make
