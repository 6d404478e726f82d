"""A submission is one regular file with a known extension and limited size."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from grader.submission import Submission, SubmissionError


def test_a_file_is_read_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(b"\xff\x00 not UTF-8")
    submission = Submission.read(path, 100)
    assert submission.name == "kernel.py"
    assert submission.language == "python"
    assert submission.source == b"\xff\x00 not UTF-8"
    assert submission.sha256 == hashlib.sha256(submission.source).hexdigest()


def test_the_extension_decides_the_language(tmp_path: Path) -> None:
    path = tmp_path / "kernel.CU"
    path.write_bytes(b"")
    assert Submission.read(path, 0).language == "cuda"


@pytest.mark.parametrize(
    ("name", "source", "uses"),
    [
        ("kernel.py", b"import triton", True),
        ("kernel.py", b"import torch", False),
        ("kernel.cu", b"// as fast as triton", False),
    ],
)
def test_only_python_that_mentions_triton_may_use_it(
    tmp_path: Path, name: str, source: bytes, uses: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(source)
    assert Submission.read(path, 100).uses_triton is uses


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("x")
    (tmp_path / "link.py").symlink_to("real.py")
    assert Submission.read(tmp_path / "link.py", 1).source == b"x"


def test_the_size_limit_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(b"x" * 1025)
    assert len(Submission.read(path, 1025).source) == 1025
    with pytest.raises(SubmissionError, match="larger than the limit of 1,024 bytes"):
        Submission.read(path, 1024)


def test_at_most_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading all of it would exhaust the memory
    with pytest.raises(SubmissionError, match="larger than the limit"):
        Submission.read(path, 1024)


def test_paths_that_are_no_submission(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dangling.py").symlink_to("nowhere")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "environment.py").symlink_to("/proc/self/environ")
    (tmp_path / "memory.py").symlink_to("/proc/self/mem")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bare").write_text("")
    for path, message in {
        tmp_path / "nowhere.py": "no such file",
        tmp_path / "dangling.py": "no such file",
        tmp_path / "loop.py": "cannot be read",
        tmp_path / "folder.py": "is a folder, not a file",
        tmp_path / "fifo.py": "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        tmp_path / "environment.py": "is not a regular file",
        tmp_path / "memory.py": "cannot be read",
        tmp_path / "notes.txt": "a submission is a .py or .cu file, not '.txt'",
        tmp_path / "bare": "a submission is a .py or .cu file, not ''",
        tmp_path / ("x" * 300 + ".py"): "cannot be read",
        tmp_path / "nul\0.py": "cannot be read",
    }.items():
        with pytest.raises(SubmissionError) as caught:
            Submission.read(path, 1024)
        assert str(caught.value).startswith(f"{path}: ")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
