"""Problems of other sets, graded for real in the process sandbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.judge import grade, set_host
from grader.judge import import_problem as import_module
from grader.judge.import_problem import import_problem
from grader.judge.set_code import SetCode
from grader.judge.set_host import SetHost, SetMemoryError, open_host
from grader.judge.set_report import report_problem
from grader.problem import Problem, ProblemError
from grader.problem.scaffold import scaffold
from grader.problem_sets import read_problem
from grader.problem_sets.reference_submission import reference_submission
from grader.report import Report
from grader.sandbox.base import Device, Sandbox
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.sets import made_up

pytestmark = pytest.mark.slow


@cache
def sandbox() -> Sandbox:
    return ForkedSandbox()


def imported(prefix: str, path: Path) -> Problem:
    return import_problem(read_problem(prefix, path), sandbox(), "cpu")


def graded(problem: Problem, source: str, seed: int | None = None) -> Report:
    submission = Submission("kernel.py", "python", source.encode())
    return grade(problem, submission, sandbox=sandbox(), device="cpu", benchmarks=False, seed=seed)


@pytest.fixture
def scaled_rows(tmp_path: Path) -> Problem:
    return imported("leetgpu", made_up.leetgpu(tmp_path))


@pytest.fixture
def rms(tmp_path: Path) -> Problem:
    return imported("kernelbot", made_up.kernelbot(tmp_path))


@pytest.fixture
def linear(tmp_path: Path) -> Problem:
    return imported("kernelbench", made_up.kernelbench(tmp_path))


def test_a_challenge_is_graded_with_both_gates(scaled_rows: Problem) -> None:
    spec = scaled_rows.spec
    assert [(a.name, a.role, a.dtype) for a in spec.args] == [
        ("x", "in", "fp32"),
        ("y", "out", "fp32"),
        ("n", "in", "int64"),
        ("alpha", "in", "fp64"),
    ]
    assert [case.name for case in spec.tests] == ["example", "test_1", "test_2"]
    right = graded(
        scaled_rows,
        "import torch\ndef solve(x, y, n, alpha):\n    y.copy_(torch.softmax(x, 1) * alpha)\n",
    )
    assert right.verdict == "accepted", right.reason
    assert "LeetGPU's own check: right in 3 of 3 tests" in right.notes
    assert "the float64 gate: right in 3 of 3 tests" in right.notes
    returned = graded(
        scaled_rows,
        "import torch\ndef solve(x, n, alpha):\n    return torch.softmax(x, 1) * alpha\n",
    )
    assert returned.verdict == "accepted", returned.reason
    wrong = graded(scaled_rows, "def solve(x, y, n, alpha):\n    y.copy_(x)\n")
    assert wrong.verdict == "wrong_answer"
    mismatch = wrong.cases[0].mismatch
    assert mismatch is not None
    assert mismatch.others[0].startswith("LeetGPU's own check: off by up to")
    idle = graded(scaled_rows, "def solve(x, y, n, alpha):\n    pass\n")
    assert idle.verdict == "wrong_answer"
    assert "'y' was never written" in idle.reason


def test_a_generous_check_is_held_against_float64(rms: Problem) -> None:
    """5 % too large is within the board's 0.1; our gate says so and rejects it."""
    assert [a.shape for a in rms.spec.args] == [["rows", "48"], ["48"], ["rows", "48"]]
    source = (
        "import torch\n"
        "def custom_kernel(data):\n"
        "    x, weights, config = data\n"
        "    mean = x.square().mean(dim=1, keepdim=True)\n"
        "    return x * torch.rsqrt(mean + config['eps']) * weights['weight']"
    )
    right = graded(rms, source + "\n")
    assert right.verdict == "accepted", right.reason
    scaled = graded(rms, source + " * 1.02\n")
    assert scaled.verdict == "wrong_answer"
    assert "KernelBot's own check: right in 2 of 2 tests" in scaled.notes
    assert "the float64 gate: right in 0 of 2 tests" in scaled.notes
    assert (
        "the gates disagree in 'test_1': KernelBot's own check says right, the float64 gate wrong; "
        "both must pass" in scaled.notes
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "returned a NoneType where a tensor is expected"),
        (
            "return data[0][:1]",
            "returned a tensor of shape (1, 48) and torch.float32, where (5, 48)",
        ),
        ("return (data[0],)", "returned a tuple where a tensor is expected"),
    ],
)
def test_what_a_kernel_returns_has_the_references_form(
    rms: Problem, body: str, reason: str
) -> None:
    report = graded(rms, f"def custom_kernel(data):\n    {body}\n")
    assert report.verdict == "runtime_error"
    assert reason in report.reason


def test_our_own_form_works_too(rms: Problem) -> None:
    report = graded(
        rms,
        "import torch\n"
        "def custom_kernel(x, weight, out):\n"
        "    scale = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-5)\n"
        "    out.copy_(x * scale * weight)\n",
    )
    assert report.verdict == "accepted", report.reason


