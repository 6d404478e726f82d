"""The drivers of other people's sets, in process, on small problems written for the tests."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.problem.imported import SetSource
from grader.problem_sets import read_problem
from grader.runner.conventions import with_own_forms
from grader.runner.entry_point import EntryPoint
from grader.runner.set_server import SetServer, _equal, _same_but_rounding, drivers
from grader.runner.sets import driver as driver_module
from grader.runner.sets.driver import (
    Driver,
    Inputs,
    SetCase,
    UnsupportedError,
    Value,
    close,
    estimate,
    flatten,
    seed_all,
    unflatten,
)
from grader.runner.sets.kernelbench import KernelBench
from grader.runner.sets.redirect import Float64, cpu_for_cuda
from tests.sets import made_up

FILES = {"challenge", "core", "core.challenge_base", "def", "helpers", "model", "problem"}
"""What the problems of the tests import, besides `reference`."""


@pytest.fixture(autouse=True)
def as_in_the_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A folder for a problem's files, on the CPU, without traces in later tests."""
    (tmp_path / "opened").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "opened")
    with cpu_for_cuda(), torch.no_grad():
        yield
    for name in FILES | {"reference"}:
        sys.modules.pop(name, None)


def opened(source: SetSource, root: Path) -> Driver:
    """The driver of a problem, as the server makes it."""
    for name, content in source.files.items():
        path = root / "opened" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    made: Driver = drivers(dict(source.options))[source.set](
        root / "opened", dict(source.options), "cpu"
    )
    return made


def challenge(root: Path, text: str = made_up.CHALLENGE) -> Driver:
    return opened(read_problem("leetgpu", made_up.leetgpu(root, text=text)), root)


def board(root: Path, text: str = made_up.BOARD, task: str = made_up.TASK) -> Driver:
    return opened(read_problem("kernelbot", made_up.kernelbot(root, text, task)), root)


def module(root: Path, text: str = made_up.MODEL) -> Driver:
    return opened(read_problem("kernelbench", made_up.kernelbench(root, text)), root)


def definition(root: Path, text: str = made_up.DEFINITION) -> Driver:
    return opened(read_problem("tensara", made_up.tensara(root, text)), root)


def case_of(driver: Driver, name: str) -> SetCase:
    return next(case for case in driver.cases("cpu") if case.name == name)


def drawn(driver: Driver, name: str, seed: int) -> Inputs:
    seed_all(seed)
    return driver.generate(case_of(driver, name), seed)


def described(inputs: Inputs) -> list[tuple[str, str, object]]:
    return [
        (v.name, v.role, tuple(v.value.shape) if isinstance(v.value, torch.Tensor) else v.value)
        for v in inputs.values
    ]


def served(driver: Driver) -> tuple[SetServer, list[dict[str, Any]]]:
    """A server of the problem, and its cases."""

    class Lent:
        device = "cpu"
        sets: list[list[torch.Tensor]]

    server = SetServer(Lent())  # type: ignore[arg-type]
    return server, server.hold(driver, "cpu")


def asked(server: SetServer, do: str, **request: Any) -> Any:
    answer = server.answer({"do": do, **request}, [])
    if "unsupported" in answer:
        raise UnsupportedError(answer["unsupported"])
    return answer["answer"]


def lend(server: SetServer, *tensors: torch.Tensor) -> None:
    server._server.sets = [list(tensors)]


def compute(
    server: SetServer,
    case: int,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    wide: bool = False,
    **request: Any,
) -> None:
    """Compute the reference of a case into `outputs`, and lend both."""
    lend(server, *inputs)
    asked(server, "reference", case=case, wide=wide, **request)
    lend(server, *outputs)
    asked(server, "collect", case=case, wide=wide, **request)
    lend(server, *inputs, *outputs)


