"""Problems of FlashInfer-Trace and SOL-ExecBench: made-up definitions, read, run and graded."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.automation import load_submission
from grader.judge import grade
from grader.judge.import_problem import import_problem
from grader.judge.set_code import SetCode
from grader.judge.set_host import open_host
from grader.problem import Problem, ProblemError
from grader.problem_sets import list_problems, read_problem
from grader.problem_sets import trace_schema as schema
from grader.report import Report, Verdict
from grader.runner.entry_point import LoadError
from grader.runner.sets.driver import UnsupportedError, seed_all
from grader.runner.sets.trace_checks import MatchLimits, flashinfer_fault, sol_fault
from grader.runner.sets.trace_inputs import named_tensor, random_tensor, read_tensor, size_of
from grader.runner.sets.traces import SolExecBench
from grader.runner.solution_file import unpack
from grader.sandbox.process import ProcessSandbox
from grader.submission import Submission, SubmissionError
from tests.forked_sandbox import ForkedSandbox

Data = dict[str, Any]

NORM = """
import torch

def run(x, norm_weight, eps):
    rms = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return {"out": (x.float() * rms * norm_weight).to(x.dtype), "rms": rms[:, 0]}
"""
HONEST = """
import torch

def run(x, norm_weight, eps):
    rms = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return x * rms * norm_weight, rms[:, 0]