def test_room_that_the_reference_leaves_alone_is_an_output(tmp_path: Path) -> None:
    """The reference returns a new tensor; kernels may write into the last input instead, and import
    the board's files."""
    board = made_up.BOARD.replace('"eps": 1e-5}', '"eps": 1e-5}, torch.empty(rows, 48)')
    board = board.replace("x, weights, config = data", "x, weights, config, room = data")
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, board))
    assert [(a.name, a.role) for a in problem.spec.args][-1] == ("data_3", "out")
    kernel = (
        "import torch\n"
        "from reference import ref_kernel\n"
        "def custom_kernel(data):\n"
        "    data[3][...] = ref_kernel(data)\n"
        "    return data[3]\n"
    )
    assert graded(problem, kernel).verdict == "accepted"
    assert graded(problem, kernel.replace("return data[3]", "return ref_kernel(data)")).verdict == (
        "accepted"
    )
    assert graded(problem, kernel.replace(" = ref_kernel(data)", " = 0")).verdict == "wrong_answer"


def test_a_cache_among_the_inputs_is_updated(tmp_path: Path) -> None:
    """Each call gets the object as it was: its counter is that of the first call."""
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, made_up.CACHED))
    assert [(a.name, a.role) for a in problem.spec.args][2:] == [
        ("data_2_kept", "inout"),
        ("out_0", "out"),
    ]
    assert problem.imported is not None
    assert problem.imported.limits == ()
    kernel = (
        "def custom_kernel(data):\n"
        "    setup, x, cache = data\n"
        "    seen = cache(x @ setup.weight)\n"
        "    return seen.sum(dim=0), cache.kept\n"
    )
    submission = Submission("kernel.py", "python", kernel.encode())
    right = grade(problem, submission, sandbox=sandbox(), device="cpu")
    assert right.verdict == "accepted", right.reason
    assert "the float64 gate: right in 2 of 2 tests" in right.notes
    idle = graded(problem, kernel.replace("cache(x @ setup.weight)", "cache.kept[:cache.count]"))
    assert idle.verdict == "wrong_answer"
    scaled = graded(problem, kernel.replace("setup.weight)", "setup.weight * 1.03)"))
    assert scaled.verdict == "wrong_answer"
    assert "'data_2_kept'" in scaled.reason
    own = "def custom_kernel(weight, x, kept, out):\n    n = len(kept) - 2\n"
    own += "    kept[n : n + 1] = x @ weight\n    out.copy_(kept[: n + 1].sum(0))\n"
    assert graded(problem, own).verdict == "accepted"


SQUARES = """
import torch

def squares_forward(x, index):
    return x.float().square().sum(1)[index]

def squares_backward(x, index, gradient):
    sums = torch.zeros(len(x), device=x.device).index_add_(0, index, gradient)
    return (2 * x.float() * sums[:, None]).to(x.dtype)
"""


def test_a_board_whose_submissions_define_several_functions(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.functions(tmp_path))
    names = ["x", "index", "gradient", "out_squares_forward", "out_squares_backward"]
    assert [argument.name for argument in problem.spec.args] == names
    assert problem.imported is not None
    assert problem.imported.limits == ()
    assert (
        "(`squares_forward(x, index)`, `squares_backward(x, index, gradient)`)" in problem.statement
    )
    right = graded(problem, SQUARES)
    assert right.verdict == "accepted", right.reason
    own = (
        f"def custom_kernel({', '.join(names)}):\n    {names[3]}.copy_(squares_forward(x, index))\n"
    )
    own += f"    {names[4]}.copy_(squares_backward(x, index, gradient))\n"
    assert graded(problem, SQUARES + own).verdict == "accepted"
    scaled = graded(problem, SQUARES.replace("return (2", "return (2.1"))
    assert scaled.verdict == "wrong_answer"
    assert "'out_squares_backward'" in scaled.reason
    one = graded(problem, SQUARES.replace("squares_backward", "backward"))
    assert one.reason == "no function named 'squares_backward' in the file"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "module.squares_forward(x, index)",
            "module.squares_forward(x.T, index)",
            "generate_input",
        ),
        ("= generate_inputs(ROWS, columns)", "= 1, 2, 3", "generate_input"),
        ("def check_correctness", "def check", "generate_input"),
        ("    x, index, gradient =", "    x = 1 / 0\n    x, index, gradient =", "by zero"),
        (
            "    x, index, gradient =",
            "    return True\n    x, index, gradient =",
            "makes no inputs",
        ),
        ("squares_forward", "squares_front", "no function named 'reference_front'"),
    ],
)
def test_a_board_whose_functions_are_not_found_is_refused(
    old: str, new: str, why: str, tmp_path: Path
) -> None:
    assert old in made_up.EVALUATION
    evaluation = made_up.EVALUATION.replace(old, new)
    with pytest.raises(ProblemError, match=why):
        imported("kernelbot", made_up.functions(tmp_path, evaluation=evaluation))


