from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any, Literal

import pytest

from grader.judge.profiling.kernel_report import (
    KernelProfile,
    Profile,
    ProfileArtifacts,
    ProfileData,
    ProfilingError,
    parse_profile_data,
)
from grader.judge.profiling.occupancy import Multiprocessor, occupancy
from grader.judge.profiling.profile import kernel_profile, profile, time_per_call_us
from grader.judge.profiling.roofline import RooflinePoint, explain_bottleneck
from grader.judge.verdict import SubmissionFault
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.judge.conftest import HONEST, WriteProblem

H100 = Multiprocessor(
    count=132, threads=2048, blocks=32, registers=65536, shared_bytes=233472, reserved_bytes=1024
)
CUDA = """
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <stdint.h>
__global__ void scaled(const float* x, float* out, int64_t n) {
    __shared__ float tile[256];
    int64_t i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) { tile[threadIdx.x] = x[i]; out[i] = tile[threadIdx.x]; }
}
extern "C" void scale(const float* x, float* total, double factor, float* out, int64_t n,
                      cudaStream_t stream) {
    scaled<<<(n + 255) / 256, 256, 0, stream>>>(x, out, n);
}
extern "C" void scale_fp16(const __half* x, float* total, double factor, __half* out, int64_t n,
                           cudaStream_t stream) {}
"""
Run = Callable[..., tuple[Profile, ProfileArtifacts]]


@pytest.fixture
def run(write_problem: WriteProblem) -> Run:
    """Profiles source text on the tiny problem, in the process sandbox."""

    def run(
        source: str, suffix: str = ".py", device: Literal["cpu", "cuda"] = "cpu"
    ) -> tuple[Profile, ProfileArtifacts]:
        problem = write_problem()
        path = problem.folder.parent / f"kernel{suffix}"
        path.write_text(textwrap.dedent(source))
        submission = Submission.read(path, 10_000)
        only_compile = suffix == ".cu" and device == "cpu"
        case = None if only_compile else problem.cases("benchmark", device)[0]
        return profile(problem, submission, case, sandbox=ForkedSandbox(), device=device)

    return run