"""


def norm() -> Data:
    """A definition with each kind of axis, an input by value, and two outputs."""
    return {
        "name": "made-up_norm",
        "axes": {
            "rows": {"type": "var"},
            "heads": {"type": "const", "value": 4},
            "width": {"type": "expr", "expression": "heads * 16"},
        },
        "inputs": {
            "x": {"shape": ["rows", "width"], "dtype": "float32"},
            "norm_weight": {"shape": ["width"], "dtype": "float32"},
            "eps": {"shape": None, "dtype": "float32"},
        },
        "outputs": {
            "out": {"shape": ["rows", "width"], "dtype": "float32"},
            "rms": {"shape": ["rows"], "dtype": "float32"},
        },
        "reference": NORM,
    }


def workload(rows: int = 8, **more: Any) -> Data:
    inputs = {
        "x": {"type": "random"},
        "norm_weight": {"type": "random"},
        "eps": {"type": "scalar", "value": 1e-6},
    }
    return {"uuid": f"rows-{rows}", "axes": {"rows": rows}, "inputs": inputs} | more


def write_sol(root: Path, definition: Data, workloads: list[Data]) -> Path:
    folder = root / "data" / "benchmark" / "L1" / "problem"
    folder.mkdir(parents=True)
    (folder / "definition.json").write_text(json.dumps(definition))
    (folder / "reference.py").write_text(definition["reference"])
    (folder / "workload.jsonl").write_text("\n".join(map(json.dumps, workloads)))
    return folder


def write_fib(root: Path, definition: Data, workloads: list[Data]) -> Path:
    """The definition's name, as in ``ROOT#name``."""
    name = definition["name"]
    for folder in ("definitions", "workloads"):
        (root / folder / "kind").mkdir(parents=True, exist_ok=True)
    (root / "definitions" / "kind" / f"{name}.json").write_text(json.dumps(definition))
    lines = [
        json.dumps({"definition": name, "solution": None, "workload": one, "evaluation": None})
        for one in workloads
    ]
    (root / "workloads" / "kind" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return Path(f"{root}#{name}")


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file."""
    kinds = {torch.float32: "F32", torch.int32: "I32"}
    header: Data = {"__metadata__": {"made": "up"}}
    content = b""
    for key, tensor in tensors.items():
        data = bytes(tensor.flatten().view(torch.uint8).tolist())
        place = [len(content), len(content) + len(data)]
        header[key] = {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": place,
        }
        content += data
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def gather() -> tuple[Data, Data]:
    """A definition and a workload whose inputs lie in a file."""
    blob = {"type": "safetensors", "path": "./blob/kind/one.safetensors"}
    definition = {
        "name": "gather",
        "op_type": "made_up",
        "axes": {
            "pages": {"type": "const", "value": 32},
            "width": {"type": "const", "value": 16},
            "n": {"type": "var"},
        },
        "inputs": {
            "table": {"shape": ["pages", "width"], "dtype": "float32"},
            "index": {"shape": ["n"], "dtype": "int32"},
        },
        "outputs": {"out": {"shape": ["n", "width"], "dtype": "float32"}},
        "reference": "def run(table, index):\n    return table[index.long()].exp()\n",
    }
    inputs = {
        "table": blob | {"tensor_key": "table"},
        "index": blob | {"tensor_key": "index"},
    }
    return definition, {"uuid": "one", "axes": {"n": 6}, "inputs": inputs}


TABLE = torch.linspace(-1.3, 1.7, 32 * 16).reshape(32, 16)
INDEX = torch.tensor([0, 31, 7, 7, 2, 30], dtype=torch.int32)


def read_sol(tmp_path: Path, definition: Data, workloads: list[Data]) -> Any:
    return read_problem("sol", write_sol(tmp_path, definition, workloads))


# --- run for real


@pytest.fixture(scope="module")
def sandbox() -> ForkedSandbox:
    return ForkedSandbox()


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory, sandbox: ForkedSandbox) -> Problem:
    """A problem whose own check lets a tenth of the elements be anything, and the others be off by
    a fifth."""
    tolerance = {"max_atol": 0.01, "max_rtol": 0.2, "required_matched_ratio": 0.9}
    workloads = [workload(rows, tolerance=tolerance) for rows in (16, 24)]
    folder = write_sol(tmp_path_factory.mktemp("sol"), norm(), workloads)
    return import_problem(read_problem("sol", folder), sandbox, "cpu")


Grade = Callable[[Problem, str], Report]


@pytest.fixture
def judge(sandbox: ForkedSandbox) -> Grade:
    def run(problem: Problem, source: str) -> Report:
        submission = Submission("file.py", "python", source.encode())
        return grade(problem, submission, sandbox=sandbox, device="cpu", benchmarks=False, seed=5)

    return run


def test_a_problem_of_sol_is_described_as_it_is(loose: Problem) -> None:
    assert [(a.name, a.role, a.kind) for a in loose.spec.args] == [
        ("x", "in", "tensor"),
        ("norm_weight", "in", "tensor"),
        ("eps", "in", "scalar"),
        ("out", "out", "tensor"),
        ("rms", "out", "tensor"),
    ]
    assert [case.name for case in loose.spec.tests] == ["test_1", "test_2"]
    assert [case.name for case in loose.spec.benchmarks] == ["benchmark_2"]
    assert loose.shape(loose.spec.args[0], loose.spec.tests[1]) == (24, 64)
    assert loose.imported is not None
    assert loose.imported.limits == ()
    assert loose.imported.wide == {"test_1", "test_2", "benchmark_2"}


@pytest.mark.parametrize(
    "source",
    [
        HONEST,
        HONEST.replace("return x * rms * norm_weight, rms[:, 0]", "return {'rms': rms[:, 0], "
                       "'out': x * rms * norm_weight}"),
        HONEST.replace("eps):", "eps, out, total):").replace(
            "return x * rms * norm_weight, rms[:, 0]",
            "out.copy_(x * rms * norm_weight); total.copy_(rms[:, 0])",
        ),
    ],
    ids=["returned", "returned-by-name", "written"],
)  # fmt: skip
def test_outputs_may_be_returned_or_written(judge: Grade, loose: Problem, source: str) -> None:
    report = judge(loose, source)
    assert report.verdict is Verdict.ACCEPTED, report.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x * rms", "return 1.05 * x * rms"),
        ("return x", "x = torch.cat([x[:-1], 0 * x[-1:]])\n    return x"),
        ("return x", "return torch.zeros_like(x), rms[:, 0]\n    return x"),
        ("* norm_weight, rms", ", rms"),
    ],
    ids=["scaled", "last-row-zero", "zeros", "without-weight"],
)
def test_what_a_loose_tolerance_would_let_pass_is_wrong(
    judge: Grade, loose: Problem, old: str, new: str
) -> None:
    assert old in HONEST
    report = judge(loose, HONEST.replace(old, new))
    assert report.verdict is Verdict.WRONG_ANSWER, report.reason


def test_the_sets_own_check_decides_where_it_is_the_stricter_one(
    judge: Grade, tmp_path: Path, sandbox: ForkedSandbox
) -> None:
    tolerance = {"max_atol": 1.0, "max_rtol": 0.0, "max_error_cap": 1e-3}
    source = read_sol(tmp_path, norm(), [workload(64, tolerance=tolerance)])
    off = "y = x * rms * norm_weight; y[3, 5] += 2e-3\n    return y, rms[:, 0]\n    return x"
    report = judge(import_problem(source, sandbox, "cpu"), HONEST.replace("return x", off))
    assert report.verdict is Verdict.WRONG_ANSWER
    assert "SOL-ExecBench's own check: 'out'" in report.reason
    assert "above the cap of 0.001" in report.reason


def test_a_file_of_tensors_is_an_input_whose_floats_are_perturbed(
    judge: Grade, tmp_path: Path, sandbox: ForkedSandbox
) -> None:
    definition, one = gather()
    write_tensors(tmp_path / "blob/kind/one.safetensors", {"table": TABLE, "index": INDEX})
    source = read_problem("fib", write_fib(tmp_path, definition, [one]))
    problem = import_problem(source, sandbox, "cpu")
    assert problem.imported is not None
    assert problem.imported.limits == ("2 of 2 cases have public data that no seed changes",)
    code = SetCode(problem, "cpu", open_host(source, sandbox, "cpu"))
    inputs = code.inputs(problem.spec.tests[0], 1)
    assert torch.equal(inputs["index"], INDEX)
    change = (inputs["table"] / TABLE - 1).abs()
    assert 1e-3 < change.max() < 1e-2
    known = "import torch\n\ndef run(table, index):\n    return table[index.long()].exp()\n"
    assert judge(problem, known).verdict is Verdict.ACCEPTED
    answer = f"torch.linspace(-1.3, 1.7, 512).reshape(32, 16)[{INDEX.tolist()}].exp()"
    known = known.replace("table[index.long()].exp()", answer)
    assert judge(problem, known).verdict is Verdict.WRONG_ANSWER


INDEXER = """
import torch

def run(q_index_fp8, k_index_cache_fp8, weights, seq_lens, block_table):
    pages, size, _, width = k_index_cache_fp8.shape
    flat = k_index_cache_fp8.view(torch.uint8).view(pages, -1)
    codes = flat[:, : size * (width - 4)].reshape(pages, size, -1).view(torch.float8_e4m3fn)
    keys = codes.float() * flat[:, size * (width - 4) :].view(torch.float32)[..., None]
    out = torch.full((len(seq_lens), 5), -1, dtype=torch.int32)
    for row, length in enumerate(seq_lens.tolist()):
        place = torch.arange(length)
        tokens = block_table[row].long()[place // size] * size + place % size
        products = q_index_fp8[row].float() @ keys.view(-1, width - 4)[tokens].T
        scores = (products.relu() * weights[row][:, None]).sum(0)
        best = tokens[scores.topk(min(5, length)).indices]
        out[row, : len(best)] = best.int()
    return out
"""
ROWS = {
    "seq_lens": torch.tensor([9, 3, 12], dtype=torch.int32),
    "block_table": torch.tensor([[3, 0, 7], [5, 0, 0], [1, 6, 2]], dtype=torch.int32),
}


@pytest.fixture(scope="module")
def indexer(tmp_path_factory: pytest.TempPathFactory, sandbox: ForkedSandbox) -> Problem:
    """A problem of which tokens have the largest scores."""
    root = tmp_path_factory.mktemp("indexer")
    sizes = {"heads": 2, "width": 16, "pages": 8, "page_size": 4, "one": 1, "packed": 20}
    shapes = {
        "q_index_fp8": (["batch", "heads", "width"], "float8_e4m3fn"),
        "k_index_cache_fp8": (["pages", "page_size", "one", "packed"], "int8"),
        "weights": (["batch", "heads"], "float32"),
        "seq_lens": (["batch"], "int32"),
        "block_table": (["batch", "most_pages"], "int32"),
    }
    definition = {
        "name": "dsa_topk_indexer_made_up",
        "axes": {name: {"type": "const", "value": size} for name, size in sizes.items()}
        | {name: {"type": "var"} for name in ("batch", "most_pages", "most")},
        "inputs": {n: {"shape": shape, "dtype": dtype} for n, (shape, dtype) in shapes.items()},
        "outputs": {"topk_indices": {"shape": ["batch", "most"], "dtype": "int32"}},
        "reference": INDEXER,
    }
    write_tensors(root / "blob/rows.safetensors", ROWS)
    inputs = {
        name: {"type": "safetensors", "path": "./blob/rows.safetensors", "tensor_key": name}
        if name in ROWS
        else {"type": "random"}
        for name in shapes
    }
    one = {"uuid": "one", "axes": {"batch": 3, "most_pages": 3, "most": 5}, "inputs": inputs}
    return import_problem(read_problem("fib", write_fib(root, definition, [one])), sandbox, "cpu")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", None),
        ("return out", "return out.flip(1)", None),
        ("scores.topk(min(5, length))", "scores.topk(min(5, length), largest=False)", "the scores"),
        ("return out", "out[0, 1] = out[0, 0]\n    return out", "row 0 has a token twice"),
        ("return out", "out[1, 0] = 0\n    return out", "row 1 has a token that is not of its"),
        ("return out", "out[2, 4] = -1\n    return out", "row 2 has 4 tokens instead of 5"),
        ("return out", "out[1, 4] = 1 << 30\n    return out", "row 1 has a token that is not of"),
    ],
    ids=["reference", "another order", "smallest", "twice", "not its own", "fewer", "far"],
)
def test_chosen_tokens_are_judged_by_their_scores(
    judge: Grade, indexer: Problem, old: str, new: str, reason: str | None
) -> None:
    assert indexer.imported is not None
    assert "several answers are right" in indexer.imported.limits[0]
    report = judge(indexer, INDEXER.replace(old, new))
    wanted = Verdict.ACCEPTED if reason is None else Verdict.WRONG_ANSWER
    assert report.verdict is wanted, report.reason
    assert (reason or "") in report.reason


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory, sandbox: ForkedSandbox) -> Problem:
    """A problem with the name of one whose second output may be left out."""
    root, definition = tmp_path_factory.mktemp("attention"), norm()
    definition["name"] = "dsa_sparse_attention_made_up"
    return import_problem(
        read_problem("fib", write_fib(root, definition, [workload(16)])), sandbox, "cpu"
    )


BOTH = "return x * rms * norm_weight, rms[:, 0]"


@pytest.mark.parametrize(
    ("end", "verdict", "reason"),
    [
        (BOTH, Verdict.ACCEPTED, ""),
        ("return x * rms * norm_weight", Verdict.ACCEPTED, ""),
        ("return (x * rms * norm_weight,)", Verdict.ACCEPTED, ""),
        ("return {'out': x * rms * norm_weight}", Verdict.ACCEPTED, ""),
        ("return x * rms", Verdict.WRONG_ANSWER, "'out'"),
        ("return x * rms * norm_weight, 1.05 * rms[:, 0]", Verdict.WRONG_ANSWER, "'rms'"),
        ("return {'rms': rms[:, 0]}", Verdict.RUNTIME_ERROR, "returned no 'out'"),
        ("return rms[:, 0]", Verdict.RUNTIME_ERROR, "returned a tensor of shape (16,)"),
        ("return []", Verdict.RUNTIME_ERROR, "returned 0 values where 2 are outputs"),
        (f"{BOTH}, x", Verdict.RUNTIME_ERROR, "returned 3 values where 2 are outputs"),
    ],
)
def test_the_second_output_of_sparse_attention_may_be_left_out(
    judge: Grade, attention: Problem, end: str, verdict: Verdict, reason: str
) -> None:
    assert [a.name for a in attention.spec.args if a.optional] == ["rms"]
    assert BOTH in HONEST
    report = judge(attention, HONEST.replace(BOTH, end))
    assert report.verdict is verdict, report.reason
    assert reason in report.reason


def test_what_writes_its_outputs_may_leave_the_second_one(judge: Grade, attention: Problem) -> None:
    source = HONEST.replace("eps):", "eps, out, total):")
    left = source.replace(BOTH, "out.copy_(x * rms * norm_weight)")
    report = judge(attention, left)
    assert report.verdict is Verdict.ACCEPTED, report.reason
    report = judge(attention, left + "\n    total[:9] = rms[:9, 0]\n")
    assert report.verdict is Verdict.WRONG_ANSWER
    assert "7 of 16 elements of 'rms' were never written" in report.reason


def test_no_other_output_may_be_left_out(judge: Grade, loose: Problem) -> None:
    report = judge(loose, HONEST.replace(BOTH, "return x * rms * norm_weight"))
    assert report.verdict is Verdict.RUNTIME_ERROR
    assert "returned 1 values where 2 are outputs" in report.reason


KEEPS = """
def run(x, norm_weight, eps, cache):
    rms = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    found = x * rms * norm_weight, rms[:, 0]
    cache.copy_(x * rms)
    return found
"""


@pytest.mark.parametrize(
    ("old", "new", "verdict", "reason"),
    [
        ("", "", Verdict.ACCEPTED, ""),
        ("cache.copy_(x * rms)", "pass", Verdict.ACCEPTED, ""),
        ("cache.copy_(x * rms)", "cache.fill_(7)", Verdict.ACCEPTED, ""),
        ("cache.copy_(x * rms)", "x.mul_(2)", Verdict.REJECTED, "wrote into 'x', which is an"),
        (
            "cache.copy_(x * rms)",
            "cache.as_strided((1,), (1,), cache.storage_offset() + cache.numel()).zero_()",
            Verdict.REJECTED,
            "wrote out of bounds, beside an output",
        ),
    ],
    ids=["writes it", "leaves it", "fills it", "writes another input", "writes behind it"],
)
def test_an_input_that_the_reference_writes_may_be_written(
    judge: Grade,
    tmp_path: Path,
    sandbox: ForkedSandbox,
    old: str,
    new: str,
    verdict: Verdict,
    reason: str,
) -> None:
    definition, one = norm(), workload()
    definition["inputs"]["cache"] = definition["inputs"]["x"] | {"optional": True}
    definition["reference"] = NORM.replace("eps):", "eps, cache):").replace(
        "    return {", "    cache.copy_(x * rms)\n    return {"
    )
    problem = import_problem(
        read_problem("fib", write_fib(tmp_path, definition, [one])), sandbox, "cpu"
    )
    assert [a.name for a in problem.spec.args if a.scratch] == ["cache"]
    report = judge(problem, KEEPS.replace(old, new))
    assert report.verdict is verdict, report.reason
    assert reason in report.reason


def test_a_solution_with_several_sources_is_a_submission(
    tmp_path: Path, loose: Problem, sandbox: ForkedSandbox
) -> None:
    kernel = HONEST.replace("import torch", "from helper import rms_of\nfrom .other import scaled")
    kernel = kernel[: kernel.index("    rms =")].replace("eps)", "eps, out, rms)")
    kernel += "    rms.copy_(rms_of(x, eps))\n    out.copy_(scaled(x, rms) * norm_weight)\n"
    helper = "def rms_of(x, eps):\n    return (x.pow(2).mean(-1) + eps).rsqrt()\n"
    other = "def scaled(x, rms):\n    return x * rms[:, None]\n"
    path = tmp_path / "solution.json"
    path.write_text(json.dumps(solution({"k.py": kernel, "helper.py": helper, "other.py": other})))
    with pytest.raises(SubmissionError, match=r"is a \.py or \.cu file, not '\.json'"):
        Submission.read(path, 1 << 20)
    assert loose.takes_solutions
    submission = Submission.read(path, 1 << 20, solutions=True)
    assert load_submission(loose, path, None) == submission
    report = grade(loose, submission, sandbox=sandbox, device="cpu", benchmarks=False, seed=5)
    assert report.verdict is Verdict.ACCEPTED, report.reason


COMPILED = {
    "cpp/scaled.h": "#include <Python.h>\nPyObject* scaled(PyObject* x, PyObject* rms);\n",
    "cpp/scaled.cc": """#include "cpp/scaled.h"

PyObject* scaled(PyObject* x, PyObject* rms) {
    return PyNumber_Multiply(x, PyObject_CallMethod(rms, "unsqueeze", "i", 1));
}
""",
    "main.cpp": """#include "cpp/scaled.h"

static PyObject* run(PyObject*, PyObject* arguments) {
    PyObject *x, *weight, *eps;
    if (!PyArg_ParseTuple(arguments, "OOO", &x, &weight, &eps)) return nullptr;
    PyObject* mean = PyObject_CallMethod(PyNumber_Multiply(x, x), "mean", "i", -1);
    PyObject* rms = PyObject_CallMethod(PyNumber_Add(mean, eps), "rsqrt", nullptr);
    PyObject* out = PyNumber_Multiply(scaled(x, rms), weight);
    return Py_BuildValue("OO", PyNumber_Multiply(out, PyFloat_FromDouble(FACTOR)), rms);
}

static PyMethodDef methods[] = {{"run", run, METH_VARARGS, ""}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "made_up", "", -1, methods};
PyMODINIT_FUNC PyInit_compiled_solution() { return PyModule_Create(&module); }
""",
}
"""It uses Python's own interface, which compiles sooner than PyTorch's."""


@pytest.mark.gcc
@pytest.mark.parametrize(
    ("factor", "verdict"),
    [("1.0", Verdict.ACCEPTED), ("1.01", Verdict.WRONG_ANSWER), ("one", Verdict.COMPILE_ERROR)],
)
def test_a_solution_in_cpp_is_compiled(
    tmp_path: Path, loose: Problem, factor: str, verdict: Verdict
) -> None:
    data = solution(
        COMPILED | {"notes.txt": "not compiled"},
        entry_point="main.cpp::run",
        languages=["cuda_cpp"],
        compile_options={"cflags": [f"-DFACTOR={factor}", "-O0"]},
        destination_passing_style=False,
    )
    submission = Submission("solution.json", "python", json.dumps(data).encode())
    sandbox = ProcessSandbox()
    report = grade(loose, submission, sandbox=sandbox, device="cpu", benchmarks=False, seed=5)
    assert report.verdict is verdict, report.reason
    if verdict is Verdict.COMPILE_ERROR:
        assert report.reason == (
            "importing it raised RuntimeError: compiling it failed: "
            "<command-line>: error: ‘one’ was not declared in this scope"
        )


TVM_FFI = """
#include <cmath>
#include <tvm/ffi/tvm_ffi.h>

using tvm::ffi::TensorView;

void norm(TensorView x, TensorView weight, double eps, TensorView out, TensorView rms) {
    auto at = [](TensorView t) { return static_cast<float*>(t.data_ptr()); };
    int64_t width = x.size(1);
    for (int64_t row = 0; row < x.size(0); ++row) {
        const float* in = at(x) + row * width;
        double sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += in[i] * in[i];
        float factor = at(rms)[row] = 1 / std::sqrt(sum / width + eps);
        for (int64_t i = 0; i < width; ++i)
            at(out)[row * width + i] = in[i] * factor * at(weight)[i];
    }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, norm);
"""


@pytest.mark.gcc
def test_flashinfers_solutions_in_cpp_are_bound_with_tvm_ffi(
    tmp_path: Path, sandbox: ForkedSandbox
) -> None:
    """They write their outputs, which both are the set's defaults."""
    source = read_problem("fib", write_fib(tmp_path, norm(), [workload(64)]))
    problem = import_problem(source, sandbox, "cpu")
    data = solution({"k.cc": TVM_FFI}, entry_point="k.cc::run", language="cpp")
    submission = Submission("solution.json", "python", json.dumps(data).encode())
    report = grade(problem, submission, sandbox=ProcessSandbox(), device="cpu", benchmarks=False)
    assert report.verdict is Verdict.ACCEPTED, report.reason


# --- reading


def test_problems_are_found_and_named(tmp_path: Path) -> None:
    for name in ("gemm_n10", "gemm_n9"):
        path = write_fib(tmp_path / "fib", norm() | {"name": name}, [workload()])
    assert [p.name for p in list_problems("fib", tmp_path)] == ["fib#gemm_n9", "fib#gemm_n10"]
    found = read_problem("fib", path)
    assert (found.name, found.title, found.set) == ("fib_gemm_n9", "gemm_n9", "fib")
    with pytest.raises(ProblemError, match="holds 2 problems; name one of them, such as fib:"):
        read_problem("fib", tmp_path / "fib")
    with pytest.raises(ProblemError, match="no definition named 'gemm_n8'; did you mean 'gemm_n9'"):
        read_problem("fib", Path(f"{tmp_path / 'fib'}#gemm_n8"))
    with pytest.raises(ProblemError, match="no such file or folder"):
        read_problem("fib", tmp_path / "none#gemm_n9")
    folder = write_sol(tmp_path, norm(), [workload()])
    assert list_problems("sol", tmp_path) == [folder]
    assert read_problem("sol", folder).name == "sol_l1_problem"


def test_a_reference_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = write_fib(tmp_path, norm() | {"reference": "x = 1 \ud800"}, [workload()])
    with pytest.raises(ProblemError, match=r"reference: character 6 is half of a pair"):
        read_problem("fib", path)


def changed(data: Data, path: str, value: Any) -> Data:
    """A deep copy with one key changed, or removed for None."""
    copy = json.loads(json.dumps(data))
    *above, last = path.split("/")
    part = copy
    for key in above:
        part = part[key]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return copy  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inputs/x/dtype", "float4_e2m1fn_x2", r"inputs.x.dtype: 'float4_.*does not compute in 4"),
        ("inputs/x/dtype", "complex64", r"inputs\.x\.dtype: 'complex64' is not supported"),
        ("inputs/x/shape", ["cols"], r"inputs\.x\.shape: no axis is named 'cols'"),
        ("axes/rows/type", "fun", r"axes\.rows: input tag 'fun'"),
        ("axes/heads/value", -1, r"axes\.heads\.const\.value: input should be greater"),
        ("outputs", None, r"definition\.json: outputs: field required"),
        ("outputs", {}, r"outputs: dictionary should have at least 1 item"),
        ("outputs/x", {"shape": [], "dtype": "int8"}, r"outputs\.x: an input has the same name"),
        ("op_type", "sampling", r"op_type: its outputs are random samples"),
    ],
)
def test_a_definition_that_cannot_be_judged_is_refused_with_its_key(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        read_sol(tmp_path, changed(norm(), path, value), [workload()])
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("axes/rows", None, r"line 2: axes\.rows: missing"),
        ("axes/rows", -3, r"line 2: axes\.rows: input should be greater"),
        ("inputs/x", {"type": "file"}, r"line 2: inputs\.x: input tag 'file'"),
        ("inputs/x", {"type": "custom"}, r"inputs\.x: the definition has no custom_inputs_entry"),
        ("inputs/z", {"type": "random"}, r"inputs\.z: the definition has no such input"),
        ("inputs/x", {"type": "safetensors", "path": "../a", "tensor_key": "x"}, "outside the set"),
        ("inputs/x", {"type": "safetensors", "path": "/a", "tensor_key": "x"}, "outside the set"),
        ("tolerance", {"max_atol": "small"}, r"tolerance\.max_atol: input should be a valid num"),
    ],
)
def test_a_workload_that_cannot_be_read_is_refused_with_its_line_and_key(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        read_sol(tmp_path, norm(), [workload(), changed(workload(), path, value)])
    assert "\n" not in str(caught.value)


def test_what_is_no_json_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = write_sol(tmp_path, norm(), [workload()])
    (folder / "workload.jsonl").write_text("\n{'axes': 3}")
    with pytest.raises(ProblemError, match=r"workload\.jsonl: line 2: not readable as JSON"):
        read_problem("sol", folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "one.safetensors: missing"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (b"0" * 2000, "larger than"),
    ],
)
def test_a_workload_without_its_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    monkeypatch.setattr(schema, "BLOB_BYTES", 1999)
    definition, one = gather()
    if content is not None:
        (tmp_path / "blob/kind").mkdir(parents=True)
        (tmp_path / "blob/kind/one.safetensors").write_bytes(content)
    path = write_fib(tmp_path, definition, [one])
    with pytest.raises(ProblemError, match=message):
        read_problem("fib", path)
    drawn = {"table": {"type": "random"}, "index": {"type": "random"}}
    path = write_fib(tmp_path, definition, [one, one | {"inputs": drawn}])
    (note,) = read_problem("fib", path).notes
    assert note.startswith("1 of 2 workloads are left out: blob/kind/one.safetensors: ")
    assert message in note


