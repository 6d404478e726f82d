"""Start and stop runners: one protocol (`base`) with two implementations.

- `grader.sandbox.docker.DockerSandbox`: a container, for other people's code.
- `grader.sandbox.process.ProcessSandbox`: a process tree of this host, for your own code.

Each is imported only when it is used, to keep start-up fast.
"""

from __future__ import annotations

from grader.sandbox.base import Device, Runner, RunnerExit, RunnerLimits, Sandbox, SandboxError

__all__ = [
    "Device",
    "Runner",
    "RunnerExit",
    "RunnerLimits",
    "Sandbox",
    "SandboxError",
    "make_sandbox",
]


def make_sandbox(name: str) -> Sandbox:
    """The sandbox called ``docker`` or ``process``."""
    if name == "docker":
        from grader.sandbox.docker import DockerSandbox

        return DockerSandbox()
    from grader.sandbox.process import ProcessSandbox

    return ProcessSandbox()
