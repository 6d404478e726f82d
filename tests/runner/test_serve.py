"""The runner's side of the wire: one reply per request, whatever the submission does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from grader.arena import TensorSpec, arrange, view
from grader.arena.host_arena import HostArena
from grader.runner import triton_key, triton_launcher, warmup
from grader.runner.load_submission import read_lent
from grader.runner.precompile import Precompiler
from grader.runner.serve import Server, _failure, serve
from grader.wire import (
    TEXT_BYTES,
    Flag,
    Reply,
    Status,
    fixed_size_memfd,
    receive_reply,
    sealed_memfd,
    send_request,
)
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
VECTOR = TensorSpec(0, "fp32", (5,), (1,))
ROLES = ["in", "in", "out"]
ADD = "def add(x, n, out):\n    out.copy_(x + n)\n"


class Judge:
    """The other end of the wire of a server that runs in a thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sock, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.thread = threading.Thread(target=serve, args=(self.far, server), daemon=True)
        self.thread.start()
        self.sequence = 0

    def ask(self, kind: str, fds: tuple[int, ...] = (), **request: Any) -> Reply:
        self.sequence += 1
        send_request(self.sock, {"kind": kind, "sequence": self.sequence, **request}, fds)
        reply = receive_reply(self.sock, PATIENCE_S)
        assert reply.sequence == self.sequence
        return reply

    def load(self, source: str | bytes, **changes: Any) -> Reply:
        content = source.encode() if isinstance(source, str) else source
        fd = sealed_memfd("source", content)
        request: dict[str, Any] = {
            "language": "python",
            "source_bytes": len(content),
            "entry": "add",
            "names": ["x", "n", "out"],
            "roles": ROLES,
        }
        try:
            return self.ask("load", (fd,), **request | changes)
        finally:
            os.close(fd)

    def lend(
        self, count: int = 2, reuse: HostArena | None = None
    ) -> tuple[HostArena, list[list[Any]]]:
        """Lend sets for `add`, in a new block or in `reuse`; the block and the judge's tensors."""
        one: list[tuple[bool, Any]] = [(False, VECTOR), (False, 10), (True, VECTOR)]
        layout = arrange([one] * count)
        arena = reuse or HostArena.create(layout.nbytes)
        text = layout.to_json()
        fd = sealed_memfd("layout", text)
        request: dict[str, Any] = {
            "layout_bytes": len(text),
            "arena_bytes": arena.nbytes,
            "shape": None,
        }
        request |= {"dims": [], "symbol": ""}
        reply = self.ask("lend", (fd,) if reuse else (fd, arena.fd), **request)
        os.close(fd)
        assert reply.status is Status.OK, reply.text
        sets: list[list[Any]] = [
            [view(arena.buffer, v) if isinstance(v, TensorSpec) else v for v in values]
            for values in layout.sets
        ]
        for i, values in enumerate(sets):
            values[0].fill_(i)
        return arena, sets

    def close(self) -> None:
        self.sock.close()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the server runs on after the judge has hung up"
        self.far.close()


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    monkeypatch.setenv("GRADE_JIT", str(tmp_path))
    # Undo what a load changes in this process.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "submission", ModuleType("submission"))
    judge = Judge(Server("cpu"))
    yield judge
    judge.close()


def test_hello_reports_versions(judge: Judge) -> None:
    reply = judge.ask("hello", device="cpu", triton=False)
    assert reply.status is Status.OK
    assert f"torch={torch.__version__}" in reply.text
    assert "python=" in reply.text


@pytest.mark.parametrize("triton", [False, True])
def test_without_triton_the_precompiler_is_ended(triton: bool) -> None:
    """Its processes would take device memory, and time, until the load."""
    ended: list[bool] = []
    server = Server("cpu")
    precompiler: Any = SimpleNamespace(end=lambda: ended.append(True))
    server.precompiler = precompiler
    server.hello({"triton": triton}, [])
    assert ended == ([] if triton else [True])