def test_every_driver_draws_by_the_seed_and_judges_its_own_answer(tmp_path: Path) -> None:
    for i, make in enumerate([challenge, board, module, definition]):
        root = tmp_path / str(i)
        (root / "opened").mkdir(parents=True)
        sys.path.insert(0, str(root / "opened"))
        driver = make(root)
        case = [c for c in driver.cases("cpu") if c.kind == "test"][-1]
        first, again, other = (drawn(driver, case.name, seed) for seed in (1, 1, 2))
        pairs = zip(first.tensors(), again.tensors(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        assert not torch.equal(first.tensors()[0], other.tensors()[0])
        expected = driver.reference(case, _copied(first))
        assert driver.check(case, _copied(first), expected)[0]
        parts, tree = driver.outputs(first, expected)
        wrong = unflatten(tree, [part.value * 1.5 + 1 for part in parts])
        right, message = driver.check(case, _copied(first), wrong)
        assert not right
        assert message
        sys.path.remove(str(root / "opened"))
        for name in FILES | {"reference"}:
            sys.modules.pop(name, None)


def _copied(inputs: Inputs) -> Inputs:
    values = [
        v.value.clone() if isinstance(v.value, torch.Tensor) else v.value for v in inputs.values
    ]
    return inputs.with_values(values)


def test_a_challenge(tmp_path: Path) -> None:
    driver = challenge(tmp_path)
    cases = [(case.name, case.kind) for case in driver.cases("cpu")]
    assert cases == [
        ("example", "test"),
        ("test_1", "test"),
        ("test_2", "test"),
        ("practice_2", "benchmark"),
    ]
    assert driver.cases("cuda")[-1].name == "performance"
    assert described(drawn(driver, "test_2", 5)) == [
        ("X", "in", (33, 65)),
        ("Y", "out", (33, 65)),
        ("N", "in", 33),
        ("alpha", "in", 2.0),
    ]
    example = drawn(driver, "example", 5)
    (answer,) = driver.reference(case_of(driver, "example"), example)
    assert answer is example.values[1].value
    torch.testing.assert_close(answer.sum(dim=1), torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("num_gpus = 1", "num_gpus = 2", "it needs several GPUs"),
        ('"N": x.shape[0],', "", "its generator makes no 'N'"),
        (
            "OutTensor((33, 65))",
            "type('OddTensor', (), {{'shape': (1,), 'dtype': 'int8'}})()",
            "a OddTensor",
        ),
        ("torch.empty(7, 19", "torch.empty(8192, 8192", None),
    ],
)
def test_a_challenge_that_cannot_be_judged(
    old: str, new: str, why: str | None, tmp_path: Path
) -> None:
    assert old in made_up.CHALLENGE
    text = made_up.CHALLENGE.replace(old, new)
    if why is None:  # only the other test is judged on a CPU
        names = [case.name for case in challenge(tmp_path, text).cases("cpu")]
        assert names == ["example", "test_2", "practice_2"]
        return
    with pytest.raises(UnsupportedError, match=why):
        driver = challenge(tmp_path, text)
        drawn(driver, "test_1", 1)
        drawn(driver, "test_2", 1)


def test_a_board(tmp_path: Path) -> None:
    driver = board(tmp_path)
    assert [(case.name, case.kind) for case in driver.cases("cpu")] == [
        ("test_1", "test"),
        ("test_2", "test"),
        ("benchmark_1", "benchmark"),
    ]
    inputs = drawn(driver, "test_1", 3)
    assert described(inputs) == [("data_0", "in", (5, 48)), ("data_1_weight", "in", (48,))]
    assert inputs.data == {
        "tuple": [
            {"value": 0},
            {"dict": {"weight": {"value": 1}}},
            {"dict": {"eps": {"literal": 1e-05}}},
        ]
    }
    assert driver.has_one_answer


def test_a_boards_seed_stays_small(tmp_path: Path) -> None:
    """Some generators add it to the values."""
    text = made_up.BOARD.replace("x = torch.randn(", "x = seed + torch.zeros(").replace(
        ', device="cuda", generator=gen)', ', device="cuda")'
    )
    values = drawn(board(tmp_path, text), "test_1", 2**62).values[0].value
    assert 0 < float(values.max()) < 100_000


def test_other_boards_have_more_seeds_than_a_table_holds(tmp_path: Path) -> None:
    returned = 'return x, {"is_large": torch.tensor([seed > 100_000]), '
    driver = board(tmp_path, made_up.BOARD.replace("return x, {", returned))
    assert all(drawn(driver, "test_1", n * 2**50).values[1].value for n in range(1, 9))


def test_a_boards_answer_in_float64_is_judged_in_float32(tmp_path: Path) -> None:
    text = made_up.BOARD.replace("return x * scale", "return x.double() * scale")
    driver = board(tmp_path, text)
    inputs = drawn(driver, "test_1", 1)
    case = case_of(driver, "test_1")
    found, _ = driver.outputs(inputs, driver.reference(case, inputs))
    assert [one.value.dtype for one in found] == [torch.float32]
    wide = inputs.with_values([v.value.double() for v in inputs.values])
    found, _ = driver.outputs(wide, driver.reference(case, wide))
    assert [one.value.dtype for one in found] == [torch.float64]


def test_a_check_may_return_only_a_message(tmp_path: Path) -> None:
    old = "check_implementation = matching(ref_kernel)"
    new = (
        "def check_implementation(data, output):\n"
        "    return '' if torch.allclose(output, ref_kernel(data)) else 'not close'\n"
    )
    driver = board(tmp_path, made_up.BOARD.replace(old, new))
    inputs, case = drawn(driver, "test_1", 1), case_of(driver, "test_1")
    right = driver.reference(case, inputs)
    assert driver.check(case, inputs, right) == (True, "")
    assert driver.check(case, inputs, right * 2) == (False, "not close")
    assert driver.has_one_answer


def test_a_check_of_properties_has_several_right_answers(tmp_path: Path) -> None:
    old = "check_implementation = matching(ref_kernel)"
    new = "def check_implementation(data, output):\n    return bool(output.isfinite().all()), ''\n"
    assert not board(tmp_path, made_up.BOARD.replace(old, new)).has_one_answer


def test_what_is_too_large_for_a_cpu_is_left_to_a_gpu(tmp_path: Path) -> None:
    task = made_up.TASK.replace('"rows": 64', '"rows": 4000000').replace(
        '"rows": 40,', '"rows": 3000000,'
    )
    driver = board(tmp_path, task=task)
    assert [case.name for case in driver.cases("cpu")] == ["test_1", "practice"]
    assert [case.name for case in driver.cases("cuda")] == ["test_1", "test_2", "benchmark_1"]
    sys.modules.pop("reference")
    (tmp_path / "more").mkdir()
    none = task.replace('"rows": 5,', '"rows": 5000000,')
    source = read_problem("kernelbot", made_up.kernelbot(tmp_path / "more", task=none))
    with pytest.raises(UnsupportedError, match="every test is too large for a CPU"):
        opened(source, tmp_path).cases("cpu")


def test_an_object_of_a_class_that_no_file_names_is_refused(tmp_path: Path) -> None:
    text = made_up.BOARD.replace('{"eps": 1e-5}', "type('Config', (), {})()")
    with pytest.raises(UnsupportedError, match="a Config among its inputs or outputs"):
        drawn(board(tmp_path, text), "test_1", 1)


def test_a_module(tmp_path: Path) -> None:
    driver = module(tmp_path)
    inputs = drawn(driver, "inputs", 1)
    assert [(v.name, v.weight) for v in inputs.values] == [
        ("inner.weight", True),
        ("inner.bias", True),
        ("norm.weight", True),
        ("norm.bias", True),
        ("norm.running_mean", True),
        ("norm.running_var", True),
        ("norm.num_batches_tracked", True),
        ("x", False),
    ]
    assert inputs.data == {"tuple": [{"value": 7}]}
    case = case_of(driver, "inputs")
    answer = driver.reference(case, inputs)
    state = {v.name: v.value for v in inputs.values}
    x = torch.nn.functional.linear(state["x"], state["inner.weight"], state["inner.bias"])
    x = torch.nn.functional.batch_norm(
        x, None, None, state["norm.weight"], state["norm.bias"], training=True
    )
    torch.testing.assert_close(answer, x.relu())
    values = [v.value.double() if v.value.is_floating_point() else v.value for v in inputs.values]
    with Float64():
        assert driver.reference(case, inputs.with_values(values)).dtype == torch.float64


def test_a_module_made_with_an_object_is_refused(tmp_path: Path) -> None:
    text = made_up.MODEL.replace("return [24, 12]", "return [24, object()]")
    with pytest.raises(UnsupportedError, match="more than numbers, words and lists"):
        module(tmp_path, text)


def test_a_definition(tmp_path: Path) -> None:
    driver = definition(tmp_path)
    assert [(case.name, case.kind) for case in driver.cases("cpu")] == [
        ("test_sample", "test"),
        ("test_1", "test"),
        ("test_2", "test"),
        ("benchmark_sample", "benchmark"),
    ]
    assert [case.name for case in driver.cases("cuda")] == [
        "test_sample",
        "test_1",
        "test_2",
        "benchmark_1",
        "benchmark_2",
    ]
    assert case_of(driver, "test_2").params == {"case": "shape = (4, 8, 16)"}
    inputs = drawn(driver, "test_2", 1)
    assert described(inputs) == [
        ("X", "in", (4, 8, 16)),
        ("scale", "in", 2.0),
        ("sums", "out", (4, 8, 1)),
        ("shape", "in", (3,)),
        ("ndim", "in", 3),
    ]
    assert [v.name for v in inputs.values if v.is_fixed] == ["shape"]
    arguments = [value.value for value in inputs.values]
    driver.solve(arguments)  # type: ignore[attr-defined]
    torch.testing.assert_close(arguments[2], arguments[0].sum(-1, keepdim=True) * 2)


def test_a_definition_in_float64(tmp_path: Path) -> None:
    """The reference writes into the outputs of the same dtype, and otherwise shows its own."""
    driver = definition(tmp_path)
    case = case_of(driver, "test_1")
    inputs = drawn(driver, "test_1", 1)
    (narrow,) = driver.reference(case, inputs)
    assert narrow is inputs.values[2].value
    values = list(map(_doubled, (v.value for v in inputs.values)))
    with Float64():
        (wide,) = driver.reference(case, inputs.with_values(values))
    assert wide is values[2]
    torch.testing.assert_close(narrow, wide.float())


def _doubled(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def test_a_definition_with_two_outputs(tmp_path: Path) -> None:
    text = (
        made_up.DEFINITION.replace(
            "return torch.sum(x, dim=-1, keepdim=True) * scale",
            "return x.sum(-1) * scale, x.argmax(-1).to(torch.int32)",
        )
        .replace('{"name": "shape"', '{"name": "places", "type": "int"},\n        {"name": "shape"')
        .replace(
            "close = torch.allclose(actual_output, expected_output, rtol=1e-3, atol=1e-3)",
            "close = torch.equal(actual_output[1], expected_output[1])",
        )
        .replace("(actual_output - expected_output).abs().max().item()", "1")
    )
    driver = definition(tmp_path, text)
    inputs = drawn(driver, "test_1", 1)
    assert [(v.name, v.role) for v in inputs.values[2:4]] == [("sums", "out"), ("places", "out")]
    case = case_of(driver, "test_1")
    sums, places = (t.clone() for t in driver.reference(case, inputs))
    assert driver.check(case, inputs, (sums, places)) == (True, "")
    assert driver.check(case, inputs, (sums, places + 1)) == (False, "max_difference 1")


def test_a_definition_without_a_problem_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no class derived from Problem"):
        definition(tmp_path, "from problem import Problem\n")


def test_a_server_describes_a_case(tmp_path: Path) -> None:
    server, heads = served(definition(tmp_path))
    assert [head["name"] for head in heads][:2] == ["test_sample", "test_1"]
    sample, first = asked(server, "describe", case=0), asked(server, "describe", case=1)
    assert sample["fixed"] == ["X"]
    assert first["fixed"] == []
    assert first["result"] == {"tuple": [{"value": 2}]}
    assert first["values"][2] == {
        "name": "sums",
        "role": "out",
        "weight": False,
        "scratch": False,
        "form": {"dtype": "fp32", "shape": [32, 1], "strides": [1, 1], "view": ""},
    }
    assert first["values"][1]["form"] == {"scalar": 2.0}


def test_a_server_generates_computes_and_checks_in_lent_memory(tmp_path: Path) -> None:
    """Also where the judge lends memory without the dimensions that differ between cases."""
    server, _ = served(definition(tmp_path))
    x, shape, sums = torch.empty(4 * 8 * 16), torch.empty(3, dtype=torch.int64), torch.empty(32)
    lend(server, x, shape)
    asked(server, "generate", case=2, seed=7)
    assert shape.tolist() == [4, 8, 16]
    compute(server, 2, [x, shape], [sums])
    torch.testing.assert_close(sums, x.reshape(4, 8, 16).sum(-1).flatten() * 2)
    assert asked(server, "check", case=2) == {"right": True, "message": ""}
    wide = torch.empty(32, dtype=torch.float64)
    compute(server, 2, [x, shape], [wide], wide=True)
    torch.testing.assert_close(wide, x.double().reshape(4, 8, 16).sum(-1).flatten() * 2)
    sums[3] += 1
    lend(server, x, shape, sums)
    assert asked(server, "check", case=2)["right"] is False


def test_unsigned_integers_travel_as_signed_ones(tmp_path: Path) -> None:
    text = (
        made_up.CHALLENGE.replace("assert X.dtype == torch.float32", "")
        .replace(
            "Y.copy_(torch.softmax(X.to(torch.float32), dim=1) * alpha)",
            (
                "assert X.dtype == torch.uint32\n"
                "        if X.dtype != torch.uint32:\n            raise TypeError(X.dtype)\n"
                "        Y.copy_((X.to(torch.int64) // 2).to(torch.uint32))"
            ),
        )
        .replace("RandTensor((33, 65))", 'RandIntTensor((33, 65), 0, 2**32, "uint32")')
        .replace("OutTensor((33, 65))", 'OutTensor((33, 65), "uint32")')
        .replace(
            "import ChallengeBase, OutTensor, RandTensor",
            (
                "import ChallengeBase, OutTensor, RandTensor\n\n\n"
                "class RandIntTensor:\n"
                "    def __init__(self, shape, low, high, dtype):\n"
                "        self.shape, self.dtype = shape, dtype\n"
                "        self.low, self.high = low, high"
            ),
        )
    )
    server, _ = served(challenge(tmp_path, text))
    form = asked(server, "describe", case=2)
    assert [v["form"].get("view") for v in form["values"]] == ["uint32", "uint32", None, None]
    assert [v["form"].get("dtype") for v in form["values"]] == ["int32", "int32", None, None]
    x, y = (torch.empty(33, 65, dtype=torch.int32) for _ in "xy")
    lend(server, x)
    asked(server, "generate", case=2, seed=3)
    assert int(x.min()) < 0 < int(x.max())
    compute(server, 2, [x], [y])
    assert torch.equal(y.long(), x.view(torch.uint32).long() // 2)
    assert asked(server, "check", case=2)["right"]


def test_eight_bit_types_of_other_makers_travel_as_bytes(tmp_path: Path) -> None:
    text = made_up.BOARD.replace(
        'torch.rand(48, device="cuda")',
        'torch.rand(48, device="cuda").to(torch.float8_e4m3fnuz)',
    ).replace('weights["weight"]', 'weights["weight"].float()')
    assert text.count("fnuz") == text.count(".float()") - 1 == 1
    server, _ = served(board(tmp_path, text))
    form = asked(server, "describe", case=0)["values"][1]["form"]
    assert (form["dtype"], form["view"]) == ("uint8", "float8_e4m3fnuz")
    x, weight, out = torch.empty(5, 48), torch.empty(48, dtype=torch.uint8), torch.empty(5, 48)
    lend(server, x, weight)
    asked(server, "generate", case=0, seed=1)
    compute(server, 0, [x, weight], [out])
    scale = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-5)
    torch.testing.assert_close(out, x * scale * weight.view(torch.float8_e4m3fnuz).float())
    assert asked(server, "check", case=0)["right"]


def test_outputs_are_lent_in_the_order_of_arguments(tmp_path: Path) -> None:
    """Not in that of what the reference returns."""
    text = """
import torch


def generate_input(rows, seed):
    x = torch.randn(rows, 8, device="cuda")
    return x, torch.empty(rows, device="cuda"), torch.empty(rows, dtype=torch.int64, device="cuda")


def ref_kernel(data):
    x, best, places = data
    best[...], places[...] = x.max(dim=1)
    return places, best


def check_implementation(data, output):
    return all(map(torch.equal, output, ref_kernel(data))), "other"
"""
    server, _ = served(board(tmp_path, text))
    form = asked(server, "describe", case=0)
    assert [v["role"] for v in form["values"]] == ["in", "out", "out"]
    assert form["result"] == {"tuple": [{"value": 2}, {"value": 1}]}
    x, best, places = torch.randn(5, 8), torch.empty(5), torch.empty(5, dtype=torch.int64)
    compute(server, 0, [x], [best, places])
    assert torch.equal(best, x.amax(dim=1))
    assert torch.equal(places, x.argmax(dim=1))
    assert asked(server, "check", case=0)["right"]


def test_an_output_at_which_the_check_raises_is_wrong(tmp_path: Path) -> None:
    text = (
        made_up.BOARD
        + """

def check_implementation(data, output):
    assert not output.isnan().any(), "not a number"
    return True, ""
"""
    )
    server, _ = served(board(tmp_path, text))
    asked(server, "describe", case=0)
    x, weight, out = torch.randn(5, 48), torch.rand(48), torch.empty(5, 48)
    compute(server, 0, [x, weight], [out])
    assert asked(server, "check", case=0) == {"right": True, "message": ""}
    out.fill_(math.nan)
    why = "it raised AssertionError: not a number"
    assert asked(server, "check", case=0) == {"right": False, "message": why}


def test_a_reference_that_raises_is_a_reason(tmp_path: Path) -> None:
    text = made_up.BOARD.replace("x, weights, config = data", "import away_from_here")
    server, _ = served(board(tmp_path, text))
    with pytest.raises(UnsupportedError, match="ModuleNotFoundError: No module named 'away"):
        asked(server, "describe", case=0)


def test_a_case_whose_numbers_count_what_is_drawn_keeps_one_seed(tmp_path: Path) -> None:
    text = made_up.CHALLENGE.replace('"N": x.shape[0]', '"N": int((x > 0).sum())')
    server, _ = served(challenge(tmp_path, text))
    form = asked(server, "describe", case=1)
    assert form["fixed"] == ["X"]
    x = torch.empty(7, 19)
    lend(server, x)
    found = []
    for seed in (5, 6):
        asked(server, "generate", case=1, seed=seed)
        found.append(x.clone())
    assert torch.equal(*found)
    assert int((x > 0).sum()) == form["values"][2]["form"]["scalar"]


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ("Y.copy_(torch.rand_like(Y))", "its reference gives another answer each time"),
        ("while True: Y.copy_(X)", "its inputs and answer take a CPU more than"),
    ],
)
def test_a_case_that_cannot_be_described_is_refused(
    new: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.runner.sets.driver.MOST_CPU_S", 0.2)
    old = "Y.copy_(torch.softmax(X.to(torch.float32), dim=1) * alpha)"
    server, _ = served(challenge(tmp_path, made_up.CHALLENGE.replace(old, new)))
    with pytest.raises(UnsupportedError, match=why):
        asked(server, "describe", case=0)


def test_a_reference_that_leaves_float64_has_no_wide_answer(tmp_path: Path) -> None:
    old = "return torch.sum(x, dim=-1, keepdim=True) * scale"
    new = "return torch.from_numpy((x.sum(-1) * scale).numpy().astype('float32'))"
    server, _ = served(definition(tmp_path, made_up.DEFINITION.replace(old, new)))
    inputs = [torch.rand(32, 16), torch.tensor([32, 16])]
    with pytest.raises(UnsupportedError, match=r"gives torch.float32 for inputs in float64"):
        compute(server, 1, inputs, [torch.empty(32, dtype=torch.float64)], wide=True)


IN_PLACE = """
import torch


def generate_input(rows, seed):
    return torch.randn(rows, 8, device="cuda")


def ref_kernel(data):
    return data.relu_().flatten()


def check_implementation(data, output):
    return torch.equal(output, data.relu().flatten()), "other"
"""


@pytest.mark.parametrize("release", [False, True])
def test_code_that_writes_its_inputs_gets_copies_unless_the_block_is_left_to_it(
    release: bool, tmp_path: Path
) -> None:
    """Its outputs then lie in lent memory, which is gone when they are collected."""
    server, _ = served(board(tmp_path, IN_PLACE))
    x, out = torch.randn(5, 8), torch.empty(40)
    before = x.clone()
    lend(server, x)
    asked(server, "reference", case=0, wide=False, release=release)
    assert torch.equal(x, before.relu() if release else before)
    x.fill_(float("nan"))
    lend(server, out)
    asked(server, "collect", case=0, wide=False, release=release)
    assert torch.equal(out, before.relu().flatten())
    lend(server, before, out)
    assert asked(server, "check", case=0, release=release)["right"]


TOTALS = """
import torch


def generate_input(rows, seed):
    return torch.randn(rows, 8, device="cuda"), torch.ones(rows), torch.empty(rows, 8)


def ref_kernel(data):
    x, totals, out = data
    out[...] = 2 * x
    totals.add_(x.sum(1))
    return totals, out


def check_implementation(data, output):
    return all(map(torch.equal, output, ref_kernel(data))), "other"
"""


def test_an_input_that_the_reference_updates_keeps_what_it_held(tmp_path: Path) -> None:
    """One that it only writes is an output, which is handed over without it."""
    server, _ = served(board(tmp_path, TOTALS))
    form = asked(server, "describe", case=0)
    assert [v["role"] for v in form["values"]] == ["in", "inout", "out"]
    x, totals, out = torch.randn(5, 8), torch.rand(5), torch.empty(5)
    before = totals.clone()
    compute(server, 0, [x, totals], [out, torch.empty(5, 8)])
    assert torch.equal(out, before + x.sum(1))
    lend(server, x, totals, out, 2 * x)
    assert asked(server, "check", case=0)["right"]
    lend(server, x, totals, out - before, 2 * x)
    assert not asked(server, "check", case=0)["right"]


def test_integers_that_the_reference_updates_keep_what_they_held(tmp_path: Path) -> None:
    text = TOTALS.replace("torch.ones(rows)", "torch.ones(rows, dtype=torch.int64)")
    server, _ = served(board(tmp_path, text.replace("x.sum(1)", "x.sum(1).long()")))
    form = asked(server, "describe", case=0)
    assert [v["role"] for v in form["values"]] == ["in", "inout", "out"]


def test_a_reference_that_fails_without_what_an_input_held_reads_it(tmp_path: Path) -> None:
    failing = "if totals.isnan().any():\n        raise ValueError\n    totals.copy_(x.sum(1))"
    server, _ = served(board(tmp_path, TOTALS.replace("totals.add_(x.sum(1))", failing)))
    form = asked(server, "describe", case=0)
    assert [v["role"] for v in form["values"]] == ["in", "inout", "out"]


def test_an_object_of_a_boards_class_is_rebuilt_from_its_attributes(tmp_path: Path) -> None:
    driver = board(tmp_path, made_up.CACHED)
    inputs = drawn(driver, "test_1", 3)
    assert described(inputs) == [
        ("data_0_weight", "in", (16, 16)),
        ("data_1", "in", (1, 16)),
        ("data_2_kept", "in", (7, 16)),
    ]
    attributes = {
        "width": {"literal": 16},
        "shape": {"tuple": [{"literal": 7}, {"literal": 16}]},
        "weight": {"value": 0},
    }
    assert inputs.data["tuple"][0] == {"object": ["reference.Setup", {"dict": attributes}]}
    setup, x, cache = unflatten(inputs.data, [v.value for v in inputs.values])
    assert (setup.width, setup.shape) == (16, (7, 16))
    assert setup.weight is inputs.values[0].value
    assert (cache.count, cache.training) == (5, True)
    assert dict(cache.named_buffers())["kept"] is inputs.values[2].value
    cache(x)
    assert cache.count == 6
    assert unflatten(inputs.data, [v.value for v in inputs.values])[2].count == 5


def test_a_cache_is_read_and_written(tmp_path: Path) -> None:
    server, _ = served(board(tmp_path, made_up.CACHED))
    form = asked(server, "describe", case=0)
    assert [(v["name"], v["role"]) for v in form["values"]] == [
        ("data_0_weight", "in"),
        ("data_1", "in"),
        ("data_2_kept", "inout"),
        ("out_0", "out"),
    ]
    weight, x, kept, total = torch.eye(16), torch.rand(1, 16), torch.rand(7, 16), torch.empty(16)
    after = torch.empty(7, 16)
    compute(server, 0, [weight, x, kept], [after, total])
    torch.testing.assert_close(total, kept[:5].sum(0) + x[0])
    assert torch.equal(after, torch.cat([kept[:5], x, kept[6:]]))
    lend(server, weight, x, kept, after, total)
    assert asked(server, "check", case=0)["right"]
    lend(server, weight, x, kept, kept, total)
    assert not asked(server, "check", case=0)["right"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("Path('.')", "a PosixPath among its inputs"),
        ("nn.Linear(2, 2)", "a Linear among its inputs"),
        ("Holder(torch.float32)", "a dtype among its inputs"),
    ],
)
def test_what_an_object_may_not_hold(made: str, why: str, tmp_path: Path) -> None:
    """Only classes of the board's own files are there where a submission runs."""
    text = "from pathlib import Path\nfrom torch import nn\n" + made_up.BOARD
    text += "\n\nclass Holder:\n    def __init__(self, held):\n        self.held = held\n"
    driver = board(tmp_path, text.replace('{"eps": 1e-5}', made))
    with pytest.raises(UnsupportedError, match=why):
        drawn(driver, "test_1", 1)


