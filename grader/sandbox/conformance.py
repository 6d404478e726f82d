"""What a sandbox promises, tried for real: `grade sandbox check` and the tests run this suite.

Each `Check` starts from a probe (`hostile_probe`) that runs in the runner's place and tries
to get through; a check holds when nothing did. Checks that end their runner have one to themselves.
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

from grader.sandbox import docker, sweep
from grader.sandbox.base import RunnerExit, RunnerDevice, Runner, RunnerLimits, Sandbox, SandboxError
from grader.sandbox.engine import engine
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
class Finding:
    """What became of one check."""

    topic: str
    promise: str
    holes: list[str]
    """What got through; empty when the promise was kept."""

    @property
    def held(self) -> bool:
        return not self.holes


class Bench:
    """A sandbox under test, and a runner of it that serves probes."""

    def __init__(self, kind: Kind, device: RunnerDevice, image: str | None = None) -> None:
        self.kind, self.device, self.image = kind, device, image
        self._runner: Runner | None = None
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner:
            self._runner.stop()

    def sandbox(self) -> Sandbox:
        """The sandbox under test, with the probe as its runner."""
        if self.kind == "docker":
            return docker.DockerSandbox(self.image, module=_MODULE)
        from grader.sandbox.process import ProcessSandbox

        return ProcessSandbox(module=_MODULE)

    def start(self) -> Runner:
        """A runner of one's own; the caller stops it."""
        return self.sandbox().start(LIMITS, self.device)

    def ask(self, probe: str, fds: tuple[int, ...] = (), **arguments: Any) -> list[str]:
        """Run a probe in the shared runner, started when there is none; what got through."""
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
        """Run a probe in `runner`. Raises `WireError` or `WireTimeout` when it does not answer."""
        self._number += 1
        send_request(runner.channel, {"probe": probe, "sequence": self._number, **arguments}, fds)
        reply = receive_reply(runner.channel, _REPLY_S)
        if reply.status is not Status.OK:
            return [f"the probe broke: {reply.text}"]
        return reply.text.splitlines()

    def ending_of(self, probe: str, **arguments: Any) -> tuple[RunnerExit | None, bytes]:
        """How a runner ends by itself that runs a probe which does not return; and its log."""
        with self.start() as runner:
            send_request(runner.channel, {"probe": probe, "sequence": 0, **arguments})
            deadline = time.monotonic() + _ENDING_S
            while (ending := runner.poll()) is None and time.monotonic() < deadline:
                time.sleep(0.02)
            return ending, runner.log()


def run(bench: Bench, topics: list[str] | None = None) -> Iterator[Finding]:
    """Run the checks that apply, all or those of some topics. A check that fails to run is a hole.

    Raises `SandboxError` when no runner can be started at all.
    """
    bench.ask("descriptors")
    for topic, promise, check in CHECKS:
        if topics is not None and topic not in topics:
            continue
        try:
            holes = check(bench)
        except (SandboxError, WireError, WireTimeout, OSError) as error:
            holes = [f"the check could not be made: {type(error).__name__} {error}".strip()]
        yield Finding(topic, promise, holes)


def _network(bench: Bench) -> list[str]:
    abstract = f"grade-probe-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("", 0), backlog=8))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind("\0" + abstract)
        local.listen(8)
        return bench.ask(
            "network",
            loopback_port=listener.getsockname()[1],
            addresses=_addresses(),
            abstract=abstract,
        )


def _writes(bench: Bench) -> list[str]:
    # The process sandbox's /tmp is a private one that counts as scratch.
    temporary = ["/tmp"] if bench.kind == "process" else []
    return bench.ask("writes", allowed=["/dev/shm", "/dev/mqueue", *temporary])


def _namespaces(bench: Bench) -> list[str]:
    kinds = ("pid", "net", "ipc", "mnt", "uts", "cgroup")
    host = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    return bench.ask("namespaces", host=host)


def _secrets(bench: Bench) -> list[str]:
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
        # Set before the runner starts, so that it could be inherited.
        variable = f"GRADE_PROBE_{secrets.token_hex(4).upper()}"
        os.environ[variable] = "secret"
        try:
            with bench.start() as runner:
                return bench.ask_of(runner, "secrets", paths=paths, variables=[variable])
        finally:
            del os.environ[variable]


def _full_disk(bench: Bench) -> list[str]:
    bound_bytes = LIMITS.scratch_bytes
    holes = bench.ask("full_disk", places=["scratch", "jit"], bound_bytes=bound_bytes)
    return holes + bench.ask("full_disk", places=["/dev/shm"], bound_bytes=docker.SHM_BYTES)


def _lent_memory(bench: Bench) -> list[str]:
    fd = os.memfd_create("lent")
    try:
        os.ftruncate(fd, 4096)
        with mmap.mmap(fd, 4096) as memory:
            memory[:5] = b"judge"
            holes = bench.ask("lent_memory", (fd,))
            return holes or ([] if memory[:6] == b"runner" else ["its writing is not seen here"])
    finally:
        os.close(fd)


