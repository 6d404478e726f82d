"""Compiling a `.cu` file in two parallel halves, and with one nvcc as the fallback."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grader.runner import nvcc
from grader.runner.entry_point import LoadError
from tests.waiting import until

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"
FEATURES = """
#include <cuda_fp16.h>
#include <mma.h>

namespace {
__device__ int calls;
__constant__ float scale = 2;
struct Tiles { const __half* a; float* out; int count; };

template <typename T, int N> __device__ T total(const T (&values)[N]) {
  T sum = 0;
  for (T value : values) sum += value;
  return sum;
}

template <typename T> __global__ void sums(const T* x, T* out) {
  __shared__ T shared[32];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) *out = total(shared) * T(scale) + T(atomicAdd(&calls, 1));
}

__global__ void multiply(Tiles tiles) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __half, row_major> a;
  fragment<matrix_b, 16, 16, 16, __half, col_major> b;
  fragment<accumulator, 16, 16, 16, float> c;
  fill_fragment(c, 0.0f);
  for (int i = 0; i < tiles.count; ++i) {
    load_matrix_sync(a, tiles.a + 256 * i, 16);
    load_matrix_sync(b, tiles.a + 256 * i, 16);
    mma_sync(c, a, b, c);
  }
  store_matrix_sync(tiles.out, c, 16, mem_row_major);
}
}  // namespace

