"""What the problem format can express, each by a problem in tests/formats, through the judge."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from grader.judge import grade
from grader.judge.problem_code import ProblemCode
from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.problem.prototype import prototypes
from grader.problem.scaffold import scaffold
from grader.report import Report
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.judge.conftest import SPEC, WriteProblem
from tests.judge.verified import verified
from tests.starter_files import check_starters

FORMATS = Path(__file__).resolve().parents[1] / "formats"
NAMES = sorted(folder.name for folder in FORMATS.iterdir() if folder.is_dir())


def graded(
    name: str, tmp_path: Path, source: str, suffix: str = ".py", device: Device = "cpu"
) -> Report:
    problem = Problem.load(FORMATS / name)
    path = tmp_path / f"kernel{suffix}"
    path.write_text(textwrap.dedent(source))
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    return grade(problem, submission, sandbox=ForkedSandbox(), device=device)


@pytest.mark.parametrize("name", NAMES)
def test_its_check_tells_honest_from_broken(name: str) -> None:
    result = verified(ProblemCode(Problem.load(FORMATS / name), "cpu"), "cpu")
    assert result.ok, [row for row in result.rows if not row.ok]


@pytest.mark.parametrize("name", NAMES)
def test_its_plain_pytorch_starter_is_accepted(name: str, tmp_path: Path) -> None:
    """Unless PyTorch's function needs a parameter of the case, which no submission is given."""
    report = graded(name, tmp_path, scaffold(Problem.load(FORMATS / name), "torch"))
    needs_parameter = name in ("moving_sum", "quantize_fp8")
    assert report.verdict == ("wrong_answer" if needs_parameter else "accepted"), report.reason


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_its_check_and_its_starter_on_a_gpu(name: str, tmp_path: Path) -> None:
    problem = Problem.load(FORMATS / name)
    result = verified(ProblemCode(problem, "cuda"), "cuda")
    assert result.ok, [row for row in result.rows if not row.ok]
    report = graded(name, tmp_path, scaffold(problem, "torch"), device="cuda")
    needs_parameter = name in ("moving_sum", "quantize_fp8")
    assert report.verdict == ("wrong_answer" if needs_parameter else "accepted"), report.reason


QUANTIZE = """
    import torch

    def quantize_fp8(x, previous, out, scales):
        assert previous.dtype == torch.float8_e5m2
        most = torch.finfo(out.dtype).max
        mixed = x + previous.float()
        scales.copy_(mixed.abs().amax(-1) / most)
        out.copy_((mixed / scales[:, None]).clamp(-most, most){change})
"""
NESTED = """
    import torch

    def nested_mlp({parameters}):
        (x, layers), slope = data, config["slope"]
        hidden = x @ layers["first"]
        y = torch.where(hidden > 0, hidden, slope * hidden) @ layers["second"]
        y = x + y if config["residual"] else y
        {end}
"""
LOG_SOFTMAX = """
    import torch

    def log_softmax(x):
        lse = x.logsumexp(-1)
        out = x - lse[:, None]
        {end}
"""
LEAVES_OUT = """
    import torch

    def log_softmax(x, out, sums):
        lse = x.logsumexp(-1)
        out.copy_(x - lse[:, None])
        {change}
"""
PREPARED = """
    def linear_setup(w, bias):
        print("prepares", tuple(w.shape))
        return w.T.contiguous(), {bias}

    def linear(x, prepared, out):
        w, bias = prepared
        out.copy_(x @ w + bias)
"""


