"""Boards for problems of other sets: pages, reloads, and a server with its worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from grader.fleet.set_problems import SetProblems
from grader.judge.import_problem import import_problem
from grader.report import Report
from grader.server.services import Invalid
from grader.server.services.container import Services
from grader.server.services.problem_reload import VerifyOutcome, verify_in_child
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.forked_sandbox import ForkedSandbox
from tests.server.conftest import World, running_world
from tests.server.site import check, words
from tests.server.test_run import ROOT, serving
from tests.sets import made_up
from tests.sets.test_traces import HONEST, norm, workload, write_sol
from tests.waiting import PATIENCE_S, until

RMS = "kernelbot_made_up_rms_py"
LINEAR = "kernelbench_level1_7_linear_norm"
RMS_KERNEL = b"""
import torch
def custom_kernel(data):
    x, weights, config = data
    scale = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + config["eps"])
    return x * scale * weights["weight"]
"""
LINEAR_KERNEL = made_up.MODEL.replace("class Model(", "class ModelNew(").encode()


@pytest.fixture
def sets(request: pytest.FixtureRequest, tmp_path: Path) -> SetProblems:
    """A checkout of KernelBot, and one of KernelBench with its licence; or of SOL-ExecBench for a
    test with that parameter."""
    imports = partial(import_problem, sandbox=ForkedSandbox(), device="cpu")
    if getattr(request, "param", None) == "sol":
        write_sol(tmp_path / "sol", norm(), [workload()])
        made_up.kernelbot(tmp_path / "kernelbot")
        named = [(name, tmp_path / name) for name in ("kernelbot", "sol")]
        return SetProblems(named, imports)
    made_up.kernelbot(tmp_path / "kernelbot")
    made_up.kernelbench(tmp_path / "kernelbench")
    (tmp_path / "kernelbench" / "LICENSE").write_text("MIT License\n\nCopyright (c) Made Up\n")
    named = [(name, tmp_path / name) for name in ("kernelbot", "kernelbench")]
    return SetProblems(named, imports)


@pytest.fixture
def world(
    sets: SetProblems,
    tmp_path: Path,
    database: str,
    settings: Settings,
    make_report: Callable[..., Report],
) -> Iterator[World]:
    own = tmp_path / "problems"
    own.mkdir()
    problems, broken = sets.load()
    assert broken == {}
    migrate_by_copy(database)
    services = Services.open(database, problems, settings, Clock(), folder=own, sets=sets)
    with running_world(services, make_report) as made:
        yield made
    services.close()


@pytest.mark.slow
def test_pages_name_the_licence_and_show_only_what_it_permits(world: World, tmp_path: Path) -> None:
    browser = world.client()
    browser.headers["Accept"] = "text/html"
    pages = {}
    for name in (RMS, LINEAR):
        for path in (f"/problems/{name}", f"/leaderboards/{name}"):
            answer = browser.get(path)
            assert answer.status_code == 200
            check(answer.text)
            pages[path] = answer.text
            assert str(tmp_path) not in answer.text, "no path of the server"
    for path in (f"/problems/{RMS}", f"/leaderboards/{RMS}"):
        assert "licence: Researcher Reciprocity License 1.0" in words(pages[path])
        assert 'href="https://github.com/gpu-mode/reference-kernels"' in pages[path]
    assert "The original says what to compute." in words(pages[f"/problems/{RMS}"])
    assert "licence: MIT" in words(pages[f"/leaderboards/{LINEAR}"])
    module = words(pages[f"/problems/{LINEAR}"])
    assert "BatchNorm1d" in module
    assert "Copyright (c) Made Up" in module
    code = ["ref_kernel", "check_implementation", "generate_input", "torch.rsqrt(x.float()"]
    served = browser.get(f"/api/v1/problems/{RMS}").text + "".join(pages.values())
    served += browser.get(f"/problems/{RMS}/starters/torch").text + browser.get("/").text
    assert [text for text in code if text in served] == [], "nothing of the set's own code"
    starter = browser.get(f"/problems/{LINEAR}/starters/triton").text
    assert "class ModelNew(nn.Module)" in starter
    assert browser.get(f"/problems/{RMS}/starters/cuda").status_code == 200
    assert browser.get("/submit", params={"problem": RMS}).status_code in (200, 303)


SOL = "sol_l1_problem"
SOLUTION = {
    "name": "made up",
    "spec": {"entry_point": "k.py::run", "destination_passing_style": False},
    "sources": [{"path": "k.py", "content": HONEST}],
}


@pytest.mark.slow
@pytest.mark.parametrize("sets", ["sol"], indirect=True)
def test_a_solution_is_submitted_where_its_set_has_them(world: World) -> None:
    content = json.dumps(SOLUTION).encode()
    sent = world.submit("ada", problem=SOL, file="solution.JSON", content=content)
    assert sent.status_code == 202, sent.text
    job = world.services.ledger.job(sent.json()["id"])
    assert job is not None
    assert (job.name, job.language) == ("solution.JSON", "python")
    refused = world.submit("ada", problem=RMS, file="solution.json", content=content)
    assert refused.status_code == 415
    page = world.client("ada").get("/submit", headers={"Accept": "text/html"})
    assert 'accept=".py,.cu,.json"' in page.text


@pytest.mark.slow
def test_a_changed_checkout_is_reloaded_once_it_is_verified(world: World, tmp_path: Path) -> None:
    reload = world.services.reload
    taken: list[list[str]] = []
    reload.watch(lambda problems: taken.append(sorted(problems)))
    assert reload.preview() == []
    before = world.services.problems[RMS].digest
    helpers = tmp_path / "kernelbot" / "problems" / "made_up" / "helpers.py"
    helpers.write_text(helpers.read_text().replace("1e-1", "1e-2"))
    model = tmp_path / "kernelbench" / "KernelBench" / "level1" / "7_Linear_norm.py"
    good = model.read_text()
    model.write_text(good.replace("torch.relu(", "nn.functional.dropout("))
    added = model.with_name("8_Linear_norm.py")
    added.write_text(good.replace("relu", "tanh"))
    changes = {one.problem: (one.kind, list(one.changes)) for one in reload.preview()}
    new = "kernelbench_level1_8_linear_norm"
    assert changes == {
        RMS: ("version", ["helpers.py: changed"]),
        LINEAR: ("version", ["model.py: changed"]),
        new: ("new", []),
    }
    verified: list[str] = []

    def verify(folder: Path, limit_s: float, stopping: object) -> VerifyOutcome:
        verified.append(folder.name)
        if folder.name == RMS:
            return verify_in_child(folder, limit_s, stopping)  # type: ignore[arg-type]
        return VerifyOutcome((), "")

    reload.verify = verify
    with pytest.raises(Invalid, match="has no problem nothing"):
        reload.start("root", ["nothing"])
    reload.start("root")
    reload.join(PATIENCE_S)
    run = reload.last
    assert run is not None
    assert {one.problem: one.state for one in run.problems} == {
        RMS: "taken", LINEAR: "refused", new: "taken"
    }  # fmt: skip
    assert sorted(verified) == [new, RMS], "what cannot be imported is not verified"
    (refused,) = (one for one in run.problems if one.state == "refused")
    assert "its reference gives another answer each time" in refused.findings[0]
    assert taken == [[LINEAR, new, RMS]]
    assert world.services.problems[RMS].digest != before
    assert {one.problem for one in reload.preview()} == {LINEAR}


@pytest.mark.slow
def test_a_server_and_a_worker_with_its_own_checkout(tmp_path: Path) -> None:
    """The worker takes only jobs of the bytes that it has, and says which it has otherwise."""
    for place in ("server", "worker"):
        made_up.kernelbot(tmp_path / place / "kernelbot")
        made_up.kernelbench(tmp_path / place / "kernelbench")
    other = tmp_path / "worker" / "kernelbench" / "KernelBench" / "level1" / "7_Linear_norm.py"
    other.write_text(made_up.MODEL.replace("relu", "tanh"))
    names = ("kernelbot", "kernelbench")
    served = [f"{name}:{tmp_path / 'server' / name}" for name in names]
    mine = [f"{name}:{tmp_path / 'worker' / name}" for name in names]
    options = [text for name in served for text in ("--problem", name)]
    log = tmp_path / "worker.log"
    with serving(tmp_path, "--slots", "0", *options) as server, log.open("w") as stderr:
        http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=PATIENCE_S,
        )
        farm = http.post("/api/v1/admin/users", json={"name": "farm", "role": "worker"}).json()
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "grader.cli", "worker", "--server", server.url),
                *("--sandbox", "process", "--slots", "1", "--problems", str(ROOT / "problems")),
                *(text for name in mine for text in ("--problem", name)),
            ],
            stderr=stderr,
            env=os.environ | {"GRADE_TOKEN": farm["token"]},
            cwd=tmp_path,
        )
        try:
            numbers = {
                problem: http.post(
                    "/api/v1/submissions",
                    data={"problem": problem},
                    files={"file": ("kernel.py", kernel)},
                ).json()["id"]
                for problem, kernel in ((RMS, RMS_KERNEL), (LINEAR, LINEAR_KERNEL))
            }

            def answer(problem: str) -> dict[str, object]:
                time.sleep(0.5)  # the server limits requests per minute
                found = http.get(f"/api/v1/submissions/{numbers[problem]}").json()
                assert isinstance(found, dict)
                return found

            until(lambda: answer(RMS)["state"] == "done")
            assert answer(RMS)["verdict"] == "accepted", answer(RMS)["reason"]
            assert str(answer(RMS)["worker"]).startswith("farm/")
            assert answer(LINEAR)["state"] == "queued"
            page = http.get(f"/submissions/{numbers[RMS]}", headers={"Accept": "text/html"})
            assert "accepted" in words(page.text).lower()
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(PATIENCE_S)
            http.close()
    text = log.read_text()
    said = (
        rf"problem {LINEAR}: the server has version [0-9a-f]{{12}} of it, and this worker [0-9a-f]"
    )
    assert re.search(said, text), text
    assert f"{RMS}: the server" not in text