def test_of_many_workloads_some_are_run(tmp_path: Path) -> None:
    found = read_sol(tmp_path, norm(), [workload(rows) for rows in range(1, 101)])
    numbers = [w["number"] for w in json.loads(found.files["problem.json"])["workloads"]]
    assert len(numbers) == schema.MOST_WORKLOADS
    assert (numbers[0], numbers[-1]) == (1, 100)
    assert found.notes == ("of 100 workloads, at most 24 are run, evenly chosen",)


def test_data_of_all_workloads_together_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition, one = gather()
    for name in ("one", "two"):
        write_tensors(tmp_path / f"blob/kind/{name}.safetensors", {"table": TABLE, "index": INDEX})
    size = (tmp_path / "blob/kind/one.safetensors").stat().st_size
    monkeypatch.setattr(schema, "ALL_BLOBS_BYTES", size)
    two = json.loads(json.dumps(one).replace("one.safe", "two.safe"))
    found = read_problem("fib", write_fib(tmp_path, definition, [one, one, two]))
    assert list(found.files) == ["reference.py", "problem.json", "blobs/blob/kind/one.safetensors"]
    assert found.notes[0].startswith("1 of 3 workloads are left out: the data is larger than")


def test_what_a_sets_evaluator_judges_in_another_way_is_refused(tmp_path: Path) -> None:
    path = write_fib(tmp_path, norm() | {"op_type": "sampling"}, [workload()])
    with pytest.raises(ProblemError, match="judged by their frequencies"):
        read_problem("fib", path)


