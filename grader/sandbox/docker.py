"""The Docker sandbox: one throw-away container per runner, held from outside.

What a container gets is written out in `_host_config`; everything else is the engine's default
(its seccomp profile above all). The wire is a Unix socket in a directory mounted into the
container: it needs no network, and once the runner has connected the listener is gone.

No docker client program, init or BuildKit is needed; the engine is found by ``DOCKER_HOST``.
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
    RunnerExit,
    RunnerDevice,
    Runner,
    RunnerLimits,
    Sandbox,
    SandboxError,
    exit_on_signals,
)
from grader.sandbox.engine import FAULTS, client, engine, engine_errors
from grader.sandbox.host import device_nodes, processors
from grader.sandbox.output import Output
from grader.sandbox.owner import own_folder, owner_of
from grader.sandbox.sweep import FOLDER, MARK, OWNER, sweep

START_DEADLINE_S = 60.0
"""How long a runner may take to connect, on a busy machine with a cold disk."""

SHM_BYTES = 64 << 20
_ENDS_BY_ITSELF_S = 1.0
"""How long a runner that has dropped the wire may take to end before it is killed."""
_KILLED_S = 10.0
"""How long the engine may take to tell that a killed container has ended."""

_live: set[DockerRunner] = set()


class DockerSandbox(Sandbox):
    """Runs submissions in containers of the engine that ``DOCKER_HOST`` names.

    image: tag of a self-contained image; None takes ``GRADE_IMAGE``, or else the host image.
    module: what runs in the container; the conformance suite puts its probe here.
    """

    name = "docker"

    def __init__(self, image: str | None = None, module: str = "grader.runner") -> None:
        self._image = image or os.environ.get("GRADE_IMAGE")
        self._module = module

    @staticmethod
    def available() -> str | None:
        """None when the engine answers, else why not and what to do, for a person."""
        try:
            with engine(timeout_s=5) as api:
                api.ping()
        except SandboxError as error:
            return str(error)
        return None

    def describe(self) -> str:
        return f"docker ({self._image or 'host image'})"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        with engine() as api:
            sweep(api)
            if self._image:
                image = images.own_image(api, self._image, device)
            else:
                image = images.host_image(api, device)
        _stop_live_on_exit()
        command = [image.python, "-s", "-m", self._module]
        command += ["--connect", str(_SOCKET), "--device", device]
        with engine_errors():
            return DockerRunner(image, command, limits, device)


class DockerRunner(Runner):
    """A container and the judge's end of its wire."""

    def __init__(
        self,
        image: images.Image,
        command: list[str],
        limits: RunnerLimits,
        device: RunnerDevice,
    ) -> None:
        self._api = client()
        self._output = Output(limits.output_bytes)
        self._ended = threading.Event()
        self._state: dict[str, object] = {}
        self._final: RunnerExit | None = None
        self._lock = threading.Lock()
        self._folder = own_folder()
        self._id = ""
        self._started = False
        _live.add(self)
        try:
            listener = _listen(self._folder)
            with listener:
                self._create(image, command, limits, device)
                self.channel = self._accept(listener)
            (self._folder / "wire" / _SOCKET.name).unlink(missing_ok=True)
        except BaseException:
            self.stop()
            raise

    def _create(
        self, image: images.Image, command: list[str], limits: RunnerLimits, device: RunnerDevice
    ) -> None:
        created = self._api.create_container(
            image.tag,
            command,
            name=f"grade-{secrets.token_hex(6)}",
            hostname="runner",
            user=f"{images.USER_ID}:{images.USER_ID}",
            working_dir=str(images.SCRATCH),
            environment=image.environment,
            labels={MARK: "1", OWNER: owner_of(os.getpid()), FOLDER: str(self._folder)},
            host_config=_host_config(self._api, image, limits, device, self._folder),
        )
        self._id = created["Id"]
        # Attached before the start, so that not one byte is missed.
        wanted = {"stdout": 1, "stderr": 1, "stream": 1}
        output = self._api.attach_socket(self._id, params=wanted)
        watcher = client(version=self._api.api_version)
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
            if self._ended.is_set():
                why = self._output.last_line() or f"exit status {self._state.get('ExitCode')}"
                raise SandboxError(f"the runner ended before it connected: {why}")
        raise SandboxError(
            f"the runner did not connect within {START_DEADLINE_S:.0f} s:"
            " is the engine on this machine, and the machine not overloaded?"
        )

    def _watch(self, api: docker.APIClient, output: SocketIO) -> None:
        """In a thread, on a connection of its own: read what is printed, then wait for the end."""
        try:
            for _, chunk in frames_iter(output, tty=False):
                if self._output.add(chunk):
                    # Aside, since the engine ends a container only while its output is read.
                    threading.Thread(target=self._kill, daemon=True).start()
            api.wait(self._id, timeout=None)
            self._state = api.inspect_container(self._id)["State"]
        except (*FAULTS, OSError) as error:
            self._output.add(f"[the engine was lost: {error}]\n".encode())
        finally:
            output._response.close()  # type: ignore[attr-defined]  # docker-py's hold on it
            output.close()
            api.close()
            self._ended.set()

    def poll(self) -> RunnerExit | None:
        if self._final:
            return self._final
        return self._ending(stopped=False) if self._ended.is_set() else None

    def log(self) -> bytes:
        return self._output.kept()

    def stop(self) -> RunnerExit:
        with self._lock:
            if self._final is None:
                self._final = self._end()
            return self._final

    def _end(self) -> RunnerExit:
        hung_up = self._hung_up()
        if hung_up:
            self._ended.wait(_ENDS_BY_ITSELF_S)
        stopped = not self._ended.is_set()
        if stopped and self._started:
            self._kill()
            self._ended.wait(_KILLED_S)
        ending = self._ending(stopped, hung_up)
        if self._id:
            with suppress(*FAULTS):
                self._api.remove_container(self._id, force=True, v=True)
        if hasattr(self, "channel"):
            self.channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._api.close()
        _live.discard(self)
        return ending

    def _kill(self) -> None:
        # It may have ended by itself already; what did end it is read from its state.
        # A connection of its own: this may run beside any other call.
        with suppress(SandboxError, *FAULTS), engine() as api:
            api.kill(self._id)

    def _hung_up(self) -> bool:
        if not hasattr(self, "channel") or self.channel.fileno() < 0:
            return False
        poller = select.poll()
        poller.register(self.channel, select.POLLRDHUP)
        return bool(poller.poll(0))

    def _ending(self, stopped: bool, hung_up: bool = True) -> RunnerExit:
        """What the engine's record says, in our words. Exit status 128 + n is signal n."""
        status = self._state.get("ExitCode")
        status = status if isinstance(status, int) else None
        died = status is not None and 128 < status <= 128 + 64
        exceeded = self._output.exceeded
        # A child that ran out of memory and that the runner outlived has not ended the runner.
        starved = bool(self._state.get("OOMKilled")) and (not stopped or hung_up) and not exceeded
        return RunnerExit(
            exit_code=None if died else status,
            signal=status - 128 if status is not None and died else None,
            out_of_memory=starved,
            output_exceeded=exceeded,
            stopped=stopped and not exceeded and not starved,
        )


