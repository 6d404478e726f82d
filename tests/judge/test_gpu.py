"""Gradings on a real GPU: what the judge's clock and the device's memory limit must catch."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from grader.arena import TensorSpec, arrange
from grader.judge import grade
from grader.judge.compile_ahead import compile_ahead
from grader.judge.gpu.dma import CopyEngine, PairReader
from grader.judge.integrity.call_order import CallOrderWatch
from grader.judge.memory.shared_block import POLICY, SharedBlock
from grader.problem import Problem
from grader.report import PassedTests, Report, Rule, Verdict
from grader.sandbox import make_sandbox
from grader.submission import Submission
from tests.judge.conftest import HONEST, SPEC, Judge

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).resolve().parents[2]

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


def test_false_events_are_overruled_by_the_judges_clock(judged: Judge) -> None:
    report = judged("import torch\ntorch.cuda.Event.elapsed_time = lambda *a: 1e-3\n" + HONEST)
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.TIME_CLAIM), report.reason


def test_a_side_stream_that_is_not_joined_is_work_outside_the_call(judged: Judge) -> None:
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


def test_a_delay_while_inputs_are_published_hides_nothing() -> None:
    words = TensorSpec(0, "int64", (1 << 25,), (1,))
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


def test_words_are_read_from_where_they_lie() -> None:
    memory = torch.arange(4096, device="cuda")
    torch.cuda.synchronize()  # the copy engine does not wait for it
    copies = CopyEngine(9)
    copies.read(memory.data_ptr() + 8 * 100, 8 * 512, 7, at=1)
    copies.wait()
    assert copies.words.tolist() == [0, *(100 + 512 * i for i in range(7)), 0]


def test_rows_are_written_to_where_they_belong() -> None:
    memory = torch.zeros(64, 64, dtype=torch.uint8, device="cuda")
    rows = torch.arange(1, 81, dtype=torch.uint8).view(5, 16).pin_memory()
    torch.cuda.synchronize()
    copies = CopyEngine(1)
    copies.write(rows, memory.data_ptr() + 3 * 64 + 16, 2 * 64)
    copies.wait()
    expected = torch.zeros(64, 64, dtype=torch.uint8)
    expected[3:13:2, 16:32] = rows
    assert torch.equal(memory.cpu(), expected)


def test_pairs_are_read_from_where_they_lie() -> None:
    memory = torch.arange(4096, device="cuda")
    torch.cuda.synchronize()
    copies = CopyEngine(1)
    reader = PairReader(copies, 3, 7)
    places = [(100, 64), (101, 128), (130, 256)]
    reader.prepare([(memory.data_ptr() + 8 * at, 8 * step) for at, step in places], 8 * 512)
    pairs = [[[at + 512 * i, at + 512 * i + step] for i in range(7)] for at, step in places]
    for _ in range(2):
        reader.read()
        copies.wait()  # for pairs too
        assert reader.found.tolist() == pairs
        reader.found[:] = 0


@pytest.mark.parametrize("item_bytes", [8, 0], ids=["outputs", "state"])
def test_the_order_of_calls_is_sampled_in_device_memory(item_bytes: int) -> None:
    words, order = TensorSpec(0, "int64", (1 << 16,), (1,)), [0, 1, 2, 3]
    block = SharedBlock(arrange([[(False, words), (True, words)]] * 4), item_bytes, "cuda")
    try:
        watch = CallOrderWatch.over(block)
        assert watch is not None
        outputs = block.lent[block.head_bytes :].view(torch.int64).view(4, -1)
        for called in (order, order[::-1]):
            block.shadow.random_()
            watch.arm(order)
            block.prepare(order)
            watch.sample_early(lambda: True)
            block.publish(order)
            for index in called:
                outputs[index].random_()
                torch.cuda.synchronize()
                begun = watch.sample(with_pairs=True)
                assert begun == (index if called == order else 3)
            block.take_snapshot()
            assert not watch.wrote_early()
            assert watch.ran_concurrently() == (called != order)
            assert called != order or (watch.overlaps(), watch.first_unfinished()) == (
                0,
                [1, 2, 3, 4],
            )
    finally:
        block.close()


def test_writes_after_a_probe_are_detected() -> None:
    words = TensorSpec(0, "int64", (1 << 20,), (1,))
    block = SharedBlock(arrange([[(False, words), (True, words)]] * 8), 8, "cuda")
    try:
        for last in range(8):
            block.prepare(list(range(8)))
            block.probe()
            block.take_snapshot()
            assert not block.changed_since_probe()
            each = block.tail_bytes // 8
            start = block.head_bytes + last * each
            block.lent[start : start + each] = 0
            block.take_snapshot()
            assert block.changed_since_probe()
    finally:
        block.close()


@pytest.mark.parametrize("words", [0, 1, 8191, 8192, 3 * 8192 + 5])
def test_a_word_that_differs_is_found_wherever_it_is(words: int) -> None:
    from grader.judge.memory.words_kernel import are_alike

    a = torch.randint(1 << 62, (words,), device="cuda")
    assert are_alike(a, a.clone())
    for at in {0, words // 2, words - 1} if words else ():
        for bit in (0, 63):
            b = a.clone()
            b[at] ^= (1 << bit) if bit < 63 else -(1 << 63)
            assert not are_alike(a, b)


@pytest.mark.parametrize("probes", [1, 3, 2 * POLICY.kept_probes])
def test_a_round_ends_with_the_first_probe_that_finds_all_outputs(probes: int) -> None:
    words = TensorSpec(0, "int64", (1 << 20,), (1,))
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


def test_a_stream_waits_at_the_gate_until_the_inputs_have_arrived() -> None:
    words = TensorSpec(0, "int64", (1 << 20,), (1,))
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


def graded(name: str, kernels: Path) -> Callable[..., Report]:
    """Grades a file below submissions/square/, as a batch does."""
    problem = Problem.load(ROOT / "problems" / "square")
    path = ROOT / "submissions" / "square" / name
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    sandbox = make_sandbox("process")
    return partial(grade, problem, submission, sandbox=sandbox, device="cuda", kernels=kernels)


def test_the_timed_runner_finds_the_kernels_of_the_tested_one(tmp_path: Path) -> None:
    again = graded("accepted/triton_square.py", tmp_path / "kernels")
    tested = again(benchmarks=False)
    assert tested.verdict is Verdict.ACCEPTED
    assert b".cubin" in (tmp_path / "kernels").read_bytes()
    timed = again(passed=PassedTests.of(tested))
    assert (timed.verdict, timed.ranked) == (Verdict.ACCEPTED, True)


def test_the_timed_runner_gets_the_library_of_the_tested_one(tmp_path: Path) -> None:
    again = graded("accepted/cuda_square.cu", tmp_path / "kernels")
    tested = again(benchmarks=False)
    assert tested.stages_s["compile"] > 0
    timed = again(passed=PassedTests.of(tested))
    assert (timed.verdict, timed.ranked) == (Verdict.ACCEPTED, True)
    assert "compile" not in timed.stages_s


def test_kernels_that_are_none_gain_nothing(tmp_path: Path) -> None:
    again = graded("accepted/hostile_fakes_kernels.py", tmp_path / "kernels")
    tested = again(benchmarks=False)
    assert b"evil" in (tmp_path / "kernels").read_bytes()
    timed = again(passed=PassedTests.of(tested))
    assert (timed.verdict, timed.ranked) == (Verdict.ACCEPTED, True)


def compiled(name: str, kernels: Path) -> bytes:
    """What compiling a file below submissions/square/ ahead leaves there."""
    problem = Problem.load(ROOT / "problems" / "square")
    path = ROOT / "submissions" / "square" / name
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    sandbox = make_sandbox("process")
    compile_ahead(problem, submission, sandbox=sandbox, device="cuda", kernels=kernels)
    return kernels.read_bytes()


def test_kernels_are_compiled_before_the_tests_without_a_device(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    kept = compiled("accepted/triton_square.py", path)
    ahead = cubins(kept)
    assert ahead
    tested = graded("accepted/triton_square.py", path)(benchmarks=False)
    assert tested.verdict is Verdict.ACCEPTED
    after = cubins(path.read_bytes())
    assert ahead.items() <= after.items()
    assert len(set(after.values())) == len(after), "a kernel was compiled twice"


def cubins(kept: bytes) -> dict[str, bytes]:
    """The kernels of the submission, by the names under which Triton finds them."""
    with ZipFile(io.BytesIO(kept)) as archive:
        names = [name for name in archive.namelist() if name.endswith("_square.cubin")]
        return {name: archive.read(name) for name in names}


def test_a_cuda_file_is_compiled_before_its_tests(tmp_path: Path) -> None:
    compiled("accepted/cuda_square.cu", tmp_path / "kernels")
    tested = graded("accepted/cuda_square.cu", tmp_path / "kernels")(benchmarks=False)
    assert tested.verdict is Verdict.ACCEPTED
    assert "compile" not in tested.stages_s


def test_a_file_that_never_compiles_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.judge.compile_ahead.COMPILE_S", 3.0)
    path = tmp_path / "kernels"
    assert b"evil" in compiled("accepted/hostile_never_compiles.py", path)
    again = graded("accepted/hostile_never_compiles.py", path)
    tested = again(benchmarks=False)
    assert tested.verdict is Verdict.ACCEPTED
    timed = again(passed=PassedTests.of(tested))
    assert (timed.verdict, timed.ranked) == (Verdict.ACCEPTED, True)
