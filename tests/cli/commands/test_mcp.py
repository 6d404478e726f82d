"""`grade mcp` where it cannot serve; tests/adapters/test_mcp_server.py has a client."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


def test_without_its_package(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.cli.commands.mcp.find_spec", lambda name: None)
    status, out, err = shell("mcp")
    assert (status, out) == (2, "")
    assert err == "grade: the package mcp is missing; install it: pip install 'grade[mcp]'\n"


def test_a_root_that_is_not_there(shell: Shell) -> None:
    status, _, err = shell("mcp", "--root", "nowhere")
    assert status == 2
    assert "nowhere" in err
