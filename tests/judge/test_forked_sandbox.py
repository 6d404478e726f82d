"""A forked runner is confined like one that is executed, and shares nothing with the one before."""

from __future__ import annotations

import json
from typing import Any

from grader.report import Report, Verdict
from grader.sandbox.process import ProcessSandbox
from tests.forked_sandbox import ForkedSandbox
from tests.judge.conftest import HONEST, Judge

PROBE = """
import json, os, resource

def shown():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters")
    mounts = [line.split()[1:4] for line in open("/proc/self/mounts")]
    names_of_fds = os.listdir("/proc/self/fd")
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in names_of_fds if int(fd) < 4}
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "status": {name: status[name].split() for name in names},
        "mounts": sorted(mounts),
        "descriptors": {fd: target.split(":")[0] for fd, target in fds.items()},
        "more descriptors": len(names_of_fds),
        "environment": dict(os.environ),
        "at start": sorted(open("/proc/self/environ").read().split(chr(0))),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "processes": sorted(pid for pid in os.listdir("/proc") if pid.isdecimal()),
        "folder": os.getcwd(),
        "umask": os.umask(0o22),
    }

print("SHOWN " + json.dumps(shown()))
"""


def shown(report: Report) -> dict[str, Any]:
    assert report.verdict is Verdict.ACCEPTED, report.reason
    (line,) = [line for line in report.log.splitlines() if line.startswith("SHOWN ")]
    found: dict[str, Any] = json.loads(line.removeprefix("SHOWN "))
    for names in ("Uid", "Gid"):  # each runner has its own
        assert set(found["status"].pop(names)) != {"0"}
    # Each mount of a namespace's own folder names the user too.
    found["mounts"] = [
        [place, kind, ",".join(o for o in options.split(",") if not o.startswith(("uid=", "gid=")))]
        for place, kind, options in found["mounts"]
    ]
    return found


def test_it_is_confined_like_one_that_is_executed(judge: Judge) -> None:
    source = PROBE + HONEST
    executed = shown(judge(source, sandbox=ProcessSandbox()))
    for _ in range(2):
        assert shown(judge(source, sandbox=ForkedSandbox())) == executed


def test_nothing_is_left_for_the_next_one(judge: Judge) -> None:
    source = (
        "import os, sys, torch\n"
        "print('FOUND' if hasattr(torch, 'left') or os.path.exists('/tmp/left') else 'CLEAN')\n"
        "torch.left = sys.modules['left'] = torch\n"
        "open('/tmp/left', 'w').close()\n"
    )
    for _ in range(2):
        report = judge(source + HONEST)
        assert (report.verdict, report.log.strip()) == (Verdict.ACCEPTED, "CLEAN"), report.reason