@pytest.mark.parametrize(
    ("name", "source", "verdict"),
    [
        ("quantize_fp8", QUANTIZE.format(change=""), "accepted"),
        ("quantize_fp8", QUANTIZE.format(change=" * 0.9"), "wrong_answer"),
        ("quantize_fp8", QUANTIZE.replace("out.copy_", "x.clone().copy_").format(change=""),
         "wrong_answer"),
        ("nested_mlp", NESTED.format(parameters="data, config, out", end="out.copy_(y)"),
         "accepted"),
        ("nested_mlp", NESTED.format(parameters="data, config", end="return y"), "accepted"),
        ("nested_mlp", NESTED.format(parameters="data, config, out", end="out.copy_(2 * y)"),
         "wrong_answer"),
        ("nested_mlp", NESTED.format(parameters="data", end=""), "compile_error"),
        ("transposed", "def transposed(x, out):\n    out.copy_(2 * x)", "accepted"),
        ("transposed", "def transposed(x):\n    return 2 * x", "accepted"),
        ("transposed", "def transposed(x, out):\n    assert out.stride(0) == 1\n    "
         "out.T.flatten()\n    out.as_strided(x.shape, x.stride()).copy_(2 * x)", "wrong_answer"),
        ("any_largest", "def any_largest(x, values, places):\n    values.copy_(x.amax(-1))\n    "
         "places.copy_(x.shape[1] - 1 - x.flip(1).argmax(-1))", "accepted"),
        ("any_largest", "def any_largest(x, values, places):\n    values.copy_(x.amax(-1))\n    "
         "places.copy_(x.argmin(-1))", "wrong_answer"),
        ("any_largest", "def any_largest(x, values, places):\n    values.copy_(x.amax(-1))\n    "
         "places.fill_(2**62)", "wrong_answer"),
        ("any_largest", "def any_largest(x, values, places):\n    values.copy_(x.amax(-1))",
         "wrong_answer"),
        ("divide", "def divide(a, b, quotient, remainder, ratio):\n    quotient.copy_(a // b)\n"
         "    remainder.copy_(a.fmod(b))\n    ratio.copy_(a / b)", "wrong_answer"),
        ("log_softmax", LOG_SOFTMAX.format(end="return out, lse"), "accepted"),
        ("log_softmax", LOG_SOFTMAX.format(end="return out"), "accepted"),
        ("log_softmax", LOG_SOFTMAX.format(end="return 1.001 * out"), "wrong_answer"),
        ("log_softmax", LOG_SOFTMAX.format(end="return out, 1.001 * lse"), "wrong_answer"),
        ("log_softmax", LOG_SOFTMAX.format(end="return out, lse, lse"), "runtime_error"),
        ("log_softmax", LOG_SOFTMAX.format(end="return lse"), "runtime_error"),
        ("log_softmax", LEAVES_OUT.format(change="pass"), "accepted"),
        ("log_softmax", LEAVES_OUT.format(change="sums[:-1].copy_(lse[:-1])"), "wrong_answer"),
        ("log_softmax", LEAVES_OUT.format(change="sums.zero_()"), "wrong_answer"),
        # Not in a test: only when it is timed.
        ("log_softmax", LEAVES_OUT.format(change="len(x) == 64 and sums.zero_()"), "wrong_answer"),
        ("moving_sum", "def moving_sum(x, out):\n    out.copy_(x[: len(out)])", "wrong_answer"),
        ("linear", PREPARED.format(bias="bias.clone()"), "accepted"),
        ("linear", PREPARED.format(bias="0 * bias"), "wrong_answer"),
        ("linear", "def linear(x, w, bias, out):\n    out.copy_(x @ w.T + bias)", "accepted"),
        ("linear", "def linear_setup(w, bias):\n    raise ValueError('too wide')\n\n"
         "def linear(x, prepared, out):\n    pass", "runtime_error"),
        ("linear", "def linear(x, w, bias, out):\n    out.copy_(x @ w.T + bias)\n    w.zero_()",
         "rejected"),
    ],
)  # fmt: skip
def test_verdict(name: str, source: str, verdict: str, tmp_path: Path) -> None:
    report = graded(name, tmp_path, source)
    assert report.verdict == verdict, report.reason


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "verdict"), [("bias.clone()", "accepted"), ("0 * bias", "wrong_answer")]
)
def test_weights_are_prepared_on_a_gpu(source: str, verdict: str, tmp_path: Path) -> None:
    report = graded("linear", tmp_path, PREPARED.format(bias=source), device="cuda")
    assert report.verdict == verdict, report.reason


def test_a_wrong_answer_among_several_is_told_by_the_problem_s_words(tmp_path: Path) -> None:
    report = graded(
        "any_largest",
        tmp_path,
        """
        def any_largest(x, values, places):
            values.copy_(x.amax(-1))
            places.zero_()
        """,
    )
    words = "rows whose place is not that of their largest element"
    assert words in report.reason
    assert "times what is allowed" in report.reason