class RecordingServer(Server):
    """A GPU server that only records its preparation."""

    def __init__(self) -> None:
        super().__init__("cuda")
        self.done: list[str] = []
        self.warm = threading.Event()

    def init_device(self, triton: bool) -> None:
        self.has_device = True
        self.done.append("all" if triton else "context")

        self._note_warm()

    def load_compiler(self) -> None:
        self.has_compiler = True
        self.done.append("compiler")
        self._note_warm()

    def _note_warm(self) -> None:
        if self.is_warm:
            self.warm.set()


@pytest.mark.parametrize(("triton", "done"), [(False, ["context"]), (True, ["all", "compiler"])])
def test_an_early_hello_prepares_only_what_the_submission_needs(
    triton: bool, done: list[str]
) -> None:
    server = RecordingServer()
    judge, runner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send_request(judge, {"kind": "hello", "sequence": 1, "triton": triton})
    thread = threading.Thread(target=serve, args=(runner, server), daemon=True)
    thread.start()
    with judge, runner:
        assert receive_reply(judge, PATIENCE_S).status is Status.OK
        if triton:
            assert server.warm.wait(PATIENCE_S)
        judge.close()
        thread.join(PATIENCE_S)
    assert server.done == done


def test_before_hello_the_compiler_is_loaded_and_the_device_opened_when_told() -> None:
    judge = Judge(server := RecordingServer())
    assert server.warm.wait(PATIENCE_S)
    assert server.done == ["compiler"]
    server.warm.clear()
    send_request(judge.sock, {"kind": "open_device"})  # has no reply
    assert server.warm.wait(PATIENCE_S)
    assert judge.ask("hello", triton=False).status is Status.OK
    judge.close()
    assert server.done == ["compiler", "all"]  # the precompiler inherits the compiler


@pytest.mark.parametrize("has_device", [False, True])
def test_what_needs_no_device_is_prepared_before_there_is_one(
    monkeypatch: pytest.MonkeyPatch, has_device: bool
) -> None:
    """The precompiler's processes have the compiler, and could do nothing after a context."""
    done: list[str] = []
    for module, name in (
        (triton_key, "install"),
        (triton_launcher, "install"),
        (warmup, "compile_without_device"),
        (warmup, "compile_warmup_kernel"),
        (warmup, "build_helper"),
        (Precompiler, "start"),
    ):
        monkeypatch.setattr(module, name, lambda name=name: done.append(name))
    server = Server("cuda")
    server.has_device = has_device
    server.load_compiler()
    assert server.has_compiler
    alone = ["compile_without_device", "build_helper", "start"]
    assert done == ["install", "install", *(["compile_warmup_kernel"] if has_device else alone)]