def _out_of_memory(bench: Bench) -> list[str]:
    ending, _ = bench.ending_of("allocate")
    return [] if ending and ending.out_of_memory else [f"ended as {ending}"]


def _output_cap(bench: Bench) -> list[str]:
    ending, log = bench.ending_of("flood")
    holes = [] if ending and ending.output_exceeded else [f"ended as {ending}"]
    return holes + ([] if 0 < len(log) < 256 << 10 else [f"a log of {len(log)} bytes was kept"])


def _exit_status(bench: Bench) -> list[str]:
    ending, _ = bench.ending_of("leave", status=7)
    return [] if ending == RunnerExit(exit_code=7) else [f"exit status 7 was seen as {ending}"]


def _fork_bomb(bench: Bench) -> list[str]:
    def bomb(runner: Runner, fd: int) -> list[str]:
        return bench.ask_of(runner, "processes", (fd,), at_most=LIMITS.pids)

    return _nothing_survives(bench, bomb)


def _daemons(bench: Bench) -> list[str]:
    return _nothing_survives(bench, lambda runner, fd: bench.ask_of(runner, "linger", (fd,)))


def _deadline(bench: Bench) -> list[str]:
    with bench.start() as runner:
        send_request(runner.channel, {"probe": "spin", "sequence": 0})
        time.sleep(0.2)
        started = time.monotonic()
        ending = runner.stop()
        took_s = time.monotonic() - started
    holes = [] if ending.stopped else [f"ended as {ending}"]
    return holes + ([f"took {took_s:.1f} s to kill"] if took_s > 5 else [])


def _removal(bench: Bench) -> list[str]:
    before = _remains(bench, os.getpid())
    with bench.start():
        during = _remains(bench, os.getpid()) - before
    if bench.kind == "docker" and not during:
        return ["no container was seen while it ran"]
    return [f"left {what}" for what in sorted(during) if _is_there(what)]


def _owner_killed(bench: Bench) -> list[str]:
    """A process of ours starts a runner and is killed; nothing of the runner may stay."""
    ours, theirs = os.pipe()
    code = "import sys; from grader.sandbox import conformance; conformance.doomed(*sys.argv[1:])"
    command = [sys.executable, "-c", code, bench.kind, bench.device, bench.image or "", str(theirs)]
    owner = subprocess.Popen(command, pass_fds=[theirs], stderr=subprocess.PIPE, text=True)
    _, printed = owner.communicate(timeout=60)
    os.close(theirs)
    try:
        if owner.returncode != -signal.SIGKILL:
            return [f"the owner ended with {owner.returncode}, not by the kill: {printed}"]
        remains = _remains(bench, owner.pid)
        if bench.kind == "docker":
            if not remains:
                return ["the owner's container was not seen"]
            with engine() as api:
                sweep.sweep(api)
        holes = [] if _is_closed(ours) else ["a process of the runner lives on"]
        return holes + [f"left {what}" for what in sorted(remains) if _is_there(what)]
    finally:
        os.close(ours)


def doomed(kind: Kind, device: RunnerDevice, image: str, fd: str) -> None:
    """Start a runner that lingers with `fd`, and die by SIGKILL. Run as a process of its own."""
    Bench(kind, device, image or None).ask("linger", (int(fd),))
    os.kill(os.getpid(), signal.SIGKILL)


def _nothing_survives(bench: Bench, act: Callable[[Runner, int], list[str]]) -> list[str]:
    """Stop a runner after `act`; whatever process of it lives on holds the pipe it was lent."""
    ours, theirs = os.pipe()
    try:
        with bench.start() as runner:
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


def _remains(bench: Bench, owner_pid: int) -> set[str]:
    """Containers of a process, and the directories of their sockets."""
    if bench.kind != "docker":
        return set()
    found = set()
    with engine() as api:
        containers = api.containers(all=True, filters={"label": sweep.MARK})
    for container in containers:
        labels = container["Labels"]
        if labels[sweep.OWNER].split("/")[2] == str(owner_pid):
            found |= {container["Id"], labels[sweep.FOLDER]}
    return found


def _is_there(what: str) -> bool:
    if what.startswith("/"):
        return Path(what).exists()
    with engine() as api:
        return bool(api.containers(all=True, filters={"id": what}))


def _addresses() -> list[str]:
    """This host's own addresses, as far as its name tells."""
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
    """A file that everyone on this host may read, where no runner should get."""
    fd, path = tempfile.mkstemp(prefix=".grade-canary-", dir=folder)
    try:
        os.write(fd, b"secret")
        os.fchmod(fd, 0o644)
        yield path
    finally:
        os.close(fd)
        os.unlink(path)


def _asks(probe: str, **arguments: Any) -> Callable[[Bench], list[str]]:
    return lambda bench: bench.ask(probe, **arguments)


CHECKS: list[tuple[str, str, Callable[[Bench], list[str]]]] = [
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
        lambda bench: bench.ask("system_calls", owner_pid=os.getpid()),
    ),
    ("kernel", "PID, network, IPC, mount, UTS and cgroup namespaces of its own", _namespaces),
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
"""Topic, promise, and the check: what got through, one line each."""
