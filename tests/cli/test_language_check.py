"""`grade doctor`: the languages of kernels, installed or not, tried or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grader.cli.language_check import CHECKED, EXAMPLES, check_languages
from grader.kernel_languages import BY_KEY, KernelLanguage
from grader.sandbox.base import SandboxError
from tests.cli.conftest import Shell

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts the package of a language, of a version, with the text of its module, on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def write(key: str, version: str, text: str) -> None:
        language = BY_KEY[key]
        metadata = site / f"{language.distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {language.distribution}\nVersion: {version}\n"
        )
        module = site.joinpath(*language.module.split("."))
        module.mkdir(parents=True)
        (module / "__init__.py").write_text(text)

    return write


def _found(shell: Shell, key: str, *, tries: bool) -> tuple[str, str, str]:
    """State, detail and fix of the finding on a language."""
    label = BY_KEY[key].label
    (found,) = (one for one in check_languages(shell.deps, tries) if one.name == label)
    return found.state, found.detail, found.fix


@pytest.mark.parametrize("language", CHECKED, ids=lambda one: one.key)
def test_a_language_is_not_tried_without_the_flag(
    shell: Shell,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    language: KernelLanguage,
) -> None:
    if language.key != "gluon":  # a part of Triton
        install(language.key, "7.8.9", "raise ImportError('nothing imports it')")
    state, detail, fix = _found(shell, language.key, tries=False)
    assert (state, fix) == ("untried", "grade doctor --languages grades an example")
    assert detail.endswith(", not tried here")
    assert language.key == "gluon" or detail.startswith("7.8.9")
    assert shell.judge.calls == []


def test_a_language_that_is_not_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.cli.language_check.version", lambda _: None)
    assert _found(shell, "cutile", tries=False) == ("untried", "not installed", "")
    state, detail, fix = _found(shell, "cutile", tries=True)
    assert (state, detail) == ("untried", "not installed")
    assert fix == "pip install 'cuda-tile[tileiras]'"
    assert shell.judge.calls == []


def test_a_language_whose_example_is_accepted_is_ticked(shell: Shell, install: Install) -> None:
    install("tilelang", "7.8.9", "")
    shell.judge.changes = {"verdict": "accepted", "gpu": "NVIDIA H100"}
    state, detail, _ = _found(shell, "tilelang", tries=True)
    assert state == "ok"
    assert detail == "7.8.9: its softmax was accepted on NVIDIA H100, docker (fake)"
    assert shell.judge.calls[0]["benchmarks"] is False
    assert shell.judge.calls[0]["device"] == "cuda"


def test_a_language_whose_example_fails_is_not_ticked(shell: Shell, install: Install) -> None:
    install("cute", "7.8.9", "")
    shell.judge.changes = {"verdict": "runtime_error", "reason": "no kernel image for sm_90"}
    state, detail, _ = _found(shell, "cute", tries=True)
    assert state == "missing"
    assert detail == "7.8.9: its softmax got runtime_error: no kernel image for sm_90"


def test_a_fault_of_the_judge_is_shown(shell: Shell, install: Install) -> None:
    install("helion", "7.8.9", "")
    shell.judge.error = SandboxError("no runner starts")
    state, detail, _ = _found(shell, "helion", tries=True)
    assert (state, detail) == ("missing", "7.8.9: its softmax got judge_error: no runner starts")


def test_a_package_that_does_not_fit_this_torch_is_not_ticked(
    shell: Shell, install: Install
) -> None:
    text = "from torch import a_name_of_a_newer_torch"
    install("helion", "7.8.9", text)
    status, shown = shell.json("doctor", "--languages")
    (found,) = (one for one in shown["findings"] if one["name"] == "Helion")
    assert found["state"] == "missing"
    assert found["detail"].startswith("7.8.9: cannot be imported: ImportError: cannot import name")
    assert (status, shown["can_grade"]) == (0, True), "no language is needed"


def test_without_a_gpu_a_language_is_only_imported(shell: Shell, install: Install) -> None:
    install("tilelang", "7.8.9", "")
    shell.change(cuda_missing=lambda: "no NVIDIA GPU")
    state, detail, _ = _found(shell, "tilelang", tries=True)
    assert (state, detail) == ("untried", "7.8.9: can be imported; not run, no NVIDIA GPU")
    assert shell.judge.calls == []


def test_without_a_checkout_a_language_is_only_imported(
    shell: Shell, install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("tilelang", "7.8.9", "")
    monkeypatch.setattr("grader.cli.language_check.EXAMPLES", tmp_path / "none")
    state, detail, _ = _found(shell, "tilelang", tries=True)
    assert state == "untried"
    assert "not run, there is no " in detail


@pytest.mark.cuda
@pytest.mark.parametrize("language", CHECKED, ids=lambda one: one.key)
def test_each_installed_language_on_a_gpu(language: KernelLanguage) -> None:
    """`grade doctor --languages` on this machine, with the judge."""
    from grader.cli.dependencies import Dependencies
    from grader.cli.diagnostics import version
    from grader.cli.language_check import _graded

    if version(language.distribution) is None:
        pytest.skip(f"not run, needs the package {language.distribution}, which is not installed")
    state, detail = _graded(Dependencies(), EXAMPLES / f"{language.key}_softmax.py")
    assert state == "ok", detail