def test_only_rounds_are_awaited_without_sleeping(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between tests it would take a processor from the compiler."""
    server = judge.server
    judge.load(ADD)
    arena, _ = judge.lend()
    monkeypatch.setattr(server, "device", "cuda")
    assert not server.busy_wait
    server.ready({"order": [0], "graph": False}, [])
    assert server.busy_wait
    monkeypatch.setattr(server, "device", "cpu")
    judge.lend(reuse=arena)
    assert not server.busy_wait
    arena.close()


def test_load_lend_call(judge: Judge) -> None:
    assert judge.load(ADD).status is Status.OK
    arena, sets = judge.lend()
    reply = judge.ask("call", set=1, scalars={"1": 40})
    assert (reply.status, reply.calls) == (Status.OK, 1)
    assert sets[1][2].tolist() == [41.0] * 5
    assert sets[0][2].tolist() == [0.0] * 5
    arena.close()


def test_a_round_calls_its_sets_and_reports_a_time(judge: Judge) -> None:
    judge.load("import time\n" + ADD + "    time.sleep(0.01)\n")
    arena, sets = judge.lend(count=3)
    assert judge.ask("ready", order=[2, 0], graph=False).calls == 2
    assert judge.ask("ping").status is Status.OK
    assert sets[0][2].tolist() == [0.0] * 5  # nothing runs before "go"
    reply = judge.ask("go")
    assert reply.status is Status.OK
    assert 20e6 <= reply.reported_ns < 2e9
    assert [values[2][0].item() for values in sets] == [10.0, 0.0, 12.0]
    arena.close()


def test_a_new_block_replaces_the_old(judge: Judge) -> None:
    judge.load(ADD)
    first, old = judge.lend()
    second, new = judge.lend()
    judge.ask("call", set=0, scalars={})
    assert new[0][2].tolist() == [10.0] * 5
    assert old[0][2].tolist() == [0.0] * 5
    first.close()
    second.close()


def test_a_new_layout_may_reuse_the_block(judge: Judge) -> None:
    judge.load(ADD)
    reuse, many = judge.lend(count=3)
    _, one = judge.lend(count=1, reuse=reuse)
    assert one[0][0].data_ptr() == many[0][0].data_ptr()
    judge.ask("call", set=0, scalars={})
    assert one[0][2].tolist() == [10.0] * 5
    assert (
        judge.ask("call", set=1, scalars={}).status is Status.RUNTIME_ERROR
    )  # there is only one set
    reuse.close()


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b"\x7fELF"])
def test_a_bad_library_is_a_compile_error(judge: Judge, content: bytes) -> None:
    source, library = sealed_memfd("source", b"x"), sealed_memfd("library", content)
    request = {"language": "cuda", "source_bytes": 1, "prototypes": {}, "arguments": []}
    request["library_bytes"] = len(content)
    reply = judge.ask("load", (source, library), **request)
    os.close(source)
    os.close(library)
    assert reply.status is Status.COMPILE_ERROR
    assert "the compiled file does not load" in reply.text


def test_outputs_may_be_returned(judge: Judge) -> None:
    reply = judge.load("def add(x, n):\n    return x + n\n")
    assert reply.flags & Flag.RETURNS
    arena, sets = judge.lend()
    judge.ask("call", set=1, scalars={})
    assert sets[1][2].tolist() == [11.0] * 5
    arena.close()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("x.double()", "of shape (5,) and torch.float64 for 'out', which has shape (5,) and"),
        ("x[:2]", "of shape (2,) and torch.float32 for 'out', which has shape (5,)"),
        ("3", "returned a int"),
        ("(x, x)", "returned 2 values"),
        ("None", "returned None: without the parameter 'out', it must return that"),
    ],
)
def test_returned_outputs_must_match(judge: Judge, returned: str, words: str) -> None:
    judge.load(f"def add(x, n):\n    return {returned}\n")
    arena, _ = judge.lend()
    reply = judge.ask("call", set=0, scalars={})
    assert reply.status is Status.RUNTIME_ERROR
    assert words in reply.text
    arena.close()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def add(", "(line 1)"),
        ("x = 1", "no function named 'add'"),
        ("add = 3", "not a function but a int"),
        ("class add: pass", "class"),
        ("async def add(x, n, out): pass", "async"),
        ("def add(x, n, out): yield", "generator"),
        ("def add(x): pass", "'add(x)' does not take the 3 arguments"),
        ("def add(x): pass", "expected add(x, n, out), or add(x, n) that returns its outputs"),
        ("raise SystemExit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import no_such_package", "no_such_package"),
        (b"\xff\xfe\x00", ""),
    ],
)
def test_a_source_that_cannot_be_loaded(judge: Judge, source: str | bytes, words: str) -> None:
    reply = judge.load(source)
    assert reply.status is Status.COMPILE_ERROR
    assert words in reply.text
    assert "\n" not in reply.text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("1 / 0", Status.RUNTIME_ERROR, "ZeroDivisionError: division by zero (line 3 of the"),
        ("exit(0)", Status.RUNTIME_ERROR, "SystemExit"),
        ("raise KeyboardInterrupt", Status.RUNTIME_ERROR, "KeyboardInterrupt"),
        ("raise GeneratorExit", Status.RUNTIME_ERROR, "GeneratorExit"),
        ("raise MemoryError('no more')", Status.OUT_OF_MEMORY, "no more"),
        ("raise ValueError('é' * 9000)", Status.RUNTIME_ERROR, "ValueError: é"),
        ("raise ValueError('\\udc80')", Status.RUNTIME_ERROR, "ValueError: ?"),
    ],
)
def test_a_failed_call_is_reported_and_the_next_one_runs(
    judge: Judge, body: str, status: Status, words: str
) -> None:
    judge.load("def add(x, n, out):\n    if n < 0:\n        " + body + "\n    out.fill_(n)\n")
    arena, sets = judge.lend()
    reply = judge.ask("call", set=0, scalars={"1": -1})
    assert reply.status is status
    assert words in reply.text
    assert len(reply.text.encode()) <= TEXT_BYTES + 2  # a character that is cut is replaced
    assert judge.ask("call", set=0, scalars={"1": 7}).status is Status.OK
    assert sets[0][2].tolist() == [7.0] * 5
    arena.close()


def test_a_syntax_error_is_printed_with_its_line(
    judge: Judge, capfd: pytest.CaptureFixture[str]
) -> None:
    judge.load("import torch\n\ndef add(x, n, out):\n    out.copy_(x + n\n")
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].strip() == 'File "submission.py", line 4'
    assert [line.strip() for line in lines[1:]] == [
        "out.copy_(x + n",
        "^",
        "SyntaxError: '(' was never closed",
    ]


def test_a_failed_import_prints_only_the_submissions_frames(
    judge: Judge, capfd: pytest.CaptureFixture[str]
) -> None:
    judge.load("import json\njson.loads('{')\n")
    shown = capfd.readouterr().err
    assert 'submission.py", line 1' not in shown
    assert shown.splitlines()[0].strip().endswith('submission.py", line 2, in <module>')
    assert "json.loads('{')\n" in shown
    assert "decoder.py" not in shown
    assert "serve.py" not in shown
    assert "load.py" not in shown
    assert shown.splitlines()[-1].startswith("JSONDecodeError: Expecting")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return (x + n).double()", "the returned (5,) torch.float64"),
        ("return x[:2], x.half()", "the returned (2,) torch.float32, (5,) torch.float16"),
        ("out.copy_(x + n); return out", None),
        ("out.copy_(x + n); return 17", None),
    ],
)
def test_an_ignored_return_value_is_warned_about_once(
    judge: Judge, capfd: pytest.CaptureFixture[str], body: str, expected: str | None
) -> None:
    judge.load(f"def add(x, n, out):\n    {body}\n")
    arena, _ = judge.lend()
    for _ in range(2):
        assert judge.ask("call", set=0, scalars={}).status is Status.OK
    arena.close()
    why = "ignored, since 'add' takes all 3 arguments and must write its outputs into them: "
    assert capfd.readouterr().err == (f"{why}{expected}\n" if expected else "")


@pytest.mark.parametrize(
    ("takes", "is_warned"),
    [
        ("x, n, out", False),
        ("out, x, n", True),
        ("n, x", True),
        ("x, n", False),
        ("a, b, c", False),
        ("x, n, more=3", False),
    ],
)
def test_parameters_in_another_order_are_warned_about(
    judge: Judge, capfd: pytest.CaptureFixture[str], takes: str, is_warned: bool
) -> None:
    """They may be right: the call goes by position."""
    assert judge.load(f"def add({takes}): pass\n").status is Status.OK
    order = "(x, n, out)" if "out" in takes else "(x, n)"
    assert capfd.readouterr().err == (
        f"'add({takes})' is called with the problem's arguments in their order, {order}, "
        "whatever its parameters are named\n"
        if is_warned
        else ""
    )


def test_a_similar_function_name_is_suggested(judge: Judge) -> None:
    reply = judge.load("from os import abc\ndef addd(x, n, out):\n    pass\n")
    assert reply.text == "no function named 'add' in the file; did you mean 'addd'?"
    assert judge.load("x = 1\n").text == "no function named 'add' in the file"


def test_a_failed_call_prints_only_the_submissions_frames(
    judge: Judge, capfd: pytest.CaptureFixture[str]
) -> None:
    judge.load("def add(x, n, out):\n    helper(n)\n\ndef helper(n):\n    n.nothing\n")
    arena, _ = judge.lend()
    judge.ask("call", set=0, scalars={})
    arena.close()
    lines = [line for line in capfd.readouterr().err.splitlines() if set(line.strip()) - {*"^~"}]
    assert [line.strip().split('submission.py", ')[-1] for line in lines] == [
        "line 2, in add",
        "helper(n)",
        "line 5, in helper",
        "n.nothing",
        "AttributeError: 'int' object has no attribute 'nothing'",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "    def __str__(self): raise SystemExit",
        "    __cause__ = property(lambda self: 1 / 0)",
        "    __traceback__ = property(lambda self: 1 / 0)",
        "    __notes__ = property(lambda self: 1 / 0)",
    ],
)
def test_an_error_that_cannot_be_formatted_still_gets_a_reply(judge: Judge, body: str) -> None:
    judge.load(f"class Odd(Exception):\n{body}\n\ndef add(x, n, out):\n    raise Odd\n")
    arena, _ = judge.lend()
    assert judge.ask("call", set=0, scalars={}).status is Status.RUNTIME_ERROR
    assert judge.ask("ping").status is Status.OK
    arena.close()
    at_import = judge.load(f"class Odd(Exception):\n{body}\n\nraise Odd\n")
    assert at_import.status in (Status.COMPILE_ERROR, Status.RUNTIME_ERROR)
    assert judge.ask("ping").status is Status.OK


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("no_such_thing", {}),
        ("call", {"set": 0, "scalars": {}}),  # nothing loaded
        ("call", {}),
        ("load", {}),
        ("lend", {"layout_bytes": 10}),
        ("go", {}),  # no round is prepared
    ],
)
def test_an_invalid_request_gets_a_reply(judge: Judge, kind: str, request_: dict[str, Any]) -> None:
    assert judge.ask(kind, **request_).status is Status.RUNTIME_ERROR
    assert judge.ask("ping").status is Status.OK


def test_descriptors_are_closed_after_every_request(judge: Judge) -> None:
    judge.load(ADD)
    arena, _ = judge.lend()
    before = len(os.listdir("/proc/self/fd"))
    for kind in ("ping", "no_such_thing", "load", "lend"):
        fds = tuple(os.memfd_create("stray") for _ in range(3))
        judge.ask(kind, fds)
        for fd in fds:
            os.close(fd)
    assert len(os.listdir("/proc/self/fd")) <= before
    arena.close()


def test_a_lent_file_that_is_too_short_raises() -> None:
    fd = sealed_memfd("source", b"short")
    with pytest.raises(OSError, match="shorter than announced"):
        read_lent(fd, 10)
    assert read_lent(fd, 5) == b"short"
    assert read_lent(fd, 2, 3) == b"rt"
    os.close(fd)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), Status.OUT_OF_MEMORY),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("shapes differ"), Status.RUNTIME_ERROR),
        (OSError(28, "No space left on device"), Status.RUNTIME_ERROR),
    ],
)
def test_out_of_memory_is_distinguished_from_other_errors(
    error: BaseException, status: Status
) -> None:
    assert _failure(3, error).status is status


def test_garbage_collection_is_on_again_after_a_failed_round(judge: Judge) -> None:
    import gc

    judge.load("def add(x, n, out):\n    raise ValueError\n")
    arena, _ = judge.lend()
    judge.ask("ready", order=[0], graph=False)
    assert judge.ask("go").status is Status.RUNTIME_ERROR
    judge.ask("ping")  # the previous request is then finished
    assert gc.isenabled()
    arena.close()


# --- the process


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-s", "-m", "grader.runner", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize(
    "arguments", [[], ["--fd"], ["--fd", "0", "--device", "tpu"], ["--listen", "x"]]
)
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        runner = start(*arguments, stdin=theirs)
        _, shown = runner.communicate(timeout=PATIENCE_S)
    assert runner.returncode == 2
    assert shown.splitlines()[-1].startswith("usage: ")


Wire = Callable[..., tuple[socket.socket, subprocess.Popen[str]]]


@pytest.fixture
def wire() -> Iterator[Wire]:
    """Starts a runner process; returns the judge's end of its wire, and the process."""
    started: list[tuple[socket.socket, subprocess.Popen[str]]] = []

    def begin(device: str = "cpu") -> tuple[socket.socket, subprocess.Popen[str]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        runner = start("--fd", str(fd), "--device", device, pass_fds=[fd])
        theirs.close()
        started.append((ours, runner))
        return ours, runner

    yield begin
    for sock, runner in started:
        sock.close()
        runner.kill()
        runner.communicate(timeout=PATIENCE_S)


def child_of(runner: subprocess.Popen[str]) -> int:
    """The process that serves; its parent only reaps."""
    path = Path(f"/proc/{runner.pid}/task/{runner.pid}/children")
    while not (found := path.read_text().split()):
        assert runner.poll() is None
    return int(found[0])


def test_it_exits_with_0_when_the_judge_hangs_up(wire: Wire) -> None:
    sock, runner = wire()
    send_request(sock, {"kind": "ping", "sequence": 4})
    assert receive_reply(sock, PATIENCE_S).status is Status.OK
    sock.close()
    assert runner.wait(PATIENCE_S) == 0


def test_without_a_device_it_only_compiles(wire: Wire) -> None:
    sock, runner = wire("none")
    send_request(sock, {"kind": "ping", "sequence": 4})
    assert receive_reply(sock, PATIENCE_S).status is Status.RUNTIME_ERROR
    send_request(sock, {"kind": "hello", "sequence": 5})
    assert receive_reply(sock, PATIENCE_S).text
    assert "torch" not in Path(f"/proc/{child_of(runner)}/maps").read_text()
    sock.close()
    assert runner.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_it_dies_of_its_childs_signal(wire: Wire, number: signal.Signals) -> None:
    _, runner = wire()
    os.kill(child_of(runner), number)
    assert runner.wait(PATIENCE_S) == -number


def test_it_ends_with_its_lifeline_whatever_its_child_does(tmp_path: Path) -> None:
    """As PID 1 of a container it takes the child with it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "judge.sock"))
        listener.listen(2)
        runner = start("--connect", str(tmp_path / "judge.sock"))
        sock, lifeline = (listener.accept()[0] for _ in range(2))
    with sock, lifeline:
        send_request(sock, {"kind": "ping", "sequence": 4})
        assert receive_reply(sock, PATIENCE_S).status is Status.OK
        child = child_of(runner)
        os.kill(child, signal.SIGSTOP)
        try:
            lifeline.close()
            assert runner.wait(PATIENCE_S) == 128 + signal.SIGKILL
        finally:
            os.kill(child, signal.SIGKILL)
            runner.communicate(timeout=PATIENCE_S)


def test_the_next_runner_gets_what_triton_compiled(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the wire: one runner hands it over, and the next has it before the file is loaded."""
    cache = tmp_path / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    (cache / "key").mkdir(parents=True)
    (cache / "key" / "kernel.cubin").write_bytes(b"code")
    fd = fixed_size_memfd("kernels", 1 << 20)
    reply = judge.ask("keep_kernels", (fd,))
    content = os.pread(fd, reply.calls, 0)
    os.close(fd)
    assert content
    shutil.rmtree(cache)
    check = "from pathlib import Path\n"
    check += f"assert Path({str(cache / 'key/kernel.cubin')!r}).read_bytes() == b'code'\n"
    source = (ADD + check).encode()
    fds = sealed_memfd("source", source), sealed_memfd("kernels", content)
    request: dict[str, Any] = {
        "language": "python",
        "source_bytes": len(source),
        "kernels_bytes": len(content),
        "entry": "add",
        "names": ["x", "n", "out"],
        "roles": ROLES,
    }
    loaded = judge.ask("load", fds, **request)
    assert loaded.status is Status.OK, loaded.text
    # The runner that tests it gets the shapes of its cases too, to compile what is missing.
    shutil.rmtree(cache)
    cases = b'[{"values": []}]'
    more = (*fds, sealed_memfd("cases", cases))
    begun = begin_precompiling(judge, monkeypatch)
    assert judge.ask("load", more, **request, cases_bytes=len(cases)).status is Status.OK
    for lent in more:
        os.close(lent)
    assert begun == [[{"values": []}]]


def begin_precompiling(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has the runner a precompiler; the cases of each request that it is given."""
    begun: list[object] = []

    def begin(source: bytes, folder: Path, request: dict[str, Any]) -> None:
        begun.append(request["cases"])

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    judge.server.precompiler = SimpleNamespace(begin=begin)  # type: ignore[assignment]
    return begun
