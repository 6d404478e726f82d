"""The Docker sandbox: one throw-away container per runner.

`_host_config` lists what a container gets; everything else is the engine's default, above all its
seccomp profile. The wire is a Unix socket in a directory mounted into the container, which needs no
network. The runner connects twice, then the listener is closed. The second connection is a
lifeline: the container's first process exits when this process closes it or ends, even by SIGKILL.

No docker command, init or BuildKit is needed. ``DOCKER_HOST`` names the engine.
"""

from __future__ import annotations

import atexit
import os
import secrets
import select
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from socket import SocketIO
from typing import Any

import docker
from docker.types import LogConfig, Mount, Ulimit
from docker.utils.socket import frames_iter

from grader.sandbox import images
from grader.sandbox.base import (
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
    exit_on_signals,
)
from grader.sandbox.docker_engine import (
    CLIENT_ERRORS,
    FOLDER_LABEL,
    OWNER_LABEL,
    RUNNER_LABEL,
    docker_client,
    engine_errors,
    new_client,
    remove_orphans,
)
from grader.sandbox.host import device_nodes, runner_cpus
from grader.sandbox.output import CapturedOutput
from grader.sandbox.owner import make_owned_folder, process_identity

START_DEADLINE_S = 60.0
"""Seconds a runner may take to connect, on a busy machine with a cold disk."""

SHM_BYTES = 64 << 20
COMPILER_SHARES = 128
"""Weight of a sandbox that only compiles when processors are short; that of others is 1,024. It
gives way to them, since one of them may be timed. A container's niceness counts only inside it."""
_EXIT_GRACE_S = 1.0
"""Seconds a runner may take to exit before it is killed, once either end closed the wire or its
lifeline."""
_KILL_TIMEOUT_S = 10.0
"""Seconds the engine may take to report that a killed container has exited."""

_live: set[DockerRunner] = set()


class DockerSandbox(Sandbox):
    """Runs submissions in containers of the engine that ``DOCKER_HOST`` names.

    image: tag of a self-contained image; None uses ``GRADE_IMAGE`` if set, else the host image.
    module: the module that runs in the container; the conformance suite puts its probe here.
    """

    name = "docker"

    def __init__(self, image: str | None = None, module: str = "grader.runner") -> None:
        self._image = image or os.environ.get("GRADE_IMAGE")
        self._module = module

    @staticmethod
    def available() -> str | None:
        """None when the engine answers, else the reason and what to do about it."""
        try:
            with docker_client(timeout_s=5) as api:
                api.ping()
        except SandboxError as error:
            return str(error)
        return None

    def describe(self) -> str:
        return f"docker ({self._image or 'host image'})"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        with docker_client() as api:
            remove_orphans(api)
            if self._image:
                image = images.self_contained_image(api, self._image, device)
            else:
                image = images.host_image(api, device)
        _stop_live_on_exit()
        command = [image.python, "-s", "-m", self._module]
        command += ["--connect", str(_SOCKET), "--device", device]
        with engine_errors():
            return DockerRunner(image, command, limits, device)


