"""Start and end a runner: one small protocol (`base`), two ways to fulfil it.

- `grader.sandbox.docker.DockerSandbox`: a container; for other people's code.
- `grader.sandbox.process.ProcessSandbox`: a process tree of this host; for one's own code.

Neither is imported here, since each costs start-up time that only its user should pay.
"""

from __future__ import annotations

from grader.sandbox.base import Device, Ending, Runner, RunnerLimits, Sandbox, SandboxError

__all__ = ["Device", "Ending", "Runner", "RunnerLimits", "Sandbox", "SandboxError"]
