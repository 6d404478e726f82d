"""Compile a `.cu` file with nvcc to a shared object, or return nvcc's errors.

One nvcc process compiles device and host code in turn. Here two run at once. One compiles device
code only. The other compiles host code with the device code as barely optimised PTX, which is then
replaced with the output of the first. If that fails, one nvcc compiles everything.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from grader.runner.entry_point import LoadError

OUTPUT_BYTES = 64 * 1024
"""The most of nvcc's output that is shown."""
POLL_S = 0.005
FLAGS = (
    "-std=c++17",
    "-Xcompiler=-fPIC,-O1",  # host code only launches; device code is always optimised
    "--split-compile=0",  # 0: one thread per CPU
)
SET_FLAGS = ("--default-stream=per-thread",)
"""For a prototype without a stream. Kernels then run on the default stream of the thread that
calls, on which the runner records its events and captures graphs. It cannot do that on the legacy
default stream."""


def library(source: bytes, folder: Path, target: str, flags: tuple[str, ...] = ()) -> Path:
    """Compile a source to a shared object in `folder`, for an architecture such as ``90a``, with
    `flags` besides the usual ones.

    Raises `LoadError` with the compiler's error, and OSError when there is no nvcc.
    """
    path, made = folder / "submission.cu", folder / "submission.so"
    path.write_bytes(source)
    flags = FLAGS + flags
    if len(os.sched_getaffinity(0)) == 1 or not _compile_in_parallel(path, made, target, flags):
        command = ["nvcc", *flags, *code(target, "sm"), "--shared", "-o", str(made), str(path)]
        with CompilerProcess(command, folder, "whole") as whole:
            if whole.wait() != 0:
                raise _load_error(whole, path)
    return made


def code(target: str, kind: str) -> list[str]:
    """The flags for machine code of an architecture (`sm`), or for PTX only (`compute`)."""
    return ["-gencode", f"arch=compute_{target},code={kind}_{target}"]


class CompilerProcess:
    """A compiler command that runs in a folder and logs its output there.

    A context manager that kills it and its children at the end. Raises OSError when it cannot be
    started.
    """

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for it; its exit status."""
        return self._process.wait()

    def output(self) -> str:
        """Its output, capped."""
        with self._log.open("rb") as log:
            return log.read(OUTPUT_BYTES).decode("utf-8", "replace")

    def __enter__(self) -> CompilerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.wait()


def _compile_in_parallel(path: Path, made: Path, target: str, flags: tuple[str, ...]) -> bool:
    """False when that fails. Raises `LoadError` when the device code does not compile."""
    folder = path.parent
    device, host = folder / "device", folder / "host"
    fatbin, host_object = device / "made.fatbin", host / "made.o"
    ptx_only = [*code(target, "compute"), "--Ofast-compile=max"]  # older versions of nvcc lack it
    halves = {
        device: ["--fatbin", *code(target, "sm"), "-o", str(fatbin)],
        host: ["-c", *ptx_only, "-o", str(host_object)],
    }
    try:
        with ExitStack() as stack:
            processes = []
            for keep_dir, options in halves.items():
                keep_dir.mkdir()
                command = [
                    "nvcc",
                    *flags,
                    *options,
                    "--keep",
                    "--keep-dir",
                    str(keep_dir),
                    str(path),
                ]
                processes.append(
                    stack.enter_context(CompilerProcess(command, folder, keep_dir.name))
                )
            while None in (status := [process.poll() for process in processes]):
                if any(status) or len({_module_id(keep_dir) for keep_dir in halves} - {None}) > 1:
                    break
                time.sleep(POLL_S)
        if (status[0] or 0) > 0 and "died due to signal" not in processes[0].output():
            raise _load_error(processes[0], path)
        if status != [0, 0] or _module_id(device) is None or _module_id(device) != _module_id(host):
            return False
        embed = ["objcopy", f"--update-section=.nv_fatbin={fatbin}", str(host_object)]
        link = ["nvcc", "--shared", "--no-device-link", "-o", str(made), str(host_object)]
        return _succeeds(embed, folder) and _succeeds(link, folder)
    except OSError:  # no objcopy, or no more processes
        return False
    finally:
        for keep_dir in halves:
            shutil.rmtree(keep_dir, ignore_errors=True)  # free the limited scratch space


def _module_id(keep_dir: Path) -> bytes | None:
    """nvcc's module id of the file, which is part of the symbols in anonymous namespaces.

    nvcc derives it from the first external symbol, which may differ between device and host, or
    from a random number if there is none. The two halves fit only with equal ids.
    """
    try:
        return (keep_dir / "submission.module_id").read_bytes() or None
    except FileNotFoundError:
        return None


def _succeeds(command: list[str], folder: Path) -> bool:
    with CompilerProcess(command, folder, Path(command[0]).name) as process:
        return process.wait() == 0


def _load_error(process: CompilerProcess, path: Path) -> LoadError:
    """The first error as one line; the whole output is printed, for the source's author."""
    output = process.output() or f"nvcc ended with status {process.wait()}"
    output = output.replace(str(path), path.name)
    sys.stderr.write(output)
    first = next((line for line in output.splitlines() if "error" in line), output[:200])
    return LoadError(f"nvcc: {first.strip()}")
