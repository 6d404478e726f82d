"""What Triton compiled travels from one sandbox of a submission to its next."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.runner.kept_kernels import keep_kernels, restore_kernels
from grader.runner.load_submission import write_lent
from grader.wire import fixed_size_memfd

MEMORY_BYTES = 1 << 20


@pytest.fixture
def memory() -> Iterator[int]:
    fd = fixed_size_memfd("kernels", MEMORY_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "first" / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def next_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "second" / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_next_runner_finds_what_was_compiled(
    cache: Path, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "key").mkdir(parents=True)
    (cache / "key" / "kernel.cubin").write_bytes(b"\x7fELF" * 100)
    (cache / "key" / "__grp__kernel.json").write_text("{}")
    kept = files(cache)
    nbytes = keep_kernels(memory)
    later = next_cache(tmp_path, monkeypatch)
    restore_kernels(memory, nbytes)
    assert len(kept) == 2
    assert files(later) == kept


def test_a_library_that_the_next_runner_has_loaded_is_not_written(
    cache: Path, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (cache, next_cache(tmp_path, monkeypatch)):
        (folder / "key").mkdir(parents=True)
        (folder / "key" / "cuda_utils.so").write_bytes(b"loaded")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    (cache / "key" / "kernel.cubin").write_bytes(b"new")
    nbytes = keep_kernels(memory)
    later = next_cache(tmp_path, monkeypatch)
    loaded = later / "key" / "cuda_utils.so"
    before = loaded.stat()
    restore_kernels(memory, nbytes)
    after = loaded.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert files(later)["key/kernel.cubin"] == b"new"


@pytest.mark.parametrize("size", [0, MEMORY_BYTES], ids=["nothing", "too much"])
def test_without_kernels_the_next_runner_compiles(
    cache: Path, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    if size:
        cache.mkdir(parents=True)
        (cache / "kernel.cubin").write_bytes(bytes(size))
    assert keep_kernels(memory) == 0
    later = next_cache(tmp_path, monkeypatch)
    restore_kernels(memory, 0)
    assert not later.exists()


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    "hostile",
    [zipfile.ZipInfo("../outside"), zipfile.ZipInfo("/etc/outside"), link("outside")],
    ids=["above", "absolute", "link"],
)
def test_nothing_is_written_outside_the_cache(
    cache: Path,
    memory: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hostile: zipfile.ZipInfo,
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(hostile, b"/etc/passwd")
    write_lent(memory, packed.getvalue())
    later = next_cache(tmp_path, monkeypatch)
    restore_kernels(memory, len(packed.getvalue()))
    assert files(later).keys() <= {"outside", "etc/outside"}
    assert not Path("/etc/outside").exists()
    assert [*tmp_path.rglob("outside")] == [*later.rglob("outside")]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("content", [b"no archive", b"\0" * 2048], ids=["text", "zeros"])
def test_bytes_that_are_no_archive_are_left_out(cache: Path, memory: int, content: bytes) -> None:
    write_lent(memory, content)
    restore_kernels(memory, len(content))
    assert not cache.exists() or not files(cache)


def test_a_length_beyond_the_memory_is_left_out(cache: Path, memory: int) -> None:
    restore_kernels(memory, MEMORY_BYTES + 1)
    assert not cache.exists()
