"""`grade doctor`: its diagnostics, and the rates that --measure prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.cli import diagnostics
from grader.cli.commands.doctor import _rates
from grader.cli.output.terminal import stdout
from grader.sandbox.gpu_info import driver
from tests.cli.conftest import Shell


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages are not imported in processes of their own, which takes 2 s of CPU time."""
    monkeypatch.setattr(diagnostics, "import_failure", lambda *_: None)


@pytest.mark.usefixtures("imports")
def test_measure_as_json(shell: Shell) -> None:
    status, shown = shell.json("doctor", "--measure")
    assert status == 0
    measured = shown["measured"]
    assert measured["device"] == ("cpu" if driver().missing else "cuda")
    assert measured["name"]
    for rate in ("bytes_per_s", "fp32_per_s", "tensor_per_s"):
        assert 1e8 < measured[rate] < 1e16, rate


@pytest.mark.usefixtures("imports")
def test_nothing_is_measured_by_default(shell: Shell) -> None:
    _, shown = shell.json("doctor")
    assert "measured" not in shown


@pytest.mark.usefixtures("imports")
@pytest.mark.parametrize("url", ["notes.txt", "postgresql://u:s3@cret:@h/d"])
def test_an_invalid_database_url(shell: Shell, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("GRADE_DB", url)
    _, out, err = shell("doctor")
    assert "database URL" in out
    assert "cret" not in out + err


def test_rates_and_clocks_of_a_gpu(shell: Shell) -> None:
    state = {
        "driver": "580.1",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 34,
        "power_w": 119.6,
        "throttle_reasons": 1,
    }
    gpu = {"device": "cuda", "name": "NVIDIA H100", "gpu_state": state}
    rates = {"bytes_per_s": 3.02e12, "fp32_per_s": 52e12, "tensor_per_s": 7.2e14}
    stdout().print(_rates(gpu | rates))
    shown, _ = shell.capture.readouterr()
    assert "3,020.0 GB/s" in shown
    assert "52 TFLOP/s" in shown
    assert "720 TFLOP/s" in shown
    assert "1,980 MHz" in shown
    assert "0x1  clocks event reasons" in shown


def test_torch_without_bytecode_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(diagnostics, "cache_from_source", lambda _: str(tmp_path / "none.pyc"))
    found = diagnostics._torch()
    assert found.state == "warn"
    assert "compileall" in found.fix
    (tmp_path / "none.pyc").touch()
    assert diagnostics._torch().state == "ok"


@pytest.mark.parametrize(
    "path", ["/proc/board.sqlite3", "/proc/new/board.sqlite3", "{tmp}/file/board.sqlite3"]
)
def test_a_board_that_cannot_be_created_is_an_error(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADE_DB", f"sqlite:///{path.format(tmp=tmp_path)}")
    board = diagnostics._board()
    assert board.state == "missing"
    assert "cannot be created: " in board.detail
    assert "--db or GRADE_DB" in board.fix


def test_a_file_that_is_no_board_is_an_error(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "notes.sqlite3").write_text("no database, but notes" * 50)
    monkeypatch.setenv("GRADE_DB", f"sqlite:///{tmp_path}/notes.sqlite3")
    assert diagnostics._board().state == "missing"


def test_a_board_that_can_be_created_is_ticked_and_not_created(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADE_DB", f"sqlite:///{tmp_path}/deep/er/board.sqlite3")
    before = sorted(tmp_path.rglob("*"))
    found = diagnostics._board()
    assert (found.state, "creates" in found.detail) == ("ok", True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_package_that_cannot_be_imported_is_an_error(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('libgfortran.so.5: not found')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, shown = shell.json("doctor")
    (found,) = (one for one in shown["findings"] if one["name"] == "numpy")
    assert (status, shown["can_grade"]) == (1, False)
    assert "cannot be imported: ImportError: libgfortran.so.5: not found" in found["detail"]
    assert "reinstall" in found["fix"]
