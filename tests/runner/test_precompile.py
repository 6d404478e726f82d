"""The precompiler: cases are distributed, waits are limited, and no process is left.

The processes are real; what they do on a GPU is replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from grader.arena import TensorSpec, pack, tensor_like
from grader.runner import precompile, triton_launcher, warmup
from grader.runner.fake_tensors import FakeCudaMode, FakeCudaTensor
from grader.runner.precompile import MOST_PROCESSES, Precompiler
from tests.waiting import PATIENCE_S, until


@triton.jit
def copy(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Never compiled."""


ROOT = Path(__file__).resolve().parents[2]
ESCAPED = 99
"""Exit status of a forked process that returned into the test's code."""

# Python 3.12 warns of a fork in a process with threads, and PyTorch starts some. These processes
# run little Python before they exit, and the real runner forks before it has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

Job = Callable[[Path, int], None]
Start = Callable[[Job], Precompiler]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a precompiler of three processes that run a job; ended with the test."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    monkeypatch.setattr(precompile, "_load_compiler", lambda: None)
    monkeypatch.setattr(precompile, "_disable_launches", lambda: None)
    made: list[Precompiler] = []
    ours = os.getpid()

    def begin(job: Job) -> Precompiler:
        monkeypatch.setattr(precompile, "_loaded", lambda folder: partial(job, folder))
        try:
            made.append(Precompiler.start())
        except BaseException:
            if os.getpid() != ours:
                os._exit(ESCAPED)
            raise
        return made[-1]

    yield begin
    for precompiler in made:
        precompiler.end()


def pids_of(precompiler: Precompiler) -> list[int]:
    return list(precompiler._pids)


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not exited."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def request(cases: int) -> dict[str, Any]:
    return {"entry": "f", "names": ["x"], "roles": ["in"], "cases": [{}] * cases}


def note(folder: Path, number: int) -> None:
    """Record the case."""
    with (folder / "done").open("a") as file:
        file.write(f"{number} by {os.getpid()}\n")


def done(folder: Path) -> list[int]:
    """The recorded cases, in order."""
    file = folder / "done"
    return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []


def sleep(folder: Path, number: int) -> None:
    (folder / f"asleep{number}").touch()
    time.sleep(600)


def blocks_until(name: str) -> Job:
    """A job that waits for a file with this name and the case's number."""

    def job(folder: Path, number: int) -> None:
        (folder / f"begun{number}").touch()
        while not (folder / f"{name}{number}").exists():
            time.sleep(0.01)

    return job


@pytest.mark.parametrize(
    ("cpus", "processes"), [(1, 1), (3, 1), (6, 3), (8, MOST_PROCESSES), (192, MOST_PROCESSES)]
)
def test_the_number_of_processes_depends_on_the_cpus(
    start: Start, monkeypatch: pytest.MonkeyPatch, cpus: int, processes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cpus))
    assert len(pids_of(start(note))) == processes


def test_every_case_is_processed_once(start: Start, tmp_path: Path) -> None:
    precompiler = start(note)
    pids = pids_of(precompiler)
    precompiler.begin(b"def f(x): ...", tmp_path, request(cases=8))
    precompiler.wait(PATIENCE_S)
    assert sorted(done(tmp_path)) == list(range(8))
    assert not any(map(runs, pids))


def test_cases_are_processed_in_order(start: Start, tmp_path: Path) -> None:
    precompiler = start(blocks_until("go"))
    precompiler.begin(b"", tmp_path, request(cases=5))
    until(lambda: len(list(tmp_path.glob("begun*"))) == 3)
    assert {file.name for file in tmp_path.glob("begun*")} == {"begun0", "begun1", "begun2"}
    (tmp_path / "go1").touch()
    until((tmp_path / "begun3").exists)
    assert not (tmp_path / "begun4").exists()


def test_fewer_cases_than_processes(start: Start, tmp_path: Path) -> None:
    precompiler = start(note)
    precompiler.begin(b"", tmp_path, request(cases=1))
    precompiler.wait(PATIENCE_S)
    assert done(tmp_path) == [0]


def test_more_cases_than_the_queue_holds(start: Start, tmp_path: Path) -> None:
    precompiler = start(blocks_until("go"))
    start_s = time.monotonic()
    precompiler.begin(b"", tmp_path, request(cases=5000))
    assert time.monotonic() - start_s < 5
    until((tmp_path / "begun2").exists)