# Blocks per SM by cuda_occupancy.h of CUDA 13.0, for compute capability 9.0.
@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "bound"),
    [
        (32, 1, 0, 32, "blocks"),
        (32, 71, 0, 28, "registers"),
        (32, 169, 0, 8, "registers"),
        (32, 1, 9003, 23, "shared memory"),
        (96, 1, 0, 21, "threads"),
        (96, 99, 41006, 5, "registers"),
        (256, 1, 0, 8, "threads"),
        (512, 255, 0, 0, "registers"),
        (160, 29, 18006, 12, "threads"),
        (32, 57, 232448, 1, "shared memory"),
    ],
)
def test_occupancy(
    threads: int, registers: int, shared_bytes: int, blocks: int, bound: str
) -> None:
    found = occupancy(H100, threads, registers, shared_bytes)
    assert found.blocks == blocks
    assert found.bound == bound
    assert found.share == pytest.approx(blocks * -(-threads // 32) * 32 / 2048)


def kernel(**changes: Any) -> KernelProfile:
    fields: dict[str, Any] = {
        "name": "softmax_kernel",
        "launches": 1.0,
        "time_us": 100.0,
        "share": 1.0,
        "grid": (4096, 1, 1),
        "block": (128, 1, 1),
        "registers": 32,
        "shared_bytes": 0,
        "local_bytes": 0,
        "local_instructions": 0,
        "tensor_instructions": 0,
        "occupancy": 1.0,
        "occupancy_bound": "threads",
        "waves": 8.0,
    }
    return KernelProfile(**fields | changes)


def point(**changes: Any) -> RooflinePoint:
    fields: dict[str, Any] = {
        "time_us": 100.0,
        "elapsed_us": 101.0,
        "bytes_per_s": 1e12,
        "flops_per_s": 1e12,
        "ceiling_bytes_per_s": 3e12,
        "ceiling_flops_per_s": 50e12,
        "unit": "fp32",
    }
    return RooflinePoint(**fields | changes)


COMPUTE = {"bytes_per_s": 1e11, "flops_per_s": 2e14, "ceiling_flops_per_s": 8e14, "unit": "tensor"}


@pytest.mark.parametrize(
    ("rate", "seen", "words"),
    [
        ({"bytes_per_s": 2.7e12}, {}, ["Memory-bound: 2,700 of 3,000 GB/s (90%), near"]),
        ({}, {}, ["Memory-bound: 1,000 of 3,000 GB/s (33%).", "coalesced"]),
        ({"elapsed_us": 200.0}, {"launches": 12.0}, ["idle 50%", "12 launches", "CUDA graph"]),
        ({}, {"launches": 5.0}, ["5 launches a call may pass intermediate", "fuse"]),
        ({"time_us": 2.0, "elapsed_us": 2.0}, {}, ["0.67 µs", "larger --case"]),
        ({}, {"waves": 0.4}, ["blocks for only 40% of the GPU"]),
        ({}, {"local_bytes": 96, "local_instructions": 9}, ["96 bytes a thread", "32 registers"]),
        ({}, {"occupancy": 0.125, "occupancy_bound": "registers"}, ["12% of", "by its registers"]),
        ({"bytes_per_s": 4e12}, {}, ["more than the ceiling", "grade practice"]),
        (COMPUTE, {}, ["Compute-bound: 200 of 800 TFLOP/s (25%)", "no tensor-core instruction"]),
        (COMPUTE, {"tensor_instructions": 64}, ["multiply-adds"]),
        (COMPUTE | {"flops_per_s": 7e14}, {}, ["Compute-bound", "near the ceiling"]),
    ],
)
def test_what_limits_it(rate: dict[str, Any], seen: dict[str, Any], words: list[str]) -> None:
    text = explain_bottleneck(point(**rate), [kernel(**seen)])
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("rate", "seen", "word"),
    [
        ({"bytes_per_s": 2.7e12}, {"occupancy": 0.1}, "warps"),
        ({}, {"local_bytes": 96, "local_instructions": 0}, "local memory"),
        ({}, {"tensor_instructions": 0}, "tensor"),
        ({"elapsed_us": 110.0}, {}, "idle"),
    ],
)
def test_what_does_not_limit_it(rate: dict[str, Any], seen: dict[str, Any], word: str) -> None:
    assert word not in explain_bottleneck(point(**rate), [kernel(**seen)])


def test_a_profile_without_kernels_still_has_a_sentence() -> None:
    assert explain_bottleneck(point(), []).startswith("Memory-bound")


# Reported by a runner -----------------------------------------------------------------------------

DATA: dict[str, Any] = {
    "calls": 4,
    "kernels": [
        {
            "name": "softmax_kernel",
            "launches": 8,
            "total_us": 300.0,
            "grid": [4096, 1, 1],
            "block": [256, 1, 1],
            "registers": 40,
            "shared_bytes": 1024,
        },
        {"name": "Memcpy DtoD", "launches": 4, "total_us": 100.0},
    ],
    "table": "",
    "notes": [],
    "ncu": [],
    "eager_us": 800.0,
    "graph_us": 450.0,
    "busy_us": 400.0,
    "trace_bytes": 0,
    "ptx_bytes": 0,
    "sass_bytes": 0,
}


def data(**changes: Any) -> ProfileData:
    return parse_profile_data(json.dumps(DATA | changes).encode())


def test_kernel_numbers_are_per_call() -> None:
    kernels = data().kernels
    first, copy = (kernel_profile(reported, data(), H100) for reported in kernels)
    assert (first.launches, first.time_us, first.share) == (2.0, 75.0, 0.75)
    assert (first.occupancy, first.occupancy_bound) == (0.75, "registers")
    assert first.waves == pytest.approx(4096 / (6 * 132))
    assert (copy.occupancy, copy.waves, copy.registers) == (None, None, None)


def test_time_is_the_time_that_the_gpu_was_busy() -> None:
    assert time_per_call_us(data()) == 100.0
    assert time_per_call_us(data(busy_us=None)) == 112.5
    assert time_per_call_us(data(busy_us=0.0, graph_us=None)) == 200.0
    assert time_per_call_us(data(calls=0)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": -1},
        {"calls": "4"},
        {"busy_us": float("nan")},
        {"busy_us": 1e300},
        {"unknown": 1},
        {"kernels": [{"name": "k" * 301}]},
        {"kernels": [{"name": "k", "block": [0, 1, 1]}]},
        {"kernels": [{"name": "k", "grid": [1, 1]}]},
        {"kernels": [{"name": "k"}] * 41},
        {"trace_bytes": 1 << 40},
        {"ncu": [{"name": "k", "dram_percent": float("inf")}]},
    ],
)
def test_data_that_breaks_the_schema(changes: dict[str, Any]) -> None:
    with pytest.raises(SubmissionFault) as caught:
        data(**changes)
    assert caught.value.fault.verdict == "runtime_error"
    assert next(iter(changes)) in caught.value.fault.reason


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"null"])
def test_data_that_is_no_json_object(text: bytes) -> None:
    with pytest.raises(SubmissionFault, match="data is invalid"):
        parse_profile_data(text)


# Through the sandbox -----------------------------------------------------------------------------


def test_on_a_cpu(run: Run) -> None:
    found, artifacts = run(HONEST)
    assert (found.calls, found.case, found.kernels) == (1, "small", [])
    assert found.time_us is not None
    assert found.time_us > 0
    assert found.gb_per_s == pytest.approx(3 * 4096 * 4 / found.time_us / 1e3)
    assert "nothing can be said" in found.limit
    assert "ncu: not run: no GPU here" in found.notes
    assert "aten::copy_" in artifacts.table
    events = json.loads(artifacts.trace)["traceEvents"]
    assert any(event.get("name") == "aten::copy_" for event in events)
    assert (artifacts.ptx, artifacts.sass) == (b"", b"")


