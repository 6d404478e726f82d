"""The sandbox for machines without Docker: a process tree of this host.

This module starts `grader.sandbox.launch`, which runs the runner in a jail, then watches and stops
it from outside. The isolation depends on what the current user may do. The strongest that works is
used, and `describe` names it:

- ``namespaces, own user`` (root): a separate root directory, processes, network and user.
- ``namespaces`` (anyone, where the kernel permits user namespaces): the same, but to the host the
  runner is still the user who started it.
- ``own user`` (root where namespaces are denied): the runner sees the host's processes and
  world-readable files, and can connect to local sockets. Each file it writes is limited, their sum
  is not, and files in shared directories such as ``/tmp`` stay.
- ``same user``: in addition, the runner can read and change your files, and kill your processes
  and the judge. By killing the launcher it may even outlive the judge.

Without namespaces the seccomp filter denies Internet sockets. Root counts memory with a control
group, where one can be made. Otherwise private memory and the writable folders are polled 20 times
a second, and shared memory is not counted.
"""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from grader.sandbox.base import (
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
)
from grader.sandbox.cgroup import ControlGroup
from grader.sandbox.host import device_nodes, host_paths, runner_environment
from grader.sandbox.jail import WIRE_FD, JailConfig
from grader.sandbox.launch import descendants, launcher_command
from grader.sandbox.output import CapturedOutput
from grader.sandbox.owner import make_owned_folder, remove_tree
from grader.sandbox.seccomp import seccomp_program

Isolation = Literal["namespaces", "user", "none"]

START_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 15.0
"""Seconds a killed tree may take to exit: the driver may have to tear down a busy GPU first."""

MEMORY_POLL_S = 0.05
"""Seconds between two polls of the memory use."""

SPARE_BYTES = 1 << 30
"""Address space above the memory limit, for libraries and thread stacks."""

_FIRST_UID, _UIDS = 60_706, 478
"""User ids that no distribution assigns (systemd's "Users, Groups, UIDs and GIDs" lists them as
unused). Each runner gets one."""
_NAMESPACE_UID = 65_532


class ProcessSandbox(Sandbox):
    """Runs submissions as processes of this host.

    module: the module run as the runner.
    isolation: use only this kind; by default the strongest that works.
    """

    name = "process"

    def __init__(self, module: str = "grader.runner", isolation: Isolation | None = None) -> None:
        self._command = [sys.executable, "-s", "-m", module, "--fd", str(WIRE_FD)]
        strongest_first: list[Isolation] = ["namespaces", "user", "none"]
        if os.geteuid() != 0:
            strongest_first.remove("user")
        self._candidates = [isolation] if isolation else strongest_first
        self._works = False

    def describe(self) -> str:
        """``process (…)`` with the kind of isolation, as listed in this module's docstring."""
        if not self._works:
            limits = RunnerLimits(1 << 30, 1 << 20, 1 << 20, pids=64)
            self._start(["/bin/true"], limits, "cpu").stop()
        names = {
            "namespaces": "namespaces, own user" if os.geteuid() == 0 else "namespaces",
            "user": "own user",
            "none": "same user",
        }
        return f"{self.name} ({names[self._candidates[0]]})"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """Start a runner. Raises `SandboxError` when no kind of isolation works."""
        return self._start([*self._command, "--device", device], limits, device)

    def _runner(
        self, command: list[str], limits: RunnerLimits, device: RunnerDevice, isolation: Isolation
    ) -> ProcessRunner:
        return ProcessRunner(command, limits, device, isolation)

    def _start(
        self, command: list[str], limits: RunnerLimits, device: RunnerDevice
    ) -> ProcessRunner:
        failures = []
        for isolation in list(self._candidates):
            try:
                runner = self._runner(command, limits, device, isolation)
            except (SandboxError, OSError) as error:
                failures.append(f"{isolation}: {error}")
                continue
            self._candidates, self._works = [isolation], True
            return runner
        raise SandboxError("no process sandbox works here; " + "; ".join(failures))


