"""A module of the tests as a program in Triton's interpreter: Triton reads TRITON_INTERPRET only on
import, so it takes a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_interpreted(module: str, *arguments: str | Path) -> str:
    """What the module prints. Fails unless it ends with exit status 0."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
