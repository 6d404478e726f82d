"""Names in Triton's cache without a hash of Triton's files."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import triton
from triton.runtime import cache

from grader.runner import triton_key


@pytest.fixture(autouse=True)
def of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another hash of the files, as the real one takes half a second."""
    monkeypatch.setattr(cache, "triton_key", lambda: "hash of all files")
    monkeypatch.delitem(sys.modules, triton_key.TORCH_COMPILER, raising=False)


def test_triton_names_what_it_caches_by_its_version() -> None:
    triton_key.install()
    assert cache.triton_key() == triton.__version__


def test_beside_pytorchs_compiler_triton_hashes_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts processes that do, and whose kernels this process must find."""
    triton_key.install()
    triton_key.install()
    name = triton_key.TORCH_COMPILER
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert cache.triton_key() == "hash of all files"
    monkeypatch.setitem(sys.modules, name, None)  # blocked, as for fake tensors
    assert cache.triton_key() == triton.__version__
