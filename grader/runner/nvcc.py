"""What nvcc makes of a `.cu` file: a shared object, or the words that say why not.

One nvcc does everything in turn. Here two of them work at once: one on device code alone, the other
on host code, with the same device code as PTX, hardly optimised and not assembled; in its place the
first one's is put. One nvcc does it all where that does not work.
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

from grader.runner.load import LoadError

OUTPUT_BYTES = 64 * 1024
"""So much of what nvcc prints is shown."""
POLL_S = 0.005
FLAGS = (
    "-std=c++17",
    "-Xcompiler=-fPIC,-O1",  # of host code, which only launches; device code is always optimised
    "--split-compile=0",  # on as many threads as there are processors
)


def library(source: bytes, folder: Path, target: str) -> Path:
    """The shared object of this source, for GPUs such as `90a`, made in this folder. Raises
    `LoadError`, and OSError where there is no nvcc."""
    path, made = folder / "submission.cu", folder / "submission.so"
    path.write_bytes(source)
    if len(os.sched_getaffinity(0)) == 1 or not _in_halves(path, made, target):
        command = ["nvcc", *FLAGS, *code(target, "sm"), "--shared", "-o", str(made), str(path)]
        with CompilerProcess(command, folder, "whole") as whole:
            if whole.wait() != 0:
                raise _told(whole, path)
    return made


def code(target: str, kind: str) -> list[str]:
    """The flags for machine code of that GPU (`sm`), or for PTX alone (`compute`)."""
    return ["-gencode", f"arch=compute_{target},code={kind}_{target}"]


class CompilerProcess:
    """A command at work in a folder; what it prints goes to a log there. A context manager, at
    whose end it is ended, with all that it began. Raises OSError where it cannot be begun."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def poll(self) -> int | None:
        """Its status, or None while it works."""
        return self._process.poll()

    def wait(self) -> int:
        """Its status, once it has ended."""
        return self._process.wait()

    def said(self) -> str:
        """What it printed, capped."""
        with self._log.open("rb") as log:
            return log.read(OUTPUT_BYTES).decode("utf-8", "replace")

    def __enter__(self) -> CompilerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.wait()


def _in_halves(path: Path, made: Path, target: str) -> bool:
    """False where that does not work. Raises `LoadError` for device code that does not compile."""
    folder = path.parent
    device, host = folder / "device", folder / "host"
    fatbin, unit = device / "made.fatbin", host / "made.o"
    as_ptx = [*code(target, "compute"), "--Ofast-compile=max"]  # which older ones do not know
    halves = {
        device: ["--fatbin", *code(target, "sm"), "-o", str(fatbin)],
        host: ["-c", *as_ptx, "-o", str(unit)],
    }
    try:
        with ExitStack() as stack:
            steps = []
            for kept, options in halves.items():
                kept.mkdir()
                command = ["nvcc", *FLAGS, *options, "--keep", "--keep-dir", str(kept), str(path)]
                steps.append(stack.enter_context(CompilerProcess(command, folder, kept.name)))
            while None in (status := [step.poll() for step in steps]):
                if any(status) or len({_module(kept) for kept in halves} - {None}) > 1:
                    break
                time.sleep(POLL_S)
        if (status[0] or 0) > 0 and "died due to signal" not in steps[0].said():
            raise _told(steps[0], path)
        if status != [0, 0] or _module(device) is None or _module(device) != _module(host):
            return False
        put = ["objcopy", f"--update-section=.nv_fatbin={fatbin}", str(unit)]
        link = ["nvcc", "--shared", "--no-device-link", "-o", str(made), str(unit)]
        return _ends_well(put, folder) and _ends_well(link, folder)
    except OSError:  # no objcopy, or no more processes
        return False
    finally:
        for kept in halves:
            shutil.rmtree(kept, ignore_errors=True)  # whoever comes next may need the room


def _module(kept: Path) -> bytes | None:
    """The name that nvcc gave this file, which is part of the names in its anonymous namespaces.
    It is made of the first thing that others may link to, which need not be the same for device
    and host, and else of a number that is never the same."""
    try:
        return (kept / "submission.module_id").read_bytes() or None
    except FileNotFoundError:
        return None


def _ends_well(command: list[str], folder: Path) -> bool:
    with CompilerProcess(command, folder, Path(command[0]).name) as step:
        return step.wait() == 0


def _told(step: CompilerProcess, path: Path) -> LoadError:
    """What the compiler said, in a line; all of it is printed, for whoever wrote the source."""
    said = step.said() or f"nvcc ended with status {step.wait()}"
    sys.stderr.write(said)
    first = next((line for line in said.splitlines() if "error" in line), said[:200])
    return LoadError(f"nvcc: {first.replace(str(path), 'submission.cu').strip()}")
