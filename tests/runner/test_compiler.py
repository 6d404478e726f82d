"""The compiler process with a fake nvcc, and the transfer of the library."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from grader.arena import TensorSpec, pack
from grader.runner import compiler
from grader.runner import nvcc as nvcc_module
from grader.runner.__main__ import COMPILER_NICENESS
from grader.wire import Reply, Status, fixed_size_memfd, receive_reply, sealed_memfd, send_request
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
ROOM = 4096
SOURCE = b"__global__ void nothing() {}\n"
Nvcc = Callable[[str], None]


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvcc:
    """Replaces nvcc with a shell script; `$out` is its output file."""
    monkeypatch.setenv("GRADE_JIT", str(tmp_path / "jit"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for folder in ("jit", "bin"):
        (tmp_path / folder).mkdir()

    def write(script: str) -> None:
        program = tmp_path / "bin" / "nvcc"
        program.write_text(f"#!/bin/sh\nout={tmp_path}/jit/submission.so\n{script}\n")
        program.chmod(0o755)

    return write


@pytest.fixture
def memory() -> Iterator[int]:
    fd = fixed_size_memfd("library", ROOM)
    yield fd
    os.close(fd)


@pytest.fixture
def ask() -> Iterator[Callable[..., Reply]]:
    """Sends a request to a server in a thread."""
    judge, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=compiler.serve, args=(far,), daemon=True)
    thread.start()

    def asked(kind: str, fds: tuple[int, ...] = (), **request: object) -> Reply:
        send_request(judge, {"kind": kind, "sequence": 7, **request}, fds)
        reply = receive_reply(judge, PATIENCE_S)
        assert reply.sequence == 7
        return reply

    yield asked
    judge.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it serves on although the judge has hung up"
    far.close()


def compiled(ask: Callable[..., Reply], memory: int) -> Reply:
    source = sealed_memfd("source", SOURCE)
    try:
        request = {"source_bytes": len(SOURCE), "nvcc_target": "90a", "prototypes": {}}
        return ask("compile", (source, memory), **request)
    finally:
        os.close(source)


def test_hello_reports_the_version(ask: Callable[..., Reply], nvcc: Nvcc) -> None:
    assert ask("hello").text == "none"
    nvcc("echo Cuda compilation tools, release 13.0, V13.0.88")
    assert ask("hello").text == "13.0"


def test_the_library_goes_through_lent_memory(
    ask: Callable[..., Reply], nvcc: Nvcc, memory: int, tmp_path: Path
) -> None:
    nvcc('echo "$@" >$out; cat $(dirname $out)/submission.cu >>$out')
    reply = compiled(ask, memory)
    assert reply == Reply(7, Status.OK, calls=reply.calls)
    library = os.pread(memory, reply.calls, 0)
    assert os.pread(memory, ROOM, reply.calls).strip(b"\0") == b""
    assert b"--shared" in library
    assert b"sm_90a" in library
    assert library.endswith(SOURCE)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo $out: note; echo submission.cu: error: no x; exit 1", "nvcc: submission.cu: error"),
        ("exit 4", "nvcc: nvcc ended with status 4"),
        (f"head -c {ROOM + 1} /dev/zero >$out", "has 4,097 bytes; no more than 4,096 are taken"),
    ],
)
def test_a_source_that_does_not_compile(
    ask: Callable[..., Reply], nvcc: Nvcc, memory: int, script: str, words: str
) -> None:
    nvcc(script)
    reply = compiled(ask, memory)
    assert reply.status is Status.COMPILE_ERROR
    assert words in reply.text
    assert (reply.calls, os.pread(memory, ROOM, 0)) == (0, bytes(ROOM))


def test_the_compilers_output_is_printed(
    ask: Callable[..., Reply], nvcc: Nvcc, memory: int, capfd: pytest.CaptureFixture[str]
) -> None:
    nvcc("echo a warning; echo an error; exit 1")
    compiled(ask, memory)
    assert capfd.readouterr().err == "a warning\nan error\n"
    nvcc("yes error | head -c 200000; exit 1")
    compiled(ask, memory)
    assert len(capfd.readouterr().err) == nvcc_module.OUTPUT_BYTES


def test_other_errors_are_reported(ask: Callable[..., Reply], nvcc: Nvcc, memory: int) -> None:
    assert compiled(ask, memory).text.startswith("FileNotFoundError")
    nvcc("exit 0")
    assert compiled(ask, memory).status is Status.RUNTIME_ERROR
    assert ask("no such thing").status is Status.RUNTIME_ERROR
    assert ask("compile").status is Status.RUNTIME_ERROR


def test_it_gives_way_to_what_runs_beside_it(
    triton_compiler: Callable[[str], dict[str, bytes]],
) -> None:
    kept = triton_compiler(
        "import os, pathlib\n"
        'pathlib.Path(os.environ["TRITON_CACHE_DIR"], "niceness").write_text(str(os.nice(0)))'
    )
    assert int(kept["niceness"]) == min(os.nice(0) + COMPILER_NICENESS, 19)


def test_a_library_may_fill_its_memory(ask: Callable[..., Reply], nvcc: Nvcc, memory: int) -> None:
    nvcc(f"head -c {ROOM} /dev/zero | tr '\\0' x >$out")
    assert compiled(ask, memory).calls == ROOM
    assert os.pread(memory, ROOM, 0) == b"x" * ROOM


def test_it_imports_no_torch() -> None:
    code = (
        "import sys, grader.runner.__main__, grader.runner.compiler; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


TRITON = """
import triton
import triton.language as tl

