from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from grader.automation import benchmark_case
from grader.cli.commands.profile import short_name
from grader.judge.profiling.kernel_report import (
    KernelProfile,
    NcuCounters,
    Profile,
    ProfileArtifacts,
    ProfilingError,
)
from grader.problem import Problem, ProblemError
from grader.report import Report
from grader.sandbox.base import SandboxError
from tests.cli.conftest import Shell

KERNEL = KernelProfile(
    name="void (anonymous namespace)::twice<float, 4>(float const*, float*)",
    launches=2.0,
    time_us=50.0,
    share=1.0,
    grid=(4096, 2, 1),
    block=(128, 1, 1),
    registers=40,
    shared_bytes=1024,
    local_bytes=96,
    local_instructions=7,
    tensor_instructions=0,
    occupancy=0.75,
    occupancy_bound="registers",
    waves=5.0,
)


class FakeProfiler:
    """Returns the same profile for every submission, and records its calls."""

    def __init__(self, error: Exception | None = None, **changes: Any) -> None:
        self.error = error
        self.changes = changes
        self.calls: list[tuple[Any, ...]] = []
        self.bulk = ProfileArtifacts("a table", b'{"traceEvents": []}', b".entry", b"")

    def __call__(self, problem: Any, submission: Any, case: Any, **options: Any) -> Any:
        self.calls.append((case, options["device"]))
        if self.error is not None:
            raise self.error
        fields: dict[str, Any] = {
            "problem": problem.name,
            "submission_name": submission.name,
            "submission_sha256": submission.sha256,
            "language": submission.language,
            "device": options["device"],
            "gpu": "NVIDIA H100 80GB HBM3",
            "sandbox": options["sandbox"].describe(),
            "case": "small",
            "params": {},
            "calls": 4,
            "time_us": 50.0,
            "eager_us": 80.0,
            "graph_us": 52.0,
            "gb_per_s": 2600.0,
            "tflop_per_s": 1.5,
            "ceiling_gb_per_s": 3000.0,
            "ceiling_tflop_per_s": 50.0,
            "limit": "Memory-bound: so it is.",
            "kernels": [KERNEL],
            "ncu": [],
            "notes": ["ncu: not run: no counters"],
            "log": "",
            "environment": {},
        }
        return Profile(**fields | self.changes), self.bulk


@pytest.fixture
def profiler(shell: Shell, problem: Path) -> FakeProfiler:
    """On a machine without a GPU: the small problem has only a CPU case."""
    found = FakeProfiler()
    shell.change(profile=found, cuda_missing=lambda: "no GPU here")
    return found


def test_text_output(shell: Shell, kernel: Path, profiler: FakeProfiler) -> None:
    counted = NcuCounters(
        name="twice", dram_percent=91.5, sm_percent=None, l2_hit_percent=3.0, occupancy_percent=70.0
    )
    profiler.changes = {"ncu": [counted]}
    status, out, err = shell("profile", "double", kernel)
    assert (status, err) == (0, "")
    for shown in (
        "twice<float, 4> ",
        "4096×2",
        "75% registers",
        "50.00 µs per call (80.00 µs launched one by one, 52.00 µs as a CUDA graph)",
        "2,600 of 3,000 GB/s measured here (87%)",
        "Memory-bound: so it is.",
        "ncu: not run: no counters",
        "92%",
        "profile-kernel/trace.json  open it at https://ui.perfetto.dev",
    ):
        assert shown in out
    assert "sass" not in out


def test_files_written(shell: Shell, kernel: Path, profiler: FakeProfiler) -> None:
    status, shown = shell.json("profile", "double", kernel)
    folder = Path("profile-kernel")
    assert status == 0
    assert sorted(os.listdir(folder)) == ["kernels.ptx", "profile.json", "table.txt", "trace.json"]
    assert json.loads((folder / "profile.json").read_text()) == shown
    assert shown["files"]["ptx"] == "profile-kernel/kernels.ptx"
    assert (folder / "table.txt").read_text() == "a table"
    # A second profile replaces the first completely.
    profiler.bulk = ProfileArtifacts("", b"", b"", b"HGMMA")
    shell.json("profile", "double", kernel)
    assert sorted(os.listdir(folder)) == ["kernels.sass", "profile.json"]
    assert not [name for name in os.listdir() if name.startswith(".profile-")]


