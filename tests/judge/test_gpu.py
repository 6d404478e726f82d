"""Gradings on a real GPU: what the outside clock and the device's memory limit must catch."""

from __future__ import annotations

import time

import pytest
import torch

from grader.arena import TensorSpec, arrange
from grader.judge.gpu.dma import Glances, PairPeek, Peek
from grader.judge.memory.shared_block import KEPT, Block
from grader.report import Report, Rule, Verdict
from tests.judge.conftest import HONEST, SPEC, Judge

pytestmark = pytest.mark.cuda

WIDE = SPEC.replace("{n: 4096,", "{n: 16777216,").replace("{n: 100000000,", "{n: 1000000,")


@pytest.fixture
def judged(judge: Judge) -> Judge:
    def run(source: str, **changes: str) -> Report:
        return judge(source, device="cuda", benchmarks=True, spec=WIDE, **changes)

    return run


def test_an_honest_kernel_is_ranked(judged: Judge) -> None:
    report = judged(HONEST)
    assert (report.verdict, report.reason) == (Verdict.ACCEPTED, "right on every case")
    assert report.ranked
    assert report.score_us is not None
    assert report.score_ci_us is not None
    assert report.score_ci_us[0] <= report.score_us <= report.score_ci_us[1]
    assert 0.1 < report.speedup["eager"] < 10
    small = report.cases[-1]
    assert small.graph
    assert small.sol is not None
    assert 0 < small.sol < 1.05
    assert len(small.round_mhz) == small.rounds
    assert all(500 < mhz < 4000 for mhz in small.round_mhz)


def test_events_that_lie_are_overruled_by_the_outside_clock(judged: Judge) -> None:
    report = judged("import torch\ntorch.cuda.Event.elapsed_time = lambda *a: 1e-3\n" + HONEST)
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.TIME_CLAIM), report.reason


def test_a_side_stream_that_is_not_joined_is_work_after_done(judged: Judge) -> None:
    report = judged("""
        import torch
        side = torch.cuda.Stream()
        def scale(x, total, factor, out):
            with torch.cuda.stream(side):
                torch.cuda._sleep(50_000_000)
                total += x
                out.copy_(x * factor)
    """)
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.WORK_OUTSIDE_CALL)


def test_whoever_delays_what_goes_on_while_inputs_are_published_hides_nothing() -> None:
    words = TensorSpec(0, "int64", (1 << 25,), (1,))
    block = Block(arrange([[(False, words), (True, words)]] * 4), 8, "cuda")
    try:
        every = list(range(4))
        block.ready(every)
        delays: list[float] = []

        def delay() -> None:
            time.sleep(0.05)
            delays.append(0.05)

        block.publish(every, delay)
        block.probe()
        block.collect()
        assert len(delays) == 1
        assert 0 < block.publish_us() < 10_000
        assert block.outside_us() > 50_000 - block.publish_us()
    finally:
        block.close()


def test_pairs_are_read_from_where_they_lie() -> None:
    memory = torch.arange(4096, device="cuda")
    torch.cuda.synchronize()  # the copy engine does not wait for it
    peek = Peek(1)
    pairs = PairPeek(peek, 7)
    aimed = pairs.aim(memory.data_ptr() + 8 * 100, 8 * 64, 8 * 512)
    for _ in range(2):
        pairs.read(aimed)
        peek.wait()
        assert pairs.words.tolist() == [[100 + 512 * i, 100 + 512 * i + 64] for i in range(7)]
        pairs.words.zero_()


def test_glances_are_read_one_after_the_other() -> None:
    memory = torch.arange(4096, device="cuda")
    torch.cuda.synchronize()
    glances = Glances(3, 7)
    starts = [100, 101, 130]
    glances.aim([(memory.data_ptr() + 8 * start, 8 * 64) for start in starts], 8 * 512)
    for _ in range(2):
        glances.read()
        glances.wait()
        assert glances.are_there()
        pairs = [[[s + 512 * i, s + 512 * i + 64] for i in range(7)] for s in starts]
        assert glances.found.tolist() == pairs
        glances.found[:] = 0


def test_a_probe_sees_what_is_written_after_it() -> None:
    words = TensorSpec(0, "int64", (1 << 20,), (1,))
    block = Block(arrange([[(False, words), (True, words)]] * 8), 8, "cuda")
    try:
        for late in range(8):
            block.ready(list(range(8)))
            block.probe()
            block.collect()
            assert not block.was_late()
            each = block.tail_bytes // 8
            start = block.head_bytes + late * each
            block.lent[start : start + each] = 0
            block.collect()
            assert block.was_late()
    finally:
        block.close()


@pytest.mark.parametrize("probes", [1, 3, 2 * KEPT])
def test_a_round_ends_with_the_first_probe_that_finds_all_outputs(probes: int) -> None:
    words = TensorSpec(0, "int64", (1 << 20,), (1,))
    block = Block(arrange([[(False, words), (True, words)]] * 8), 8, "cuda", KEPT)
    outputs = block.lent[block.head_bytes :]
    try:
        block.ready(list(range(8)))
        block.publish(list(range(8)))
        block.probe()  # finds nothing yet
        outputs.random_()
        torch.cuda.synchronize()
        for _ in range(probes):
            block.probe()
        time.sleep(0.1)
        block.probe()
        block.collect()
        assert block.outside_us() < 90_000
        outputs.random_()
        block.collect()
        assert block.was_late()
        assert block.outside_us() > 100_000
    finally:
        block.close()


def test_a_stream_waits_at_the_gate_until_the_inputs_are_there() -> None:
    words = TensorSpec(0, "int64", (1 << 20,), (1,))
    block = Block(arrange([[(False, words), (True, words)]] * 2), 8, "cuda")
    stream, passed = torch.cuda.Stream(), torch.cuda.Event()
    try:
        block.ready([0, 1])
        block.publish([0, 1])  # to load a kernel may wait for every stream too
        for _ in range(3):
            block.ready([0, 1])  # waits for every stream, so before one waits at the gate
            block.arena.await_gate(stream, block.round)
            passed.record(stream)
            time.sleep(0.01)
            assert not passed.query()
            block.publish([0, 1])
            passed.synchronize()
            assert block.is_published()
    finally:
        block.close()


def test_an_illegal_address_is_a_runtime_error(judged: Judge) -> None:
    report = judged("""
        import torch
        def scale(x, total, factor, out):
            x[torch.full((1,), 1 << 40, device="cuda")]
    """)
    assert report.verdict is Verdict.RUNTIME_ERROR


def test_device_memory_has_a_limit(judged: Judge) -> None:
    hoard = "import torch\nhoard = torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n"
    assert judged(hoard + HONEST).verdict is Verdict.MEMORY_LIMIT_EXCEEDED


def test_a_kernel_that_cannot_be_captured_is_timed_eagerly(judged: Judge) -> None:
    report = judged(HONEST + "    assert float(x[0]) == float(x[0])\n")
    assert report.verdict is Verdict.ACCEPTED
    assert report.cases[-1].graph is False
