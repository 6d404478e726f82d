"""Start and end a runner: one small protocol (`base`), two ways to fulfil it.

- `grader.sandbox.docker.DockerSandbox`: a container; for other people's code.
- `grader.sandbox.process.ProcessSandbox`: a process tree of this host; for one's own code.

Neither is imported before it is asked for, since each costs start-up time.
"""

from __future__ import annotations

from grader.sandbox.base import Device, RunnerExit, Runner, RunnerLimits, Sandbox, SandboxError

__all__ = ["Device", "RunnerExit", "Runner", "RunnerLimits", "Sandbox", "SandboxError", "make_sandbox"]


def make_sandbox(name: str) -> Sandbox:
    """The sandbox called ``docker`` or ``process``."""
    if name == "docker":
        from grader.sandbox.docker import DockerSandbox

        return DockerSandbox()
    from grader.sandbox.process import ProcessSandbox

    return ProcessSandbox()
