"""Layout: gaps between tensors, inputs before outputs, and views of the right memory."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.arena import Layout, TensorSpec, arrange, view
from grader.arena.layout import ALIGNMENT, GUARD_BYTES, ITEM_BYTES, Value, overlaps, spec_of


def contiguous(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return TensorSpec(0, dtype, shape, strides)


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
slots = st.builds(contiguous, st.sampled_from(sorted(ITEM_BYTES)), shapes)
values = slots | st.lists(slots, min_size=1, max_size=4) | st.integers(-5, 5) | st.booleans()
sets = st.lists(st.lists(st.tuples(st.booleans(), values), min_size=1, max_size=5), max_size=4)


def flat(layout: Layout) -> list[TensorSpec]:
    found: list[TensorSpec] = []
    for arguments in layout.sets:
        for value in arguments:
            found += (
                value
                if isinstance(value, list)
                else [value]
                if isinstance(value, TensorSpec)
                else []
            )
    return found


@given(sets)
@settings(max_examples=60)
def test_tensors_are_aligned_with_gaps_between(wanted: list[list[tuple[bool, Value]]]) -> None:
    layout = arrange(wanted)
    end = 0
    for slot in sorted(flat(layout), key=lambda s: s.offset):
        assert slot.offset % ALIGNMENT == 0
        assert slot.offset >= end + GUARD_BYTES
        end = slot.offset + slot.nbytes
    assert layout.nbytes >= end + (GUARD_BYTES if end else 0)


@given(sets)
@settings(max_examples=60)
def test_writable_tensors_lie_above_all_others(
    wanted: list[list[tuple[bool, Value]]],
) -> None:
    layout = arrange(wanted)
    for arguments, placed in zip(wanted, layout.sets, strict=True):
        for (writable, _), value in zip(arguments, placed, strict=True):
            for slot in value if isinstance(value, list) else [value]:
                if isinstance(slot, TensorSpec):
                    assert (slot.offset >= layout.writable_at) == writable


@given(sets)
@settings(max_examples=30)
def test_json_round_trip(wanted: list[list[tuple[bool, Value]]]) -> None:
    layout = arrange(wanted)
    assert Layout.from_json(layout.to_json()) == layout


def test_a_view_keeps_strides_and_shares_memory() -> None:
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6).t()
    layout = arrange([[(False, spec_of(tensor))]])
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    slot = layout.sets[0][0]
    assert isinstance(slot, TensorSpec)
    there = view(buffer, slot)
    there.copy_(tensor)
    assert there.stride() == tensor.stride()
    assert torch.equal(view(buffer, slot), tensor)
    assert int((buffer != 0).sum()) > 0


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((), (), False),
        ((0, 5), (1, 0), False),
        ((4, 1), (1, 0), False),
        ((4, 2), (1, 0), True),
        ((3, 4), (4, 1), False),
        ((3, 4), (3, 1), True),
        ((4, 3), (1, 4), False),
        ((2, 2), (3, 2), False),
        ((10, 8), (4, 1), True),
        ((2, 3, 4), (100, 4, 1), False),
    ],
)
def test_overlapping_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: bool
) -> None:
    assert overlaps(shape, strides) is expected
