"""Submissions that all adapters are tested with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUBMISSIONS = ROOT / "submissions" / "softmax"
RIGHT = (SUBMISSIONS / "accepted" / "torch_softmax.py").read_text("utf-8")
WRONG = (SUBMISSIONS / "wrong_answer" / "zeros.py").read_text("utf-8")


def answer(source: str) -> str:
    """A model's answer with this source."""
    return f"First a sketch:\n```\nx = 1\n```\nNow the kernel:\n```python\n{source}```\nDone."


def example(heading: str) -> str:
    """The example in Python below a heading of docs/adapters.md."""
    page = (ROOT / "docs" / "adapters.md").read_text("utf-8")
    part = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    return str(code)


def run_example(heading: str, folder: Path) -> list[str]:
    """Run the example in `folder`, and return the lines that it prints. `grade` is this one's."""
    program = folder / "bin" / "grade"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m grader.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", example(heading)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