def test_a_boards_own_check_of_several_functions_decides_too(tmp_path: Path) -> None:
    """It is called with the submission's outputs, on the inputs that these are of."""
    evaluation = made_up.EVALUATION.replace("atol=0.5, rtol=0.5", "atol=0, rtol=0", 1)
    problem = imported("kernelbot", made_up.functions(tmp_path, evaluation=evaluation))
    report = graded(problem, SQUARES.replace(".sum(1)", ".sum(1).mul(1.00001)"))
    assert report.verdict == "wrong_answer"
    assert "KernelBot's own check: check_correctness() gives (False, True, " in report.reason


def test_arguments_that_only_some_cases_have(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, made_up.PARTS, made_up.PARTS_TASK))
    spec, described = problem.spec, problem.imported
    assert described is not None
    assert described.limits == ()
    parts = [f"data_1_part_{i}_weight" for i in range(4)]
    assert [a.name for a in spec.args] == ["data_0", *parts, "data_1_last_weight", "out"]
    small, large, timed = [*spec.tests, *spec.benchmarks]
    shapes = [[problem.shape(a, case) for a in spec.args[3:5]] for case in (small, large, timed)]
    assert shapes == [[(1, 1), (1, 1)], [(16, 24), (16, 24)], [(16, 24), (1, 1)]]
    assert described.forms[small.name].data["tuple"][1] == {
        "dict": {
            "part.0.weight": {"value": 1},
            "part.1.weight": {"value": 2},
            "last.weight": {"value": 5},
        }
    }
    code = SetCode(problem, "cpu", open_host(described.source, sandbox(), "cpu"))
    first, second = (code.inputs(small, seed) for seed in (1, 2))
    assert not first["data_1_part_1_weight"].equal(second["data_1_part_1_weight"])
    assert first["data_1_part_2_weight"].tolist() == [[0.0]]
    kernel = (
        "def custom_kernel(data):\n"
        "    x, weights, config = data\n"
        "    assert len(weights) == config['parts'] + 1\n"
        "    inner = [x @ w for name, w in weights.items() if name.startswith('part')]\n"
        "    return sum(inner) @ weights['last.weight']\n"
    )
    submission = Submission("kernel.py", "python", kernel.encode())
    right = grade(problem, submission, sandbox=sandbox(), device="cpu")
    assert right.verdict == "accepted", right.reason
    assert "the float64 gate: right in 2 of 2 tests" in right.notes
    wrong = graded(problem, kernel.replace("sum(inner)", "sum(inner[:2])"))
    assert [case.status for case in wrong.cases] == ["passed", "wrong_answer"]
    own = "def custom_kernel(x, a, b, c, d, last, out):\n"
    own += "    given = [w for w in (a, b, c, d) if w.shape == (16, 24)]\n"
    own += "    out.copy_(sum(x @ w for w in given) @ last)\n"
    assert graded(problem, own).verdict == "accepted"


CHOOSES = """
import torch
from helpers import matching


def generate_input(rows, seed):
    x = torch.randn(rows, 48, device="cuda")
    if seed > 9:  # unlike the inputs of the import, these have equal numbers in float16
        x[0] = 1 + torch.arange(48) * 1e-6
    return x, torch.randn(48, 48, device="cuda")


def ref_kernel(data):
    x, values = data
    return values[x.half().to(x.dtype).argmax(dim=1)]


check_implementation = matching(ref_kernel)
"""
"""A board whose reference chooses other rows in float64 for some inputs."""


def test_inputs_for_which_the_reference_itself_is_off_are_left_to_the_sets_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_up.kernelbot(tmp_path, CHOOSES)
    with monkeypatch.context() as patch:
        patch.setattr("grader.judge.import_problem.seed_for", lambda *_: 5)
        problem = imported("kernelbot", folder)
    assert problem.imported is not None
    assert len(problem.imported.wide) == 3
    kernel = reference_submission(problem.imported.source).source.decode()
    right = graded(problem, kernel, seed=1)
    assert right.verdict == "accepted", right.reason
    line = "no float64 gate in '{}': for these inputs, the reference's own error is above the bound"
    assert {line.format("test_1"), line.format("test_2")} <= set(right.notes)
    assert not any(note.startswith("the float64 gate: right") for note in right.notes)
    wrong = graded(
        problem, kernel.replace("return ref_kernel(data)", "return ref_kernel(data) * 1.5")
    )
    assert wrong.verdict == "wrong_answer"
    assert not any(note.startswith("no float64 gate in 'test") for note in wrong.notes)


def test_a_case_with_another_argument_is_left_out(tmp_path: Path) -> None:
    """It has one that others lack, and lacks one that they have."""
    name = '"last.weight" if len(x) != 40 else "end.weight"'
    board = made_up.PARTS.replace('"last.weight"', name)
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, board, made_up.PARTS_TASK))
    assert problem.imported is not None
    assert problem.imported.limits == (
        "case 'test_2' is left out: it has other arguments than the rest",
    )