class ProcessRunner(Runner):
    """A launcher and its jail, and a thread that reads the output and counts the memory."""

    def __init__(
        self, command: list[str], limits: RunnerLimits, device: RunnerDevice, isolation: Isolation
    ) -> None:
        self._limits = limits
        self._isolation = isolation
        self._output = CapturedOutput(limits.output_bytes)
        self._cause: Literal["memory", "output", "stopped"] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._cleaned = False
        self._user = _ReservedUser() if os.geteuid() == 0 and isolation != "none" else None
        self._folder = make_owned_folder()
        self._group = None
        if os.geteuid() == 0:
            self._group = ControlGroup.create(
                secrets.token_hex(4), limits.memory_bytes, limits.pids
            )
        _Dumpable.forbid()
        try:
            self._launch(command, device)
        except BaseException:
            # Closing the control socket makes a launcher that was started kill its jail.
            self._clean_up()
            raise

    def _launch(self, command: list[str], device: RunnerDevice) -> None:
        self.channel, wire = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, control = socket.socketpair()
        with wire, control:
            config = self._config(command, device, wire.fileno(), control.fileno())
            self._process = self._start_launcher(config)
        self._reader = threading.Thread(target=self._watch, name="grade-sandbox", daemon=True)
        self._reader.start()
        self._control.settimeout(START_TIMEOUT_S)
        try:
            message = self._control.recv(4096).decode("utf-8", "replace")
        except TimeoutError:
            message = f"the launcher did not answer within {START_TIMEOUT_S:g} s"
        if message != "ok":
            self.stop()
            raise SandboxError(message or self._output.last_line() or "the launcher died")

    def _start_launcher(self, config: JailConfig) -> subprocess.Popen[bytes]:
        """Start the launcher, with its output in a pipe."""
        return subprocess.Popen(
            launcher_command(config),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(config["wire"], config["control"]),
            start_new_session=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
        )

    def _config(
        self, command: list[str], device: RunnerDevice, wire: int, control: int
    ) -> JailConfig:
        isolation, limits = self._isolation, self._limits
        if isolation == "namespaces":
            scratch, jit = Path("/scratch"), Path("/jit")
            uid = self._user.uid if self._user else _NAMESPACE_UID
        else:
            scratch, jit = self._folder / "scratch", self._folder / "jit"
            uid = self._user.uid if self._user else os.geteuid()
            self._folder.chmod(0o711)
        binds = [str(path) for path in host_paths()]
        if isolation == "namespaces":
            system = ["/sys"] if device == "cuda" else ["/sys/devices/system"]
            binds += [path for path in system if os.path.isdir(path)]
        return {
            "isolation": isolation,
            "uid": uid,
            "folder": str(self._folder),
            "binds": binds,
            "devices": [*_PLAIN_DEVICES, *map(str, device_nodes(device))],
            "environment": runner_environment(scratch, jit, device),
            "command": command,
            "scratch_bytes": limits.scratch_bytes,
            "rlimits": self._rlimits(device),
            "cgroups": [str(path) for path in self._group.procs] if self._group else [],
            "filter": seccomp_program(network=isolation == "namespaces").hex(),
            "wire": wire,
            "control": control,
        }

    def _rlimits(self, device: RunnerDevice) -> dict[str, int]:
        limits = self._limits
        files = limits.open_files
        if os.geteuid() != 0:
            # The kernel counts descriptors in flight per user, and runner and judge share one. The
            # runner's limit must leave room for descriptors that the judge sends.
            files = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        rlimits = {"CORE": 0, "NOFILE": files, "FSIZE": limits.scratch_bytes}
        if self._isolation != "none":  # counted per user, who has other processes if shared
            rlimits["NPROC"] = limits.pids
        if self._group is None and device != "cuda":
            # Bounds growth between two polls. Not with CUDA, which maps terabytes of address space.
            rlimits["DATA"] = limits.memory_bytes + SPARE_BYTES
        return rlimits

    def poll(self) -> RunnerExit | None:
        """How it ended, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if self._cause is None and self._group and self._group.out_of_memory():
            self._cause = "memory"
        match self._cause:
            case "memory":
                return RunnerExit(signal=9, out_of_memory=True)
            case "output":
                return RunnerExit(signal=9, output_exceeded=True)
            case "stopped":
                return RunnerExit(signal=9, stopped=True)
        # The first process of a PID namespace can't die of its own signal; it exits with 128 + n.
        if code < 0 or 128 < code <= 128 + 64:
            return RunnerExit(signal=-code if code < 0 else code - 128)
        return RunnerExit(exit_code=code)

    def log(self) -> bytes:
        """The start and the end of its output; see `CapturedOutput.kept`."""
        return self._output.kept()

    def stop(self) -> RunnerExit:
        """Kill the tree, wait for it and remove its files."""
        self._kill("stopped")
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the jail's first process dies with its parent
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_TIMEOUT_S)
        self._stopping.set()
        self._reader.join(2 * MEMORY_POLL_S + 1)
        final = self.poll()
        self._clean_up()
        return final or RunnerExit(signal=9, stopped=True)

    def _kill(self, cause: Literal["memory", "output", "stopped"]) -> None:
        """Make the launcher kill the jail; only the first cause is recorded."""
        with self._lock:
            if self._cause is None and self._process.poll() is None:
                self._cause = cause
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        """Read the output until the last writer closes it, and poll the memory use."""
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            poller = select.poll()
            poller.register(pipe, select.POLLIN)
            next_poll = time.monotonic()
            while True:
                if poller.poll(int(MEMORY_POLL_S * 1000)):
                    chunk = os.read(pipe.fileno(), 65536)
                    if not chunk:
                        return
                    if self._output.add(chunk):
                        self._kill("output")
                elif self._stopping.is_set():
                    return  # a surviving process still holds the pipe
                if time.monotonic() >= next_poll:
                    next_poll = time.monotonic() + MEMORY_POLL_S
                    if self._out_of_memory():
                        self._kill("memory")

    def _out_of_memory(self) -> bool:
        if self._group:
            return self._group.out_of_memory()
        tree = descendants(self._process.pid)
        used_bytes = sum(map(_private_bytes, tree)) + self._tmpfs_bytes(tree)
        return used_bytes > self._limits.memory_bytes

    def _tmpfs_bytes(self, tree: list[int]) -> int:
        """Memory of the writable folders; 0 where they lie on a disk."""
        if self._isolation == "namespaces" and tree:
            with suppress(OSError):
                space = os.statvfs(f"/proc/{tree[0]}/root/scratch")
                return (space.f_blocks - space.f_bfree) * space.f_frsize
        return 0

    def _clean_up(self) -> None:
        with self._lock:
            if self._cleaned:
                return
            self._cleaned = True
        for name in ("channel", "_control"):
            if sock := getattr(self, name, None):
                sock.close()
        if self._group:
            self._group.remove()
        if self._user:
            self._user.free()
        if self._folder.exists():  # the launcher itself was killed
            remove_tree(self._folder)
        _Dumpable.allow()


_PLAIN_DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]


class _ReservedUser:
    """A user id that no other runner of this host has, until `free`."""

    def __init__(self) -> None:
        # Binding an abstract socket is atomic, and the kernel frees its name when we exit.
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for _ in range(100):
            self.uid = _FIRST_UID + secrets.randbelow(_UIDS)
            try:
                self._lock.bind(f"\0grade-uid-{self.uid}")
                return
            except OSError:
                continue
        self._lock.close()
        raise SandboxError("no user id is free for the runner; are hundreds of runners alive?")

    def free(self) -> None:
        self._lock.close()


class _Dumpable:
    """While a runner lives, no process of the same user may read this process's memory."""

    _runners = 0
    _lock = threading.Lock()

    @classmethod
    def forbid(cls) -> None:
        with cls._lock:
            cls._runners += 1
            _set_dumpable(False)

    @classmethod
    def allow(cls) -> None:
        with cls._lock:
            cls._runners -= 1
            if cls._runners == 0:
                _set_dumpable(True)


def _set_dumpable(value: bool) -> None:
    pr_set_dumpable = 4
    ctypes.CDLL(None).prctl(pr_set_dumpable, ctypes.c_ulong(value), 0, 0, 0)


def _private_bytes(pid: int) -> int:
    """A process's private memory: neither files nor memory that the judge lends."""
    with suppress(OSError):
        fields = ("RssAnon:", "VmSwap:")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(fields))
    return 0