def test_await_case_waits_for_a_case_in_progress(start: Start, tmp_path: Path) -> None:
    precompiler = start(blocks_until("go"))
    precompiler.begin(b"", tmp_path, request(cases=3))
    until(lambda: len(list(tmp_path.glob("begun*"))) == 3)
    threading.Timer(0.3, (tmp_path / "go1").touch).start()
    precompiler.await_case(1)
    assert (tmp_path / "go1").exists()


def test_await_case_does_not_wait_for_other_cases(start: Start, tmp_path: Path) -> None:
    """A case that is done, one that has not begun, and an unknown one."""
    precompiler = start(blocks_until("go"))
    precompiler.begin(b"", tmp_path, request(cases=5))
    until(lambda: len(list(tmp_path.glob("begun*"))) == 3)
    (tmp_path / "go0").touch()
    until((tmp_path / "begun3").exists)
    start_s = time.monotonic()
    for number in (0, 4, 99):
        precompiler.await_case(number)
    assert time.monotonic() - start_s < 5


def test_dead_processes_cause_no_error(start: Start, tmp_path: Path) -> None:
    """With unread messages in the queue, the next send fails."""

    def die(folder: Path, number: int) -> None:
        os._exit(1)

    precompiler = start(die)
    before = pids_of(precompiler)
    send, sent = precompiler._queue.send, []

    def slowly(message: bytes, flags: int) -> int:
        sent.append(send(message, flags))
        if len(sent) == 20:
            until(lambda: not any(map(runs, before)))
        return sent[-1]

    precompiler._queue = SimpleNamespace(  # type: ignore[assignment]
        send=slowly, shutdown=lambda _: None, close=precompiler._queue.close
    )
    precompiler.begin(b"", tmp_path, request(cases=25))
    assert len(sent) == 20
    precompiler.await_case(0)


def test_await_case_does_not_wait_for_a_dead_process(start: Start, tmp_path: Path) -> None:
    precompiler = start(sleep)
    precompiler.begin(b"", tmp_path, request(cases=1))
    until((tmp_path / "asleep0").exists)
    for pid in pids_of(precompiler):
        os.kill(pid, 9)
    start_s = time.monotonic()
    precompiler.await_case(0)
    assert time.monotonic() - start_s < 5


def test_await_case_times_out_only_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompile, "CASE_TIMEOUT_S", 8.0)
    precompiler = start(sleep)
    precompiler.begin(b"", tmp_path, request(cases=3))
    until(lambda: len(list(tmp_path.glob("asleep*"))) == 3)
    start_s = time.monotonic()
    precompiler.await_case(0)
    assert time.monotonic() - start_s >= 8.0
    start_s = time.monotonic()
    for number in (0, 1, 2):
        precompiler.await_case(number)
    assert time.monotonic() - start_s < 7.5


def test_wait_has_one_limit_for_all_processes(start: Start, tmp_path: Path) -> None:
    precompiler = start(sleep)
    pids = pids_of(precompiler)
    precompiler.begin(b"", tmp_path, request(cases=3))
    until(lambda: len(list(tmp_path.glob("asleep*"))) == 3)
    assert all(map(runs, pids))
    start_s = time.monotonic()
    precompiler.wait(5.0)
    assert 5.0 <= time.monotonic() - start_s < 14.5  # not three times as long
    assert not any(map(runs, pids))


def test_wait_returns_when_all_cases_are_done(start: Start, tmp_path: Path) -> None:
    precompiler = start(note)
    precompiler.begin(b"", tmp_path, request(cases=3))
    start_s = time.monotonic()
    precompiler.wait(60)
    assert time.monotonic() - start_s < 50


def test_idle_processes_are_ended(start: Start) -> None:
    precompiler = start(sleep)
    pids = pids_of(precompiler)
    assert all(map(runs, pids))
    precompiler.end()
    assert not any(map(runs, pids))


def test_end_is_idempotent_and_wait_then_returns_at_once(start: Start) -> None:
    precompiler = start(note)
    precompiler.end()
    precompiler.end()
    start_s = time.monotonic()
    precompiler.wait(60)
    assert time.monotonic() - start_s < 5


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_a_failing_process_exits_and_never_returns_to_the_caller(
    start: Start, tmp_path: Path, error: type[BaseException]
) -> None:
    def fail(folder: Path, number: int) -> None:
        raise error

    precompiler = start(fail)
    pids = pids_of(precompiler)
    precompiler.begin(b"", tmp_path, request(cases=3))
    until(lambda: not any(map(runs, pids)))
    ends = [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) for pid in pids]
    assert [end and end.si_status for end in ends] == [1, 1, 1]
    precompiler.wait(PATIENCE_S)