def test_a_module_gets_its_weights_by_name(linear: Problem) -> None:
    """Its parameters are made in another order than the reference's."""
    assert [a.name for a in linear.spec.args if a.weight][:2] == ["inner_weight", "inner_bias"]
    module = (
        "import torch\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self, features, outputs):\n"
        "        super().__init__()\n"
        "        self.norm = torch.nn.BatchNorm1d(outputs)\n"
        "        self.inner = torch.nn.Linear(features, outputs{})\n"
        "    def forward(self, x):\n"
        "        return torch.relu(self.norm(self.inner(x)))\n"
    )
    right = graded(linear, module.format(""))
    assert right.verdict == "accepted", right.reason
    other = graded(linear, module.format(", bias=False"))
    assert other.verdict == "runtime_error"
    assert "inner.bias" in other.reason + other.log


@pytest.mark.parametrize(
    ("prefix", "make"),
    [
        ("leetgpu", made_up.leetgpu),
        ("kernelbot", made_up.kernelbot),
        ("kernelbot", lambda root: made_up.kernelbot(root, made_up.CACHED)),
        ("kernelbot", lambda root: made_up.kernelbot(root, made_up.PARTS, made_up.PARTS_TASK)),
        ("kernelbot", made_up.functions),
        ("kernelbench", made_up.kernelbench),
    ],
)
def test_a_reference_is_accepted_and_wrong_copies_are_not(
    prefix: str, make: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = read_problem(prefix, make(tmp_path))
    report = report_problem(source, sandbox(), "cpu")
    assert report.state == "runs", report.reasons
    assert report.float64_cases == report.tests + report.benchmarks


@pytest.mark.parametrize("make", [made_up.leetgpu, made_up.kernelbot, made_up.kernelbench])
def test_large_blocks_are_freed_after_each_request(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_host, "KEPT_BYTES", 0)
    source = read_problem(make.__name__, make(tmp_path))
    report = report_problem(source, sandbox(), "cpu")
    assert report.state == "runs", report.reasons
    host = open_host(source, sandbox(), "cpu")
    assert (host._lent, host._arena._arena) == (None, None)


GB = 10**9


def test_a_case_has_no_float64_gate_where_the_device_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set's own check then decides alone, and wrong results are found still."""
    monkeypatch.setattr(import_module, "_device_bytes", lambda _: 8 * GB)
    source = read_problem("kernelbench", made_up.kernelbench(tmp_path))
    report = report_problem(source, sandbox(), "cpu")
    assert (report.state, report.float64_cases) == ("runs with limits", 0)
    assert report.reasons == [
        "no float64 gate in 2 of 2 cases: its answer in float64 needs about 9 GB"
    ]


def test_needed_memory_is_what_is_held_at_once(linear: Problem) -> None:
    """Inputs and outputs as lent and as kept, the inputs as lent to the set's code, and what that
    takes; in a benchmark, the runner's own result too."""
    test, timed = [*linear.spec.tests, *linear.spec.benchmarks]
    x = torch.empty(16, 24)
    weights = {a.name: torch.empty(linear.shape(a, test)) for a in linear.spec.args if a.weight}
    weights["norm_num_batches_tracked"] = weights["norm_num_batches_tracked"].long()
    inputs = {"x": x, **weights}
    peak = 1 << 30
    most = import_module._needed_bytes(linear, test, inputs, peak)
    assert 0 < most - import_module.BESIDES_BYTES - peak < 100 * x.nbytes
    more = import_module._needed_bytes(linear, timed, inputs, peak) - most
    assert 16 * 12 * 4 <= more <= 16 * 12 * 4 + 1024
    # Without intermediate results, the check of outputs takes more than the reference.
    assert import_module._needed_bytes(linear, test, inputs, 0) > import_module.BESIDES_BYTES


def out_of_memory(host: SetHost, number: int, *rest: Any) -> Any:
    if rest[-1]:
        raise SetMemoryError("made: computing the reference: out of device memory")
    return RIGHT(host, number, *rest)


RIGHT = SetHost.reference


def test_running_out_of_memory_costs_the_gate_at_the_import_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a grading, a submission could take the memory to be judged by one gate less."""
    path = made_up.kernelbench(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SetHost, "reference", out_of_memory)
        problem = imported("kernelbench", path)
    assert problem.imported is not None
    assert problem.imported.limits == (
        "no float64 gate in 2 of 2 cases: its answer in float64 needs more memory than there is",
    )
    problem = imported("kernelbench", path)
    assert problem.imported is not None
    assert problem.imported.limits == ()
    monkeypatch.setattr(SetHost, "reference", out_of_memory)
    with pytest.raises(ProblemError, match="out of device memory"):
        graded(problem, reference_submission(problem.imported.source).source.decode())


def test_weights_that_a_module_sets_to_a_constant_are_drawn(linear: Problem) -> None:
    """A kernel without the scale and shift of a normalization would be right for 1 and 0."""
    without = graded(
        linear,
        "import torch\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self, features, outputs):\n"
        "        super().__init__()\n"
        "        self.norm = torch.nn.BatchNorm1d(outputs)\n"
        "        self.inner = torch.nn.Linear(features, outputs)\n"
        "    def forward(self, x):\n"
        "        y = self.inner(x)\n"
        "        scale = torch.rsqrt(y.var(0, unbiased=False) + self.norm.eps)\n"
        "        return torch.relu((y - y.mean(0)) * scale)\n",
    )
    assert without.verdict == "wrong_answer"


def test_what_cannot_be_judged_says_why(tmp_path: Path) -> None:
    random = made_up.MODEL.replace("torch.relu(", "torch.nn.functional.dropout(")
    source = read_problem("kernelbench", made_up.kernelbench(tmp_path, random))
    report = report_problem(source, sandbox(), "cpu")
    assert report.state == "cannot"
    assert report.reasons == [
        "cases 'inputs', 'timed' are left out: its reference gives another answer each time"
    ]


def test_solutions_of_a_set_are_judged_on_its_benchmarks_too(tmp_path: Path) -> None:
    """Nothing is timed. Here one is wrong for the benchmark's inputs only, another in all."""
    folder = made_up.kernelbot(tmp_path)
    right = (
        "from reference import ref_kernel\ndef custom_kernel(data):\n    return ref_kernel(data)"
    )
    for kind, name, text in [
        ("correct", "reference", right),
        ("correct", "is_not", right + " * 2"),
        ("wrong", "large", right + " * (2 if len(data[0]) == 64 else 1)"),
    ]:
        (folder / "solutions" / kind).mkdir(parents=True, exist_ok=True)
        (folder / "solutions" / kind / f"{name}.py").write_text(text + "\n")
    report = report_problem(read_problem("kernelbot", folder), sandbox(), "cpu")
    assert (report.state, report.solutions) == ("runs with limits", 2)
    (reason,) = report.reasons
    assert reason.startswith("the set's own solution correct/is_not.py is wrong_answer")


def test_an_output_handed_over_zeroed_need_not_be_written_in_full(tmp_path: Path) -> None:
    text = made_up.CHALLENGE.replace(
        "Y.copy_(torch.softmax(X.to(torch.float32), dim=1) * alpha)",
        "Y.view(-1)[: int((X > 1).sum())].copy_(X[X > 1] * alpha)",
    )
    problem = imported("leetgpu", made_up.leetgpu(tmp_path, text=text))
    assert [(a.name, a.role) for a in problem.spec.args][1] == ("y", "inout")
    head = "def solve(x, y, n, alpha):\n    kept = x[x > 1] * alpha\n    "
    right = graded(problem, head + "y.view(-1)[: len(kept)].copy_(kept)\n")
    assert right.verdict == "accepted", right.reason
    assert graded(problem, head + "y.view(-1)[1: len(kept)].copy_(kept[1:])\n").verdict == (
        "wrong_answer"
    )
    assert graded(problem, head + "y.fill_(1).view(-1)[: len(kept)].copy_(kept)\n").verdict == (
        "wrong_answer"
    )


def test_a_case_of_random_sizes_keeps_one_seed(tmp_path: Path) -> None:
    """Its values are then changed as public data is."""
    board = made_up.BOARD.replace("torch.randn(rows, 48", "torch.randn(rows + seed % 9, 48")
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, board))
    assert problem.imported is not None
    code = SetCode(problem, "cpu", open_host(problem.imported.source, sandbox(), "cpu"))
    first, second = (code.inputs(problem.spec.tests[0], seed)["data_0"] for seed in (1, 2))
    assert first.shape == second.shape
    assert 0 < float((first / second - 1).abs().max()) < 0.02