@pytest.mark.parametrize(
    ("op_type", "name", "ratio"),
    [("gemm", "a", 1.0), ("moe", "a", 0.95), (None, "moe_fp8_block_scale_x", 0.95)],
)
def test_low_bit_problems_of_flashinfer_need_fewer_matches(
    tmp_path: Path, op_type: str | None, name: str, ratio: float
) -> None:
    definition = norm() | {"name": name, "op_type": op_type}
    found = read_problem("fib", write_fib(tmp_path, definition, [workload()]))
    (one,) = json.loads(found.files["problem.json"])["workloads"]
    tolerance = {"max_atol": 0.01, "max_rtol": 0.01, "required_matched_ratio": ratio}
    assert one["tolerance"] == tolerance


# --- inputs and cases


def driver(tmp_path: Path, definition: Data, workloads: list[Data]) -> SolExecBench:
    """The driver on the files that its reader sends."""
    source = read_sol(tmp_path, definition, workloads)
    folder = tmp_path / "sandbox"
    for name, content in source.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return SolExecBench(folder, {}, "cpu")


def test_on_a_cpu_the_smallest_workloads_are_run(tmp_path: Path) -> None:
    rows = [2, 1 << 20, 7, 5, 3, 11, 13, 17]
    traces = driver(tmp_path, norm(), list(map(workload, rows)))
    cases = traces.cases("cpu")
    assert [c.name for c in cases if c.kind == "test"] == [
        f"test_{number}" for number in (1, 5, 4, 3, 6, 7)
    ]
    assert [(c.name, c.params) for c in cases if c.kind == "benchmark"] == [
        ("benchmark_3", {"rows": 7})
    ]
    names = [c.name for c in traces.cases("cuda")]
    assert names == [f"{kind}_{n}" for kind in ("test", "benchmark") for n in range(1, 9)]


