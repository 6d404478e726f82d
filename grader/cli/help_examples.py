"""The examples that end the help of each command."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("grade show softmax", "grade practice softmax kernel.py"),
    "submit": (
        "grade submit softmax kernel.py",
        "grade submit softmax kernel.cu --server https://board.example.org --gpu H100",
    ),
    "practice": (
        "grade practice softmax kernel.py",
        "grade practice softmax kernel.py --case primes --seed 4711",
        "grade practice softmax kernel.py --server https://board.example.org --gpu H100",
    ),
    "batch": (
        "grade batch softmax a.py b.cu --tests-only",
        "grade batch softmax --jsonl kernels.jsonl --out results.jsonl",
        "grade batch softmax --jsonl kernels.jsonl --server https://board.example.org",
    ),
    "explain": ("grade explain 12 --text", "grade explain report.json --text"),
    "watch": ("grade watch softmax kernel.py", "grade watch softmax kernel.py --device cpu"),
    "compare": (
        "grade compare old.py new.py",
        "grade compare old.py new.py --problem softmax --json",
    ),
    "profile": (
        "grade profile softmax kernel.py",
        "grade profile softmax kernel.cu --case square --out profile/",
    ),
    "problems": ("grade problems --limited-by compute", "grade problems --path"),
    "show": ("grade show softmax", "grade show '#12' --server https://board.example.org"),
    "new": ("grade new softmax --lang triton", "grade new softmax --lang cuda -o kernel.cu"),
    "new-problem": (
        "grade new-problem sum_of_squares --kind reduction",
        "grade new-problem problems/masked_softmax --like softmax",
    ),
    "leaderboard": (
        "grade leaderboard softmax --gpu H100",
        "grade leaderboard softmax --server https://board.example.org --json",
    ),
    "results": (
        "grade results softmax --last 50",
        "grade results --server https://board.example.org",
    ),
    "queue": ("grade queue", "grade queue --user ada --json"),
    "cancel": ("grade cancel 12", "grade cancel '#12' --server https://board.example.org"),
    "withdraw": ("grade withdraw 12", "grade withdraw '#12' --undo"),
    "download": (
        "grade download 12",
        "grade download 12 -o kernel.py --server https://board.example.org",
    ),
    "plot": ("grade plot softmax", "grade plot softmax old.py new.py --out times.svg"),
    "verify": ("grade verify softmax --no-examples", "grade verify --all --device cpu"),
    "baseline": ("grade baseline softmax", "grade baseline softmax --record"),
    "replay": ("grade replay 12", "grade replay report.json --file kernel.py"),
    "worker": (
        "grade worker --server https://board.example.org --token TOKEN",
        "grade worker --server https://board.example.org --problems problems --slots 2",
    ),
    "doctor": ("grade doctor", "grade doctor --measure", "grade doctor --languages"),
    "sandbox": ("grade sandbox build", "grade sandbox check"),
    "sandbox build": (
        "grade sandbox build --from-host",
        "grade sandbox build --base python:3.12-slim --tag grade-runner:3.12",
    ),
    "sandbox check": (
        "grade sandbox check",
        "grade sandbox check --sandbox process",
    ),
    "mcp": ("grade mcp", "grade mcp --root submissions --sandbox docker"),
    "serve": ("grade serve", "grade serve --host 0.0.0.0 --port 8000 --slots 2"),
    "token": ("grade token new --label laptop", "grade token rotate 12"),
    "token list": ("grade token list", "grade token list --json"),
    "token new": ("grade token new", "grade token new --label laptop"),
    "token rotate": ("grade token rotate 12", "grade token rotate 12 --json"),
    "token revoke": (
        "grade token revoke 12",
        "grade token revoke 12 --server https://board.example.org",
    ),
    "team": ("grade team new tile-quantum", "grade team invite"),
    "team new": ("grade team new tile-quantum", "grade team new tile-quantum --json"),
    "team show": ("grade team show", "grade team show tile-quantum --json"),
    "team invite": ("grade team invite", "grade team invite --server https://board.example.org"),
    "team join": ("grade team join CODE", "grade team join CODE --json"),
    "team leave": ("grade team leave", "grade team leave --server https://board.example.org"),
    "login": (
        "grade login --server https://board.example.org",
        "grade login --server https://board.example.org --token TOKEN",
    ),
    "completion": (
        'eval "$(grade completion bash)"',
        "grade completion fish > ~/.config/fish/completions/grade.fish",
    ),
    "admin": ("grade admin user add ada", "grade admin held"),
    "admin user": ("grade admin user add ada", "grade admin user list"),
    "admin user add": ("grade admin user add ada", "grade admin user add ada --role admin"),
    "admin user list": ("grade admin user list", "grade admin user list --json"),
    "admin user ban": (
        "grade admin user ban eve",
        "grade admin user ban eve --reason 'shared a token'",
    ),
    "admin user unban": (
        "grade admin user unban eve",
        "grade admin user unban eve --server https://board.example.org",
    ),
    "admin user hold": (
        "grade admin user hold farm",
        "grade admin user hold farm --server https://board.example.org",
    ),
    "admin user unhold": (
        "grade admin user unhold farm",
        "grade admin user unhold farm --server https://board.example.org",
    ),
    "admin user link": (
        "grade admin user link ada --provider github --subject 583231",
        "grade admin user link ada --provider university --subject 7f2c",
    ),
    "admin user links": ("grade admin user links ada", "grade admin user links ada --json"),
    "admin user unlink": (
        "grade admin user unlink ada 3",
        "grade admin user unlink ada 3 --server https://board.example.org",
    ),
    "admin token": ("grade admin token new ada", "grade admin token list ada"),
    "admin token new": (
        "grade admin token new ada",
        "grade admin token new ada --label laptop",
    ),
    "admin token list": ("grade admin token list ada", "grade admin token list ada --json"),
    "admin token revoke": ("grade admin token revoke ada", "grade admin token revoke --id 7"),
    "admin board": (
        "grade admin board show softmax",
        "grade admin board set softmax --deadline 2030-05-01T23:59+02:00",
    ),
    "admin board show": (
        "grade admin board show softmax",
        "grade admin board show softmax --json",
    ),
    "admin board set": (
        "grade admin board set softmax --deadline 2030-05-01T23:59+02:00",
        "grade admin board set softmax --hide --note 'opens on Monday'",
        "grade admin board set softmax --group course-a",
        "grade admin board set softmax --team-size 4",
        "grade admin board set softmax --freeze 2030-05-01T20:00+02:00",
    ),
    "admin board versions": (
        "grade admin board versions softmax",
        "grade admin board versions --problems ./problems",
    ),
    "admin group": ("grade admin group new course-a", "grade admin group add course-a ada bob"),
    "admin group new": (
        "grade admin group new course-a",
        "grade admin group new course-a --server https://board.example.org",
    ),
    "admin group list": ("grade admin group list", "grade admin group list --json"),
    "admin group add": (
        "grade admin group add course-a ada",
        "grade admin group add course-a ada bob",
    ),
    "admin group remove": (
        "grade admin group remove course-a ada",
        "grade admin group remove course-a ada bob",
    ),
    "admin group delete": (
        "grade admin group delete course-a",
        "grade admin group delete course-a --server https://board.example.org",
    ),
    "admin team": ("grade admin team list", "grade admin team add tile-quantum ada"),
    "admin team list": ("grade admin team list", "grade admin team list --json"),
    "admin team add": (
        "grade admin team add tile-quantum ada",
        "grade admin team add tile-quantum ada bob",
    ),
    "admin team remove": (
        "grade admin team remove tile-quantum ada",
        "grade admin team remove tile-quantum ada bob",
    ),
    "admin team delete": (
        "grade admin team delete tile-quantum",
        "grade admin team delete tile-quantum --server https://board.example.org",
    ),
    "admin invite": ("grade admin invite new", "grade admin invite list"),
    "admin invite new": (
        "grade admin invite new",
        "grade admin invite new --group course-a --uses 30",
    ),
    "admin invite list": ("grade admin invite list", "grade admin invite list --json"),
    "admin invite revoke": (
        "grade admin invite revoke 3",
        "grade admin invite revoke 3 --server https://board.example.org",
    ),
    "admin worker": ("grade admin worker list", "grade admin worker drain farm/host1"),
    "admin worker list": ("grade admin worker list", "grade admin worker list --json"),
    "admin worker drain": (
        "grade admin worker drain farm/host1",
        "grade admin worker drain farm/host1 --server https://board.example.org",
    ),
    "admin worker undrain": (
        "grade admin worker undrain farm/host1",
        "grade admin worker undrain farm/host1 --server https://board.example.org",
    ),
    "admin problem": ("grade admin problem reload --preview", "grade admin problem reload"),
    "admin problem reload": (
        "grade admin problem reload --preview",
        "grade admin problem reload softmax top_k",
    ),
    "admin similar": ("grade admin similar softmax", "grade admin similar softmax --min 0.8"),
    "admin held": ("grade admin held", "grade admin held --json"),
    "admin release": (
        "grade admin release 12",
        "grade admin release 12 --server https://board.example.org",
    ),
    "admin delete": (
        "grade admin delete 12",
        "grade admin delete 12 --server https://board.example.org",
    ),
    "admin audit": ("grade admin audit", "grade admin audit --limit 100 --before 500"),
    "admin rejudge": ("grade admin rejudge start softmax --all", "grade admin rejudge list"),
    "admin rejudge start": (
        "grade admin rejudge start softmax 12 15",
        "grade admin rejudge start softmax --all --reason 'new tests'",
    ),
    "admin rejudge list": ("grade admin rejudge list", "grade admin rejudge list --json"),
    "admin rejudge show": ("grade admin rejudge show 3", "grade admin rejudge show 3 --json"),
    "admin rejudge apply": (
        "grade admin rejudge apply 3",
        "grade admin rejudge apply 3 --server https://board.example.org",
    ),
    "admin rejudge drop": (
        "grade admin rejudge drop 3",
        "grade admin rejudge drop 3 --server https://board.example.org",
    ),
}
"""Words of a command → command lines."""


def add_examples(command: click.Command, words: str) -> None:
    """Let the help of a command, and of those in its group, end with its examples."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES[words])
    command.epilog = f"\b\nExamples:\n{lines}"
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_examples(inner, f"{words} {name}".strip())