def test_a_folder_with_other_files_is_not_replaced(
    shell: Shell, kernel: Path, profiler: FakeProfiler, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (tmp_path / "link").symlink_to(mine)
    for folder, message in (
        (mine, "contains other files (thesis.txt)"),
        (kernel, "exists and is not a folder"),
        (tmp_path / "link", "exists and is not a folder"),
        (tmp_path / "no" / "such", "cannot be written (No such file or directory)"),
    ):
        status, out, err = shell("profile", "double", kernel, "--out", folder)
        assert (status, out) == (2, "")
        assert message in err
    assert profiler.calls == []
    assert (mine / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("place", ["/proc/x", "/proc", "/sys/x", "x" * 300])
def test_an_unwritable_path_is_an_error_before_anything_runs(
    shell: Shell, kernel: Path, profiler: FakeProfiler, place: str
) -> None:
    status, out, err = shell("profile", "double", kernel, "--out", place)
    assert (status, out, profiler.calls) == (2, "", [])
    assert err.startswith(f"grade: --out: {place} ")
    assert err.count("\n") == 1


def test_a_mount_is_not_replaced(
    shell: Shell,
    kernel: Path,
    profiler: FakeProfiler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    monkeypatch.setattr("grader.cli.commands.profile.os.path.ismount", lambda path: path == mount)
    status, _, err = shell("profile", "double", kernel, "--out", mount)
    assert (status, profiler.calls) == (2, [])
    assert err.endswith("is a mount point and cannot be replaced; choose a folder in it\n")


def test_a_full_disk_is_reported_and_keeps_the_old_profile(
    shell: Shell, kernel: Path, profiler: FakeProfiler, tmp_path: Path
) -> None:
    shell("profile", "double", kernel)
    files = sorted(os.listdir("profile-kernel"))
    profiler.bulk = ProfileArtifacts("another", b"x" * 5000, b"", b"")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        status, _, err = shell("profile", "double", kernel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2
    assert err.startswith("grade: --out: profile-kernel cannot be written (File too large)")
    assert err.count("\n") == 1
    assert sorted(os.listdir("profile-kernel")) == files
    assert not list(tmp_path.glob(".profile-*"))


WIDEST = {
    "name": "void (anonymous namespace)::cluster_softmax_kernel<float, 4, 16384, true>(float*)",
    "launches": 999.0,
    "grid": (2147483, 65535, 16),
    "block": (32, 16, 2),
    "registers": 255,
    "shared_bytes": 232448,
    "local_bytes": 12345,
    "occupancy": 1.0,
    "occupancy_bound": "shared memory",
}
LIMITS = ["50.00 µs", "255", "232,448", "100% shared memory"]


@pytest.mark.parametrize(
    ("width", "shown", "hidden"),
    [
        (60, LIMITS, "a wider terminal also shows calls, grid, block, local B"),
        (80, [*LIMITS, "32×16×2", "12,345"], "a wider terminal also shows calls, grid"),
        (100, [*LIMITS, "32×16×2", "12,345"], "a wider terminal also shows calls, grid"),
        (110, [*LIMITS, "32×16×2", "12,345", "999", "2147483×65535×16"], None),
    ],
)
def test_only_the_name_shrinks_in_a_narrow_terminal(
    shell: Shell,
    kernel: Path,
    profiler: FakeProfiler,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    shown: list[str],
    hidden: str | None,
) -> None:
    counted = NcuCounters(
        name=str(WIDEST["name"]),
        dram_percent=91.5,
        sm_percent=12.0,
        l2_hit_percent=3.0,
        occupancy_percent=100.0,
    )
    widest = KERNEL.model_copy(update=WIDEST)
    profiler.changes = {"kernels": [widest], "ncu": [counted]}
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = shell("profile", "double", kernel)
    rows = [line for line in out.splitlines() if line.startswith("cluster_soft")]
    assert len(rows) == 2
    assert all(len(line) <= width for line in rows)
    for figure in shown:
        assert figure in rows[0]
    assert rows[0].count("…") == 1, "the name's"
    for figure in ("92%", "12%", "3%", "100%"):
        assert figure in rows[1]
    notes = [line for line in out.splitlines() if line.startswith("a wider terminal")]
    assert notes == ([hidden] if hidden else [])


def test_the_case(shell: Shell, kernel: Path, profiler: FakeProfiler) -> None:
    shell("profile", "double", kernel, "--case", "small")
    assert profiler.calls[0][0].name == "small"
    status, _, err = shell("profile", "double", kernel, "--case", "smal")
    assert status == 2
    assert "no benchmark case 'smal' on --device cpu; did you mean 'small'?" in err
    shell.change(cuda_missing=lambda: None)
    status, _, err = shell("profile", "double", kernel)
    assert (status, len(profiler.calls)) == (2, 1)
    assert "no benchmark case for --device cuda" in err


def test_the_largest_case_is_the_default() -> None:
    softmax = Problem.load(Path(__file__).resolve().parents[3] / "problems" / "softmax")
    largest = benchmark_case(softmax, None, "cuda")
    assert softmax.bytes(largest) == max(map(softmax.bytes, softmax.cases("benchmark", "cuda")))


def test_a_cuda_file_without_a_gpu_is_only_compiled(
    shell: Shell, profiler: FakeProfiler, problem: Path, tmp_path: Path
) -> None:
    spec = problem / "problem.yaml"
    spec.write_text(spec.read_text().replace(", device: cpu", ", device: cuda"))
    file = tmp_path / "kernel.cu"
    file.write_text("")
    profiler.changes = {"case": None, "calls": 0, "time_us": None, "gb_per_s": None, "gpu": None}
    status, out, _ = shell("profile", "double", file)
    assert (status, profiler.calls) == (0, [(None, "cpu")])
    assert "kernel.cu · not run" in out


def test_a_failing_submission_is_reported_as_by_practice(
    shell: Shell, kernel: Path, profiler: FakeProfiler, make_report: Any
) -> None:
    report: Report = make_report(verdict="runtime_error", reason="ValueError: no", ranked=False)
    profiler.error = ProfilingError(report)
    status, shown = shell.json("profile", "double", kernel)
    assert (status, shown["verdict"], shown["reason"]) == (1, "runtime_error", "ValueError: no")
    assert not Path("profile-kernel").exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [(SandboxError("the engine is gone"), 3), (RuntimeError("oh"), 3), (ProblemError("broken"), 2)],
)
def test_faults_not_of_the_submission(
    shell: Shell, kernel: Path, profiler: FakeProfiler, error: Exception, status: int
) -> None:
    profiler.error = error
    assert shell("profile", "double", kernel)[0] == status
    assert not Path("profile-kernel").exists()


def test_kernel_names_are_escaped(shell: Shell, kernel: Path, profiler: FakeProfiler) -> None:
    name = "[red]k[/]\x1b[31m\u202e"
    profiler.changes = {"kernels": [KERNEL.model_copy(update={"name": name})], "notes": [name]}
    _, out, _ = shell("profile", "double", kernel)
    assert "[red]k[/]\\x1b[31m\\u202e" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("softmax_kernel", "softmax_kernel"),
        ("void (anonymous namespace)::f<int, 4>(int const*)", "f<int, 4>"),
        ("void f<g(int)>(float (*)(int), int)", "f<g(int)>"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        (")", ")"),
    ],
)
def test_short_names_of_kernels(name: str, shown: str) -> None:
    assert short_name(name) == shown