def test_a_cpu_is_refused_what_is_too_large_for_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="too large for a CPU"):
        driver(tmp_path, norm(), [workload(1 << 20)]).cases("cpu")


def test_custom_inputs_come_from_the_definitions_function(tmp_path: Path) -> None:
    made = (
        "def make(sizes, device):\n"
        "    x = torch.randn(sizes['rows'], sizes['width'], device=device)\n"
        "    return {'x': x, 'norm_weight': x[0] * sizes['eps']}\n"
    )
    definition = norm() | {"custom_inputs_entrypoint": "make", "reference": NORM + made}
    one = workload()
    for name in ("x", "norm_weight", "which_the_definition_lacks"):
        one["inputs"][name] = {"type": "custom"}
    traces = driver(tmp_path, definition, [one])
    seed_all(3)
    x, weight, eps = (v.value for v in traces.generate(traces.cases("cpu")[0], 3).values)
    assert x.shape == (8, 64)
    assert torch.equal(weight, x[0] * eps)
    lacking = traces.generate
    traces._custom = lambda sizes, device: {}
    with pytest.raises(UnsupportedError, match="makes no 'x'"):
        lacking(traces.cases("cpu")[0], 3)


def test_a_reference_that_its_own_check_refuses_is_refused(tmp_path: Path) -> None:
    definition = norm() | {"reference": NORM.replace("rms[:, 0]", "rms[:, 0].log() * -torch.inf")}
    traces = driver(tmp_path, definition, [workload()])
    case = traces.cases("cpu")[0]
    with pytest.raises(UnsupportedError, match="refuses its reference: 'rms': it has infinities"):
        traces.reference(case, traces.generate(case, 1))