def test_an_object_among_the_outputs_is_refused(tmp_path: Path) -> None:
    text = made_up.CACHED.replace("return seen.sum(dim=0), kept.kept", "return seen, kept")
    server, _ = served(board(tmp_path, text))
    with pytest.raises(UnsupportedError, match="a Rows among its inputs or outputs"):
        asked(server, "describe", case=0)


def test_outputs_are_collected_once(tmp_path: Path) -> None:
    server, _ = served(board(tmp_path, IN_PLACE))
    compute(server, 0, [torch.randn(5, 8)], [torch.empty(40)])
    assert server._outputs == []


def test_code_that_runs_out_of_device_memory_says_so(tmp_path: Path) -> None:
    """And is no case that cannot be described: another machine may have enough."""
    lacking = "raise torch.OutOfMemoryError('of 9 GiB')"
    server, _ = served(board(tmp_path, IN_PLACE.replace("return data.relu_().flatten()", lacking)))
    answer = server.answer({"do": "describe", "case": 0}, [])
    assert answer == {"out_of_memory": "of 9 GiB"}


def test_a_submission_gets_the_sets_own_shapes_and_dtypes() -> None:
    seen: list[Any] = []
    entry = with_own_forms(EntryPoint(seen.extend))
    values: list[Any] = [torch.zeros(6), torch.tensor([-1], dtype=torch.int32), 3, torch.zeros(1)]
    case = {"own": [[[2, 3], ""], [[1], "uint32"], None, [[], ""]]}
    entry.call(entry.prepare(values, case))
    assert [getattr(v, "shape", v) for v in seen] == [(2, 3), (1,), 3, ()]
    assert seen[1].tolist() == [2**32 - 1]
    assert seen[0].data_ptr() == values[0].data_ptr()


