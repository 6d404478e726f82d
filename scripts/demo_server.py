"""A leaderboard server with example data on this machine: `make demo-server`.

It serves the problems of this repository from a temporary database. The boards of all problems show
example data, which is made up (`scripts/demo/fill.py`). Then ten submissions are made over HTTP and
graded on this machine, on the CPU if there is no GPU. It prints the address and a token, and runs
until Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import httpx

from grader.cli.local_grading import unwind_on_sigterm
from grader.server.services.container import Services, load_problems
from scripts.demo.fill import fill

ROOT = Path(__file__).resolve().parent.parent
LIVE = {
    "ada": (
        "softmax/accepted/triton_softmax.py",
        "softmax/wrong_answer/half_precision.py",
        "multi_tensor_adamw/accepted/torch_adamw.py",
    ),
    "grace": (
        "softmax/accepted/torch_softmax.py",
        "softmax/compile_error/syntax_error.py",
        "int4_matmul/accepted/torch_int4_matmul.py",
    ),
    "edsger": (
        "softmax/rejected/early_done.py",
        "softmax/runtime_error/raises.py",
        "flash_attention/accepted/torch_attention.py",
        "softmax/accepted/returns_softmax.py",
    ),
}
"""User → their submissions, files of `submissions/`."""


def prepare(file: Path) -> dict[str, str]:
    """Create the database with boards and users; return the token of each user of `LIVE`."""
    problems = load_problems(ROOT / "problems")
    count = fill(file, problems, datetime.now(UTC))
    print_line(f"{count} made-up results fill the boards of {len(problems)} problems")
    services = Services.open(f"sqlite:///{file}", problems)
    try:
        add = services.accounts.add_user
        return {name: add(name, "competitor", by="demo") for name in LIVE}
    finally:
        services.close()


def submit_all(address: str, tokens: dict[str, str]) -> dict[int, str]:
    """Submit all files of `LIVE`; return number → file and user."""
    submitted = {}
    with httpx.Client(base_url=address, timeout=30) as client:
        for user, files in LIVE.items():
            for name in files:
                answer = client.post(
                    "/api/v1/submissions",
                    headers={"Authorization": f"Bearer {tokens[user]}"},
                    data={"problem": name.split("/")[0]},
                    files={"file": (name.split("/")[-1], (ROOT / "submissions" / name).open("rb"))},
                )
                answer.raise_for_status()
                submitted[int(answer.json()["id"])] = f"{name} by {user}"
    return submitted


def follow(address: str, numbers: dict[int, str], tokens: dict[str, str]) -> None:
    """Print each verdict until all submissions are graded."""
    waiting = dict(numbers)
    with httpx.Client(base_url=address, timeout=30) as client:
        while waiting:
            for number, label in list(waiting.items()):
                token = tokens[label.rsplit(" ", 1)[1]]
                headers = {"Authorization": f"Bearer {token}"}
                answer = client.get(f"/api/v1/submissions/{number}", headers=headers)
                answer.raise_for_status()
                report = answer.json()
                if report["state"] in ("done", "cancelled", "held"):
                    del waiting[number]
                    print_line(f"#{number} {label}: {report.get('verdict') or report['state']}")
            time.sleep(2)  # the server allows 600 requests per minute


def print_line(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


@click.command()
@click.option("--port", default=8000, show_default=True, help="0 chooses a free port.")
@click.option("--sandbox", default="auto", show_default=True, help="auto, docker or process.")
@click.option("--once", is_flag=True, help="Exit when all submissions are graded, for tests.")
def main(port: int, sandbox: str, once: bool) -> None:
    """Serve leaderboards with example data until Ctrl-C."""
    with unwind_on_sigterm(), tempfile.TemporaryDirectory(prefix="demo-server-") as folder:
        tokens = prepare(file := Path(folder) / "board.sqlite3")
        command = ["serve", "--port", str(port), "--db", f"sqlite:///{file}"]
        command += ["--problems", str(ROOT / "problems")]
        command = [sys.executable, "-m", "grader.cli", *command, "--sandbox", sandbox]
        log = Path(folder) / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server,
        ):
            try:
                address = _address(server, log)
                numbers = submit_all(address, tokens)
                print_line(f"\n  {address}\n\nToken of ada, to log in: {tokens['ada']}\n")
                follow(address, numbers, tokens)
                print_line(
                    f"\nAll {len(numbers)} submissions are graded: {address}; Ctrl-C ends it"
                )
                if not once:
                    server.wait()
            except KeyboardInterrupt:
                print_line("")
            finally:
                server.terminate()


def _address(server: subprocess.Popen[str], log: Path) -> str:
    """The address that the server prints; exits with its log if it does not start."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"https?://\S+", line):
            return found.group()
    sys.exit(log.read_text()[-2000:])


if __name__ == "__main__":
    main()