@pytest.mark.nvcc
def test_a_cuda_file_is_compiled_and_disassembled(run: Run) -> None:
    found, artifacts = run(CUDA, ".cu")
    assert (found.calls, found.time_us, found.case) == (0, None, None)
    (only,) = found.kernels
    assert only.name == "scaled(float const*, float*, long)"
    assert only.shared_bytes in (1024, 2048)  # newer compilers count what CUDA reserves
    assert only.local_bytes == 0
    assert only.registers
    assert b".entry _Z6scaledPKfPfl" in artifacts.ptx
    assert artifacts.sass.startswith(b"// scaled(float const*, float*, long)")
    assert b"STG" in artifacts.sass


def test_a_failing_submission(run: Run) -> None:
    with pytest.raises(ProfilingError) as caught:
        run("def scale(x, total, factor, out): raise ValueError('no \x07')")
    report = caught.value.report
    assert report.verdict == "runtime_error"
    assert report.reason == "ValueError: no \\x07 (line 1 of the submission)"
    assert "submission.py" in report.log


def test_one_that_does_not_load(run: Run) -> None:
    with pytest.raises(ProfilingError) as caught:
        run("def other(): pass")
    assert caught.value.report.verdict == "compile_error"


@pytest.mark.parametrize(
    ("trick", "reason"),
    [
        ("json.dumps = lambda *a, **k: '{}'", "data is invalid: calls"),
        ("os.pwrite = lambda fd, data, at: len(data)", "data is invalid"),
        ("os.pwrite = lambda fd, data, at: os.ftruncate(fd, 1 << 27)", "not permitted"),
    ],
)
def test_one_that_reports_nonsense(run: Run, trick: str, reason: str) -> None:
    with pytest.raises(ProfilingError) as caught:
        run(f"import json, os\n{trick}\n{HONEST}")
    assert reason in caught.value.report.reason


def test_labels_of_the_submission_are_escaped(run: Run) -> None:
    source = """
    import torch
    def scale(x, total, factor, out):
        with torch.profiler.record_function("boo \\x1b[2J \\u202e"):
            total += x
            out.copy_(x * factor)
    """
    found, artifacts = run(source)
    assert "boo \\x1b[2J \\u202e" in artifacts.table
    assert "\x1b" not in found.model_dump_json()


# On a GPU ----------------------------------------------------------------------------------------

TRITON = """
import triton
import triton.language as tl

@triton.jit
def scaled(x, total, factor, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x_tile = tl.load(x + at, mask=at < n)
    tl.store(total + at, tl.load(total + at, mask=at < n) + x_tile, mask=at < n)
    tl.store(out + at, x_tile * factor, mask=at < n)

def scale(x, total, factor, out):
    scaled[(triton.cdiv(x.numel(), 256),)](x, total, factor, out, x.numel(), SIZE=256)
"""


@pytest.mark.cuda
@pytest.mark.parametrize(("source", "launches"), [(TRITON, 1), (HONEST, 3)])
def test_kernels_on_a_gpu(run: Run, source: str, launches: int) -> None:
    found, artifacts = run(source, device="cuda")
    assert found.calls >= 4
    assert sum(kernel.launches for kernel in found.kernels) == launches
    longest = next(kernel for kernel in found.kernels if kernel.registers)  # a copy has none
    assert longest.block
    assert longest.occupancy is not None
    assert 0 < longest.occupancy <= 1
    assert found.time_us is not None
    assert found.graph_us is not None
    assert 0 < found.time_us < 1000
    assert found.ceiling_gb_per_s is not None
    assert found.limit.startswith("Memory-bound")
    assert any(note.startswith("ncu: ") for note in found.notes) != bool(found.ncu)
    assert any(e.get("cat") == "kernel" for e in json.loads(artifacts.trace)["traceEvents"])


@pytest.mark.cuda
def test_the_code_of_a_triton_kernel_that_ran(run: Run) -> None:
    found, artifacts = run(TRITON, device="cuda")
    assert found.kernels[0].name == "scaled"
    assert found.kernels[0].local_bytes == 0
    assert b".entry scaled(" in artifacts.ptx
    assert artifacts.sass.startswith(b"// scaled")


@pytest.mark.cuda
@pytest.mark.nvcc
def test_the_code_of_a_cuda_kernel_that_ran(run: Run) -> None:
    found, artifacts = run(CUDA, ".cu", device="cuda")
    assert found.kernels[0].name == "scaled(float const*, float*, long)"
    assert found.kernels[0].block == (256, 1, 1)
    assert found.kernels[0].local_bytes == 0
    assert b"STG" in artifacts.sass
