"""The sandbox for machines with no Docker: a process tree of this host, held as well as it can be.

`grader.sandbox.launch` runs it in a jail; this module starts that, watches it from outside and ends
it.
How much it isolates depends on what this user may do, the best that works is taken, and `describe`
says which it was:

- ``namespaces, own user`` (root): its own root directory, processes, network, users.
- ``namespaces`` (anyone, where the kernel lets users make them): the same, but to the host it is
  still the user who started it.
- ``own user`` (root where namespaces are refused): sees the host's processes and the files that
  everyone may read, and reaches its local sockets. Files it writes are bounded one by one, not
  together, and those in shared directories such as ``/tmp`` stay.
- ``same user``: as before, and it can read and change what you can, and end what you can end: your
  files, your processes, the judge. It may even outlive us, by ending the launcher.

Without a namespace there is no Internet socket either; the system call filter refuses it. Memory is
counted by a control group where one can be made (root). Elsewhere private memory and the writable
space are looked at 20 times a second, and shared memory escapes the count.
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

from grader.sandbox.base import RunnerExit, RunnerDevice, Runner, RunnerLimits, Sandbox, SandboxError
from grader.sandbox.cgroup import ControlGroup
from grader.sandbox.host import device_nodes, host_paths, runner_environment
from grader.sandbox.jail import WIRE_FD, Config
from grader.sandbox.launch import descendants, launcher_command
from grader.sandbox.output import Output
from grader.sandbox.owner import own_folder, remove
from grader.sandbox.seccomp import system_call_filter

Isolation = Literal["namespaces", "user", "none"]

START_S = 20.0
END_S = 15.0
"""How long a killed tree may take to die: a driver may have to tear down a busy GPU first."""

LOOK_S = 0.05
"""How often the memory is looked at."""

SPARE_BYTES = 1 << 30
"""Address space beyond the memory limit before an allocation fails: libraries and thread stacks."""

_FIRST_UID, _UIDS = 60_706, 478
"""Users that no distribution gives to anyone (systemd's "Users, Groups, UIDs and GIDs" lists them
as unused); each runner has one of them to itself."""
_NAMESPACE_UID = 65_532


class ProcessSandbox(Sandbox):
    """Runs submissions as processes of this host.

    `module` is run as the runner. `isolation` is one way and no other; by default the best that
    works here.
    """

    name = "process"

    def __init__(self, module: str = "grader.runner", isolation: Isolation | None = None) -> None:
        self._command = [sys.executable, "-s", "-m", module, "--fd", str(WIRE_FD)]
        best: list[Isolation] = ["namespaces", "user", "none"]
        if os.geteuid() != 0:
            best.remove("user")
        self._candidates = [isolation] if isolation else best
        self._proven = False

    def describe(self) -> str:
        """``process (…)`` with what it isolates here, as in the text of this module."""
        if not self._proven:
            probe = RunnerLimits(1 << 30, 1 << 20, 1 << 20, pids=64)
            self._start(["/bin/true"], probe, "cpu").stop()
        words = {
            "namespaces": "namespaces, own user" if os.geteuid() == 0 else "namespaces",
            "user": "own user",
            "none": "same user",
        }
        return f"{self.name} ({words[self._candidates[0]]})"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """Start a runner. Raises `SandboxError` when none can be executed in any jail."""
        return self._start([*self._command, "--device", device], limits, device)

    def _start(self, command: list[str], limits: RunnerLimits, device: RunnerDevice) -> ProcessRunner:
        failures = []
        for isolation in list(self._candidates):
            try:
                runner = ProcessRunner(command, limits, device, isolation)
            except (SandboxError, OSError) as error:
                failures.append(f"{isolation}: {error}")
                continue
            self._candidates, self._proven = [isolation], True
            return runner
        raise SandboxError("no process sandbox works here; " + "; ".join(failures))


class ProcessRunner(Runner):
    """A launcher, the jail behind it, and a thread that reads its output and counts its memory."""

    def __init__(
        self, command: list[str], limits: RunnerLimits, device: RunnerDevice, isolation: Isolation
    ) -> None:
        self._limits = limits
        self._isolation = isolation
        self._output = Output(limits.output_bytes)
        self._cause: Literal["memory", "output", "stopped"] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._cleaned = False
        self._user = _OwnUser() if os.geteuid() == 0 and isolation != "none" else None
        self._folder = own_folder()
        self._group = None
        if os.geteuid() == 0:
            self._group = ControlGroup.create(
                secrets.token_hex(4), limits.memory_bytes, limits.pids
            )
        _Dumpable.forbid()
        try:
            self._launch(command, device)
        except BaseException:
            # Closing the control socket ends what was started of it.
            self._clean_up()
            raise

    def _launch(self, command: list[str], device: RunnerDevice) -> None:
        self.channel, wire = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, control = socket.socketpair()
        with wire, control:
            config = self._config(command, device, wire.fileno(), control.fileno())
            self._process = subprocess.Popen(
                launcher_command(config),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(wire.fileno(), control.fileno()),
                start_new_session=True,
                env={"LANG": "C.UTF-8"},
                cwd="/",
            )
        self._reader = threading.Thread(target=self._watch, name="grade-sandbox", daemon=True)
        self._reader.start()
        self._control.settimeout(START_S)
        try:
            word = self._control.recv(4096).decode("utf-8", "replace")
        except TimeoutError:
            word = f"nothing heard of it for {START_S:g} s"
        if word != "ok":
            self.stop()
            raise SandboxError(word or self._output.last_line() or "the launcher died")

    def _config(self, command: list[str], device: RunnerDevice, wire: int, control: int) -> Config:
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
            "filter": system_call_filter(network=isolation == "namespaces").hex(),
            "wire": wire,
            "control": control,
        }

    def _rlimits(self, device: RunnerDevice) -> dict[str, int]:
        limits = self._limits
        files = limits.open_files
        if os.geteuid() != 0:
            # Descriptors that are sent and not received are counted per user, which is ours: as
            # many as a runner may have must leave room for those that it is lent.
            files = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        rlimits = {"CORE": 0, "NOFILE": files, "FSIZE": limits.scratch_bytes}
        if self._isolation != "none":  # counted per user: a shared one has processes of its own
            rlimits["NPROC"] = limits.pids
        if self._group is None and device != "cuda":
            # Between two looks; CUDA maps address space by the terabyte, so not there.
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
        # The first process of a PID namespace can't die of its own signal, and says so this way.
        if code < 0 or 128 < code <= 128 + 64:
            return RunnerExit(signal=-code if code < 0 else code - 128)
        return RunnerExit(exit_code=code)

    def log(self) -> bytes:
        """The first and the last of what was printed; see `Output.kept`."""
        return self._output.kept()

    def stop(self) -> RunnerExit:
        """Kill the tree, wait for it, remove what it left."""
        self._kill("stopped")
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the jail's first process dies of its parent's death
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self._over.set()
        self._reader.join(2 * LOOK_S + 1)
        ending = self.poll()
        self._clean_up()
        return ending or RunnerExit(signal=9, stopped=True)

    def _kill(self, cause: Literal["memory", "output", "stopped"]) -> None:
        """Have the launcher end the jail; the first cause is the one that counts."""
        with self._lock:
            if self._cause is None and self._process.poll() is None:
                self._cause = cause
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        """Read the output until the last writer is gone, and look at the memory now and then."""
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            poller = select.poll()
            poller.register(pipe, select.POLLIN)
            next_look = time.monotonic()
            while True:
                if poller.poll(int(LOOK_S * 1000)):
                    chunk = os.read(pipe.fileno(), 65536)
                    if not chunk:
                        return
                    if self._output.add(chunk):
                        self._kill("output")
                elif self._over.is_set():
                    return  # someone who outlived us holds the pipe
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_S
                    if self._out_of_memory():
                        self._kill("memory")

    def _out_of_memory(self) -> bool:
        if self._group:
            return self._group.out_of_memory()
        tree = descendants(self._process.pid)
        return sum(map(_private_bytes, tree)) + self._space_bytes(tree) > self._limits.memory_bytes

    def _space_bytes(self, tree: list[int]) -> int:
        """What files in memory take; on a disk they take none."""
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
            remove(self._folder)
        _Dumpable.allow()


_PLAIN_DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]


class _OwnUser:
    """A user id that no other runner of this host has, for as long as this object holds it."""

    def __init__(self) -> None:
        # An abstract socket's name is taken at one stroke and freed by our death.
        self._claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for _ in range(100):
            self.uid = _FIRST_UID + secrets.randbelow(_UIDS)
            try:
                self._claim.bind(f"\0grade-uid-{self.uid}")
                return
            except OSError:
                continue
        self._claim.close()
        raise SandboxError("no user id is free for the runner; are hundreds of runners alive?")

    def free(self) -> None:
        self._claim.close()


class _Dumpable:
    """While a runner lives nobody may read this process's memory, not even as the same user."""

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
    """Memory that is the process's own: not files, and not what the judge lends."""
    with suppress(OSError):
        for_us = ("RssAnon:", "VmSwap:")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(for_us))
    return 0