@pytest.mark.parametrize(
    ("result", "message"),
    [("rms", "returns 1 of 2 values"), ("{'out': x}", "returns no 'rms'")],
)
def test_a_reference_that_returns_something_else_is_refused(
    tmp_path: Path, result: str, message: str
) -> None:
    reference = f"def run(x, norm_weight, eps):\n    rms = x[:, 0]\n    return {result}\n"
    traces = driver(tmp_path, norm() | {"reference": reference}, [workload()])
    case = traces.cases("cpu")[0]
    with pytest.raises(UnsupportedError, match=message):
        traces.reference(case, traces.generate(case, 1))


def test_a_tensor_in_a_file_must_be_as_declared(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"table": TABLE, "index": INDEX})
    assert torch.equal(read_tensor(path, "table"), TABLE)
    assert torch.equal(read_tensor(path, "index"), INDEX)
    with pytest.raises(UnsupportedError, match="it has no 'x'"):
        read_tensor(path, "x")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnsupportedError, match="not a safetensors file"):
        read_tensor(path, "index")
    path.write_bytes(b"none")
    with pytest.raises(UnsupportedError, match="not a safetensors file"):
        read_tensor(path, "index")


def test_random_values_are_those_of_the_sets() -> None:
    seed_all(1)
    for dtype, low, high in [
        (torch.int8, -128, 127),
        (torch.int32, -1024, 1023),
        (torch.int64, -1024, 1023),
        (torch.uint8, 0, 255),
    ]:
        made = random_tensor((20_000,), dtype, "cpu").long()
        assert (low, high) == (int(made.min()), int(made.max()))
    assert set(random_tensor((99,), torch.bool, "cpu").tolist()) == {False, True}
    tiny = random_tensor((9999,), torch.float8_e4m3fn, "cpu").float()
    assert (float(tiny.min()), float(tiny.max())) == (-2, 2)
    assert abs(random_tensor((9999,), torch.bfloat16, "cpu").float().std() - 1) < 0.05


