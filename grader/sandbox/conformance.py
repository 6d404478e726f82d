"""Tests of what a sandbox promises; run by `grade sandbox check` and by the test suite.

Each check starts a probe (`hostile_probe`) in place of the runner, which tries to break out. The
check passes when no attempt succeeds. A check that ends its runner starts a separate one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from grader.sandbox import docker, docker_engine
from grader.sandbox.base import (
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
)
from grader.sandbox.docker_engine import docker_client
from grader.sandbox.host import device_nodes
from grader.wire import Status, WireError, WireTimeout, receive_reply, send_request

Kind = Literal["docker", "process"]

LIMITS = RunnerLimits(
    memory_bytes=512 << 20, scratch_bytes=32 << 20, output_bytes=1 << 20, pids=64, open_files=256
)
_MODULE = "grader.sandbox.hostile_probe"
_REPLY_S = 30.0
_ENDING_S = 20.0


@dataclass(frozen=True)
class PromiseResult:
    """The result of one check."""

    topic: str
    promise: str
    holes: list[str]
    """Attempts that succeeded; empty when the promise holds."""

    @property
    def held(self) -> bool:
        return not self.holes


class SandboxUnderTest:
    """A sandbox, and a shared runner in it that serves probes."""

    def __init__(self, kind: Kind, device: RunnerDevice, image: str | None = None) -> None:
        self.kind, self.device, self.image = kind, device, image
        self._runner: Runner | None = None
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner:
            self._runner.stop()

    def make_sandbox(self) -> Sandbox:
        """The sandbox, with the probe as its runner."""
        if self.kind == "docker":
            return docker.DockerSandbox(self.image, module=_MODULE)
        from grader.sandbox.process import ProcessSandbox

        return ProcessSandbox(module=_MODULE)

    def start(self) -> Runner:
        """A separate runner; the caller stops it."""
        return self.make_sandbox().start(LIMITS, self.device)

    def ask(self, probe: str, fds: tuple[int, ...] = (), **arguments: Any) -> list[str]:
        """Run a probe in the shared runner, started on first use; the attempts that succeeded."""
        if self._runner is None:
            self._runner = self.start()
        try:
            return self.ask_of(self._runner, probe, fds, **arguments)
        except (WireError, WireTimeout):
            self._runner.stop()
            self._runner = None
            raise

    def ask_of(
        self, runner: Runner, probe: str, fds: tuple[int, ...] = (), **arguments: Any
    ) -> list[str]:
        """Run a probe in `runner`. Raises `WireError` or `WireTimeout` when it does not reply."""
        self._number += 1
        send_request(runner.channel, {"probe": probe, "sequence": self._number, **arguments}, fds)
        reply = receive_reply(runner.channel, _REPLY_S)
        if reply.status is not Status.OK:
            return [f"the probe broke: {reply.text}"]
        return reply.text.splitlines()

    def exit_of(self, probe: str, **arguments: Any) -> tuple[RunnerExit | None, bytes]:
        """Run a probe that does not return; how its runner ended by itself, and its log."""
        with self.start() as runner:
            send_request(runner.channel, {"probe": probe, "sequence": 0, **arguments})
            deadline = time.monotonic() + _ENDING_S
            while (ending := runner.poll()) is None and time.monotonic() < deadline:
                time.sleep(0.02)
            return ending, runner.log()


def run(sandbox: SandboxUnderTest, topics: list[str] | None = None) -> Iterator[PromiseResult]:
    """Run all checks, or those of some topics. A check that cannot run counts as a hole.

    Raises `SandboxError` when no runner can be started.
    """
    sandbox.ask("descriptors")
    for topic, promise, check in CHECKS:
        if topics is not None and topic not in topics:
            continue
        try:
            holes = check(sandbox)
        except (SandboxError, WireError, WireTimeout, OSError) as error:
            holes = [f"the check could not be made: {type(error).__name__} {error}".strip()]
        yield PromiseResult(topic, promise, holes)


def _network(sandbox: SandboxUnderTest) -> list[str]:
    abstract = f"grade-probe-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("", 0), backlog=8))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind("\0" + abstract)
        local.listen(8)
        return sandbox.ask(
            "network",
            loopback_port=listener.getsockname()[1],
            addresses=_addresses(),
            abstract=abstract,
        )


def _writes(sandbox: SandboxUnderTest) -> list[str]:
    # The process sandbox has a private /tmp, which counts as scratch.
    temporary = ["/tmp"] if sandbox.kind == "process" else []
    return sandbox.ask("writes", allowed=["/dev/shm", "/dev/mqueue", *temporary])


def _namespaces(sandbox: SandboxUnderTest) -> list[str]:
    kinds = ("pid", "net", "ipc", "mnt", "uts", "cgroup")
    host = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    return sandbox.ask("namespaces", host=host)


def _secrets(sandbox: SandboxUnderTest) -> list[str]:
    repository = Path(__file__).resolve().parents[2]
    with ExitStack() as stack:
        canaries = [stack.enter_context(_canary(folder)) for folder in _private_folders()]
        paths = [
            *canaries,
            "/etc/shadow",
            "/var/run/docker.sock",
            "/run/docker.sock",
            "/run/containerd/containerd.sock",
            "/var/lib/docker",
            os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or "/run/docker.sock",
            *map(str, (Path.home() / ".ssh", Path.home() / ".local/share")),
            *(str(repository / name) for name in ("problems", "tests", ".git", "pyproject.toml")),
            f"/proc/{os.getpid()}/environ",
            f"/proc/{os.getpid()}/root",
        ]
        # Set before the runner starts, so that the runner could inherit it.
        variable = f"GRADE_PROBE_{secrets.token_hex(4).upper()}"
        os.environ[variable] = "secret"
        try:
            with sandbox.start() as runner:
                return sandbox.ask_of(runner, "secrets", paths=paths, variables=[variable])
        finally:
            del os.environ[variable]


def _full_disk(sandbox: SandboxUnderTest) -> list[str]:
    bound_bytes = LIMITS.scratch_bytes
    holes = sandbox.ask("full_disk", places=["scratch", "jit"], bound_bytes=bound_bytes)
    return holes + sandbox.ask("full_disk", places=["/dev/shm"], bound_bytes=docker.SHM_BYTES)


def _lent_memory(sandbox: SandboxUnderTest) -> list[str]:
    fd = os.memfd_create("lent")
    try:
        os.ftruncate(fd, 4096)
        with mmap.mmap(fd, 4096) as memory:
            memory[:5] = b"judge"
            holes = sandbox.ask("lent_memory", (fd,))
            return holes or ([] if memory[:6] == b"runner" else ["its writing is not seen here"])
    finally:
        os.close(fd)


def _out_of_memory(sandbox: SandboxUnderTest) -> list[str]:
    ending, _ = sandbox.exit_of("allocate")
    return [] if ending and ending.out_of_memory else [f"ended as {ending}"]


def _output_cap(sandbox: SandboxUnderTest) -> list[str]:
    ending, log = sandbox.exit_of("flood")
    holes = [] if ending and ending.output_exceeded else [f"ended as {ending}"]
    return holes + ([] if 0 < len(log) < 256 << 10 else [f"a log of {len(log)} bytes was kept"])


def _exit_status(sandbox: SandboxUnderTest) -> list[str]:
    ending, _ = sandbox.exit_of("leave", status=7)
    return [] if ending == RunnerExit(exit_code=7) else [f"exit status 7 was seen as {ending}"]


def _fork_bomb(sandbox: SandboxUnderTest) -> list[str]:
    def bomb(runner: Runner, fd: int) -> list[str]:
        return sandbox.ask_of(runner, "processes", (fd,), at_most=LIMITS.pids)

    return _nothing_survives(sandbox, bomb)


def _daemons(sandbox: SandboxUnderTest) -> list[str]:
    return _nothing_survives(sandbox, lambda runner, fd: sandbox.ask_of(runner, "linger", (fd,)))


def _deadline(sandbox: SandboxUnderTest) -> list[str]:
    with sandbox.start() as runner:
        send_request(runner.channel, {"probe": "spin", "sequence": 0})
        time.sleep(0.2)
        started = time.monotonic()
        ending = runner.stop()
        took_s = time.monotonic() - started
    holes = [] if ending.stopped else [f"ended as {ending}"]
    return holes + ([f"took {took_s:.1f} s to kill"] if took_s > 5 else [])


def _removal(sandbox: SandboxUnderTest) -> list[str]:
    before = _remains(sandbox, os.getpid())
    with sandbox.start():
        during = _remains(sandbox, os.getpid()) - before
    if sandbox.kind == "docker" and not during:
        return ["no container was seen while it ran"]
    return [f"left {what}" for what in sorted(during) if _is_there(what)]


def _owner_killed(sandbox: SandboxUnderTest) -> list[str]:
    """Kill a process that owns a runner; nothing of the runner may stay."""
    ours, theirs = os.pipe()
    code = "import sys; from grader.sandbox.conformance import start_and_die as run; "
    code += "run(*sys.argv[1:])"
    command = [
        sys.executable,
        "-c",
        code,
        sandbox.kind,
        sandbox.device,
        sandbox.image or "",
        str(theirs),
    ]
    owner = subprocess.Popen(command, pass_fds=[theirs], stderr=subprocess.PIPE, text=True)
    _, printed = owner.communicate(timeout=60)
    os.close(theirs)
    try:
        if owner.returncode != -signal.SIGKILL:
            return [f"the owner ended with {owner.returncode}, not by the kill: {printed}"]
        remains = _remains(sandbox, owner.pid)
        if sandbox.kind == "docker":
            if not remains:
                return ["the owner's container was not seen"]
            with docker_client() as api:
                docker_engine.remove_orphans(api)
        holes = [] if _is_closed(ours) else ["a process of the runner lives on"]
        return holes + [f"left {what}" for what in sorted(remains) if _is_there(what)]
    finally:
        os.close(ours)


def start_and_die(kind: Kind, device: RunnerDevice, image: str, fd: str) -> None:
    """Start a runner that keeps `fd` open, then die by SIGKILL. Runs in a separate process."""
    SandboxUnderTest(kind, device, image or None).ask("linger", (int(fd),))
    os.kill(os.getpid(), signal.SIGKILL)


def _nothing_survives(
    sandbox: SandboxUnderTest, act: Callable[[Runner, int], list[str]]
) -> list[str]:
    """Stop a runner after `act`. Any process that survives still holds the pipe it was given."""
    ours, theirs = os.pipe()
    try:
        with sandbox.start() as runner:
            try:
                holes = act(runner, theirs)
            finally:
                os.close(theirs)
            if _is_closed(ours, 0):
                holes.append("no process held the pipe before the end: nothing was tried")
        return holes + ([] if _is_closed(ours) else ["a process outlived its runner"])
    finally:
        os.close(ours)


def _is_closed(pipe: int, timeout_s: float = 5) -> bool:
    """Whether every copy of the pipe's other end is closed."""
    poller = select.poll()
    poller.register(pipe, select.POLLHUP)
    return bool(poller.poll(timeout_s * 1000))