class DockerRunner(Runner):
    """A container, and the judge's end of its wire and of its lifeline."""

    def __init__(
        self,
        image: images.RunnerImage,
        command: list[str],
        limits: RunnerLimits,
        device: RunnerDevice,
    ) -> None:
        self._api = new_client()
        self._output = CapturedOutput(limits.output_bytes)
        self._exited = threading.Event()
        self._state: dict[str, object] = {}
        self._final: RunnerExit | None = None
        self._lock = threading.Lock()
        self._folder = make_owned_folder()
        self._id = ""
        self._started = False
        _live.add(self)
        try:
            listener = _listen(self._folder)
            with listener:
                self._create(image, command, limits, device)
                self.channel = self._accept(listener)
                self._lifeline = self._accept(listener)
            (self._folder / "wire" / _SOCKET.name).unlink(missing_ok=True)
        except BaseException:
            self.stop()
            raise

    def _create(
        self,
        image: images.RunnerImage,
        command: list[str],
        limits: RunnerLimits,
        device: RunnerDevice,
    ) -> None:
        created = self._api.create_container(
            image.tag,
            command,
            name=f"grade-{secrets.token_hex(6)}",
            hostname="runner",
            user=f"{images.USER_ID}:{images.USER_ID}",
            working_dir=str(images.SCRATCH),
            environment=image.environment,
            labels={
                RUNNER_LABEL: "1",
                OWNER_LABEL: process_identity(os.getpid()),
                FOLDER_LABEL: str(self._folder),
            },
            host_config=_host_config(self._api, image, limits, device, self._folder),
        )
        self._id = created["Id"]
        # Attach before the start, so that no byte is missed.
        params = {"stdout": 1, "stderr": 1, "stream": 1}
        output = self._api.attach_socket(self._id, params=params)
        watcher = new_client(version=self._api.api_version)
        threading.Thread(target=self._watch, args=(watcher, output), daemon=True).start()
        self._api.start(self._id)
        self._started = True

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + START_DEADLINE_S
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        while time.monotonic() < deadline:
            if poller.poll(50):
                return listener.accept()[0]
            if self._exited.is_set():
                why = self._output.last_line() or f"exit status {self._state.get('ExitCode')}"
                raise SandboxError(f"the runner ended before it connected: {why}")
        raise SandboxError(
            f"the runner did not connect within {START_DEADLINE_S:.0f} s:"
            " is the engine on this machine, and the machine not overloaded?"
        )

    def _watch(self, api: docker.APIClient, output: SocketIO) -> None:
        """In a thread with its own connection: read the output, then wait for the exit."""
        try:
            for _, chunk in frames_iter(output, tty=False):
                if self._output.add(chunk):
                    # In another thread: the engine ends a container only while its output is read.
                    threading.Thread(target=self._kill, daemon=True).start()
            api.wait(self._id, timeout=None)
            self._state = api.inspect_container(self._id)["State"]
        except (*CLIENT_ERRORS, OSError) as error:
            self._output.add(f"[the engine was lost: {error}]\n".encode())
        finally:
            output._response.close()  # type: ignore[attr-defined]  # docker-py keeps it open
            output.close()
            api.close()
            self._exited.set()

    def poll(self) -> RunnerExit | None:
        if self._final:
            return self._final
        return self._runner_exit(stopped=False) if self._exited.is_set() else None

    def log(self) -> bytes:
        return self._output.kept()

    def stop(self) -> RunnerExit:
        with self._lock:
            if self._final is None:
                self._final = self._tear_down()
            return self._final

    def _tear_down(self) -> RunnerExit:
        hung_up = self._hung_up()
        if hung_up:
            self._exited.wait(_EXIT_GRACE_S)
        stopped = not self._exited.is_set()
        if stopped and self._started:
            if lifeline := getattr(self, "_lifeline", None):
                lifeline.close()  # sooner than by the engine, which takes a tenth of a second
                self._exited.wait(_EXIT_GRACE_S)
            if not self._exited.is_set():
                self._kill()
                self._exited.wait(_KILL_TIMEOUT_S)
        final = self._runner_exit(stopped, hung_up)
        if self._id:
            with suppress(*CLIENT_ERRORS):
                self._api.remove_container(self._id, force=True, v=True)
        for name in ("channel", "_lifeline"):
            if sock := getattr(self, name, None):
                sock.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._api.close()
        _live.discard(self)
        return final

    def _kill(self) -> None:
        # It may have exited already; the container's state has the cause.
        # A new connection, since this may run during any other call.
        with suppress(SandboxError, *CLIENT_ERRORS), docker_client() as api:
            api.kill(self._id)

    def _hung_up(self) -> bool:
        if not hasattr(self, "channel") or self.channel.fileno() < 0:
            return False
        poller = select.poll()
        poller.register(self.channel, select.POLLRDHUP)
        return bool(poller.poll(0))

    def _runner_exit(self, stopped: bool, hung_up: bool = True) -> RunnerExit:
        """The engine's record of the exit. Exit status 128 + n is signal n."""
        status = self._state.get("ExitCode")
        status = status if isinstance(status, int) else None
        signalled = status is not None and 128 < status <= 128 + 64
        exceeded = self._output.exceeded
        # OOMKilled is also set when only a child ran out of memory and the runner went on.
        oom = bool(self._state.get("OOMKilled")) and (not stopped or hung_up) and not exceeded
        return RunnerExit(
            exit_code=None if signalled else status,
            signal=status - 128 if status is not None and signalled else None,
            out_of_memory=oom,
            output_exceeded=exceeded,
            stopped=stopped and not exceeded and not oom,
        )


_SOCKET = images.WIRE / "judge.sock"


def _host_config(
    api: docker.APIClient,
    image: images.RunnerImage,
    limits: RunnerLimits,
    device: RunnerDevice,
    folder: Path,
) -> dict[str, object]:
    owner = f"uid={images.USER_ID},gid={images.USER_ID},mode=0700"
    size = f"size={limits.scratch_bytes}"
    wire = Mount(str(images.WIRE), str(folder / "wire"), type="bind", read_only=True)
    config: dict[str, object] = api.create_host_config(
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        ipc_mode="private",
        cgroupns="private",
        mounts=[*image.mounts, wire],
        tmpfs={
            str(images.SCRATCH): f"rw,noexec,nosuid,nodev,{size},{owner}",
            str(images.JIT): f"rw,exec,nosuid,nodev,{size},{owner}",
        },
        shm_size=SHM_BYTES,
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        pids_limit=limits.pids,
        oom_score_adj=1000,  # when the host runs out, the runner is killed before the judge
        nano_cpus=None if device == "cpu" else _nano_cpus(api.info()),
        cpu_shares=COMPILER_SHARES if device == "none" else None,
        ulimits=[
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="fsize", soft=limits.scratch_bytes, hard=limits.scratch_bytes),
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
        ],
        # Read and write, without mknod.
        devices=[f"{node}:{node}:rw" for node in device_nodes(device)],
        # The output is read from the socket; a log of the engine's would fill the disk.
        log_config=LogConfig(type="none"),
    )
    return config


def _nano_cpus(info: dict[str, Any]) -> int | None:
    """CPU quota of a GPU runner or its compiler, in 1e-9 CPUs; None where no quota is supported."""
    if not info.get("CpuCfsQuota"):
        return None
    return min(runner_cpus("cuda"), int(info["NCPU"])) * 10**9


def _listen(folder: Path) -> socket.socket:
    """A listening socket in ``folder/wire``.

    Other users of this host cannot reach it, since `folder` is private (0700). The runner's user
    can, since only the inner directory (0711) is mounted into its container.
    """
    wire = folder / "wire"
    wire.mkdir()
    wire.chmod(0o711)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory = os.open(wire, os.O_PATH | os.O_DIRECTORY)
    try:
        # Through the descriptor, because a socket's path is limited to 107 bytes.
        listener.bind(f"/proc/self/fd/{directory}/{_SOCKET.name}")
    finally:
        os.close(directory)
    (wire / _SOCKET.name).chmod(0o666)
    listener.listen(2)
    return listener


def _stop_live_on_exit() -> None:
    """Stop containers at a normal exit and on SIGTERM; `remove_orphans` removes any others."""
    atexit.unregister(_stop_live)
    atexit.register(_stop_live)
    exit_on_signals()


def _stop_live() -> None:
    for runner in list(_live):
        runner.stop()
