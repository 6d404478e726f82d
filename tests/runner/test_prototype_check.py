"""The comparison of a `.cu` file's entries with the problem's prototypes, by nvcc itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from grader.problem import Problem, prototypes
from grader.problem.scaffold import scaffold
from grader.runner import nvcc
from grader.runner.entry_point import LoadError
from grader.runner.load_cuda import load_cuda
from grader.runner.prototype_check import (
    checked_prototypes,
    chosen_prototypes,
    describe_clash,
    warnings_of_order,
)

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = sorted(path.parent.name for path in ROOT.glob("problems/*/problem.yaml"))
SUBMITTED = [*ROOT.glob("submissions/*/accepted/*.cu")]
HONEST = [*SUBMITTED, *ROOT.glob("reference/*/*.cu")]
WANTED = {
    "entry": 'extern "C" void entry(const float* x, __half* const* out, const int64_t* out_lengths,'
    " int64_t rows, double eps, cudaStream_t stream)",
    "entry_bf16": 'extern "C" void entry_bf16(const __nv_bfloat16* x, uint8_t* out)',
}
PARAMETERS = "const float* x, __half* const* out, const int64_t* out_lengths, int64_t rows"
HEADERS = "#include <cstdint>\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
BF16 = 'extern "C" void entry_bf16(const __nv_bfloat16* x, uint8_t* out) {}\n'
LONGER = "double eps, cudaStream_t stream"


def clash(source: str, folder: Path, wanted: dict[str, str] = WANTED) -> str | None:
    """What the check of a source says; None if it has nothing to say."""
    try:
        with checked_prototypes(source.encode(), folder, "90a", wanted):
            pass
    except LoadError as error:
        return str(error)
    return None


def defined(parameters: str, head: str = 'extern "C" void', rest: str = "") -> str:
    return f"{HEADERS}{head} entry({parameters}){rest} {{}}\n{BF16}"


@pytest.mark.nvcc
@pytest.mark.parametrize("file", SUBMITTED, ids=lambda file: f"{file.parents[1].name}-{file.stem}")
def test_honest_files_pass(tmp_path: Path, file: Path) -> None:
    """Those of `reference/` are checked as they are compiled, by judge/test_reference.py."""
    name = next(part for part in PROBLEMS if part in file.parts)
    wanted = prototypes(Problem.load(ROOT / "problems" / name).spec)
    assert clash(file.read_text(), tmp_path, wanted) is None


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["softmax", "multi_tensor_adamw", "fp8_matmul", "rope"])
def test_a_starter_file_with_another_type_does_not_pass(tmp_path: Path, name: str) -> None:
    """Unchanged ones pass: tests/cli/test_scaffold.py compiles them with the assertions."""
    problem = Problem.load(ROOT / "problems" / name)
    starter = scaffold(problem, "cuda")
    changed = starter.replace("int64_t", "int")
    assert changed != starter
    reason = str(clash(changed, tmp_path, prototypes(problem.spec)))
    assert reason.startswith(f"'{problem.spec.entry}' takes ")
    assert " int64_t" in reason.partition("; expected ")[0]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "source",
    [
        defined(f"{PARAMETERS}, {LONGER}"),
        defined(f"{PARAMETERS}, {LONGER}".replace("rows", "n").replace("eps", "grade")),
        defined(f"{PARAMETERS}, {LONGER}".replace("int64_t rows", "const long long rows")),
        defined(f"{PARAMETERS}, {LONGER}".replace("int64_t rows", "size_t rows")),
        defined(f"{PARAMETERS}, {LONGER}".replace("const float* x", "float* __restrict__ const x")),
        defined(f"{PARAMETERS}, {LONGER}".replace("__half*", "half*")),
        defined(f"{PARAMETERS}, {LONGER}".replace("__half* const*", "half**")),
        defined(f"{PARAMETERS}, {LONGER}".replace("const float*", "const void*")),
        defined(f"{PARAMETERS}, {LONGER}", rest=" noexcept"),
        defined(f"{PARAMETERS}, {LONGER}", head='extern "C" auto', rest=" -> void"),
        defined(f"{PARAMETERS}, {LONGER}") + "#define check broken\n",
        defined(f"{PARAMETERS}, {LONGER}") + "void entry(int) {}\n",
        defined(f"{PARAMETERS}, {LONGER}") + "// no line break at the end",
        HEADERS,
    ],
    ids=[
        *("exact", "names", "long long", "size_t", "restrict", "half", "const", "void"),
        *("noexcept", "auto", "macro", "overload", "comment", "missing"),
    ],
)
def test_what_is_no_difference(tmp_path: Path, source: str) -> None:
    assert clash(source, tmp_path) is None


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("int64_t rows", "int rows", "takes int as parameter 4 instead of int64_t rows"),
        ("const float* x", "const double* x", "takes const double * as parameter 1 instead of"),
        ("__half*", "float*", "takes float *const * as parameter 2 instead of __half* const* out"),
        ("double eps", "float eps", "takes float as parameter 5 instead of double eps"),
        ("double eps, ", "", "takes 5 parameters instead of 6"),
        (", cudaStream_t stream", "", "takes 5 parameters instead of 6"),
        ("cudaStream_t stream", "cudaStream_t stream, int more", "takes 7 parameters instead of 6"),
        ("const int64_t* out_lengths, ", "", "takes 5 parameters instead of 6"),
    ],
)
def test_a_wrong_prototype_is_shown_beside_the_right_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], before: str, after: str, words: str
) -> None:
    parameters = f"{PARAMETERS}, {LONGER}"
    changed = parameters.replace(before, after)
    reason = str(clash(defined(changed), tmp_path))
    assert reason.startswith(f"'entry' {words}")
    assert "\n" not in reason
    assert f"; expected void entry({parameters}); found void entry(" in reason
    expected, found = capfd.readouterr().err.splitlines()
    assert expected == f"expected: {WANTED['entry']}"
    assert found.startswith("found:    void entry(")
    assert found.count(",") == changed.count(",")


@pytest.mark.nvcc
def test_without_c_linkage_types_are_compared_too(tmp_path: Path) -> None:
    source = defined("const float* x", head="int")
    assert str(clash(source, tmp_path)).startswith("'entry' takes 1 parameters instead of 6")


@pytest.mark.nvcc
def test_the_second_entry_is_compared_too(tmp_path: Path) -> None:
    source = defined(f"{PARAMETERS}, {LONGER}").replace("__nv_bfloat16* x", "__half* x")
    reason = str(clash(source, tmp_path))
    assert reason.startswith("'entry_bf16' takes const __half * as parameter 1 instead of")


@pytest.mark.nvcc
def test_what_does_not_compile_is_left_to_the_compiler(tmp_path: Path) -> None:
    """Its own error comes first, even where the prototype is wrong too."""
    source = defined("int x") + "nothing\n"
    with (
        pytest.raises(LoadError, match=r"^nvcc: "),
        checked_prototypes(source.encode(), tmp_path, "90a", WANTED),
    ):
        nvcc.library(source.encode(), tmp_path, "90a")


@pytest.mark.nvcc
def test_a_missing_extern_c_is_explained(tmp_path: Path) -> None:
    request = {"prototypes": {"entry": WANTED["entry"]}, "arguments": []}
    source = defined(f"{PARAMETERS}, {LONGER}", head="void")
    with pytest.raises(LoadError, match="'entry' is there, but without extern \"C\""):
        nvcc.library(source.encode(), tmp_path, "90a")
        load_cuda(tmp_path, request, "cpu")
    other = source.replace("void entry(", "void entry_of_another_name(")
    with pytest.raises(LoadError, match=r'^the file lacks: extern "C" void entry'):
        nvcc.library(other.encode(), tmp_path, "90a")
        load_cuda(tmp_path, request, "cpu")


@pytest.mark.parametrize("symbol", ["2", "77777"])
def test_output_that_is_not_understood_names_the_prototypes(symbol: str) -> None:
    """Another version of nvcc may word it otherwise, and a submission can print what it likes."""
    output = 'x.cu(1): error: static assertion failed with "wrong type"\n'
    for text in (output, f"{output} ::check<0> [with symbol={symbol}, E=x, R=y, F=<z>]\n"):
        reason = describe_clash(text, WANTED)
        assert reason is not None
        assert WANTED["entry"] in reason
    assert describe_clash("x.cu(1): error: expected a type\n", WANTED) is None


def test_parameters_in_another_order_are_warned_of() -> None:
    """`int64_t m, int64_t n, int64_t k` for m, k, n: no type tells them apart."""
    prototype = 'extern "C" void matmul(const float* a, int64_t m, int64_t k, int64_t n)'
    swapped = 'extern "C" void matmul(const float *a,\n    int64_t m, int64_t n, int64_t k) {}'
    (line,) = warnings_of_order(swapped, {"matmul": prototype})
    assert line.startswith("'matmul(a, m, n, k)' is called with")
    assert "in their order, (a, m, k, n), whatever" in line
    for fine in (prototype + " {}", swapped.replace("int64_t m", "int64_t rows"), "matmul();"):
        assert not list(warnings_of_order(fine, {"matmul": prototype}))


@pytest.mark.parametrize("file", HONEST, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_honest_files_are_not_warned_of_their_order(file: Path) -> None:
    name = next(part for part in PROBLEMS if part in file.parts)
    wanted = prototypes(Problem.load(ROOT / "problems" / name).spec)
    assert not list(warnings_of_order(file.read_text(), wanted))


OURS = (
    'extern "C" void solve(const float* x, float* y, int64_t n, int64_t y_0, cudaStream_t stream)'
)
THEIRS = 'extern "C" void solve(const float* x, float* y, int n, float alpha)'
REQUEST = {"prototypes": {"solve": OURS}, "set_prototype": THEIRS}


@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        ('extern "C" void solve(const float *x, float *y, int n, float a)\n{ }', THEIRS),
        ("void solve(const float* x, float* y, long n, long m, cudaStream_t s) { }", OURS),
        ("#define ENTRY solve\nvoid ENTRY(const float* x) { }", OURS),
        ("void solve(int);\nvoid resolve(int x) { solve(x); }", OURS),
    ],
)
def test_a_file_may_have_the_prototype_of_its_set(source: str, chosen: str) -> None:
    assert chosen_prototypes(source.encode(), REQUEST) == {"solve": chosen}
    without = REQUEST | {"set_prototype": ""}
    assert chosen_prototypes(source.encode(), without) == {"solve": OURS}


SOLVE = 'extern "C" void solve(const float* x, float* y, int n, float alpha) '


@pytest.mark.nvcc
@pytest.mark.parametrize("integer", ["int", "size_t", "unsigned", "long long"])
def test_an_entry_with_the_prototype_of_its_set_is_called_with_its_types(
    integer: str, tmp_path: Path
) -> None:
    """Here with a function of the host, on memory of the host."""
    body = "{ for (long i = 0; i < (long)n; i++) y[i] = alpha * x[i]; }\n"
    source = (SOLVE.replace("int n", f"{integer} n") + body).encode()
    prototypes = chosen_prototypes(source, REQUEST)
    with checked_prototypes(source, tmp_path, "90a", prototypes, of_set=True):
        nvcc.library(source, tmp_path, "90a", nvcc.SET_FLAGS)
    entry = load_cuda(tmp_path, REQUEST, "cpu")
    assert entry.on_default_stream
    x, y = torch.arange(1.0, 5.0), torch.zeros(4)
    entry.call(entry.prepare([x, y, 3, 0.5], {}))
    assert y.tolist() == [0.5, 1.0, 1.5, 0.0]


@pytest.mark.nvcc
def test_an_entry_with_another_prototype_than_its_set_s_does_not_pass(tmp_path: Path) -> None:
    wrong = (SOLVE.replace("int n, float", "float alpha, int") + "{}\n").encode()
    prototypes = chosen_prototypes(wrong, REQUEST)
    with (
        pytest.raises(LoadError) as caught,
        checked_prototypes(wrong, tmp_path, "90a", prototypes, of_set=True),
    ):
        pass
    assert str(caught.value).startswith("'solve' takes float as parameter 3 instead of int n")


@pytest.mark.nvcc
@pytest.mark.parametrize("cores", [1, 2])
def test_kernels_of_a_sets_file_run_on_the_threads_default_stream(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches and copies that name no stream are those of the per-thread API, however it is
    compiled."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    source = (
        "__global__ void scale(float* y) { *y *= 2; }\n"
        'extern "C" void solve(const float* x, float* y, int n, float alpha) {\n'
        "  scale<<<1, 1>>>(y);\n"
        "  cudaMemcpyAsync(y, x, 4, cudaMemcpyDeviceToDevice);\n"
        "}\n"
    )
    made = nvcc.library(source.encode(), tmp_path, "90a", nvcc.SET_FLAGS)
    symbols = subprocess.run(["nm", str(made)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"cudaLaunchKernel_ptsz|__cudaLaunchKernel_ptsz", symbols)
    assert "cudaMemcpyAsync_ptsz" in symbols
