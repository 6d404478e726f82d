"""Every problem: inputs, references, and costs."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from grader.problem import Argument, Case, Problem
from grader.problem.spec import Tolerance
from tests.interpreted import run_interpreted

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
NAMES = sorted(path.parent.name for path in PROBLEMS.glob("*/problem.yaml"))
DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int64": torch.int64,
}
EXACT = Tolerance(atol=0, rtol=0, rel_l2=1)


def load(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_{file}", PROBLEMS / name / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(name: str, case: Case, seed: int, call: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Any] = load(name, "inputs").generate(generator, call=call, **case.params)
    return values


def cpu_cases(name: str) -> list[Case]:
    problem = Problem.load(PROBLEMS / name)
    return problem.cases("test", "cpu") + problem.cases("benchmark", "cpu")


def tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in (value if isinstance(value, list) else [value]) if torch.is_tensor(v)]


def same(a: Any, b: Any) -> bool:
    pairs = zip(tensors(a), tensors(b), strict=True)
    return all(torch.equal(x.double().nan_to_num(7), y.double().nan_to_num(7)) for x, y in pairs)


def upcast(value: Any) -> Any:
    if isinstance(value, list):
        return [upcast(v) for v in value]
    floating = torch.is_tensor(value) and value.is_floating_point()
    return value.double() if floating else value


def bound(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """`function` with the case's parameters that its signature names, as the judge gives them."""
    names = inspect.signature(function).parameters
    return partial(function, **{name: case.params[name] for name in names if name in case.params})


EVERY = [
    pytest.param(name, case, id=f"{name}-{case.name}") for name in NAMES for case in cpu_cases(name)
]


@pytest.mark.parametrize("name", NAMES)
def test_each_problem_has_enough_cases(name: str) -> None:
    problem = Problem.load(PROBLEMS / name)
    assert len(problem.cases("test", "cpu")) >= 8
    assert 3 <= len(problem.cases("benchmark", "cuda")) <= 6
    assert 1 <= len(problem.cases("benchmark", "cpu")) <= 2
    assert len(problem.statement) > 1000
    for case in problem.spec.tests + problem.spec.benchmarks:
        assert problem.bytes(case) > 0
        assert problem.flops(case) > 0


@pytest.mark.parametrize(("name", "case"), EVERY)
def test_inputs_follow_the_spec(name: str, case: Case) -> None:
    problem = Problem.load(PROBLEMS / name)
    values = generate(name, case, seed=3)
    wanted = [argument for argument in problem.spec.args if argument.role != "out"]
    assert list(values) == [argument.name for argument in wanted]
    for argument in wanted:
        check_argument(problem, argument, case, values[argument.name])


def check_argument(problem: Problem, argument: Argument, case: Case, value: Any) -> None:
    if argument.kind == "scalar":
        kinds = {"fp64": float, "int64": int, "bool": bool}
        assert type(value) is kinds[argument.dtype]
        return
    assert isinstance(value, list) == (argument.kind == "tensors")
    for tensor in tensors(value):
        assert tensor.dtype == DTYPES[problem.dtype(argument, case)]
        assert tensor.is_contiguous() or not argument.contiguous
        assert tensor.stride(-1) == 1
    if argument.kind == "tensor":
        assert tuple(value.shape) == problem.shape(argument, case)


