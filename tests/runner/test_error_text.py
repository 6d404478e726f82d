"""The line of the submission that an error names, and how it is printed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from grader.runner.error_text import NO_GPU_ADVICE, SUMMARY_CHARS, printed, summary

Probe = Callable[[Path, int, bool], list[str]]

ROOT = Path(__file__).resolve().parents[2]
KERNEL = '''"""A kernel with an error."""

import torch
import triton
import triton.language as tl


@triton.jit
def helper(values):
    return tl.where(values > 0, HELPER, 0.0)


# Kernels
@triton.autotune([triton.Config({})], key=[])
@triton.jit
def run(x, BLOCK: tl.constexpr):
    é = tl.load(x + tl.arange(0, BLOCK))
    é = helper(é)
    tl.store(x, LINE)
'''
COMPILE = """
def launch(module, x, block):
    source = ASTSource(module.run.fn, {"x": "*fp32", "BLOCK": "constexpr"}, {(1,): block})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""
"""What a launch on a GPU does first; it needs none."""
INTERPRET = """
def launch(module, x, block):
    module.run[(1,)](x, block)
"""
PROBE = """
import importlib.util, json, os, sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from grader.runner.error_text import printed, summary
{launch}
def answer(file, block):
    spec = importlib.util.spec_from_file_location("submission", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    try:
        spec.loader.exec_module(module)
        code = compile("def call(launch, m, x, b):\\n    launch(m, x, b)\\n", file, "exec")
        names = {{}}
        exec(code, names)
        names["call"](launch, module, torch.zeros(64), block)
    except Exception as error:
        print(json.dumps([type(error).__name__, summary(error), printed(error)]), flush=True)
    os._exit(0)

for line in sys.stdin:
    if os.fork() == 0:
        answer(*json.loads(line))
    if os.wait()[1]:
        break
"""
"""Runs the kernel of each file, in a fork. `call` stands for the line of the submission that
launches it."""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """Runs a file's kernel with a block size: the error's type, summary and text."""
    with ExitStack() as stack:

        @cache
        def process(is_compiled: bool) -> subprocess.Popen[str]:
            environment = os.environ | {
                "PYTHONPATH": str(ROOT),
                "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
                "TRITON_INTERPRET": "0" if is_compiled else "1",
            }
            source = PROBE.format(launch=COMPILE if is_compiled else INTERPRET)
            command = [sys.executable, "-c", source]
            pipe = subprocess.PIPE
            return stack.enter_context(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
            )

        def run(file: Path, block: int, is_compiled: bool) -> list[str]:
            started = process(is_compiled)
            assert started.stdin is not None
            assert started.stdout is not None
            started.stdin.write(json.dumps([str(file), block]) + "\n")
            started.stdin.flush()
            found: list[str] = json.loads(started.stdout.readline())
            return found

        yield run


@pytest.mark.parametrize("mode", ["interpreted", "compiled", "indented"])
@pytest.mark.parametrize(
    ("line", "helper", "block", "number", "marked", "words"),
    [
        ("tl.summ(é, 0)", "1.0", 64, 19, "tl.summ", "no attribute 'summ'"),
        ("nothing + 1", "1.0", 64, 19, "nothing", "nothing"),
        ("0.0", "1.0", 48, 17, "tl.arange(0, BLOCK)", "power of 2"),
        ("0.0", "tl.summ(values)", 64, 10, "tl.summ", "no attribute 'summ'"),
    ],
    ids=["typo", "name", "argument", "helper"],
)
def test_an_error_in_a_kernel_names_the_kernels_line(
    tmp_path: Path,
    probe: Probe,
    mode: str,
    line: str,
    helper: str,
    block: int,
    number: int,
    marked: str,
    words: str,
) -> None:
    """Not the line that launches it, and no file of Triton's."""
    file = tmp_path / "submission.py"
    source = KERNEL.replace("LINE", line).replace("HELPER", helper)
    if mode == "indented":
        head, _, kernel = source.partition("# Kernels\n")
        source = f"{head}if True:\n{textwrap.indent(kernel, '    ')}"
    file.write_text(source)
    is_compiled = mode != "interpreted"
    kind, one_line, shown = probe(file, block, is_compiled)
    assert kind == ("CompilationError" if is_compiled else "InterpreterError")
    assert words in one_line
    assert one_line.endswith(f" (line {number} of the submission)")
    lines = shown.splitlines()
    at = next(i for i, text in enumerate(lines) if f'"submission.py", line {number}, ' in text)
    source, marks = lines[at + 1 : at + 3]
    assert source.strip() == file.read_text().splitlines()[number - 1].strip()
    start, end = marks.index("^"), marks.rindex("^") + 1
    assert source[start:end].startswith(marked)
    assert lines[at + 3 :] == [one_line.removesuffix(f" (line {number} of the submission)")]
    assert shown.count('File "') == shown.count('File "submission.py"')


