"""Submissions that all adapters are tested with."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUBMISSIONS = ROOT / "submissions" / "softmax"
RIGHT = (SUBMISSIONS / "accepted" / "torch_softmax.py").read_text("utf-8")
WRONG = (SUBMISSIONS / "wrong_answer" / "zeros.py").read_text("utf-8")


def answer(source: str) -> str:
    """A model's answer with this source."""
    return f"First a sketch:\n```\nx = 1\n```\nNow the kernel:\n```python\n{source}```\nDone."