_SOCKET = images.WIRE / "judge.sock"


def _host_config(
    api: docker.APIClient,
    image: images.Image,
    limits: RunnerLimits,
    device: RunnerDevice,
    folder: Path,
) -> dict[str, object]:
    who = f"uid={images.USER_ID},gid={images.USER_ID},mode=0700"
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
            str(images.SCRATCH): f"rw,noexec,nosuid,nodev,{size},{who}",
            str(images.JIT): f"rw,exec,nosuid,nodev,{size},{who}",
        },
        shm_size=SHM_BYTES,
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        pids_limit=limits.pids,
        oom_score_adj=1000,  # when the machine itself runs out, it goes first, never the judge
        nano_cpus=None if device == "cpu" else _nano_cpus(api.info()),
        ulimits=[
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="fsize", soft=limits.scratch_bytes, hard=limits.scratch_bytes),
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
        ],
        # Read and write, and not mknod.
        devices=[f"{node}:{node}:rw" for node in device_nodes(device)],
        # The output is read as it comes and kept by us; the engine must not fill a disk with it.
        log_config=LogConfig(type="none"),
    )
    return config


def _nano_cpus(engine: dict[str, Any]) -> int | None:
    """What a runner on a GPU may have of the processors, and what compiles for it, in billionths of
    one; None where the engine cannot limit that."""
    if not engine.get("CpuCfsQuota"):
        return None
    return min(processors("cuda"), int(engine["NCPU"])) * 10**9


def _listen(folder: Path) -> socket.socket:
    """A listening socket in ``folder/wire``.

    Others on this host cannot reach it, since `folder` is ours alone (0700); the runner's user
    can, since only the inner directory (0711) is mounted into its container.
    """
    wire = folder / "wire"
    wire.mkdir()
    wire.chmod(0o711)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory = os.open(wire, os.O_PATH | os.O_DIRECTORY)
    try:
        # By descriptor, because a socket's path is limited to 107 bytes.
        listener.bind(f"/proc/self/fd/{directory}/{_SOCKET.name}")
    finally:
        os.close(directory)
    (wire / _SOCKET.name).chmod(0o666)
    listener.listen(1)
    return listener


def _stop_live_on_exit() -> None:
    """Containers end with us on a normal exit and on SIGTERM; `sweep` has the rest."""
    atexit.unregister(_stop_live)
    atexit.register(_stop_live)
    exit_on_signals()


def _stop_live() -> None:
    for runner in list(_live):
        runner.stop()
