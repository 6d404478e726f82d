"""Imports a problem of another set in a process of its own: a server needs neither torch nor a GPU.

``python -m grader.judge.import_process --device cpu|cuda --sandbox docker|process``

It reads a `PackedSource` on stdin, and writes one `Imported` on stdout. The problem's code runs in
a sandbox that this process starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.problem.imported import SetSource
from grader.problem.set_file import SET_FILE, PackedSource
from grader.report import escape, one_line
from grader.sandbox import make_sandbox
from grader.sandbox.base import SandboxError

LIMIT_S = 900.0
"""How long an import may take."""
ERROR_CHARS = 500


class Imported(BaseModel):
    """The outcome: the content of the problem's `set.json`, or why there is none."""

    model_config = ConfigDict(extra="forbid")

    set_file: str | None = None
    error: str = ""


def import_in_process(
    source: SetSource,
    sandbox: Literal["docker", "process"],
    device: Device,
    limit_s: float = LIMIT_S,
) -> Problem:
    """The problem as its set's code describes it on `device`.

    Raises `ProblemError` when it cannot be judged, with the reason.
    """
    command = [sys.executable, "-m", "grader.judge.import_process"]
    command += ["--device", device, "--sandbox", sandbox]
    try:
        done = subprocess.run(
            command,
            input=PackedSource.of(source).model_dump_json().encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProblemError(f"{source.folder}: its import took longer than {limit_s:g} s") from None
    try:
        found = Imported.model_validate_json(done.stdout)
    except ValidationError:
        last = escape(done.stderr[-2000:].decode("utf-8", "replace"), 2000).strip()
        why = last.splitlines()[-1] if last else f"exit status {done.returncode}"
        raise ProblemError(f"{source.folder}: its import failed: {one_line(why)}") from None
    if found.set_file is None:
        raise ProblemError(found.error)
    with tempfile.TemporaryDirectory(prefix="grade-import-") as root:
        folder = Path(root) / source.name
        folder.mkdir()
        (folder / SET_FILE).write_text(found.set_file, encoding="utf-8")
        return Problem.load(folder)


def main() -> None:
    """Import the problem on stdin."""
    parser = argparse.ArgumentParser(prog="grader.judge.import_process")
    parser.add_argument("--device", required=True, choices=["cpu", "cuda"])
    parser.add_argument("--sandbox", required=True, choices=["docker", "process"])
    options = parser.parse_args()
    source = PackedSource.model_validate_json(sys.stdin.buffer.read()).source()
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries go to stderr
    with stdout:
        found = _import(source, options.sandbox, options.device)
        stdout.write(found.model_dump_json().encode())


def _import(source: SetSource, sandbox: Literal["docker", "process"], device: Device) -> Imported:
    from grader.judge.import_problem import import_problem

    try:
        problem = import_problem(source, make_sandbox(sandbox), device)
    except (ProblemError, SandboxError) as error:
        return Imported(error=one_line(str(error), ERROR_CHARS))
    return Imported(set_file=problem.files[SET_FILE].decode())


if __name__ == "__main__":
    main()
