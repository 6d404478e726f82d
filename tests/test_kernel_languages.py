"""The language of a Python file's kernels, by what it imports."""

from __future__ import annotations

import pytest

from grader.cli.examples import examples
from grader.cli.language_check import EXAMPLES
from grader.kernel_languages import BY_KEY, KERNEL_LANGUAGES, KernelLanguage, kernel_language
from grader.problem import Problem
from grader.submission import Submission


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("import triton\nimport triton.language as tl\n", "triton"),
        ("from triton import jit\n", "triton"),
        ("    import triton\n", "triton"),
        ("from triton.experimental import gluon\n", "gluon"),
        ("from triton.experimental.gluon import language as gl\n", "gluon"),
        ("import triton\nfrom triton.experimental import (gluon)\n", "gluon"),
        ("import tilelang.language as T\n", "tilelang"),
        ("from tilelang import language\n", "tilelang"),
        ("from cutlass import cute\n", "cute"),
        ("import cutlass.cute as cute\n", "cute"),
        ("import cuda.tile as ct\n", "cutile"),
        ("from cuda import tile as ct\n", "cutile"),
        ("from cuda import bindings, tile\n", "cutile"),
        ("import triton\nimport helion\n", "helion"),
        ("import torch\r\nimport helion.language as hl\r\n", "helion"),
        ("import torch\n", None),
        ("from cuda.bindings import driver\n", None),
        ("from cuda import tiles\n", None),
        ("import tritonclient\nimport helions\n", None),
        ("# import triton\ntext = 'import helion'\n", None),
        ("", None),
    ],
)
def test_the_import_decides(source: str, key: str | None) -> None:
    found = kernel_language(source.encode())
    assert (found.key if found else None) == key


def test_bytes_that_are_no_text() -> None:
    assert kernel_language(b"\xff\xfe\x00import triton\n") is None
    assert kernel_language(b"\xff\nimport triton\n") is BY_KEY["triton"]


def test_cuda_source_has_none() -> None:
    assert Submission("a.cu", "cuda", b"import triton\n").kernel_language is None


def test_a_long_hostile_source_is_searched_in_linear_time() -> None:
    """Quadratic time would take minutes for a megabyte."""
    assert kernel_language(b"from cuda import " + b"tiles, " * 150_000) is None
    assert kernel_language(b" \t" * 500_000) is None
    assert kernel_language(b"from cuda import\n" * 60_000) is None
    assert kernel_language(b"from cuda import" + b" " * 1_000_000) is None
    assert kernel_language(b"from cuda import" + b"(" * 1_000_000) is None
    assert kernel_language(b"from" + b" " * 1_000_000) is None


@pytest.mark.parametrize("language", KERNEL_LANGUAGES, ids=lambda one: one.key)
def test_each_language_has_an_example(language: KernelLanguage) -> None:
    path = EXAMPLES / f"{language.key}_softmax.py"
    assert Submission.read(path, 1 << 20).kernel_language is language


def test_examples_say_which_package_they_need() -> None:
    problem = Problem.load(EXAMPLES.parents[2] / "problems" / "softmax")
    needs = {one.path.name: one.needs for one in examples(problem) if one.needs}
    installed_with_triton = ("triton", "gluon")
    assert needs == {
        f"{one.key}_softmax.py": one.module
        for one in KERNEL_LANGUAGES
        if one.key not in installed_with_triton
    }