@triton.jit
def _double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def double(x, out):
    _double[(1,)](x, out, x.numel(), BLOCK=256)
"""


@pytest.fixture
def triton_compiler(tmp_path: Path) -> Iterator[Callable[[str], dict[str, bytes]]]:
    """A runner without a device, in a process of its own; what it hands over for a source with the
    entry `double(x, out)`, by name."""
    started = []

    def compiled(source: str, limit_s: float = PATIENCE_S) -> dict[str, bytes]:
        judge, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = ["-m", "grader.runner", "--fd", str(far.fileno()), "--device", "none"]
        (tmp_path / "jit" / "triton").mkdir(parents=True)
        started.append(
            subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                pass_fds=[far.fileno()],
                env=os.environ
                | {
                    "GRADE_JIT": str(tmp_path / "jit"),
                    "TRITON_CACHE_DIR": str(tmp_path / "jit" / "triton"),
                    "TRITON_HOME": str(tmp_path / "jit"),
                },
            )
        )
        far.close()
        vectors = [TensorSpec(0, "fp32", (n,), (1,)) for n in (256, 255)]
        cases = json.dumps([{"values": [pack(v), pack(v)]} for v in vectors]).encode()
        fds = (
            sealed_memfd("source", source.encode()),
            sealed_memfd("cases", cases),
            fixed_size_memfd("kernels", 1 << 24),
        )
        request = {
            "kind": "compile_triton",
            "sequence": 7,
            "language": "python",
            "source_bytes": len(source.encode()),
            "cases_bytes": len(cases),
            "entry": "double",
            "names": ["x", "out"],
            "roles": ["in", "out"],
            "capability": [9, 0],
            "limit_s": limit_s,
        }
        try:
            send_request(judge, request, fds)
            reply = receive_reply(judge, 2 * PATIENCE_S)
            assert reply.status is Status.OK, reply.text
            packed = os.pread(fds[2], reply.calls, 0)
        finally:
            judge.close()
            for fd in fds:
                os.close(fd)
        with ZipFile(io.BytesIO(packed)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    yield compiled
    for process in started:
        process.kill()
        process.wait()


def test_triton_kernels_are_compiled_without_a_device(
    triton_compiler: Callable[[str], dict[str, bytes]],
) -> None:
    """One for a length that 16 divides, and one for others."""
    kept = triton_compiler(TRITON)
    assert len([name for name in kept if name.endswith("/_double.cubin")]) == 2


def test_a_file_that_never_returns_hands_over_what_is_there(
    triton_compiler: Callable[[str, float], dict[str, bytes]],
) -> None:
    waits = """
import os, time
from pathlib import Path
Path(os.environ["TRITON_CACHE_DIR"], "evil").symlink_to("/etc/passwd")
time.sleep(1000)
"""
    kept = triton_compiler(waits, 2.0)
    assert kept["evil"] == Path("/etc/passwd").read_bytes()