@pytest.mark.parametrize(("name", "case"), EVERY)
def test_inputs_depend_only_on_the_seed(name: str, case: Case) -> None:
    first, again, other = (generate(name, case, seed) for seed in (5, 5, 6))
    assert all(same(first[key], again[key]) for key in first)
    assert not all(same(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("name", "case"), EVERY)
def test_reference_and_eager_are_pure_and_agree(name: str, case: Case) -> None:
    problem, module = Problem.load(PROBLEMS / name), load(name, "reference")
    values, kept = generate(name, case, seed=11), generate(name, case, seed=11)
    written = [a for a in problem.spec.args if a.role != "in"]
    reference = bound(module.reference, case)
    truth = reference(**{key: upcast(value) for key, value in values.items()})
    eager = getattr(module, "eager", module.reference)
    calls = [
        partial(bound(f, case), **values)
        for f in [eager, *getattr(module, "BASELINES", {}).values()]
    ]
    prepared = [prepare(**values) for prepare in getattr(module, "PREPARED", {}).values()]
    for call in [*calls, *filter(None, prepared)]:
        result = call()
        assert all(same(values[key], kept[key]) for key in values)
        results = result if isinstance(result, tuple) else (result,)
        truths = truth if isinstance(truth, tuple) else (truth,)
        for argument, got, expected in zip(written, results, truths, strict=True):
            tolerance = problem.spec.tolerances.get(problem.dtype(argument, case), EXACT)
            for g, e in zip(tensors(got), tensors(expected), strict=True):
                assert g.dtype == DTYPES[problem.dtype(argument, case)]
                # Numbers beyond the range of the output's dtype are infinite in it.
                rounded = e.to(g.dtype).double()
                torch.testing.assert_close(
                    g.double(),
                    torch.where(rounded.isinf(), rounded, e.double()),
                    atol=tolerance.atol,
                    rtol=tolerance.rtol,
                    equal_nan=True,
                )


def case_of(name: str, case_name: str) -> Case:
    return next(case for case in cpu_cases(name) if case.name == case_name)


def test_softmax_distributions_have_their_special_values() -> None:
    large = generate("softmax", case_of("softmax", "large_logits"), 0)["x"]
    assert (large.amax(1) > 89).all()  # exp overflows fp32 in every row
    masked = generate("softmax", case_of("softmax", "masked"), 0)["x"]
    assert masked.isneginf().all(1).sum() == 1
    assert (masked.isfinite().sum(1) == 1).sum() == 1
    denormal = generate("softmax", case_of("softmax", "denormals"), 0)["x"]
    tiny = torch.finfo(torch.float32).tiny
    assert ((denormal != 0) & (denormal.abs() < tiny)).any()
    result = torch.softmax(denormal.double(), 1)
    assert ((result > 0) & (result < tiny)).any()
    equal = generate("softmax", case_of("softmax", "equal_rows"), 0)["x"]
    assert ((equal == equal[:, :1]).all(1).tolist()) == [True, False] * 3


def test_int4_packing_example() -> None:
    weights = torch.tensor([[2, -3], [5, -8]])
    packed = load("int4_matmul", "inputs").pack((weights + 8).to(torch.uint8))
    assert packed.tolist() == [[0x5A], [0x0D]]
    assert torch.equal(load("int4_matmul", "reference").unpack(packed), weights.to(torch.int8))


def test_int4_reference_element_by_element() -> None:
    case = case_of("int4_matmul", "odd_pairs")
    values = generate("int4_matmul", case, 1)
    out = load("int4_matmul", "reference").reference(**{k: upcast(v) for k, v in values.items()})
    a, packed, scales = (values[key].tolist() for key in ("a", "b_packed", "scales"))
    for row, column in [(0, 0), (1, 65), (2, 7)]:
        expected = 0.0
        for k in range(case.params["k"]):
            byte = packed[k][column // 2]
            code = byte >> 4 if column % 2 else byte & 15
            expected += a[row][k] * (code - 8) * scales[k // 128][column]
        assert out[row, column].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_int4_extreme_codes() -> None:
    packed = generate("int4_matmul", case_of("int4_matmul", "extreme_codes"), 1)["b_packed"]
    assert set(packed.unique().tolist()) == {0x00, 0x0F, 0xF0, 0xFF}


def test_adamw_reference_matches_torch_optim() -> None:
    case = case_of("multi_tensor_adamw", "first_step")
    values = upcast_all(generate("multi_tensor_adamw", case, 2))
    reference = load("multi_tensor_adamw", "reference").reference
    params = [tensor.clone().requires_grad_() for tensor in values["params"]]
    optimizer = torch.optim.AdamW(
        params,
        lr=values["lr"],
        betas=(values["beta1"], values["beta2"]),
        eps=values["eps"],
        weight_decay=values["weight_decay"],
    )
    for step in (1, 2, 3):
        grads = upcast_all(generate("multi_tensor_adamw", case, 2, call=step - 1))["grads"]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
        new = reference(**(values | {"grads": grads, "step": step}))
        values |= dict(zip(("params", "exp_avgs", "exp_avg_sqs"), new, strict=True))
        for param, ours in zip(params, values["params"], strict=True):
            torch.testing.assert_close(param.detach(), ours, rtol=1e-12, atol=1e-14)


def upcast_all(values: dict[str, Any]) -> dict[str, Any]:
    return {key: upcast(value) for key, value in values.items()}


def test_adamw_calls_have_different_gradients_and_steps() -> None:
    case = case_of("multi_tensor_adamw", "three_steps")
    calls = [generate("multi_tensor_adamw", case, 4, call) for call in range(3)]
    assert [values["step"] for values in calls] == [1, 2, 3]
    assert not same(calls[0]["grads"], calls[1]["grads"])
    assert not same(calls[1]["grads"], calls[2]["grads"])
    sizes = [[tensor.numel() for tensor in values["grads"]] for values in calls]
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize("case", cpu_cases("multi_tensor_adamw"), ids=lambda case: case.name)
def test_adamw_sizes_add_up(case: Case) -> None:
    sizes = [t.numel() for t in generate("multi_tensor_adamw", case, 0)["params"]]
    assert len(sizes) == case.params["count"]
    assert sum(sizes) == case.params["total"]
    assert min(sizes) >= 1
    if case.params["sizes"] == "mixed":
        assert 1 in sizes


@pytest.mark.parametrize("case", cpu_cases("flash_attention"), ids=lambda case: case.name)
def test_attention_reference_row_by_row(case: Case) -> None:
    values = upcast_all(generate("flash_attention", case, 3))
    out = load("flash_attention", "reference").reference(**values)
    q, k, v = values["q"], values["k"], values["v"]
    p = case.params
    for i in {0, p["q_len"] // 2, p["q_len"] - 1}:
        seen = max(0, i + p["k_len"] - p["q_len"] + 1) if p["causal"] else p["k_len"]
        for h in range(p["heads"]):
            kv = h * p["kv_heads"] // p["heads"]
            logits = k[0, kv, :seen] @ q[0, h, i] * values["scale"]
            expected = torch.softmax(logits, 0) @ v[0, kv, :seen]
            torch.testing.assert_close(out[0, h, i], expected, rtol=1e-10, atol=1e-12)


def test_attention_flops_count_the_visible_pairs() -> None:
    problem = Problem.load(PROBLEMS / "flash_attention")
    for case in problem.spec.tests:
        p = case.params
        if p["q_len"] > 4096:
            continue
        seen = torch.ones(p["q_len"], p["k_len"], dtype=torch.int64)
        pairs = int((seen.tril(p["k_len"] - p["q_len"]) if p["causal"] else seen).sum())
        assert problem.flops(case) == 4 * p["batch"] * p["heads"] * p["head_dim"] * pairs


def test_attention_layouts_differ_in_strides_only() -> None:
    strided = generate("flash_attention", case_of("flash_attention", "grouped"), 0)
    plain = generate("flash_attention", case_of("flash_attention", "full"), 0)
    assert plain["q"].is_contiguous()
    assert not strided["q"].is_contiguous()
    assert strided["q"].transpose(1, 2).is_contiguous()


PLAIN_EXAMPLES = [
    name for name in NAMES if "import triton" not in Problem.load(PROBLEMS / name).statement
]


@pytest.mark.parametrize("name", PLAIN_EXAMPLES)
def test_the_example_in_the_statement_is_right(name: str, tmp_path: Path) -> None:
    problem, module = Problem.load(PROBLEMS / name), load(name, "reference")
    path = tmp_path / "example.py"
    path.write_text(problem.statement.split("```python\n")[1].split("```")[0])
    spec = importlib.util.spec_from_file_location(f"{name}_example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for case in problem.cases("test", "cpu"):
        values = generate(name, case, seed=21)
        truth = module.reference(**upcast_all(values))
        truths = truth if isinstance(truth, tuple) else (truth,)
        for argument in problem.spec.args:
            if argument.role == "out":
                dtype = DTYPES[problem.dtype(argument, case)]
                blank = torch.nan if dtype.is_floating_point else 85
                values[argument.name] = torch.full(
                    problem.shape(argument, case), blank, dtype=dtype
                )
        getattr(example, problem.spec.entry)(*(values[a.name] for a in problem.spec.args))
        written = [argument for argument in problem.spec.args if argument.role != "in"]
        for argument, expected in zip(written, truths, strict=True):
            tolerance = problem.spec.tolerances.get(problem.dtype(argument, case), EXACT)
            for got, wanted in zip(tensors(values[argument.name]), tensors(expected), strict=True):
                torch.testing.assert_close(
                    got.double(),
                    wanted.double(),
                    atol=tolerance.atol,
                    rtol=tolerance.rtol,
                    equal_nan=True,
                )


def test_the_examples_of_first_kernels_are_right() -> None:
    """All in one process, in Triton's interpreter."""
    problems = [Problem.load(PROBLEMS / name) for name in NAMES]
    first = [problem for problem in problems if problem.spec.topic == "first kernels"]
    printed = run_interpreted("tests.problem.statement_examples", *(p.folder for p in first))
    for problem in first:
        assert f"{problem.name}, example 1: right on " in printed