def test_output_is_discarded(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def speak(folder: Path, number: int) -> None:
        os.write(1, b"accepted\n")
        os.write(2, b"accepted\n")

    precompiler = start(speak)
    precompiler.begin(b"", tmp_path, request(cases=3))
    precompiler.wait(PATIENCE_S)
    assert capfd.readouterr() == ("", "")


def test_no_descriptor_leaks(start: Start, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    precompiler = start(note)
    precompiler.begin(b"", tmp_path, request(cases=3))
    precompiler.wait(PATIENCE_S)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_died_early_causes_no_error(start: Start, tmp_path: Path) -> None:
    precompiler = start(note)
    first = pids_of(precompiler)[0]
    os.kill(first, 9)
    until(lambda: not runs(first))
    precompiler.begin(b"", tmp_path, request(cases=3))
    precompiler.wait(PATIENCE_S)
    assert sorted(done(tmp_path)) == [0, 1, 2]


def test_processes_end_with_the_runner() -> None:
    """A killed runner cannot end them; they notice the closed socket."""
    program = """
import os
from grader.runner import precompile
os.sched_getaffinity = lambda _: range(6)
precompile._load_compiler = lambda: None
print(*precompile.Precompiler.start()._pids, flush=True)
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    pids = [int(word) for word in ended.stdout.split()]
    assert len(pids) == 3, ended.stderr
    until(lambda: not any(map(runs, pids)))


# --- one process


class FakeCuda:
    """Makes CPU tensors where a GPU tensor is requested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = 0
        self.targets: list[Any] = []
        """What Triton was told to compile for, in order."""
        monkeypatch.setattr(torch.cuda, "synchronize", self._wait)
        monkeypatch.setattr(precompile, "_compile_for", self.targets.append)
        monkeypatch.setattr(precompile, "_use_device", lambda: self.targets.append("device"))
        there = {"meta": "meta", "cuda": "cpu"}
        monkeypatch.setattr(
            precompile, "tensor_like", lambda spec, device: tensor_like(spec, there[device])
        )

    def _wait(self) -> None:
        self.waits += 1


STRIDED = TensorSpec(4096, "fp16", (2, 3), (1, 2))
VECTOR = TensorSpec(0, "fp32", (4,), (1,))
CAPABILITY = [8, 9]


@pytest.fixture
def run_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, list[Any]], str]:
    """Runs one case of an entry `f(x, many, n, out)` per value of `n`; returns what the source
    wrote to the file `seen` beside it."""
    from types import ModuleType

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "submission", ModuleType("submission"))
    # PyTorch's compiler may be loaded already, and cannot be loaded twice; this stands in for it.
    monkeypatch.setattr(precompile, "TORCH_COMPILER", "tabnanny")
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)

    def seen(source: str, numbers: list[Any]) -> str:
        values = [[pack(STRIDED), pack([VECTOR, VECTOR]), pack(n), pack(VECTOR)] for n in numbers]
        job = {
            "entry": "f",
            "names": ["a", "b", "n", "out"],
            "roles": ["in", "in", "in", "out"],
            "cases": [{"values": each} for each in values],
            "capability": CAPABILITY,
        }
        (tmp_path / precompile.JOB).write_text(json.dumps(job))
        (tmp_path / precompile.SOURCE).write_text(source)
        one = precompile._loaded(tmp_path)
        for number in range(len(numbers)):
            one(number)
        return "".join(file.read_text() for file in tmp_path.glob("precompile*/seen"))

    return seen


def test_entries_are_called_on_fake_tensors(
    monkeypatch: pytest.MonkeyPatch, run_cases: Callable[[str, list[Any]], str]
) -> None:
    cuda = FakeCuda(monkeypatch)
    source = """
from pathlib import Path
import torch

def f(x, many, n, out):
    assert x.is_cuda and x.device == out.device == many[1].device
    assert x.data_ptr() % 16 == out.data_ptr() % 16 == 0
    more = torch.empty_like(x, dtype=torch.float32)
    assert type(more) is type(x) and more.is_cuda
    line = [tuple(x.shape), x.stride(), x.dtype, more.dtype, x.nbytes, len(many), n]
    with Path(__file__).with_name("seen").open("a") as file:
        print(*line, file=file)
"""
    line = "(2, 3) (1, 2) torch.float16 torch.float32 12 2"
    assert run_cases(source, [7, 8]).splitlines() == [f"{line} 7", f"{line} 8"]
    assert cuda.waits == 0
    assert cuda.targets == [CAPABILITY]


