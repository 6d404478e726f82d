"""Building Triton's C launchers."""

from __future__ import annotations

import importlib.util
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton
from triton import knobs
from triton.backends.nvidia import driver
from triton.runtime import driver as triton_driver

from grader.runner import triton_launcher
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.gcc

MODULE = """
#include "cuda.h"
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject* answer(PyObject* self, PyObject* args) { return PyLong_FromLong(CUDA_VERSION); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny", NULL, -1, methods};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&definition); }
"""


@pytest.fixture
def jit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "jit"
    folder.mkdir()
    monkeypatch.setenv("GRADE_JIT", str(folder))
    return folder


def built(
    folder: Path,
    text: str = MODULE,
    library_dirs: Sequence[str] = (),
    libraries: Sequence[str] = (),
    name: str = "tiny",
    waits: bool = True,
) -> str:
    """Build into a new folder, as Triton does."""
    folder.mkdir()
    source = folder / "tiny.c"
    source.write_text(text)
    headers = folder / "include"
    headers.mkdir()
    (headers / "cuda.h").write_text("#define CUDA_VERSION 42\n")
    places = [*library_dirs], [str(headers)], [*libraries]
    return triton_launcher.build(name, str(source), str(folder), *places, waits=waits)


def answer_of(path: str) -> int:
    spec = importlib.util.spec_from_file_location("tiny", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer: int = module.answer()
    return answer


def test_a_built_module_can_be_loaded(jit: Path, tmp_path: Path) -> None:
    assert answer_of(built(tmp_path / "one")) == 42


def test_the_headers_are_precompiled_once_and_used(
    jit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path / "one")
    compiled = jit / "launcher.h.gch"
    until(compiled.exists)
    before = compiled.stat().st_mtime_ns
    wrapper = tmp_path / "cc"
    log = tmp_path / "log"
    wrapper.write_text(f'#!/bin/sh\nexec gcc -H "$@" 2>> {log}\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    monkeypatch.setattr(subprocess, "DEVNULL", None)
    assert answer_of(built(tmp_path / "two", MODULE + "\n")) == 42
    # gcc -H lists the headers that it reads, and marks a precompiled one with "!".
    assert f"! {compiled}" in log.read_text()
    assert "pyport.h" not in log.read_text()  # included by Python.h
    assert compiled.stat().st_mtime_ns == before
    assert not list(jit.glob("*.partial"))


def test_one_of_several_processes_builds_the_same_module(jit: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(built, [tmp_path / "one", tmp_path / "two", tmp_path / "three"]))
    assert len(set(found)) == 1
    assert answer_of(found[0]) == 42
    made = Path(found[0])
    before = made.stat().st_mtime_ns
    assert built(tmp_path / "four") == found[0]
    assert made.stat().st_mtime_ns == before
    assert built(tmp_path / "five", MODULE + "\n") != found[0]


def test_without_waits_a_launcher_in_progress_raises(
    jit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    monkeypatch.setenv("CC", str(compiler_that_waits_for(go, tmp_path)))
    with ThreadPoolExecutor() as pool:
        found = pool.submit(built, tmp_path / "one", name=triton_launcher.LAUNCHER)
        until(go.with_suffix(".asked").exists)
        with pytest.raises(triton_launcher.BuildInProgress):
            built(tmp_path / "two", name=triton_launcher.LAUNCHER, waits=False)
        other = pool.submit(built, tmp_path / "three", name=triton_launcher.LAUNCHER)
        go.touch()
        assert other.result() == found.result()
    assert built(tmp_path / "four", name=triton_launcher.LAUNCHER, waits=False) == found.result()


def test_other_modules_are_always_waited_for(
    jit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton cannot continue without them."""
    go = tmp_path / "go"
    monkeypatch.setenv("CC", str(compiler_that_waits_for(go, tmp_path)))
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(built, tmp_path / n, waits=False) for n in ("one", "two")]
        until(go.with_suffix(".asked").exists)
        go.touch()
        assert found[0].result() == found[1].result()


def test_after_a_failed_build_the_next_process_builds(
    jit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setenv("CC", "false")
        with pytest.raises(subprocess.CalledProcessError):
            built(tmp_path / "one", name=triton_launcher.LAUNCHER)
    assert answer_of(built(tmp_path / "two", name=triton_launcher.LAUNCHER, waits=False)) == 42


def compiler_that_waits_for(go: Path, folder: Path) -> Path:
    """A gcc that signals its start, then waits for this file."""
    wrapper = folder / "cc"
    wrapper.write_text(
        f"#!/bin/sh\ntouch {go.with_suffix('.asked')}\n"
        f'while [ ! -e {go} ]; do sleep 0.01; done\nexec gcc "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


class Compiling:
    """Triton's compiler, which waits for a signal, and its launcher class."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.is_done = False
        self.asked: list[tuple[object, Any, bool]] = []
        """Source and metadata of each launcher, and whether its kernel was compiled."""
        monkeypatch.setattr(triton.compiler, "compile", self._compile)
        monkeypatch.setattr(triton_driver, "_active", self)
        monkeypatch.setattr(knobs.build, "impl", triton_launcher.build)

    def _compile(self, source: object, target: str, *, options: str) -> SimpleNamespace:
        assert (target, options) == ("target", "options")
        assert self.may_end.wait(PATIENCE_S)
        self.is_done = True
        return SimpleNamespace(metadata="metadata")

    def launcher_cls(self, source: object, metadata: object) -> None:
        assert knobs.build.impl.keywords == {"waits": False}
        self.asked.append((source, metadata, self.is_done))
        self.may_end.set()
        raise triton_launcher.BuildInProgress


def test_a_launcher_is_built_while_its_kernel_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiling = Compiling(monkeypatch)
    monkeypatch.setattr(driver, "make_launcher", None, raising=False)
    triton_launcher.build_launchers_while_compiling()
    source = SimpleNamespace(signature={"x": "*fp16", "n": "i32"})
    kernel = triton.compiler.compile(source, "target", options="options")
    assert kernel.metadata == "metadata"
    ((asked, metadata, was_done),) = compiling.asked
    assert asked is source
    assert (was_done, metadata.num_ctas) == (False, None)
    assert knobs.build.impl is triton_launcher.build


def test_with_tensor_descriptors_the_launcher_is_built_after_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiling = Compiling(monkeypatch)
    compiling.may_end.set()
    monkeypatch.setattr(driver, "make_launcher", None, raising=False)
    triton_launcher.build_launchers_while_compiling()
    source = SimpleNamespace(signature={"x": "tensordesc<fp16[64, 64]>"})
    triton.compiler.compile(source, "target", options="options")
    assert compiling.asked == [(source, "metadata", True)]


def test_with_one_launcher_for_all_kernels_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiling = Compiling(monkeypatch)
    compiling.may_end.set()
    monkeypatch.delattr(driver, "make_launcher", raising=False)
    triton_launcher.build_launchers_while_compiling()
    triton.compiler.compile(SimpleNamespace(), "target", options="options")
    assert not compiling.asked


def test_a_source_that_conflicts_with_the_headers_is_built_without_them(
    jit: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = "#ifdef Py_PYTHON_H\n#error headers are there already\n#endif\n"
    assert answer_of(built(tmp_path / "one", refused + MODULE)) == 42
    assert not capfd.readouterr().err


def test_a_compile_error_is_raised(
    jit: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        built(tmp_path / "one", "this is no C\n")
    assert "error" in capfd.readouterr().err


def test_a_missing_compiler_is_reported(
    jit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RuntimeError, match="install gcc"):
        built(tmp_path / "one")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_build_works_without_the_header_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if is_there:
        monkeypatch.setenv("GRADE_JIT", str(tmp_path / "gone"))
    else:
        monkeypatch.delenv("GRADE_JIT", raising=False)
    assert answer_of(built(tmp_path / "one")) == 42


def test_libraries_are_found_by_name_and_by_file(jit: Path, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    for number, name in enumerate(("libone.so", "libtwo.so.1")):
        source = library / "source.c"
        source.write_text(f"int part{number}(void) {{ return 2{number}; }}\n")
        soname = f"-Wl,-soname,{library / name}"
        subprocess.check_call(["gcc", "-shared", "-fPIC", source, soname, "-o", library / name])
    text = "int part0(void), part1(void);\n" + MODULE.replace("CUDA_VERSION", "part0() + part1()")
    assert answer_of(built(tmp_path / "one", text, [str(library)], ["one", "libtwo.so.1"])) == 41


@pytest.mark.parametrize("builds", [True, False])
def test_install_applies_only_with_a_launcher_per_signature(
    monkeypatch: pytest.MonkeyPatch, builds: bool
) -> None:
    monkeypatch.setattr(knobs.build, "impl", None)
    monkeypatch.delattr(driver, "make_launcher", raising=False)
    if builds:
        monkeypatch.setattr(driver, "make_launcher", None, raising=False)
    triton_launcher.install()
    assert knobs.build.impl is (triton_launcher.build if builds else None)
