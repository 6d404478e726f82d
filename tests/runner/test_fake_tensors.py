"""Fake CUDA tensors have the attributes of real ones, and no values."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grader.runner.fake_tensors import GPU, FakeCudaMode, FakeCudaTensor


@pytest.fixture
def x() -> FakeCudaTensor:
    return FakeCudaTensor(torch.empty(6, 8, dtype=torch.float16, device="meta"))


def test_attributes_are_those_of_a_gpu_tensor(x: FakeCudaTensor) -> None:
    assert isinstance(x, torch.Tensor)
    assert (x.device, x.is_cuda, x.is_meta, x.get_device()) == (GPU, True, False, 0)
    assert (x.shape, x.stride(), x.dtype, x.nbytes) == ((6, 8), (8, 1), torch.float16, 96)
    assert isinstance(x.shape, torch.Size)
    assert x.size()[:1].numel() == 6


MADE_OF: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:, ::2],
    "part": lambda x: x.split(2)[1],
    "transposed": lambda x: x.T,
    "sum": lambda x: x.sum(),
    "product": lambda x: x @ x.T,
    "softmax": lambda x: torch.softmax(x, -1),
    "like": torch.empty_like,
    "like it, transposed": lambda x: torch.zeros_like(x.T),
    "like a part": lambda x: torch.ones_like(x[:, ::2]),
    "like it, in order": lambda x: torch.empty_like(x.T, memory_format=torch.contiguous_format),
    "like it, of a type": lambda x: torch.full_like(x.T, 1.5, dtype=torch.float64),
    "like it, by name": lambda x: torch.rand_like(input=x, device=None),
    "like it, numbers": lambda x: torch.randint_like(x, 3, 7),
    "like one from here": lambda x: torch.empty_like(torch.empty(8, 6).T, device=x.device),
    "new": lambda x: x.new_zeros(3),
    "other type": lambda x: x.float(),
    "two": lambda x: torch.cat([x, x]),
    "in place": lambda x: x.copy_(x),
    "cuda": lambda x: x.cuda(),
    "pinned": lambda x: x.pin_memory(),
    "option": lambda x: torch.empty_like(x, device=x.device),
    "made there": lambda x: torch.arange(3, device=x.device),
    "made by name": lambda x: torch.zeros(3, device="cuda"),
    "made by index": lambda x: torch.ones(3, device="cuda:0"),
    "made by number": lambda x: torch.ones(3, device=x.get_device()),
    "written to": lambda x: torch.mm(x, x.T, out=x.new_empty(6, 6)),
    "greatest": lambda x: x.max(dim=1).values,
    "of numbers": lambda x: torch.tensor([x.data_ptr()], device=x.device),
    "moved": lambda x: torch.zeros(3).to(x.device, non_blocking=True),
    "moved by name": lambda x: torch.zeros(3).to("cuda"),
    "from here": lambda x: torch.empty(3, pin_memory=True).cuda(),
    "copied": lambda x: torch.empty(3, device="cuda").copy_(torch.empty(3, pin_memory=True)),
}


@pytest.mark.parametrize("make", MADE_OF.values(), ids=MADE_OF)
def test_results_are_on_the_gpu_too(
    x: FakeCudaTensor, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with FakeCudaMode():  # without a GPU, "cuda" works in this mode only
        here, made = make(torch.zeros(6, 8, dtype=torch.float16)), make(x)
    assert type(made) is FakeCudaTensor
    assert made.device == GPU
    assert (made.shape, made.stride(), made.dtype) == (here.shape, here.stride(), here.dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.arange(3),
        lambda x: torch.empty_like(torch.arange(3)).copy_(torch.arange(3)),
        lambda x: torch.zeros_like(x[0, :3], dtype=torch.int64, device="cpu") + torch.arange(3),
    ],
)
def test_cpu_tensors_stay_on_the_cpu(
    x: FakeCudaTensor, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with FakeCudaMode():
        made = make(x)
    assert type(made) is torch.Tensor
    assert made.tolist() == [0, 1, 2]


def test_like_functions_do_not_load_pytorchs_compiler() -> None:
    program = """
import sys
import torch
from grader.runner.fake_tensors import FakeCudaMode, FakeCudaTensor
x = FakeCudaTensor(torch.empty(6, 8, device="meta"))
before = len(sys.modules)
with FakeCudaMode():
    torch.empty_like(x), torch.zeros_like(x, dtype=torch.float16), torch.rand_like(x)
print(len(sys.modules) - before)
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "0"


def test_addresses_are_unique_and_aligned(x: FakeCudaTensor) -> None:
    other = FakeCudaTensor(torch.empty(6, 8, dtype=torch.float16, device="meta"))
    assert other.data_ptr() != x.data_ptr()
    assert x.data_ptr() % 256 == other.data_ptr() % 256 == 0
    assert x[1:].data_ptr() - x.data_ptr() == 16
    assert x.view(-1)[1:].data_ptr() % 16 == 2
    assert x.view(-1).data_ptr() == x.detach().data_ptr() == x.data_ptr()
    torch.tensor([x.data_ptr()], dtype=torch.int64)


def test_a_custom_operator_raises(x: FakeCudaTensor) -> None:
    """PyTorch would silently do nothing."""

    @torch.library.custom_op("grade_tests::fill", mutates_args=("x",))
    def fill(x: torch.Tensor) -> None:
        raise AssertionError("it must not be called")

    for operator in (fill, torch.ops.grade_tests.fill):
        with FakeCudaMode(), pytest.raises(NotImplementedError, match="no memory"):
            operator(x)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool((x > 0).any()),
        lambda x: x.to("cpu"),
        lambda x: torch.zeros(6, 8).copy_(x),
    ],
)
def test_reading_values_raises(x: FakeCudaTensor, read: Callable[[Any], Any]) -> None:
    with FakeCudaMode(), pytest.raises(RuntimeError, match=r"[Mm]eta"):
        read(x)