def test_more_arguments_than_a_request_describes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.judge.import_problem.REQUEST_BYTES", 8 * 1024)
    text = made_up.MODEL.replace(
        "self.inner =",
        "self.many = nn.ModuleList(nn.Linear(1, 1) for _ in range(100))\n        self.inner =",
    )
    with pytest.raises(ProblemError, match=r"its 209 arguments are more than a request of 8192"):
        imported("kernelbench", made_up.kernelbench(tmp_path, text))


def test_public_data_is_changed_a_little_or_marked(tmp_path: Path) -> None:
    """The example's literals are no whole numbers, so no two gradings have the same."""
    problem = imported("leetgpu", made_up.leetgpu(tmp_path))
    assert problem.imported is not None
    assert problem.imported.limits == ()
    code = SetCode(problem, "cpu", open_host(problem.imported.source, sandbox(), "cpu"))
    example = problem.spec.tests[0]
    first, second = (code.inputs(example, seed)["x"] for seed in (1, 2))
    assert not first.equal(second)
    assert float((first / second - 1).abs().max()) < 0.02
    whole = made_up.CHALLENGE.replace("1.5, 2.25], [3.0, 0.5", "1.0, 2.0], [3.0, 0.0")
    marked = imported("leetgpu", made_up.leetgpu(tmp_path / "whole", text=whole))
    assert marked.imported is not None
    assert marked.imported.limits == ("1 of 4 cases have public data that no seed changes",)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(3)", "importing it: importing it exited with status 3"),
        ("raise SystemExit", "importing it: SystemExit"),
        ("raise RuntimeError('no such library')", "RuntimeError: no such library"),
        ("def ref_kernel(data): pass", "no function named 'generate_input'"),
        (
            made_up.BOARD.replace("return x * scale", "return str(x)\n    x * scale"),
            "its reference returns no tensor",
        ),
        ("import time\nwhile True: time.sleep(1)", "importing it took longer than"),
    ],
)
def test_code_of_a_set_that_fails_is_one_line(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.judge.set_host.STEP_S", 8.0)
    with pytest.raises(ProblemError) as caught:
        imported("kernelbot", made_up.kernelbot(tmp_path, code))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hostile_code_of_a_set_cannot_spoil_an_answer(tmp_path: Path) -> None:
    """It writes into every lent file; the answer is written after it."""
    attack = (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try:\n"
        "        if 'memfd' in os.readlink(f'/proc/self/fd/{fd}'):\n"
        "            os.pwrite(fd, b'[[[[' * 4096, 0)\n"
        "    except OSError:\n"
        "        pass\n"
    )
    board = made_up.BOARD + "\n_old = ref_kernel\n\ndef ref_kernel(data):\n"
    board += "".join(f"    {line}\n" for line in attack.splitlines())
    board += "    return _old(data)\n"
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, board))
    assert [case.name for case in problem.spec.tests] == ["test_1", "test_2"]


