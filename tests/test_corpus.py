"""Every file of `submissions/` gets the verdict that its folder names, from the real judge."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from unittest import mock

import pytest

from grader.cli.examples import Example, examples
from grader.judge import grading
from grader.kernel_languages import kernel_language
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox import Device, make_sandbox
from grader.sandbox.base import Sandbox
from grader.sandbox.gpu_info import cuda_missing
from scripts.grade_corpus import grade_example, problems
from tests.forked_sandbox import ForkedSandbox

pytestmark = pytest.mark.slow

COUNTS = {
    ("add_layer_norm_gelu", "accepted"): 3,
    ("add_layer_norm_gelu", "rejected"): 1,
    ("add_layer_norm_gelu", "wrong_answer"): 3,
    ("bias_gelu", "accepted"): 3,
    ("bias_gelu", "wrong_answer"): 4,
    ("flash_attention", "accepted"): 10,
    ("flash_attention", "compile_error"): 1,
    ("flash_attention", "memory_limit_exceeded"): 1,
    ("flash_attention", "output_limit_exceeded"): 1,
    ("flash_attention", "rejected"): 4,
    ("flash_attention", "runtime_error"): 1,
    ("flash_attention", "time_limit_exceeded"): 1,
    ("flash_attention", "wrong_answer"): 8,
    ("flash_attention_backward", "accepted"): 3,
    ("flash_attention_backward", "wrong_answer"): 4,
    ("fp8_matmul", "accepted"): 3,
    ("fp8_matmul", "wrong_answer"): 4,
    ("gelu", "accepted"): 4,
    ("gelu", "wrong_answer"): 4,
    ("grouped_matmul", "accepted"): 3,
    ("grouped_matmul", "wrong_answer"): 4,
    ("histogram", "accepted"): 3,
    ("histogram", "wrong_answer"): 4,
    ("int4_matmul", "accepted"): 9,
    ("int4_matmul", "compile_error"): 1,
    ("int4_matmul", "memory_limit_exceeded"): 1,
    ("int4_matmul", "output_limit_exceeded"): 1,
    ("int4_matmul", "rejected"): 5,
    ("int4_matmul", "runtime_error"): 1,
    ("int4_matmul", "time_limit_exceeded"): 1,
    ("int4_matmul", "wrong_answer"): 7,
    ("int4_matmul_zeros", "accepted"): 3,
    ("int4_matmul_zeros", "wrong_answer"): 4,
    ("int4_pack", "accepted"): 3,
    ("int4_pack", "wrong_answer"): 4,
    ("int4_unpack", "accepted"): 3,
    ("int4_unpack", "wrong_answer"): 4,
    ("int8_dynamic_matmul", "accepted"): 3,
    ("int8_dynamic_matmul", "wrong_answer"): 4,
    ("int8_weight_only_gemv", "accepted"): 3,
    ("int8_weight_only_gemv", "wrong_answer"): 4,
    ("layer_norm", "accepted"): 3,
    ("layer_norm", "rejected"): 1,
    ("layer_norm", "wrong_answer"): 3,
    ("layer_norm_backward", "accepted"): 3,
    ("layer_norm_backward", "wrong_answer"): 4,
    ("matmul", "accepted"): 3,
    ("matmul", "wrong_answer"): 4,
    ("multi_tensor_adamw", "accepted"): 7,
    ("multi_tensor_adamw", "compile_error"): 1,
    ("multi_tensor_adamw", "memory_limit_exceeded"): 1,
    ("multi_tensor_adamw", "output_limit_exceeded"): 1,
    ("multi_tensor_adamw", "rejected"): 5,
    ("multi_tensor_adamw", "runtime_error"): 1,
    ("multi_tensor_adamw", "time_limit_exceeded"): 1,
    ("multi_tensor_adamw", "wrong_answer"): 9,
    ("multi_tensor_scale_norm", "accepted"): 3,
    ("multi_tensor_scale_norm", "wrong_answer"): 4,
    ("multi_tensor_sgd_momentum", "accepted"): 3,
    ("multi_tensor_sgd_momentum", "wrong_answer"): 4,
    ("paged_attention_decode", "accepted"): 3,
    ("paged_attention_decode", "wrong_answer"): 4,
    ("prefix_sum", "accepted"): 3,
    ("prefix_sum", "wrong_answer"): 4,
    ("reduce_sum", "accepted"): 3,
    ("reduce_sum", "wrong_answer"): 4,
    ("rms_norm", "accepted"): 3,
    ("rms_norm", "wrong_answer"): 4,
    ("rope", "accepted"): 3,
    ("rope", "wrong_answer"): 4,
    ("softmax", "accepted"): 40,
    ("softmax", "compile_error"): 11,
    ("softmax", "memory_limit_exceeded"): 5,
    ("softmax", "output_limit_exceeded"): 3,
    ("softmax", "rejected"): 26,
    ("softmax", "runtime_error"): 16,
    ("softmax", "time_limit_exceeded"): 5,
    ("softmax", "wrong_answer"): 23,
    ("softmax_cross_entropy", "accepted"): 3,
    ("softmax_cross_entropy", "rejected"): 1,
    ("softmax_cross_entropy", "wrong_answer"): 3,
    ("sort", "accepted"): 3,
    ("sort", "wrong_answer"): 4,
    ("sparse24_matmul", "accepted"): 3,
    ("sparse24_matmul", "wrong_answer"): 4,
    ("square", "accepted"): 6,
    ("square", "rejected"): 1,
    ("square", "wrong_answer"): 4,
    ("swiglu", "accepted"): 3,
    ("swiglu", "wrong_answer"): 4,
    ("top_k", "accepted"): 3,
    ("top_k", "wrong_answer"): 4,
    ("transpose", "accepted"): 3,
    ("transpose", "wrong_answer"): 4,
    ("vector_add", "accepted"): 3,
    ("vector_add", "wrong_answer"): 4,
}
"""Number of files in each folder, so that a lost or ignored file is noticed."""

FULL = "softmax"
"""The problem with every verdict and attack."""

ENDED = (
    Verdict.RUNTIME_ERROR,
    Verdict.TIME_LIMIT_EXCEEDED,
    Verdict.MEMORY_LIMIT_EXCEEDED,
    Verdict.OUTPUT_LIMIT_EXCEEDED,
)
"""Verdicts of submissions that end, or whose sandbox does."""
REACHING = frozenset(
    f"{name}.py"
    for name in (
        *("exits_at_import", "killed_at_import", "syntax_error", "writes_input"),
        *("hostile_attacks_the_block", "hostile_deletes_itself", "hostile_imports_the_judge"),
        *("hostile_lingers", "hostile_log", "hostile_outlives_its_run", "hostile_punches_holes"),
        *("hostile_reads_secrets", "hostile_refuses_descriptors", "hostile_refuses_to_end"),
        *("hostile_sends_descriptors", "hostile_tries_to_escape"),
    )
)
"""Other files of `FULL` that try what the sandbox or the kernel prevents, and one of each verdict
that is reached without ending."""
TALKING = frozenset(
    f"{name}.py"
    for name in (
        *("hostile_exception", "hostile_malformed_reply"),
        *("hostile_pretends_compile_error", "hostile_text", "hostile_two_replies"),
        *("hostile_unknown_status", "infinite_loop", "raises"),
    )
)
"""Those of `FULL` that end by their replies, or by the lack of one."""
COMPILED_CASES = frozenset(["half", "brain", "practice"])
"""Of `FULL`."""

DEVICE: Device = "cpu" if cuda_missing() else "cuda"
PROBLEMS = {problem.name: problem for problem in problems()}
CORPUS = [(problem, example) for problem in PROBLEMS.values() for example in examples(problem)]


def _parameter(problem: Problem, example: Example) -> object:
    # torch.compile takes half a minute on a CPU. One problem shows that its files are accepted.
    is_slow = example.path.name.startswith("compiled_") and problem.name != FULL
    marks = [pytest.mark.cuda] if example.needs_gpu or is_slow else []
    marks += [pytest.mark.nvcc] if example.path.suffix == ".cu" else []
    return pytest.param(problem, example, id=_name(problem, example), marks=marks)


def _name(problem: Problem, example: Example) -> str:
    return f"{problem.name}/{example.expected}/{example.path.name}"


def _file(name: str) -> tuple[Problem, Example]:
    return next((p, e) for p, e in CORPUS if _name(p, e) == name)


@cache
def _sandbox(name: str) -> Sandbox:
    return ForkedSandbox() if name == "forked" else make_sandbox(name)


@cache
def _report(name: str, sandbox: str = "process") -> Report:
    """The report of a file, which is graded once in each sandbox."""
    problem, example = _file(name)
    # The judge waits for outputs that come late, 0.3 s for each of three wrong cases.
    may_be_late = example.expected is not Verdict.WRONG_ANSWER or "hostile" in example.path.name
    with mock.patch.object(grading, "GRACE_S", grading.GRACE_S if may_be_late else 0.0):
        return grade_example(
            _cases(problem, example), example, _sandbox(sandbox), DEVICE, _is_timed(example)
        )


def _is_timed(example: Example) -> bool:
    """Whether its benchmarks run. Rounds in Triton's interpreter take most of a grading on a CPU,
    and never rank: one honest file shows that they pass, and PyTorch's file of each problem that
    the problem's benchmarks do."""
    is_honest = example.expected is Verdict.ACCEPTED and "hostile" not in example.path.name
    is_interpreted = DEVICE == "cpu" and kernel_language(example.path.read_bytes()) is not None
    return not (is_honest and is_interpreted) or example.path.name == "triton_softmax.py"