def test_an_entry_that_fails_on_fakes_is_called_on_zeros_and_its_errors_are_ignored(
    monkeypatch: pytest.MonkeyPatch, run_cases: Callable[[str, list[Any]], str]
) -> None:
    cuda = FakeCuda(monkeypatch)
    source = """
from pathlib import Path

def f(x, many, n, out):
    if n == 1:
        raise ValueError("not this one")
    line = [tuple(x.shape), x.stride(), str(x.dtype), float(x.abs().sum()), len(many), n]
    with Path(__file__).with_name("seen").open("a") as file:
        print(*line, file=file)
"""
    assert run_cases(source, [0, 1, 2]).splitlines() == [
        "(2, 3) (1, 2) torch.float16 0.0 2 0",
        "(2, 3) (1, 2) torch.float16 0.0 2 2",
    ]
    assert cuda.waits == 2
    assert cuda.targets == [CAPABILITY, "device"]


def test_fake_tensors_that_an_entry_keeps_are_gone_when_it_is_called_on_zeros(
    monkeypatch: pytest.MonkeyPatch, run_cases: Callable[[str, list[Any]], str]
) -> None:
    """The second case fails on fake tensors; from then on all are called on zeros."""
    cuda = FakeCuda(monkeypatch)
    source = """
from pathlib import Path
import torch

KEPT = {}

def f(x, many, n, out):
    kept = KEPT.setdefault(0, torch.empty_like(out))
    if n == 1:
        float(x.sum())
    out.copy_(kept)
    with Path(__file__).with_name("seen").open("a") as file:
        print(type(kept).__name__, n, file=file)
"""
    assert sorted(run_cases(source, [0, 1, 2]).splitlines()) == [
        "FakeCudaTensor 0",
        "Tensor 1",
        "Tensor 2",
    ]
    assert cuda.waits == 2


def test_pytorchs_compiler_is_not_loaded_for_fake_tensors(
    monkeypatch: pytest.MonkeyPatch, run_cases: Callable[[str, list[Any]], str]
) -> None:
    cuda = FakeCuda(monkeypatch)
    source = """
from pathlib import Path

def f(x, many, n, out):
    try:
        import tabnanny
    except ImportError:
        n = "not"
    with Path(__file__).with_name("seen").open("a") as file:
        print(type(x).__name__, n, "loaded", file=file)
    assert n != "not"
"""
    assert sorted(run_cases(source, [0]).splitlines()) == [
        "FakeCudaTensor not loaded",
        "Tensor 0 loaded",
    ]
    assert cuda.waits == 1


def test_an_entry_that_uses_pytorchs_compiler_is_called_on_zeros(
    monkeypatch: pytest.MonkeyPatch, run_cases: Callable[[str, list[Any]], str]
) -> None:
    cuda = FakeCuda(monkeypatch)
    source = """
from pathlib import Path
import tabnanny

def f(x, many, n, out):
    with Path(__file__).with_name("seen").open("a") as file:
        print(type(x).__name__, file=file)
"""
    assert run_cases(source, [0]) == "Tensor\n"
    assert cuda.targets[-1] == "device"


@pytest.fixture
def restore_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the changes to Triton after the test."""
    replaced = (
        (Autotuner, "do_bench"),
        (Autotuner, "check_disk_cache"),
        (triton.compiler, "compile"),
    )
    for owner, name in replaced:
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.usefixtures("restore_triton")
def test_kernels_are_compiled_and_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    asked: list[str] = []

    def run(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> str:
        ran.append((arguments, grid, warmup, options))
        return "kernel"

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(
        triton_launcher, "build_launchers_while_compiling", lambda: asked.append("launchers")
    )
    precompile._disable_launches()
    for _ in range(2):
        copy[(5,)](1, 2, BLOCK=64)
    assert ran == [((1, 2), (5,), True, {"BLOCK": 64})] * 2
    assert asked == ["launchers"]


@pytest.mark.usefixtures("restore_triton")
def test_of_several_that_need_a_kernel_one_compiles_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others wait, as processes do, and then find it in Triton's cache."""
    both, compiling, most = threading.Barrier(2), [], []

    def compile_kernel(source: Any, target: str, options: dict[str, int]) -> str:
        compiling.append(source.hash())
        most.append(compiling.count(source.hash()))
        with suppress(threading.BrokenBarrierError):
            both.wait(PATIENCE_S if source.hash() != "same" else 0.1)
        compiling.remove(source.hash())
        return f"{source.hash()} {target} {options}"

    def compiled(name: str) -> str:
        kernel = triton.compiler.compile
        return str(kernel(SimpleNamespace(hash=lambda: name), "sm_90", options={"num_warps": 4}))

    monkeypatch.setenv("GRADE_JIT", str(tmp_path))
    monkeypatch.setattr(triton.compiler, "compile", compile_kernel)
    precompile._compile_each_kernel_once()
    with ThreadPoolExecutor(2) as executor:
        for names in (["one", "another"], ["same", "same"]):
            made = list(executor.map(compiled, names))
            assert made == [f"{name} sm_90 {{'num_warps': 4}}" for name in names]
    assert most == [1, 1, 1, 1]
    assert both.broken, "the same kernel was never compiled twice at a time"