@pytest.mark.parametrize(
    ("name", "description", "low", "high"),
    [
        ("q_norm1_weight", "", 0.874, 1.126),
        ("layernorm_bias", "", -0.126, 0.126),
        ("x_mask", "", 0, 1),
        ("pad_mask", "Binary: 1.0 for valid", 0, 1),
        ("rope_cos", "", -1, 1),
        ("row_rstd", "", 0.1, 9),
        ("A_log", "", -5, -1),
        ("A_cumsum", "", -7, 0),
        ("p", "Output of the softmax", 0, 1),
        ("gate_proj", "", -1, 1),
        ("o_weight2", "", -1, 1),
    ],
)
def test_the_name_of_an_input_tells_what_sol_draws(
    name: str, description: str, low: float, high: float
) -> None:
    seed_all(1)
    made = named_tensor(name, (64, 64), torch.float32, "cpu", description)
    assert low <= float(made.min()) < float(made.max()) <= high
    assert named_tensor(name, (4,), torch.int32, "cpu", description).dtype is torch.int32


def test_a_causal_mask_hides_what_comes_later() -> None:
    mask = named_tensor("attention_mask", (2, 3, 3), torch.bfloat16, "cpu", "")
    least = torch.finfo(torch.bfloat16).min
    assert mask[1].tolist() == [[0, least, least], [0, 0, least], [0, 0, 0]]


@pytest.mark.parametrize(
    ("expression", "size"),
    [("a * (b + 1) // 2", 10), ("2 ** a", 16), ("-a + 8 / 2 + b", 4), ("a % b", 0)],
)
def test_an_axis_may_be_computed(expression: str, size: int) -> None:
    assert size_of(expression, {"a": 4, "b": 4}) == size


@pytest.mark.parametrize("expression", ["c + 1", "a(", "print(a)", "a / 0", "a - 9", "a / 8", "''"])
def test_an_axis_that_cannot_be_computed_is_refused(expression: str) -> None:
    with pytest.raises(UnsupportedError, match="the axis"):
        size_of(expression, {"a": 4})


# --- the sets' own checks

SOL = MatchLimits(0.1, 0.1, 0.9)
TEN = torch.arange(1.0, 11.0)


def off(count: int, by: float = 0.0, factor: float = 1.0) -> torch.Tensor:
    """Ten values of which the first `count` are wrong."""
    return torch.cat([TEN[:count] * factor + by, TEN[count:]])