def failing(tmp_path: Path, source: str) -> BaseException:
    """The error that importing a file with this source raises."""
    file = tmp_path / "submission.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("submission", file)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(BaseException) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return caught.value


def test_only_the_submissions_lines_are_printed(tmp_path: Path) -> None:
    source = "import json\n\ndef read(text):\n    return '×', json.loads(text)\n\nread('{')\n"
    error = failing(tmp_path, source)
    assert printed(error).splitlines() == [
        '  File "submission.py", line 6, in <module>',
        "    read('{')",
        "    ^^^^^^^^^",
        '  File "submission.py", line 4, in read',
        "    return '×', json.loads(text)",
        "                ^^^^^^^^^^^^^^^^",
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)",
    ]
    assert summary(error).endswith("(line 4 of the submission)")


def test_the_error_that_a_submission_wraps_is_not_taken_for_its_own(tmp_path: Path) -> None:
    source = "try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('mine') from e\n"
    error = failing(tmp_path, source)
    assert summary(error) == "ValueError: mine (line 4 of the submission)"


def test_a_long_message_leaves_room_for_the_line(tmp_path: Path) -> None:
    error = failing(tmp_path, "raise ValueError('long\\n' * 999)")
    assert len(summary(error)) < SUMMARY_CHARS + 40
    assert summary(error).endswith("… (line 1 of the submission)")


@pytest.mark.parametrize(
    "text",
    [
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system. Please check",
        "No CUDA GPUs are available",
    ],
)
def test_asking_for_a_gpu_where_there_is_none_is_explained(tmp_path: Path, text: str) -> None:
    error = failing(tmp_path, f"raise RuntimeError({text!r})")
    assert summary(error).endswith(f"(line 1 of the submission){NO_GPU_ADVICE}")
    assert NO_GPU_ADVICE not in summary(failing(tmp_path, "raise RuntimeError('CUDA error')"))


BUILD = """Error building extension 'softmax': [1/2] /cuda/bin/nvcc -c /jit/softmax/cuda.cu
FAILED: [code=2] cuda.cuda.o
/cuda/bin/nvcc -c /jit/softmax/cuda.cu -o cuda.cuda.o
{error}

1 error detected in the compilation of "/jit/softmax/cuda.cu".
ninja: build stopped: subcommand failed.
"""


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            '/jit/softmax/cuda.cu(5): error: identifier "y" is undefined',
            'cuda.cu(5): error: identifier "y" is undefined',
        ),
        (
            "/jit/main.cpp:6:58: error: ‘y’ was not declared",
            "main.cpp:6:58: error: ‘y’ was not declared",
        ),
        (
            "main.cpp:1:10: fatal error: cudnn.h: No such file or directory",
            "main.cpp:1:10: fatal error: cudnn.h: No such file or directory",
        ),
    ],
)
def test_of_an_extension_the_compilers_first_error_is_shown(error: str, shown: str) -> None:
    failed = RuntimeError(BUILD.format(error=error))
    assert summary(failed) == f"RuntimeError: compiling it failed: {shown}"
    assert "FAILED: [code=2]" in printed(failed)


def test_of_an_extension_without_such_an_error_the_start_is_shown() -> None:
    text = summary(RuntimeError(BUILD.format(error="Killed")))
    assert text.startswith("RuntimeError: Error building extension 'softmax': [1/2] /cuda/bin/nvcc")