@pytest.mark.usefixtures("restore_triton")
def test_an_autotuner_compiles_all_configurations_and_caches_no_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A choice cached without timings would be used by the runner."""
    blocks = []

    def run(function: Any, *arguments: Any, BLOCK: int, **options: Any) -> None:
        blocks.append(BLOCK)

    def keep(*_: Any) -> Any:
        raise AssertionError("the cache was read")

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(Autotuner, "check_disk_cache", keep)
    precompile._disable_launches()
    configurations = [triton.Config({"BLOCK": size}) for size in (16, 32, 64)]
    tuned = triton.autotune(configurations, key=["n"], cache_results=True)(copy)
    tuned[(1,)](1, 2)
    assert sorted(set(blocks)) == [16, 32, 64]
    assert len(blocks) == 4, "and the chosen one again"


CALLS: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "whole": lambda x: (x, x.numel()),
    "aligned part": lambda x: (x[1:], 1),
    "other part": lambda x: (x.view(-1)[3:], 7),
    "another type": lambda x: (x.to(torch.bfloat16), x.stride(0)),
    "one more": lambda x: (torch.empty_like(x), 1 << 40),
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_fake_and_real_tensors_give_the_same_cache_key(
    monkeypatch: pytest.MonkeyPatch, arguments: Callable[[torch.Tensor], tuple[Any, ...]]
) -> None:
    """The key consists of types, alignment and values."""
    keys: list[Any] = []
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 requires it
    monkeypatch.setattr(driver, "_active", warmup.NoDevice())
    monkeypatch.setattr(JITFunction, "_do_compile", lambda _, key, *__: keys.append(key))
    for x in (FakeCudaTensor(torch.empty(6, 8, device="meta")), torch.zeros(6, 8)):
        copy.device_caches.clear()
        with FakeCudaMode() if isinstance(x, FakeCudaTensor) else nullcontext():
            copy.run(*arguments(x), BLOCK=64, grid=(1,), warmup=True)
    fake, real = keys
    assert fake == real


@pytest.mark.cuda
@pytest.mark.parametrize("reads", [False, True], ids=["without a context", "on zeros"])
def test_precompiled_kernels_are_in_tritons_cache(tmp_path: Path, reads: bool) -> None:
    """In a new process, since this one may have a context and must not fork."""
    source = (
        f"""
READS = {reads}
"""
        + """
from pathlib import Path
import torch, triton, triton.language as tl
from cuda.bindings import driver

@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def f(x, out):
    more = torch.zeros(128, device="cuda")[16:]
    if READS:
        float(x.sum())
    copy[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    copy[(1,)](more, out.view(-1), 100, BLOCK=128)
    torch.tensor([[x.data_ptr()]]).to(x.device)
    driver.cuInit(0)
    _, _, has_context = driver.cuDevicePrimaryCtxGetState(0)
    Path(__file__).with_name("context").write_text(str(has_context))
"""
    )
    program = f"""
import json
import torch
from pathlib import Path
from grader.arena import TensorSpec, pack, tensor_like
from grader.runner.precompile import Precompiler
precompiler = Precompiler.start()
vector = pack(TensorSpec(0, "fp32", (1000,), (1,)))
cases = [{{"values": [vector, vector]}}]
job = {{"entry": "f", "names": ["x", "out"], "roles": ["in", "out"], "cases": cases}}
job["capability"] = torch.cuda.get_device_capability()
precompiler.begin({source.encode()!r}, Path({str(tmp_path)!r}), job)
precompiler.wait(120)
"""
    cache = tmp_path / "cache"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(cache), "GRADE_JIT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert list(cache.glob("*/copy.cubin"))
    # If the entry reads values, its first attempt stops there.
    (context,) = tmp_path.glob("precompile*/context")
    assert context.read_text() == str(int(reads))
