"""The process sandbox, its runners forked from a process that has imported torch and Triton.

A runner spends 1.5 s of CPU time on these imports, three quarters of a small grading.
`ForkedSandbox` is for tests of what the judge makes of a submission. Each runner is a fresh fork,
in which no submission ran, and gets the jail of `ProcessSandbox`; only nothing is executed at its
end. Tests of what a submission can reach use `ProcessSandbox`, as users do.

The product doesn't start runners this way: ``/proc/self/exe`` of a fork leads out of the jail's
read-only mounts, so the owner of the interpreter could write to it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from grader.sandbox import launch
from grader.sandbox.base import RunnerDevice, RunnerLimits
from grader.sandbox.host import runner_environment
from grader.sandbox.jail import FAILED, WIRE_FD, JailConfig
from grader.sandbox.process import Isolation, ProcessRunner, ProcessSandbox

PRELOADED = ("torch", "triton", "triton.runtime.interpreter", "grader.arena.host_arena")
RUNNER = "grader.runner.__main__"
SERVER = ("grader.runner.serve", "grader.runner.set_server", RUNNER)


class ForkedSandbox(ProcessSandbox):
    """`ProcessSandbox` with forked runners on a CPU, where namespaces work."""

    def _runner(
        self, command: list[str], limits: RunnerLimits, device: RunnerDevice, isolation: Isolation
    ) -> ProcessRunner:
        forked = device == "cpu" and isolation == "namespaces" and "grader.runner" in command
        return (_ForkedRunner if forked else ProcessRunner)(command, limits, device, isolation)


class _ForkedRunner(ProcessRunner):
    def _start_launcher(self, config: JailConfig) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", _template().fork(config))


@cache
def _template() -> _Template:
    return _Template()


def end_template() -> None:
    """End the process that runners are forked from; the next runner starts another."""
    if _template.cache_info().currsize:
        _template().end()
        _template.cache_clear()


class _Template:
    """The process that runners are forked from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=runner_environment(Path("/scratch"), Path("/jit"), "cpu"),
                cwd="/",
            )
        atexit.register(self.end)

    def end(self) -> None:
        atexit.unregister(self.end)
        self._socket.close()
        self._process.wait()

    def fork(self, config: JailConfig) -> _ForkedLauncher:
        """Fork a launcher, as `launcher_command` starts one."""
        output, their_output = os.pipe()
        status, their_status = os.pipe()
        theirs = [config["wire"], config["control"], their_output, their_status]
        try:
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(config).encode()], theirs)
                pid = int(self._socket.recv(16))
        finally:
            os.close(their_output)
            os.close(their_status)
        return _ForkedLauncher(pid, output, status)


class _ForkedLauncher:
    """What `ProcessRunner` uses of `Popen`, for a launcher that another process forked."""

    def __init__(self, pid: int, output: int, status: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, "rb", buffering=0)
        self._status = os.fdopen(status, "rb", buffering=0)
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._read(timeout_s=0)

    def wait(self, timeout: float) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("launcher", timeout)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _read(self, timeout_s: float) -> int | None:
        """Its exit code, or the negative number of the signal that it died of."""
        deadline = time.monotonic() + timeout_s
        while self._code is None:
            with self._lock:
                if self._code is None and select.select([self._status], [], [], 0)[0]:
                    text = self._status.read(16)
                    self._code = int(text) if text else -signal.SIGKILL
                    self._status.close()
            if self._code is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                time.sleep(min(left_s, 0.001))
        return self._code


# --- The rest runs in the template and its forks -------------------------------------------------


def main(fd: int) -> None:
    """Import, then fork a launcher for each request until the other side hangs up."""
    for name in (*PRELOADED, *SERVER):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for launchers
    sock = socket.socket(fileno=fd)
    while True:
        text, fds, _, _ = socket.recv_fds(sock, 1 << 20, 4)
        if not text:
            return
        pid = os.fork()
        if pid == 0:
            sock.close()
            _become_launcher(text.decode(), *fds)
        for each in fds:
            os.close(each)
        sock.send(str(pid).encode())


def _become_launcher(text: str, wire: int, control: int, output: int, status: int) -> NoReturn:
    """`launch.main` in this fork, with two replacements: it reports how the runner ended instead of
    dying of the same signal, and the runner's command is run here instead of executed."""

    def exit_with(code: int) -> None:
        os.write(status, str(code).encode())
        os._exit(0)

    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        os.set_inheritable(status, False)
        config = json.loads(text) | {"wire": wire, "control": control}
        launch._raise_signal = lambda number: exit_with(-number)
        os.execve = _run_runner  # type: ignore[assignment]
        exit_with(launch.main(json.dumps(config)))
    finally:
        os._exit(FAILED)


def _run_runner(path: str, command: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """What executing the runner's command would do: run it with this environment, without the
    descriptors that are not inherited, and let it read its own entries of /proc."""
    os.closerange(WIRE_FD + 1, os.sysconf("SC_OPEN_MAX"))
    pr_set_dumpable = 4
    ctypes.CDLL(None).prctl(pr_set_dumpable, ctypes.c_ulong(1), 0, 0, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.update(environment)  # the same as the template's, and what imports have added
    sys.path[0] = os.getcwd()
    runner: Any = sys.modules[RUNNER]
    code = 1
    try:
        code = runner.main(list(command[command.index("grader.runner") + 1 :]))
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # Triton complains of its own leaks at a normal exit