@pytest.mark.parametrize(
    ("output", "tolerance", "message"),
    [
        (TEN, SOL, None),
        (off(10, by=0.19), SOL, None),
        (off(10, by=0.35), SOL, "20.000% of it exceed"),
        (off(1, by=99), SOL, None),
        (off(2, by=99), SOL, "20.000% of it exceed atol 0.1 \\+ rtol 0.1, and 0.1 of it may"),
        (off(1, by=99), replace(SOL, max_error_cap=98.0), "99, above the cap of 98"),
        (off(1, by=97), replace(SOL, max_error_cap=98.0), None),
        (off(2, by=99), replace(SOL, required_matched_ratio=0.8), None),
        (off(10, factor=1.05), replace(SOL, max_atol=0.0), None),
        (off(10, factor=1.05), replace(SOL, max_atol=0.0, max_rtol=0.01), "100.000% of it exceed"),
        (off(10, factor=0), replace(SOL, max_atol=99.0), "all of it is zero"),
        (off(1, by=torch.inf), SOL, "infinities or NaN"),
        (off(1, by=torch.nan), SOL, "infinities or NaN"),
    ],
)
def test_sols_check(output: torch.Tensor, tolerance: MatchLimits, message: str | None) -> None:
    fault = sol_fault(output, TEN, tolerance)
    assert (fault is None) == (message is None), fault
    if message is not None:
        with pytest.raises(ValueError, match=message):
            raise ValueError(fault)


def test_sol_allows_minus_infinity_only_where_it_is_expected() -> None:
    expected = off(2, by=-torch.inf)
    allowing = replace(SOL, allow_negative_inf=True)
    assert sol_fault(expected, expected, SOL) == "it has infinities or NaN"
    assert sol_fault(expected, expected, allowing) is None
    assert sol_fault(off(3, by=-torch.inf), expected, allowing) is not None
    assert sol_fault(TEN, expected, allowing) is not None
    assert sol_fault(-expected, -expected, allowing) is not None


FIB = MatchLimits(0.01, 0.01, 1.0)


@pytest.mark.parametrize(
    ("output", "tolerance", "is_right"),
    [
        (TEN, FIB, True),
        (off(1, by=0.009), FIB, True),
        (off(10, factor=1.009), FIB, True),
        (off(1, by=0.02), FIB, False),
        (off(1, by=0.02), replace(FIB, required_matched_ratio=0.9), True),
        (off(2, by=0.5), replace(FIB, required_matched_ratio=0.9), False),
        (off(1, by=torch.inf), replace(FIB, required_matched_ratio=0.9), False),
        (off(1, by=torch.nan), replace(FIB, required_matched_ratio=0.9), False),
    ],
)
def test_flashinfers_check(output: torch.Tensor, tolerance: MatchLimits, is_right: bool) -> None:
    assert (flashinfer_fault(output, TEN, tolerance) is None) == is_right


def test_flashinfers_check_asks_for_both_errors_at_once() -> None:
    """Sol's adds them: what is off by 1.5 times each of both is right there."""
    both = torch.tensor([1.015])
    assert sol_fault(both, torch.ones(1), replace(FIB)) is None
    assert flashinfer_fault(both, torch.ones(1), FIB) is not None


# --- Solutions


def solution(sources: dict[str, str], **spec: Any) -> Data:
    return {
        "name": "made up",
        "spec": {"entry_point": "k.py::run", "languages": ["pytorch"]} | spec,
        "sources": [{"path": path, "content": text} for path, text in sources.items()],
    }


def test_a_solutions_sources_are_written_into_a_folder_of_their_own(tmp_path: Path) -> None:
    text = json.dumps(solution({"k.py": "1", "a/b.py": "2"}, entry_point="a/b.py::f"))
    found = unpack(text.encode(), tmp_path)
    assert found is not None
    assert (found.module, found.entry, found.writes_outputs) == ("solution.a.b", "f", True)
    assert found.path.read_text() == "2"
    assert found.path.is_relative_to(tmp_path / "solution")
    returning = solution({"k.py": "1"}, destination_passing_style=False)
    returned = unpack(json.dumps(returning).encode(), tmp_path)
    assert returned is not None
    assert not returned.writes_outputs
    assert unpack(b"import torch\n", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not readable as JSON"),
        ("{}", "no 'entry_point'"),
        (json.dumps(solution({"k.py": "1"}, entry_point="k.py")), "is not 'file::function'"),
        (json.dumps(solution({"k.rs": "1"}, entry_point="k.rs::f")), "neither Python nor C"),
        (
            json.dumps(solution({"k.cu": "1"}, entry_point="k.cu::f", binding="ctypes")),
            "binding is 'ctypes'; it may be 'torch' or 'tvm-ffi'",
        ),
        (
            json.dumps(solution({"k.cu": "1"}, entry_point="k.cu::f", binding=["torch"])),
            "it may be 'torch' or 'tvm-ffi'",
        ),
        (
            json.dumps(
                solution({"k.cu": "1"}, entry_point="k.cu::f", compile_options={"cflags": "-O3"})
            ),
            "'cflags' must be a list of flags",
        ),
        (json.dumps(solution({})), "no sources"),
        (json.dumps(solution({"l.py": "1"})), "lack its entry's file 'k.py'"),
        (json.dumps(solution({"../k.py": "1"})), "outside its folder"),
        (json.dumps(solution({"/k.py": "1"})), "outside its folder"),
        (json.dumps(solution({"k.py": ""})), "no 'content'"),
    ],
)
def test_a_solution_that_cannot_be_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        unpack(text.encode(), tmp_path)
    assert not (tmp_path / "k.py").exists()