def test_the_setup_runs_once_per_set(tmp_path: Path) -> None:
    report = graded(
        "linear",
        tmp_path,
        """
        import torch

        seen = []

        def linear_setup(w, bias):
            seen.append(w.clone())
            print("SETUP", tuple(w.shape))
            return w, bias

        def linear(x, prepared, out):
            w, bias = prepared
            print("SAME", any(torch.equal(w, old) for old in seen))
            out.copy_(x @ w.T + bias)
        """,
    )
    assert report.verdict == "accepted"
    lines = report.log.splitlines()
    assert lines.count("SETUP (1, 1)") == lines.count("SETUP (17, 33)") == 1
    assert lines.count("SETUP (256, 256)") == 2  # a benchmark on a CPU has two sets
    assert "SAME False" not in lines


def test_what_a_setup_finds_beside_the_weights_is_no_input_of_a_call(tmp_path: Path) -> None:
    """The block that holds the weights also holds the other inputs; those come later."""
    report = graded(
        "linear",
        tmp_path,
        """
        import torch

        def linear_setup(w, bias):
            x = torch.as_strided(w, (1,), (1,), 512 // 4).clone()  # the first tensor of the block
            return x, x @ w[:1, :1].T + bias[:1]

        def linear(x, prepared, out):
            seen, answer = prepared
            print("SAW", bool(seen.abs().sum() > 0), "SAME", torch.equal(seen, x.flatten()))
            out.copy_(answer.expand_as(out))
        """,
    )
    assert report.verdict == "wrong_answer"
    assert "SAW True SAME False" in report.log


def test_a_problem_without_cost_has_no_throughput(tmp_path: Path) -> None:
    source = "def moving_sum(x, out):\n    out.copy_(x.unfold(0, len(x) - len(out) + 1, 1).sum(-1))"
    report = graded("moving_sum", tmp_path, source)
    (timed,) = [case for case in report.cases if case.kind == "benchmark"]
    assert timed.time_us is not None
    assert (timed.gb_per_s, timed.tflop_per_s, timed.sol) == (None, None, None)
    problem = Problem.load(FORMATS / "moving_sum")
    assert problem.bytes(problem.spec.benchmarks[0]) == 4 * (10_000 + 10_000 - 15)


def test_prototypes_have_strides_and_formats_of_eight_bits() -> None:
    strided = prototypes(Problem.load(FORMATS / "transposed").spec)
    assert "float* out, const int64_t* out_strides, int64_t rows" in strided["transposed"]
    narrow = prototypes(Problem.load(FORMATS / "quantize_fp8").spec)
    assert "const __nv_fp8_e5m2* previous, __nv_fp8_e4m3* out" in narrow["quantize_fp8"]
    assert "__nv_fp8_e5m2* out" in narrow["quantize_fp8_fp8_e5m2"]


@pytest.mark.nvcc
def test_the_cuda_starters_compile(tmp_path: Path) -> None:
    problems = {name: Problem.load(FORMATS / name) for name in NAMES}
    check_starters({n: (one, scaffold(one, "cuda")) for n, one in problems.items()}, tmp_path)


@pytest.mark.nvcc
def test_a_cuda_starter_is_compiled_and_not_run_without_a_gpu(tmp_path: Path) -> None:
    """The one with most dtypes, of 8 bits."""
    starter = scaffold(Problem.load(FORMATS / "quantize_fp8"), "cuda")
    report = graded("quantize_fp8", tmp_path, starter, ".cu")
    assert (report.verdict, report.reason) == (None, "compiled, not run: no GPU")


def test_a_problem_with_several_right_answers_needs_a_judge(write_problem: WriteProblem) -> None:
    problem = write_problem(
        SPEC.replace(
            "dtype: dtype, shape: [n]}\ncuda", "dtype: dtype, shape: [n], unique: false}\ncuda"
        )
    )
    with pytest.raises(ProblemError, match=r"no function named 'residuals'; it must judge 'out'"):
        ProblemCode(problem, "cpu")