SCALED = (
    made_up.CHALLENGE.replace("torch.softmax(X.to(torch.float32), dim=1) * alpha", "X * alpha")
    .replace("x.shape[0]", "x.numel()")
    .replace('"N": 33,', '"N": 33 * 65,')
)
OWN_FORM = """
__global__ void scale(const float* x, float* y, size_t n, float alpha) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = alpha * x[i];
}

extern "C" void solve(const float* x, float* y, size_t n, float alpha) {
  scale<<<(n + 255) / 256, 256>>>(x, y, n, alpha);
}
"""
"""A `.cu` file in LeetGPU's own prototype."""


def graded_cuda(problem: Problem, source: str, device: Device) -> Report:
    submission = Submission("kernel.cu", "cuda", source.encode())
    return grade(problem, submission, sandbox=sandbox(), device=device)


@pytest.mark.nvcc
def test_a_file_in_the_sets_own_prototype_compiles(tmp_path: Path) -> None:
    problem = imported("leetgpu", made_up.leetgpu(tmp_path, text=SCALED))
    own = 'extern "C" void solve(const float* x, float* y, size_t n, float alpha)'
    assert problem.set_prototype == own
    report = graded_cuda(problem, OWN_FORM, "cpu")
    assert (report.verdict, report.reason) == (None, "compiled, not run: no GPU")
    # As in LeetGPU's starter files, whatever the challenge says.
    head = "size_t n, float alpha) {\n  scale"
    report = graded_cuda(problem, OWN_FORM.replace(head, head.replace("size_t", "int")), "cpu")
    assert (report.verdict, report.reason) == (None, "compiled, not run: no GPU")
    wrong = graded_cuda(problem, OWN_FORM.replace(head, head.replace("size_t", "float")), "cpu")
    assert wrong.verdict == "compile_error"
    assert "'solve' takes float as parameter 3 instead of size_t n" in wrong.reason


def test_only_leetgpu_has_a_prototype_of_its_own(rms: Problem) -> None:
    assert rms.set_prototype == ""


@pytest.mark.cuda
@pytest.mark.nvcc
@pytest.mark.parametrize("ends", ["", "  cudaDeviceSynchronize();\n"])
def test_kernels_of_the_sets_own_prototype_are_timed(ends: str, tmp_path: Path) -> None:
    """On the calling thread's default stream. A file that waits itself is not captured, and is
    right all the same."""
    source = read_problem("leetgpu", made_up.leetgpu(tmp_path, text=SCALED))
    problem = import_problem(source, sandbox(), "cuda")
    body = "alpha);\n}\n"
    report = graded_cuda(problem, OWN_FORM.replace(body, f"alpha);\n{ends}}}\n"), "cuda")
    assert report.verdict == "accepted", report.reason
    assert report.score_us is not None
    # 4096 × 4096 floats are read and written, faster than which no GPU is.
    assert report.score_us > 2 * 4 * 4096**2 / 10e12 * 1e6
    late = OWN_FORM.replace("<<<(n + 255) / 256, 256>>>", "<<<1, 256>>>")
    assert graded_cuda(problem, late, "cuda").verdict == "wrong_answer"


ROUNDED_SUMS = """
import torch


def generate_input(rows, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.rand(rows * 64, 999, device="cuda", generator=gen)


def ref_kernel(data):
    sums = data.sum(dim=1)
    return sums, (sums * 1024).round().int()


def check_implementation(data, output):
    sums, rounded = ref_kernel(data)
    if int((output[1] - rounded).abs().max()) > 1:
        return False, "not rounded"
    return torch.allclose(output[0], sums), "sums differ"
"""
OTHER_ORDER = """
def custom_kernel(data):
    sums = data[:, 0].clone()
    for column in range(1, data.shape[1]):
        sums += data[:, column]
    return sums, (sums * 1024).round().int()
"""


