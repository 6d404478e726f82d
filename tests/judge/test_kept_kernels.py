"""The judge takes what a runner hands over for the next one, whatever it is, up to a size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from grader.judge.kept_kernels import KERNELS_BYTES, LENGTH_BYTES, KeptKernels
from grader.judge.session import Session


class Runner:
    """A session whose runner writes these bytes into the lent memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def ask(
        self, kind: str, request: dict[str, Any], limit_s: float, what: str, fds: tuple[int, ...]
    ) -> None:
        assert kind == "keep_kernels"
        os.pwrite(fds[0], self.content, 0)


def received(path: Path, content: bytes) -> bytes | None:
    kernels = KeptKernels(path)
    kernels.receive(cast(Session, Runner(content)))
    return kernels.read()


def test_what_is_handed_over_is_kept_as_it_is(tmp_path: Path) -> None:
    content = (5).to_bytes(LENGTH_BYTES, "little") + b"\x80\x04\x95ab"
    assert received(tmp_path / "kernels", content + b"more") == content


@pytest.mark.parametrize("length", [0, KERNELS_BYTES, (1 << 64) - 1])
def test_a_length_that_cannot_be_is_nothing(tmp_path: Path, length: int) -> None:
    assert received(tmp_path / "kernels", length.to_bytes(LENGTH_BYTES, "little")) is None
