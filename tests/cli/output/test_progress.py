from __future__ import annotations

import pytest

from grader.cli.output.progress import show_progress
from grader.cli.remote_submit import RemoteProgress


def test_names_of_stages_and_cases_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress(True) as display:
        display(RemoteProgress("[red]odd[/blue]\x1b[2J", "[bold]case[/italic]\x1b[2J", 0, 2))
    shown = capsys.readouterr().err
    assert "[red]odd[/blue]\\x1b[2J" in shown
    assert "1 of 2  [bold]case[/italic]\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
