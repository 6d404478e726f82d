from __future__ import annotations

import pytest

from grader.cli.output.progress import watching
from grader.cli.remote_submit import Step


def test_what_others_call_their_stages_and_cases_is_never_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with watching(True) as watcher:
        watcher(Step("[red]odd[/blue]\x1b[2J", "[bold]case[/italic]\x1b[2J", 0, 2))
    shown = capsys.readouterr().err
    assert "[red]odd[/blue]\\x1b[2J" in shown
    assert "1 of 2  [bold]case[/italic]\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