def _cases(problem: Problem, example: Example) -> Problem:
    """The problem with the cases that are tried: of a compiled file on a CPU, where each kind of
    shape is compiled anew, one of each dtype and a benchmark; else all."""
    if DEVICE == "cuda" or not example.path.name.startswith("compiled_"):
        return problem
    return dataclasses.replace(problem, selected=COMPILED_CASES)


def _may_fork(problem: Problem, example: Example) -> bool:
    """Whether its process may be forked: only its outputs, times and messages decide. Files that
    reach for what is beside the runner, or that end it, get the sandbox that users have."""
    ends = example.expected in ENDED and example.path.name not in TALKING
    return problem.name != FULL or not (ends or example.path.name in REACHING)


def test_exact_count() -> None:
    counts = Counter((problem.name, example.expected.value) for problem, example in CORPUS)
    assert dict(counts) == COUNTS


def test_every_file_is_in_the_folder_of_a_verdict() -> None:
    for problem in PROBLEMS.values():
        folder = problem.folder.parent.parent / "submissions" / problem.name
        files = {
            path for path in folder.rglob("*") if path.is_file() and "pycache" not in str(path)
        }
        assert files == {example.path for example in examples(problem)}


def test_one_problem_has_every_verdict() -> None:
    verdicts = {verdict for problem, verdict in COUNTS if problem == FULL}
    assert verdicts == set(Verdict) - {Verdict.JUDGE_ERROR}


