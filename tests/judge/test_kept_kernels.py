"""The judge keeps what a submission's sandbox hands over for its next one, whatever it is, up to a
size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from grader.judge.kept_kernels import KERNELS_BYTES, KeptKernels
from grader.judge.session import Session
from grader.wire import Reply, Status


class Runner:
    """A session whose runner writes these bytes into the lent memory, and says how many."""

    def __init__(self, content: bytes, said: int) -> None:
        self.content, self.said = content, said

    def ask(
        self, kind: str, request: dict[str, Any], limit_s: float, what: str, fds: tuple[int, ...]
    ) -> Reply:
        assert kind == "keep_kernels"
        os.pwrite(fds[0], self.content, 0)
        return Reply(1, Status.OK, calls=self.said)


def received(path: Path, content: bytes, said: int) -> bytes | None:
    kernels = KeptKernels(path)
    kernels.receive(cast(Session, Runner(content, said)))
    return kernels.read()


def test_what_is_handed_over_is_kept_as_it_is(tmp_path: Path) -> None:
    content = b"\x80\x04\x95ab"
    assert received(tmp_path / "kernels", content + b"more", len(content)) == content


def test_nothing_is_kept_of_nothing(tmp_path: Path) -> None:
    assert received(tmp_path / "kernels", b"", 0) is None


def test_no_more_is_kept_than_was_lent(tmp_path: Path) -> None:
    kept = received(tmp_path / "kernels", b"ab", (1 << 64) - 1)
    assert kept is not None
    assert (len(kept), kept[:3]) == (KERNELS_BYTES, b"ab\0")


def test_a_library_is_kept_with_its_compiler(tmp_path: Path) -> None:
    kept = KeptKernels(tmp_path / "library")
    assert kept.library() is None
    kept.save_library(b"\n\0{}", {"nvcc": "13.0"})
    assert kept.library() == (b"\n\0{}", {"nvcc": "13.0"})


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    kept = KeptKernels(tmp_path / "no such folder" / "library")
    kept.save_library(b"ELF", {})
    assert kept.library() is None
    assert list(tmp_path.iterdir()) == []
