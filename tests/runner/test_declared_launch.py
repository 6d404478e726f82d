"""Launches that a `.cu` file declares: what they may be, their values, and the code for both
compilers."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from grader.runner import nvcc, nvrtc
from grader.runner.declared_launch import MOST_CHARS, declared_launches, host_functions
from grader.runner.entry_point import LoadError
from grader.runner.load_cuda import load_cuda
from grader.runner.nvrtc import DeviceCode, Unavailable, device_code

PROTOTYPES = {
    "scale": (
        'extern "C" void scale(const float* x, const int64_t* x_strides, float* out, double by, '
        "bool on, int64_t rows, int64_t cols, cudaStream_t stream)"
    )
}
ENTRY = "scale"
KERNEL = """#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
template <int N> __global__ void scaled(const float* __restrict__ x, float* out, float by, int n) {
  for (int i = threadIdx.x; i < n; i += N) out[i] = by * x[i];
}
"""
LAUNCH = "scaled<4><<<ceil_div(rows, 8), dim3(32, 8), 4 * cols>>>(x, out, float(by), int(cols))"


def file(*launches: str, kernel: str = KERNEL) -> bytes:
    return "\n".join([*(f"// launch scale: {one}" for one in launches), kernel]).encode()


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", os.environ.get("CUDA_HOME", "/usr/local/cuda"))


def test_a_file_without_declarations_has_none() -> None:
    assert declared_launches(b"// to launch scale, call it\nint launch;", PROTOTYPES) == {}


def test_sizes_and_values() -> None:
    given = {
        "x": ctypes.c_void_p(1 << 40),
        "x_strides": (ctypes.c_int64 * 2)(7, 1),
        "out": ctypes.c_void_p(512),
        "by": ctypes.c_double(0.5),
        "on": ctypes.c_bool(True),
        "rows": ctypes.c_int64(17),
        "cols": ctypes.c_int64(100),
    }
    text = "k<<<max(rows / 4, 1) - 1, (rows + 3) % 4 + min(rows, 30)>>>(out, x, by, float(by), on, "
    text += "rows, int(rows * cols), 3);"
    first, second = declared_launches(file(LAUNCH, text), PROTOTYPES)[ENTRY]
    assert first.sizes({"rows": 17, "cols": 100}) == ([3, 1, 1], [32, 8, 1], 400)
    assert second.sizes({"rows": 17, "cols": 100}) == ([3, 1, 1], [17, 1, 1], 0)
    values = second.values(given)
    assert [type(value) for value in values] == [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_float, ctypes.c_bool),
        *(ctypes.c_int64, ctypes.c_int32, ctypes.c_int64),
    ]
    assert [value.value for value in values] == [512, 1 << 40, 0.5, 0.5, True, 17, 1700, 3]
    with pytest.raises(ArithmeticError):
        declared_launches(file("k<<<1 / (rows - rows), 1>>>()"), PROTOTYPES)[ENTRY][0].sizes(
            {"rows": 1, "cols": 1}
        )


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("k<<<1>>>(x)", "a launch has a grid, a block"),
        ("k<<<1, 2, 3, stream>>>(x)", "a launch has a grid, a block"),
        ("k(x)", "this is no launch"),
        (f"k<<<1, {'1 + ' * MOST_CHARS}1>>>(x)", "this is no launch"),
        ("k<<<1, 10 ** 10 ** 10>>>(x)", r"'10 \*\* 10 \*\* 10' is not understood"),
        ("k<<<1, 1 << 20>>>(x)", "'1 << 20' is not understood"),
        ("k<<<1, __import__('os').getpid()>>>(x)", "is not understood"),
        ("k<<<1, rows.real>>>(x)", "'rows.real' is not understood"),
        ("k<<<1, True>>>(x)", "'True' is not understood"),
        ("k<<<1, 1.5>>>(x)", "'1.5' is not understood"),
        ("k<<<1, by>>>(x)", r"integers \(cols, rows\)"),
        ("k<<<1, min(rows)>>>(x)", "is not understood"),
        ("k<<<1, dim3(1, 1, 1, 1)>>>(x)", "is not understood"),
        ("k<<<1, 1>>>(y)", "'y' is not understood"),
        ("k<<<1, 1>>>(x +)", "is not a list of expressions"),
        ("k<<<1, 2) + (3>>>(x)", "is not a list of expressions"),
        (f"k<<<1, {'(' * 900}1{')' * 900}>>>(x)", "is not a list of expressions"),
        ("k<<<1, 1>>>(stream)", "'stream' cannot be passed so"),
        ("k<<<1, 1>>>(int(x))", "'x' cannot be passed so"),
        ("k<<<1, 1>>>(x_strides)", "'x_strides' is an array on the host"),
    ],
)
def test_what_is_no_launch_is_explained(launch: str, words: str) -> None:
    with pytest.raises(LoadError, match=rf"^line 1: .*{words}"):
        declared_launches(file(launch), PROTOTYPES)


def test_all_entries_are_declared_or_none() -> None:
    two = PROTOTYPES | {"scale_f16": 'extern "C" void scale_f16(__half* x, cudaStream_t stream)'}
    with pytest.raises(LoadError, match="no launch is declared of 'scale_f16'"):
        declared_launches(file(LAUNCH), two)
    with pytest.raises(LoadError, match=r"^line 2: a launch of 'skale', which is no entry"):
        declared_launches(b"\n// launch skale: k<<<1, 1>>>()", PROTOTYPES)


@pytest.mark.usefixtures("toolkit")
def test_nvrtc_compiles_the_kernels() -> None:
    source = file(LAUNCH)
    code = device_code(source, "90a", declared_launches(source, PROTOTYPES))
    assert code.symbols == {"scaled<4>": "_Z6scaledILi4EEvPKfPffi"}
    assert code.cubin.startswith(b"\x7fELF")
    assert int.from_bytes(code.cubin[18:20], "little") == 190  # EM_CUDA
    assert DeviceCode.from_json(code.to_json()) == code
    assert nvrtc.version().split(".")[0].isdecimal()


@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize(
    ("launch", "kernel", "words"),
    [
        (
            LAUNCH.replace("int(cols)", "cols"),
            KERNEL,
            "takes int as parameter 4 instead of int64_t",
        ),
        (LAUNCH.replace("float(by)", "by"), KERNEL, "takes float as parameter 3 instead of double"),
        (LAUNCH.replace(", int(cols)", ""), KERNEL, "takes 4 parameters instead of 3"),
        (LAUNCH, KERNEL.replace("by * x", "bye * x"), r'submission.cu\(6\): error: .*"bye"'),
        (LAUNCH.replace("scaled<4>", "skaled"), KERNEL, "skaled"),
    ],
)
def test_a_kernel_that_does_not_fit_its_launch(launch: str, kernel: str, words: str) -> None:
    source = file(launch, kernel=kernel)
    with pytest.raises(LoadError, match=words):
        device_code(source, "90a", declared_launches(source, PROTOTYPES))


@pytest.mark.usefixtures("toolkit")
def test_headers_of_the_host_are_left_to_nvcc() -> None:
    source = file(LAUNCH, kernel="#include <vector>\n" + KERNEL)
    with pytest.raises(Unavailable, match="includes a header of the host"):
        device_code(source, "90a", declared_launches(source, PROTOTYPES))


@pytest.mark.nvcc
def test_nvcc_compiles_the_same_file(tmp_path: Path) -> None:
    """With functions on the host, of which one on this machine's memory shows the values."""
    kernel = (
        KERNEL + "template <class T> __global__ void shown(T*, const float*, double, long) {}\n"
    )
    source = file(LAUNCH, "shown<float><<<rows, 1>>>(out, x, by, min(rows, 2))", kernel=kernel)
    launches = declared_launches(source, PROTOTYPES)
    whole = source + b"\n" + host_functions(launches, PROTOTYPES).encode()
    made = nvcc.library(whole, tmp_path, "90a")
    names = subprocess.run(["nm", "-D", str(made)], capture_output=True, text=True, check=True)
    assert " T scale\n" in names.stdout
    request = {"prototypes": PROTOTYPES, "arguments": []}
    assert load_cuda(tmp_path, request, "cpu").call is not None


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"symbols": {}, "cubin": "?"}', b"{}"])
def test_a_library_that_is_none_does_not_load(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "submission.cu").write_bytes(file(LAUNCH))
    (tmp_path / "submission.json").write_bytes(text)
    with pytest.raises(LoadError, match="the compiled file does not load"):
        load_cuda(tmp_path, {"prototypes": PROTOTYPES, "arguments": []}, "cuda")