def test_code_that_names_cuda_gets_the_cpu() -> None:
    made = torch.ones(2, device="cuda:0").to("cuda").cuda().to(torch.device("cuda", 0))
    made += torch.rand(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    torch.cuda.synchronize()
    model = torch.nn.Linear(2, 2).cuda()
    assert model(made).device.type == "cpu"


def test_the_cpu_is_left_again() -> None:
    kept = torch.Generator
    with cpu_for_cuda():
        assert torch.Generator is not kept or isinstance(kept, type)
    assert torch.Generator is kept


def test_float64_widens_every_dtype_that_is_named() -> None:
    x = torch.ones(3, dtype=torch.float64)
    with Float64():
        wide = [
            x.float(),
            x.half(),
            x.bfloat16(),
            x.to(torch.float32),
            x.to(dtype=torch.float16),
            torch.zeros(2),
            torch.zeros(2, dtype=torch.float32),
            torch.softmax(x, 0, dtype=torch.float32),
            torch.arange(3) / 2,
        ]
        kept = [x.long(), x.to(torch.int32), torch.zeros(2, dtype=torch.bool)]
    assert [t.dtype for t in wide] == [torch.float64] * len(wide)
    assert [t.dtype for t in kept] == [torch.int64, torch.int32, torch.bool]
    assert torch.get_default_dtype() == torch.float32


def test_float64_reads_bits_in_the_dtype_that_is_named() -> None:
    x = torch.tensor([[0.5, -1.75, 3.0]], dtype=torch.bfloat16)
    packed = x.view(torch.int16).int() << 16
    with Float64():
        low = (packed >> 16).to(torch.int16)
        found = [
            low.view(torch.bfloat16),
            low.view(dtype=torch.bfloat16),
            packed.view(torch.float32),
        ]
        shaped = low.view(3, 1)
    for tensor in found:
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(tensor, x.double())
    assert shaped.dtype == torch.int16
    assert shaped.shape == (3, 1)


def test_nested_data_is_flattened_and_grown_again() -> None:
    a, b = torch.zeros(1), torch.ones(2)
    data = (a, [b, 3, None], {"key": (a, "word")})
    values, tree = flatten(data, "data")
    assert [v.name for v in values] == ["data_0", "data_1_0", "data_2_key_0"]
    back = unflatten(tree, [v.value for v in values])
    assert back[0] is a
    assert back[1][0] is b
    assert back[1][1:] == [3, None]
    assert back[2]["key"] == (a, "word")
    with pytest.raises(UnsupportedError, match="a set among its inputs"):
        flatten({1, 2})


@pytest.mark.parametrize(
    ("got", "want", "right"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-5], True),
        ([1.0, 2.1], [1.0, 2.0], False),
        ([math.nan, 2.0], [math.nan, 2.0], True),
        ([math.nan, 2.0], [1.0, 2.0], False),
        ([1.0, 2.0], [math.nan, 2.0], False),
        ([math.inf, 2.0], [math.inf, 2.0], True),
        ([math.inf, 2.0], [-math.inf, 2.0], False),
        ([1.0, 2.0], [math.inf, 2.0], False),
        ([1.0], [1.0, 1.0], False),
        ([], [], True),
    ],
)
def test_what_is_close(got: list[float], want: list[float], right: bool) -> None:
    found, message = close([torch.tensor(got)], [torch.tensor(want)], 1e-4, 1e-4)
    assert found == right
    assert bool(message) != right