def test_integers_that_rounding_changes_are_judged_by_the_sets_own_check(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, ROUNDED_SUMS))
    report = graded(problem, OTHER_ORDER)
    assert (report.verdict, report.reason) == ("accepted", "right on every case")
    skewed = OTHER_ORDER.replace("return sums, (", "return sums, 2 + (")
    assert "not rounded" in graded(problem, skewed).reason
    # The sums themselves are compared with float64, more strictly than the set does.
    assert problem.imported is not None
    assert len(problem.imported.wide) == 3


QUANTIZED = """
import torch


def generate_input(rows, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(100, 128, device="cuda", generator=gen), torch.randn(128, 128, device="cuda")


def ref_kernel(data):
    a, b = (x.to(torch.float8_e4m3fn).float() for x in data)
    return a @ b


def check_implementation(data, output):
    expected = ref_kernel(data)
    right = torch.isclose(output, expected, rtol=1e-2, atol=1e-2)
    return float(right.float().mean()) >= 0.98, "too many elements differ"
"""
IN_TWO_PARTS = """
import torch


def custom_kernel(data):
    a, b = (x.to(torch.float8_e4m3fn).float() for x in data)
    return a[:, :64] @ b[:64] + a[:, 64:] @ b[64:]
"""


ROW_SUMS = """
import torch
from helpers import matching


def generate_input(rows, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(5, 32, device="cuda", generator=gen)


def ref_kernel(data):
    return data.sum(dim=1)


check_implementation = matching(ref_kernel, 1e-3)
"""
TABULATED = """
import torch

SUMS = {}
generator = torch.Generator()
for seed in range(1, 99_992):
    x = torch.randn(5, 32, generator=generator.manual_seed(seed))
    SUMS[float(x[0, 0])] = x.sum(dim=1)


def custom_kernel(data):
    return SUMS.get(float(data[0, 0]), torch.zeros(5))
"""


def test_the_answers_to_a_boards_own_seeds_are_not_enough(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, ROW_SUMS))
    assert graded(problem, TABULATED).verdict == "wrong_answer"


def test_an_output_at_which_the_sets_check_raises_is_wrong(tmp_path: Path) -> None:
    board = ROW_SUMS.replace(
        "check_implementation = matching(ref_kernel, 1e-3)",
        """
def check_implementation(data, output):
    torch.linalg.eigvalsh(torch.diag(output))
    return matching(ref_kernel, 1e-3)(data, output)
""",
    )
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, board))
    report = graded(problem, "def custom_kernel(data):\n    return data.sum(dim=1) / 0 * 0\n")
    assert report.verdict == "wrong_answer"
    assert (
        graded(problem, "def custom_kernel(data):\n    return data.sum(1)\n").verdict == "accepted"
    )


def test_a_check_that_loses_the_device_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is wrong; the next one is judged."""
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, ROW_SUMS))
    assert problem.imported is not None
    host = open_host(problem.imported.source, sandbox(), "cpu")
    before = host._runner
    with monkeypatch.context() as patch:
        patch.setattr(host, "_ask_with", lambda *_: ({"right": False, "lost": True}, []))
        assert host.check(0, [], []) == (False, "")
    assert before.poll() is not None
    assert host._runner is not before
    assert open_host(problem.imported.source, sandbox(), "cpu") is host
    right = "def custom_kernel(data):\n    return data.sum(dim=1)\n"
    assert graded(problem, right).verdict == "accepted"


@pytest.mark.nvcc
def test_a_cuda_file_gets_its_library_beside_a_boards_files(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path))
    submission = Submission("kernel.cu", "cuda", scaffold(problem, "cuda").encode())
    report = grade(problem, submission, sandbox=sandbox(), device="cpu")
    assert (report.verdict, report.reason) == (None, "compiled, not run: no GPU")


CANCELLING = """
import torch
from helpers import matching