extern "C" void entry(const float* const* x, double* wide, const __half* a, float* out) {
  sums<float><<<1, 32>>>(x[0], out);
  sums<double><<<1, 32>>>(wide, wide);
  multiply<<<1, 32>>>({a, out, 4});
}
"""
"""Templates, an anonymous namespace, device variables, tensor cores, a struct passed by value."""
CUDA_SOURCES = {
    "features": FEATURES.encode(),
    "arrays on the host": (SUBMISSIONS / "multi_tensor_adamw/accepted/cuda_adamw.cu").read_bytes(),
    "several kernels": (SUBMISSIONS / "sort/accepted/cuda_sort.cu").read_bytes(),
}
KERNEL = "__global__ void run(float *x) { *x = 1; }\n"
ENTRY = 'extern "C" void entry(float *x) { run<<<1, 1>>>(x); }\n'
DIFFERENT_FIRST_SYMBOLS = """
#ifdef __CUDA_ARCH__
__device__ void device_alone() {}
#else
int host_alone;
#endif
namespace {
__constant__ float kept[2];
struct Params { float *x; };
template <int N> __global__ void run(Params p) { *p.x = N * kept[1]; }
}
extern "C" void entry(float *x) {
  cudaMemcpyToSymbol(kept, x, sizeof(kept));
  run<3><<<1, 1>>>({x});
}
"""
"""The first external symbol differs between device and host, so the halves name the anonymous
namespace differently."""

Fake = Callable[..., None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replaces nvcc and objcopy with shell scripts. They write the halves' module ids, put their
    name into the library, and log their calls in `calls`."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (tmp_path / "bin").mkdir()

    def write(script: str, objcopy: str = "", module: str = "same") -> None:
        name = f"""
            echo "$@" >>{tmp_path}/calls
            for word; do
                [ "$last" = --keep-dir ] && echo {module} >$word/submission.module_id
                [ "$last" = -o ] && made=$word
                last=$word
            done
            case "$*" in *submission.o|*made.o) by=halves;; *) by=whole;; esac
            """
        end = "echo $by >$made"
        for program, text in {"nvcc": f"{name}\n{script}\n{end}", "objcopy": objcopy}.items():
            file = tmp_path / "bin" / program
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)

    return write


def made(folder: Path) -> str:
    return nvcc.library(KERNEL.encode(), folder, "80").read_text()


def test_parallel_compilation(fake: Fake, tmp_path: Path) -> None:
    fake("")
    assert made(tmp_path) == "halves\n"
    assert not (tmp_path / "device").exists()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert "code=sm_80 " in next(line for line in calls if "--fatbin" in line)
    assert "code=compute_80 " in next(line for line in calls if "--Ofast-compile=" in line)
    assert "--no-device-link" in calls[-1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"script": 'case "$*" in *--Ofast-compile=*) exit 1;; esac'},
        {"script": 'case "$*" in *--fatbin*) echo cicc died due to signal 9; exit 1;; esac'},
        {"script": 'case "$*" in *--fatbin*) kill -9 $$;; esac'},
        {"script": 'case "$*" in *made.o) [ $by = halves ] && exit 1;; esac'},
        {"script": "", "objcopy": "exit 1"},
        {"script": "", "module": "$word"},
        {"script": "rm -f */submission.module_id"},
    ],
    ids=["an old nvcc", "no memory", "killed", "no link", "no objcopy", "two modules", "no module"],
)
def test_one_nvcc_is_the_fallback(fake: Fake, tmp_path: Path, wrong: dict[str, str]) -> None:
    fake(**wrong)
    assert made(tmp_path) == "whole\n"


def test_one_nvcc_is_used_without_objcopy(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("")
    popen = subprocess.Popen

    def begun(command: list[str], **options: object) -> object:
        if command[0] == "objcopy":
            raise FileNotFoundError(command[0])
        return popen(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", begun)
    assert made(tmp_path) == "whole\n"


def test_one_nvcc_is_used_on_one_cpu(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7})
    assert made(tmp_path) == "whole\n"
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_a_half_is_killed_when_the_other_fails(fake: Fake, tmp_path: Path) -> None:
    """With its children, and at once."""
    fake(
        f'case "$*" in *--fatbin*) sleep 60 & echo $! >{tmp_path}/child; wait;; '
        f"*--Ofast-compile=*) until [ -s {tmp_path}/child ]; do sleep 0.01; done; exit 1;; esac"
    )
    start = time.monotonic()
    assert made(tmp_path) == "whole\n"
    assert time.monotonic() - start < 20
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"

    def is_over() -> bool:
        try:
            return child.read_text().split(")")[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(is_over, 20)


def test_an_error_in_device_code_is_reported_at_once(
    fake: Fake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake('case "$*" in *--fatbin*) echo some; echo an error; exit 1;; *) sleep 60;; esac')
    start = time.monotonic()
    with pytest.raises(LoadError, match=r"^nvcc: an error$"):
        made(tmp_path)
    assert time.monotonic() - start < 20
    assert capfd.readouterr().err == "some\nan error\n"
    assert "--shared" not in (tmp_path / "calls").read_text()


@pytest.mark.nvcc
@pytest.mark.parametrize("source", CUDA_SOURCES.values(), ids=CUDA_SOURCES)
def test_parallel_compilation_gives_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: bytes
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    halves = tmp_path / "halves.so"
    nvcc.library(source, tmp_path, "90a").rename(halves)
    assert not (tmp_path / "whole.log").exists(), "one nvcc had to do it all"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    whole = nvcc.library(source, tmp_path, "90a")
    assert device_code(halves) in device_code(whole)  # the device linker adds more
    assert symbols(halves) == symbols(whole)
    assert kernels(halves)
    assert not missing(halves)


@pytest.mark.nvcc
def test_a_library_has_the_kernels_that_it_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    made = nvcc.library(DIFFERENT_FIRST_SYMBOLS.encode(), tmp_path, "90a")
    assert (tmp_path / "whole.log").exists(), "the halves gave it one name, so this shows nothing"
    assert kernels(made)
    assert not missing(made)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "source",
    [
        '__global__ void run() { asm("nothing"); }',
        f"int host = nothing;\n{KERNEL}",
        f"#ifdef __CUDA_ARCH__\nnothing\n#endif\n{KERNEL}",
        f"{KERNEL}{ENTRY}nothing",
    ],
    ids=["assembler", "host", "device", "both"],
)
def test_errors_are_reported(
    tmp_path: Path, source: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LoadError, match=r"^nvcc: .*error"):
        nvcc.library(source.encode(), tmp_path, "90a")
    assert "nothing" in capfd.readouterr().err


@pytest.mark.nvcc
def test_an_error_names_its_line_and_marks_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    error = 'submission.cu(3): error: identifier "nothing" is undefined'
    with pytest.raises(LoadError, match=f"^{re.escape('nvcc: ' + error)}$"):
        nvcc.library(f"{KERNEL}\nint host = nothing;\n".encode(), tmp_path, "90a")
    assert capfd.readouterr().err.splitlines()[:3] == [
        error,
        "  int host = nothing;",
        "             ^",
    ]


def section(library: Path, name: str) -> bytes:
    path = library.with_suffix(".section")
    command = ["objcopy", "--output-target=binary", f"--only-section={name}"]
    subprocess.run([*command, str(library), str(path)], check=True)
    return path.read_bytes()


def device_code(library: Path) -> bytes:
    return section(library, ".nv_fatbin")


def symbols(library: Path) -> list[str]:
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def kernels(library: Path) -> set[bytes]:
    """The kernels in a library: each has a constant bank for its arguments."""
    return set(re.findall(rb"\0\.nv\.constant0\.(\w+)", device_code(library)))


def missing(library: Path) -> set[bytes]:
    """The kernels whose names the host code lacks."""
    known = section(library, ".rodata")
    return {name for name in kernels(library) if name + b"\0" not in known}
