"""On a real GPU: gradings that the clock or the memory limit must reject, copies and blocks."""

from __future__ import annotations

import time

import pytest
import torch

from grader.arena import Slot, arrange
from grader.judge.gpu.dma import CopyEngine, PairReader
from grader.judge.memory.shared_block import POLICY, SharedBlock
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


def test_events_that_lie_are_overruled_by_the_judges_clock(judged: Judge) -> None:
    report = judged("import torch\ntorch.cuda.Event.elapsed_time = lambda *a: 1e-3\n" + HONEST)
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.TIME_CLAIM), report.reason


def test_work_on_a_side_stream_that_is_not_joined_is_rejected(judged: Judge) -> None:
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


def test_a_delay_while_inputs_are_published_counts_as_time() -> None:
    words = Slot(0, "int64", (1 << 25,), (1,))
    block = SharedBlock(arrange([[(False, words), (True, words)]] * 4), 8, "cuda")
    try:
        every = list(range(4))
        block.prepare(every)
        delays: list[float] = []

        def delay() -> None:
            time.sleep(0.05)
            delays.append(0.05)

        block.publish(every, delay)
        block.probe()
        block.take_snapshot()
        assert len(delays) == 1
        assert 0 < block.publish_us() < 10_000
        assert block.measured_us() > 50_000 - block.publish_us()
    finally:
        block.close()


def test_words_are_read_in_a_row_from_where_they_lie() -> None:
    memory = torch.arange(4096, device="cuda")
    torch.cuda.synchronize()  # the copy engine does not wait for it
    copies = CopyEngine(9)
    copies.read(memory.data_ptr() + 8 * 100, 8 * 512, 7, at=2)
    copies.wait()
    assert copies.words.tolist() == [0, 0, *range(100, 100 + 7 * 512, 512)]


def test_rows_are_written_to_where_they_belong() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    rows = torch.arange(1, 97, dtype=torch.uint8).view(3, 32).pin_memory()
    copies = CopyEngine(1)
    copies.write(rows, memory.data_ptr() + 64, 256)
    copies.wait()
    expected = torch.zeros(4096, dtype=torch.uint8)
    for i, row in enumerate(rows):
        expected[64 + 256 * i :][:32] = row
    assert torch.equal(memory.cpu(), expected)


@pytest.mark.parametrize("times", [1, 3])
def test_pairs_of_words_are_read_one_copy_after_the_other(times: int) -> None:
    memory = torch.arange(4096, device="cuda")
    torch.cuda.synchronize()
    copies = CopyEngine(1)
    reader = PairReader(copies, times, 7)
    starts = [100, 101, 130][:times]
    reader.prepare([(memory.data_ptr() + 8 * start, 8 * 64) for start in starts], 8 * 512)
    for _ in range(2):
        reader.read()
        copies.wait()
        pairs = [[[s + 512 * i, s + 512 * i + 64] for i in range(7)] for s in starts]
        assert reader.found.tolist() == pairs
        reader.found[:] = 0


def test_a_probe_sees_what_is_written_after_it() -> None:
    words = Slot(0, "int64", (1 << 20,), (1,))
    block = SharedBlock(arrange([[(False, words), (True, words)]] * 8), 8, "cuda")
    try:
        for late in range(8):
            block.prepare(list(range(8)))
            block.probe()
            block.take_snapshot()
            assert not block.changed_since_probe()
            each = block.tail_bytes // 8
            start = block.head_bytes + late * each
            block.lent[start : start + each] = 0
            block.take_snapshot()
            assert block.changed_since_probe()
    finally:
        block.close()


@pytest.mark.parametrize("probes", [1, 3, 2 * POLICY.kept_probes])
def test_a_round_ends_with_the_first_probe_that_finds_all_outputs(probes: int) -> None:
    words = Slot(0, "int64", (1 << 20,), (1,))
    block = SharedBlock(
        arrange([[(False, words), (True, words)]] * 8), 8, "cuda", POLICY.kept_probes
    )
    outputs = block.lent[block.head_bytes :]
    try:
        block.prepare(list(range(8)))
        block.publish(list(range(8)))
        block.probe()  # finds nothing yet
        outputs.random_()
        torch.cuda.synchronize()
        for _ in range(probes):
            block.probe()
        time.sleep(0.1)
        block.probe()
        block.take_snapshot()
        assert block.measured_us() < 90_000
        outputs.random_()
        block.take_snapshot()
        assert block.changed_since_probe()
        assert block.measured_us() > 100_000
    finally:
        block.close()


def test_a_stream_waits_at_the_gate_until_the_inputs_are_there() -> None:
    words = Slot(0, "int64", (1 << 20,), (1,))
    block = SharedBlock(arrange([[(False, words), (True, words)]] * 2), 8, "cuda")
    stream, passed = torch.cuda.Stream(), torch.cuda.Event()
    try:
        block.prepare([0, 1])
        block.publish([0, 1])  # to load a kernel may wait for every stream too
        for _ in range(3):
            block.prepare([0, 1])  # waits for every stream, so before one waits at the gate
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