def test_files_that_reach_beyond_the_runner_are_known() -> None:
    files = {example.path.name for problem, example in CORPUS if problem.name == FULL}
    assert files >= REACHING
    users = {e.expected for p, e in CORPUS if not _may_fork(p, e)}
    assert users == set(Verdict) - {Verdict.JUDGE_ERROR}, "each verdict in the users' sandbox too"


def test_only_rejected_examples_name_a_rule() -> None:
    for _, example in CORPUS:
        assert (example.rule is not None) == (example.expected is Verdict.REJECTED), example.path


@pytest.mark.parametrize(("problem", "example"), [_parameter(*pair) for pair in CORPUS])
def test_verdict(problem: Problem, example: Example) -> None:
    if why := example.missing(DEVICE):
        pytest.skip(f"not run, {why}")
    sandbox = "forked" if _may_fork(problem, example) else "process"
    report = _report(_name(problem, example), sandbox)
    assert example.fits(report), (report.verdict, report.rule, report.reason)
    assert report.reason.isprintable()
    assert all(c.isprintable() or c in "\n\t" for c in report.log)
    assert (report.score_us is None) == (report.verdict != "accepted" or DEVICE == "cpu")
    if report.verdict == "accepted":
        assert ("benchmark" in {case.kind for case in report.cases}) == _is_timed(example)


SANDBOXES = ["process", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.mark.parametrize("name", SANDBOXES)
def test_no_secret_is_found(name: str) -> None:
    _require_isolation(name)
    log = _report("softmax/accepted/hostile_reads_secrets.py", name).log
    assert "GRADE_SCRATCH" in log
    assert "FOUND" not in log


@pytest.mark.parametrize("name", SANDBOXES)
def test_no_escape_succeeds(name: str) -> None:
    _require_isolation(name)
    log = _report("softmax/accepted/hostile_tries_to_escape.py", name).log
    assert "loopback refused" in log
    assert "GOT" not in log


def _require_isolation(name: str) -> None:
    described = _sandbox(name).describe()
    if name == "process" and "namespaces" not in described:
        pytest.skip(f"not run, needs namespaces: the sandbox here is {described}")


DOCKER_TOO = [
    "softmax/accepted/hostile_outlives_its_run.py",
    "softmax/accepted/triton_softmax.py",
    "softmax/memory_limit_exceeded/hostile_memory_files.py",
    "softmax/output_limit_exceeded/child_prints.py",
    "softmax/rejected/early_done.py",
    "softmax/runtime_error/fills_scratch.py",
    "softmax/runtime_error/hostile_child_takes_over.py",
    "softmax/time_limit_exceeded/hostile_fork_bomb.py",
]


@pytest.mark.docker
@pytest.mark.parametrize("name", DOCKER_TOO)
def test_verdict_in_docker(name: str) -> None:
    _, example = _file(name)
    report = _report(name, "docker")
    assert example.fits(report), (report.verdict, report.rule, report.reason)