def test_an_estimate_runs_nothing() -> None:
    size = 1 << 20
    cost = estimate(lambda: torch.empty(size, size), lambda x: x @ x)
    assert cost.nbytes == 2 * 4 * size * size
    assert cost.flops == 2 * size**3
    assert not cost.fits_cpu
    assert estimate(lambda: torch.empty(3), lambda x: x.tolist()).nbytes == 12
    assert estimate(lambda: torch.empty(3), lambda x: x + 1).fits_cpu


def test_a_case_is_estimated_without_making_it(tmp_path: Path) -> None:
    text = made_up.MODEL.replace("torch.rand(", "torch.rand(1 << 30, ", 1)
    assert text != made_up.MODEL
    driver = module(tmp_path, text)
    assert driver.memory_bytes(driver.cases("cpu")[0]) >= 4 << 30


def test_a_module_that_keeps_a_function_of_its_layers_has_the_given_weights(
    tmp_path: Path,
) -> None:
    text = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width, bias=False)
        self.apply_it = lambda x: self.layer(x)

    def forward(self, x):
        return self.apply_it(x)

def get_inputs():
    return [torch.rand(4, 8)]

def get_init_inputs():
    return [8]
"""
    driver = module(tmp_path, text)
    case = driver.cases("cpu")[0]
    for seed in (1, 2):
        inputs = driver.generate(case, seed)
        weights, x = (value.value for value in inputs.values)
        torch.testing.assert_close(driver.reference(case, inputs), x @ weights.T)


def test_what_a_set_makes_on_a_cpu_is_made_on_the_device(tmp_path: Path) -> None:
    driver = module(tmp_path)
    assert isinstance(driver, KernelBench)
    driver._device = "meta"
    assert driver._on_device(lambda: torch.rand(3)).device.type == "meta"
    mixed = driver._on_device(lambda: torch.rand(3).add(torch.rand(3, device="cpu")))
    assert mixed.device.type == "cpu"


def test_an_estimate_ends_after_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MOST_STEPS", 10)
    steps = []

    def answer(x: torch.Tensor) -> torch.Tensor:
        for step in range(1000):
            steps.append(step)
            x = x + 1
        return x

    assert estimate(lambda: torch.empty(4), answer).nbytes == 16
    assert len(steps) <= 10


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda x: x * (1 + 3e-6), True),
        (lambda x: x * (1 + 3e-5), False),
        (lambda x: x.index_fill(0, torch.tensor([7]), 0.0), False),
        (lambda x: x.index_fill(0, torch.tensor([1]), math.nan), False),
        (lambda x: x.index_fill(0, torch.tensor([0]), -math.inf), False),
        (lambda x: x[:4], False),
    ],
)
def test_answers_may_differ_by_rounding(
    change: Callable[[torch.Tensor], torch.Tensor], same: bool
) -> None:
    answer = torch.linspace(1.0, 100.0, 1000)
    answer[0], answer[1] = math.inf, -math.inf
    first, second = Value("y", answer), Value("y", change(answer))
    assert _same_but_rounding(first, second) == same
    whole = Value("y", torch.tensor([1, 2])), Value("y", torch.tensor([1, 3]))
    assert not _same_but_rounding(*whole)


def test_an_output_that_is_written_in_part_is_handed_over_zeroed(tmp_path: Path) -> None:
    """The set hands it over so, and its reference relies on that."""
    text = made_up.CHALLENGE.replace(
        "Y.copy_(torch.softmax(X.to(torch.float32), dim=1) * alpha)",
        "Y.view(-1)[: int((X > 0).sum())].copy_(X[X > 0] * alpha)",
    )
    assert text != made_up.CHALLENGE
    driver = challenge(tmp_path, text)
    server, heads = served(driver)
    inputs = drawn(driver, "test_1", 1)
    assert described(inputs)[1][:2] == ("Y", "inout")
    assert not inputs.values[1].value.any()
    form = asked(server, "describe", case=[head["name"] for head in heads].index("test_1"))
    assert [value["role"] for value in form["values"]] == ["in", "inout", "in", "in"]
    assert form["fixed"] == []


@pytest.mark.parametrize("change", [0.0, 1e-7, 1e-3, math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_values_are_compared_alike_in_pieces(
    change: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    right = torch.randn(4, 3)
    right[0, 1] = math.nan
    out = right.clone()
    out.view(-1)[place] += change

    def found() -> tuple[bool, bool, tuple[bool, str]]:
        pair = Value("y", right), Value("y", out)
        own_check = close([out], [right], 1e-4, 1e-4)
        return _equal(*pair), _same_but_rounding(*pair), own_check

    whole = found()
    monkeypatch.setattr(driver_module, "PIECE_ELEMENTS", 5)
    assert found() == whole
    assert whole[0] is (change == 0)
    assert whole[1] is (change < 1e-5)
    assert whole[2][0] is (change < 1e-4)


def test_what_was_flattened_is_freed_at_once() -> None:
    """Without waiting for Python to look for cycles: it may be most of a GPU's memory."""
    gc.collect()
    gc.disable()
    try:
        tensor = torch.zeros(3)
        values, tree = flatten({"a": [tensor, 2]})
        assert tree == {"dict": {"a": {"list": [{"value": 0}, {"literal": 2}]}}}
        freed = weakref.ref(tensor)
        del tensor, values
        assert freed() is None
    finally:
        gc.enable()


def test_the_worst_element_of_all_pieces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right, out = torch.ones(12), torch.ones(12)
    out[2], out[7], out[9], out[11] = 2.0, 4.0, 4.0, 3.0
    right[9] = 1.5
    monkeypatch.setattr(driver_module, "PIECE_ELEMENTS", 4)
    assert close([out], [right], 0.5, 0.0) == (
        False,
        "off by up to 6 times atol 0.5 + rtol 0: 4 instead of 1",
    )


def test_values_replace_values_in_order() -> None:
    inputs = Inputs([Value("a", torch.zeros(1)), Value("n", 2)], {"tuple": []})
    assert [v.value for v in inputs.with_values([1, 2]).values] == [1, 2]
    with pytest.raises(ValueError, match="zip"):
        inputs.with_values([1])