def _remains(sandbox: SandboxUnderTest, owner_pid: int) -> set[str]:
    """The containers that a process owns, and the folders of their sockets."""
    if sandbox.kind != "docker":
        return set()
    found = set()
    with docker_client() as api:
        containers = api.containers(all=True, filters={"label": docker_engine.RUNNER_LABEL})
    for container in containers:
        labels = container["Labels"]
        if labels[docker_engine.OWNER_LABEL].split("/")[2] == str(owner_pid):
            found |= {container["Id"], labels[docker_engine.FOLDER_LABEL]}
    return found


def _is_there(what: str) -> bool:
    if what.startswith("/"):
        return Path(what).exists()
    with docker_client() as api:
        return bool(api.containers(all=True, filters={"id": what}))


def _addresses() -> list[str]:
    """This host's addresses, as its name resolves to them."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found} - {"127.0.0.1"})


def _private_folders() -> list[Path]:
    folders = {Path.home(), Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()}
    return [folder for folder in sorted(folders) if os.access(folder, os.W_OK)]


@contextmanager
def _canary(folder: Path) -> Iterator[str]:
    """A world-readable file that no runner should be able to reach."""
    fd, path = tempfile.mkstemp(prefix=".grade-canary-", dir=folder)
    try:
        os.write(fd, b"secret")
        os.fchmod(fd, 0o644)
        yield path
    finally:
        os.close(fd)
        os.unlink(path)


def _asks(probe: str, **arguments: Any) -> Callable[[SandboxUnderTest], list[str]]:
    return lambda sandbox: sandbox.ask(probe, **arguments)


CHECKS: list[tuple[str, str, Callable[[SandboxUnderTest], list[str]]]] = [
    ("network", "no way to the host, the world or a name server", _network),
    ("network", "no raw or packet sockets", _asks("raw_sockets")),
    ("files", "writes go to scratch, jit and shared memory only", _writes),
    ("files", "the kernel's knobs are read-only, its secrets empty", _asks("kernel_files")),
    ("files", "scratch is noexec, jit executes", _asks("execution")),
    ("files", "the host's files, sockets and environment are out of sight", _secrets),
    ("files", "a full disk is an error at the limit", _full_disk),
    ("users", "not root, no capabilities", lambda b: b.ask("identity", owner_uid=os.getuid())),
    ("users", "no new privileges", _asks("flag", name="NoNewPrivs", value="1")),
    ("kernel", "a seccomp filter is in force", _asks("flag", name="Seccomp", value="2")),
    (
        "kernel",
        "mount, unshare, bpf, keyctl, ptrace of the judge … are denied",
        lambda sandbox: sandbox.ask("system_calls", owner_pid=os.getpid()),
    ),
    ("kernel", "PID, network, IPC, mount, UTS and cgroup namespaces are separate", _namespaces),
    (
        "kernel",
        "only the devices asked for",
        lambda b: b.ask("devices", asked=[str(node) for node in device_nodes(b.device)]),
    ),
    ("wire", "no descriptor besides stdio and the wire", _asks("descriptors")),
    ("wire", "memory is lent by descriptor", _lent_memory),
    ("limits", "core dumps and open files", _asks("limits", open_files=LIMITS.open_files)),
    ("limits", "memory: ended and seen as such", _out_of_memory),
    ("limits", "output: ended at the cap and kept short", _output_cap),
    ("limits", "processes: a fork bomb is contained and killed", _fork_bomb),
    ("end", "an exit status is passed on", _exit_status),
    ("end", "killed from outside whatever it ignores", _deadline),
    ("end", "daemons end with their runner", _daemons),
    ("end", "no container, directory or socket is left", _removal),
    ("end", "the same after the judge was killed", _owner_killed),
]
"""Topic, promise, and the check, which returns one line per attempt that succeeded."""
