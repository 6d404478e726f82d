"""Compile a `.cu` file with nvcc, in a sandbox that can do nothing else, and hand over the library.

Nothing in here imports torch: it starts in a tenth of a second, and needs no device. The library
goes through memory that the judge lends to this sandbox, and then to the runner's: its length, and
its bytes. What the compiler wrote there is as much the submission's as its source is.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from grader.runner.load import LoadError, read_lent
from grader.wire import Reply, Status, WireClosed, receive_request, send_reply

OUTPUT_BYTES = 64 * 1024
"""So much of what nvcc prints is shown."""
_LENGTH_BYTES = 8
_FLAGS = (
    "-std=c++17",
    "-Xcompiler=-fPIC,-O1",  # of host code, which only launches; device code is always optimised
    "--split-compile=0",  # on as many threads as there are processors
)


def serve(sock: socket.socket) -> None:
    """Answer requests until the judge hangs up."""
    handlers: dict[str, Any] = {"hello": _hello, "compile": _compile}
    while True:
        try:
            request, fds = receive_request(sock)
        except WireClosed:
            return
        sequence = request["sequence"]
        try:
            reply = Reply(sequence, Status.OK, text=handlers[request["kind"]](request, fds))
        except LoadError as error:
            reply = Reply(sequence, Status.COMPILE_ERROR, text=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it was, the judge is told
            status = (
                Status.OUT_OF_MEMORY if isinstance(error, MemoryError) else Status.RUNTIME_ERROR
            )
            reply = Reply(sequence, status, text=f"{type(error).__name__}: {error}")
        finally:
            for fd in fds:
                os.close(fd)
        sys.stderr.flush()
        send_reply(sock, reply)


def _hello(request: dict[str, Any], fds: list[int]) -> str:
    """The version of nvcc, or `none`."""
    if shutil.which("nvcc") is None:
        return "none"
    done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
    words = done.stdout.split("release ", 1)
    return words[1].split(",", 1)[0] if len(words) == 2 else "none"


def _compile(request: dict[str, Any], fds: list[int]) -> str:
    """Compile the lent source, and put the library into the other file lent."""
    source = read_lent(fds[0], request["source_bytes"])
    folder = Path(os.environ["GRADE_JIT"])
    put_library(fds[1], nvcc(source, folder, request["nvcc_target"]))
    return ""


def nvcc(source: bytes, folder: Path, target: str) -> Path:
    """The shared object that nvcc makes of the source, for GPUs such as `90a`. Raises
    `LoadError`."""
    path, library = folder / "submission.cu", folder / "submission.so"
    path.write_bytes(source)
    if _in_halves(path, library, folder, target):
        return library
    flags = [*_FLAGS, *_code(target, "sm"), "--shared"]
    output = _run(["nvcc", *flags, "-o", str(library), str(path)], folder)
    if output is not None:
        sys.stderr.write(output)
        first = next((line for line in output.splitlines() if "error" in line), output[:200])
        raise LoadError(f"nvcc: {first.replace(str(path), 'submission.cu').strip()}")
    return library


def _in_halves(path: Path, library: Path, folder: Path, target: str) -> bool:
    """Compile for the device and for the host at the same time, which one nvcc does one after the
    other. The host's half holds the device's code as PTX, hardly optimised and not assembled; in
    its place the other half is put.

    False where any of it did not work; then one nvcc is to do it all, or to tell why not.
    """
    device, host = path.with_suffix(".fatbin"), path.with_suffix(".o")
    halves = (
        ["--fatbin", *_code(target, "sm"), "-o", str(device), str(path)],
        ["-c", *_code(target, "compute"), "--Ofast-compile=max", "-o", str(host), str(path)],
    )
    with ThreadPoolExecutor(len(halves)) as threads:
        if not all([*threads.map(lambda half: _runs(["nvcc", *_FLAGS, *half], folder), halves)]):
            return False
    put = ["objcopy", f"--update-section=.nv_fatbin={device}", str(host)]
    link = ["nvcc", "--shared", "--no-device-link", "-o", str(library), str(host)]
    return _runs(put, folder) and _runs(link, folder)


def _code(target: str, kind: str) -> list[str]:
    """The flags for machine code of that GPU (`sm`), or for its PTX alone (`compute`)."""
    return ["-gencode", f"arch=compute_{target},code={kind}_{target}"]


def _runs(command: list[str], folder: Path) -> bool:
    """Whether the command is there and ends well; what it prints is not wanted."""
    try:
        done = subprocess.run(command, cwd=folder, stdout=DEVNULL, stderr=DEVNULL, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def put_library(fd: int, library: Path) -> None:
    """Fill the lent memory. Raises `LoadError` where the library is too large for it."""
    length, room = library.stat().st_size, os.fstat(fd).st_size - _LENGTH_BYTES
    if length > room:
        raise LoadError(
            f"the compiled library has {length:,} bytes; no more than {room:,} are taken"
        )
    content = length.to_bytes(_LENGTH_BYTES, "little") + library.read_bytes()
    written = 0
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)


def take_library(fd: int) -> bytes:
    """What `put_library` put there. Raises `LoadError` where nothing can have been put so."""
    length = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
    if not 0 < length <= os.fstat(fd).st_size - _LENGTH_BYTES:
        raise LoadError("the compiler handed over no library")
    return read_lent(fd, length, _LENGTH_BYTES)


def _run(command: list[str], folder: Path) -> str | None:
    """Run the compiler; its capped output when it fails, None when it succeeds."""
    log = folder / "compile.log"
    with log.open("wb") as file:
        done = subprocess.run(command, cwd=folder, stdout=file, stderr=file, check=False)
    if done.returncode == 0:
        return None
    with log.open("rb") as file:
        text = file.read(OUTPUT_BYTES).decode("utf-8", "replace")
    return text or f"nvcc ended with status {done.returncode}"
