"""The script that verifies all problems: its steps, its shares, and how it is continued."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scripts import verify_catalogue
from scripts.verify_catalogue import Step, main, steps
from scripts.workers import shared

ROOT = Path(__file__).resolve().parents[1]


def test_every_problem_has_its_steps() -> None:
    names = {path.parent.name for path in ROOT.glob("problems/*/problem.yaml")}
    for device, wanted in (
        ("cpu", {"check", "examples"}),
        ("cuda", {"check", "experts", "examples", "times"}),
    ):
        every = list(steps(device, "process"))  # type: ignore[arg-type]
        assert {(s.problem, s.name) for s in every} == {(n, w) for n in names for w in wanted}


def test_shares_are_disjoint_and_complete() -> None:
    every = list(steps("cuda", "docker"))
    parts = [shared(every, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(s.log(Path()) for part in parts for s in part) == sorted(
        s.log(Path()) for s in every
    )
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(click.BadParameter, match="no share"):
            shared(every, wrong)


def test_what_has_passed_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "flag"
    (tmp_path / "step.py").write_text(
        "import pathlib, sys\nprint('looked')\n"
        f"sys.exit(not pathlib.Path({str(flag)!r}).exists())\n"
    )
    monkeypatch.setattr(verify_catalogue, "ROOT", tmp_path)
    every = [Step("softmax", "check", ["step"]), Step("rope", "check", ["step"])]
    monkeypatch.setattr(verify_catalogue, "steps", lambda *_: iter(every))
    out = tmp_path / "out"

    def lines(*options: str) -> tuple[int, list[str]]:
        result = CliRunner().invoke(main, [str(out), *options])
        return result.exit_code, result.output.splitlines()

    status, shown = lines("--only", "rope")
    assert (status, shown[-1]) == (1, "1 steps are left")
    assert f"see {out}/rope.check.log" in shown[0]
    assert (out / "rope.check.log").read_text() == "looked\nfailed: 1\n"
    flag.touch()
    assert lines("--only", "rope")[1][-1] == "all steps have passed"
    status, shown = lines("--for-s", "0")
    assert (status, shown) == (1, ["✔ rope check (earlier)", "1 steps are left"])
