"""Compile a submission in a sandbox without a device, and hand over what was made.

A `.cu` file that declares its launches goes through NVRTC, and its library is the device code. All
others go through nvcc. Of a Triton submission, what the compiler makes is Triton's cache.

This module does not import torch, so it starts in a tenth of a second; for Triton it does so then.
It writes the result into memory that the judge lends, and its reply says the length. The result is
as untrusted as the source.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from grader.runner import nvcc, nvrtc
from grader.runner.declared_launch import declared_launches, host_functions
from grader.runner.entry_point import LoadError
from grader.runner.load_submission import read_lent, write_files, write_lent
from grader.runner.prototype_check import checked_prototypes, chosen_prototypes
from grader.wire import Reply, Status, WireClosed, receive_request, send_reply


def serve(sock: socket.socket) -> None:
    """Answer requests until the judge hangs up."""
    with suppress(nvrtc.Unavailable):
        nvrtc.version()  # loads it while nothing waits for it
    handlers: dict[str, Any] = {
        "hello": _hello,
        "compile": _compile,
        "compile_triton": _compile_triton,
    }
    while True:
        try:
            request, fds = receive_request(sock)
        except WireClosed:
            return
        sequence = request["sequence"]
        try:
            text, length = handlers[request["kind"]](request, fds)
            reply = Reply(sequence, Status.OK, text=text, calls=length)
        except LoadError as error:
            reply = Reply(sequence, Status.COMPILE_ERROR, text=str(error))
        except Exception as error:  # noqa: BLE001 - every error is reported to the judge
            status = (
                Status.OUT_OF_MEMORY if isinstance(error, MemoryError) else Status.RUNTIME_ERROR
            )
            reply = Reply(sequence, status, text=f"{type(error).__name__}: {error}")
        finally:
            for fd in fds:
                os.close(fd)
        sys.stderr.flush()
        send_reply(sock, reply)


def _hello(request: dict[str, Any], fds: list[int]) -> tuple[str, int]:
    """The version of nvcc, or ``none``."""
    if shutil.which("nvcc") is None:
        return "none", 0
    done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
    words = done.stdout.split("release ", 1)
    return words[1].split(",", 1)[0] if len(words) == 2 else "none", 0


def _compile(request: dict[str, Any], fds: list[int]) -> tuple[str, int]:
    """Compile the source in the first lent file, and write the library to the second. Returns the
    version of NVRTC if that compiled it, and the library's length."""
    source = read_lent(fds[0], request["source_bytes"])
    folder = Path(os.environ["GRADE_JIT"])
    target = request["nvcc_target"]
    prototypes = chosen_prototypes(source, request)
    of_set = prototypes != request["prototypes"]
    flags = nvcc.SET_FLAGS if of_set else ()
    launches = declared_launches(source, prototypes)
    if launches:
        try:
            code = nvrtc.device_code(source, target, launches).to_json()
            return nvrtc.version(), _write_library(fds[1], code)
        except nvrtc.Unavailable:
            source += b"\n" + host_functions(launches, prototypes).encode()
            kernels = [launch for own in launches.values() for launch in own]
            prototypes = prototypes | {launch.kernel: launch.prototype for launch in kernels}
    with checked_prototypes(source, folder, target, prototypes, of_set):
        library = nvcc.library(source, folder, target, flags)
    return "", _write_library(fds[1], library.read_bytes())


def _compile_triton(request: dict[str, Any], fds: list[int]) -> tuple[str, int]:
    """Compile the Triton kernels of the source in the first lent file for the cases in the second,
    and write Triton's cache to the third. Returns its length."""
    gc.disable()  # of the time to import torch, collections of what stays alive take a fifth
    from grader.runner.precompile import compile_alone

    gc.enable()
    source = read_lent(fds[0], request["source_bytes"])
    cases = json.loads(read_lent(fds[1], request["cases_bytes"]))
    folder = Path(os.environ["GRADE_JIT"])
    if "files" in request:
        write_files(folder, fds[3], request["files"])
    return "", compile_alone(source, request | {"cases": cases}, folder, fds[2])


def _write_library(fd: int, library: bytes) -> int:
    """Write a library into lent memory. Returns its length. Raises `LoadError` when it does not
    fit."""
    length, room = len(library), os.fstat(fd).st_size
    if length > room:
        raise LoadError(
            f"the compiled library has {length:,} bytes; no more than {room:,} are taken"
        )
    write_lent(fd, library)
    return length