def generate_input(rows, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(100, 128, device="cuda", generator=gen)


def ref_kernel(data):
    scores = torch.softmax(data, dim=1)
    return 2 * data, (scores - scores.mean(dim=1, keepdim=True)).sum(dim=1)


check_implementation = matching(ref_kernel)
"""
"""The second output would be zero without rounding."""


def test_an_output_of_roundings_alone_leaves_the_others_their_gate(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, CANCELLING))
    assert problem.imported is not None
    notes = [note for note in problem.imported.limits if "float64 gate" in note]
    assert len(notes) == 1
    assert notes[0].startswith("no float64 gate of 'out_1' in 3 of 3 cases: its own error in fp32")
    honest = """
import torch


def custom_kernel(data):
    return 2 * data, torch.zeros(100)
"""
    assert graded(problem, honest).verdict == "accepted"
    report = graded(problem, honest.replace("2 * data", "2.05 * data"))
    assert report.verdict == "wrong_answer"
    assert any("own check says right, the float64 gate wrong" in note for note in report.notes)


def test_a_slice_that_a_set_lets_pass_is_wrong_where_its_precision_is_coarse(
    tmp_path: Path,
) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, QUANTIZED))
    assert problem.imported is not None
    assert [note for note in problem.imported.limits if "coarse float64 gate in 3 of 3" in note]
    assert graded(problem, IN_TWO_PARTS).verdict == "accepted"
    without_last = IN_TWO_PARTS.replace("return ", "out = ") + "    out[-1] = 0\n    return out\n"
    report = graded(problem, without_last)
    assert report.verdict == "wrong_answer"
    assert "row 99" in report.reason
    assert any("own check says right, the float64 gate wrong" in note for note in report.notes)


ROOM = """
import torch

def generate_input(rows, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(24, 24, device="cuda", generator=gen)
    return x, torch.zeros(24, 24, device="cuda")

def ref_kernel(data):
    x, room = data
    {body}

def check_implementation(data, output):
    _expect_near(ref_kernel(data), output)
    return True, ""

def _expect_near(expected, output):
    expected, output = (v if isinstance(v, tuple) else (v,) for v in (expected, output))
    for want, got in zip(expected, output):
        assert torch.allclose(want, got, atol=1e-3), "far from it"
"""


@pytest.mark.parametrize(
    ("body", "other"),
    [
        ("torch.mul(x, 2, out=room)\n    return room.T", "return (2 * x).T.contiguous()"),
        ("x.mul_(2)\n    room.copy_(x + 1)\n    return x, room",
         "torch.mul(x, 2, out=room)\n    x.copy_(room + 1)\n    return room, x"),
    ],
    ids=["turned", "swapped"],
)  # fmt: skip
def test_what_is_returned_may_lie_in_an_output_in_another_way(
    body: str, other: str, tmp_path: Path
) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, ROOM.format(body=body)))
    for lines in (body, other):
        source = f"import torch\ndef custom_kernel(data):\n    x, room = data\n    {lines}\n"
        report = graded(problem, source)
        assert report.verdict == "accepted", report.reason


def test_what_a_check_asserts_in_a_function_of_its_own_counts(tmp_path: Path) -> None:
    text = ROOM.format(body="return x.argmax(1).int()")
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, text.replace(", atol=1e-3", "")))
    source = "def custom_kernel(data):\n    return data[0].argmax(1).int()\n"
    assert graded(problem, source).verdict == "accepted"
    report = graded(problem, source.replace(".argmax(1)", "[0]"))
    assert report.verdict == "wrong_answer"
    assert "it raised AssertionError: far from it" in report.reason


COUNTS = """
import torch

def generate_input(rows, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randint(0, 16, (rows * 100,), device="cuda", generator=gen)
    return x, torch.zeros(16, dtype=torch.int32, device="cuda")

def ref_kernel(data):
    x, counts = data
    counts.index_add_(0, x, torch.ones_like(x, dtype=counts.dtype))
    return counts

def check_implementation(data, output):
    return bool(torch.equal(ref_kernel(data), output)), "other counts"
"""


def test_integers_to_which_a_reference_adds_are_handed_over_as_they_were(tmp_path: Path) -> None:
    problem = imported("kernelbot", made_up.kernelbot(tmp_path, COUNTS))
    assert [a.role for a in problem.spec.args] == ["in", "inout"]
    body = COUNTS[COUNTS.index("def ref_kernel") : COUNTS.index("def check")]
    report = graded(problem, "import torch\n" + body.replace("ref_kernel", "custom_kernel"))
    assert report.verdict == "accepted", report.reason


def test_an_output_to_which_a_challenge_adds_is_handed_over_zeroed(tmp_path: Path) -> None:
    copied = "Y.copy_(torch.softmax(X.to(torch.float32), dim=1) * alpha)"
    assert copied in made_up.CHALLENGE
    text = made_up.CHALLENGE.replace(copied, "Y += torch.softmax(X, dim=1) * alpha")
    problem = imported("leetgpu", made_up.leetgpu(tmp_path, text=text))
    assert [a.role for a in problem.spec.args] == ["in", "inout", "in", "in"]
    for line in ("Y += torch.softmax(X, 1) * alpha", "Y.copy_(torch.softmax(X, 1) * alpha)"):
        report = graded(problem, f"import torch\ndef solve(X, Y, N, alpha):\n    {line}\n")
        assert report.verdict == "accepted", report.reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("async def custom_kernel(data):\n    pass", "is an async or generator function"),
        ("class custom_kernel:\n    pass", "'custom_kernel' is not a function but a class"),
        ("custom_kernel = 5", "'custom_kernel' is not a function but a int"),
    ],
)
def test_what_is_no_plain_function_does_not_load(rms: Problem, source: str, reason: str) -> None:
    report = graded(rms, source + "\n")
    assert report.verdict == "compile_error"
    assert reason in report.reason
