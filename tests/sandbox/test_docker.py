"""The Docker sandbox with a real engine: its isolation, and how its runners end."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from docker.types import Mount

from grader.cli import app
from grader.sandbox import conformance, docker, docker_engine, host, images, owner
from grader.sandbox.base import RunnerDevice, RunnerExit, RunnerLimits, SandboxError
from grader.sandbox.conformance import CHECKS, LIMITS, SandboxUnderTest
from grader.sandbox.docker_engine import docker_client
from grader.sandbox.output import END_BYTES
from grader.wire import WireClosed, receive_reply, send_request
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.docker

BASE = "grade-base:bookworm"
ROOT = Path(__file__).resolve().parents[2]


def probing(limits: RunnerLimits = LIMITS) -> docker.DockerRunner:
    runner = docker.DockerSandbox(module="grader.sandbox.hostile_probe").start(limits, "cpu")
    assert isinstance(runner, docker.DockerRunner)
    return runner


def containers() -> set[str]:
    """Ids of the containers that this process has started."""
    with docker_client() as api:
        listed = api.containers(all=True, filters={"label": docker_engine.RUNNER_LABEL})
    mine = owner.process_identity(os.getpid())
    return {found["Id"] for found in listed if found["Labels"][docker_engine.OWNER_LABEL] == mine}


@pytest.fixture(scope="class")
def tested() -> Iterator[SandboxUnderTest]:
    with SandboxUnderTest("docker", "cpu") as tested:
        yield tested


class TestConformance:
    @pytest.mark.parametrize(("topic", "promise", "check"), CHECKS, ids=[c[1] for c in CHECKS])
    def test_holds(
        self,
        tested: SandboxUnderTest,
        topic: str,
        promise: str,
        check: Callable[[SandboxUnderTest], list[str]],
    ) -> None:
        assert check(tested) == []


def test_a_compiler_is_confined_like_a_runner() -> None:
    with SandboxUnderTest("docker", "none") as tested:
        results = list(conformance.run(tested, ["network", "files", "users", "kernel", "wire"]))
    assert results
    assert [found for found in results if not found.held] == []


def unlimited(config: dict[str, Any]) -> None:
    config["Ulimits"] = []


def host_root(config: dict[str, Any]) -> None:
    config["Mounts"].append(Mount("/host", "/", type="bind", read_only=True))
    config["Mounts"].append(Mount("/etc/shadow", "/etc/hostname", type="bind", read_only=True))


def executable_scratch(config: dict[str, Any]) -> None:
    config["Tmpfs"]["/scratch"] = config["Tmpfs"]["/scratch"].replace("noexec", "exec")


def larger_scratch(config: dict[str, Any]) -> None:
    size = f"size={LIMITS.scratch_bytes}"
    config["Tmpfs"]["/scratch"] = config["Tmpfs"]["/scratch"].replace(size, "size=128m")
    unlimited(config)


def a_device(config: dict[str, Any]) -> None:
    wanted = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/kvm"}
    config["Devices"] = [{**wanted, "CgroupPermissions": "rw"}]


WEAKENED: list[tuple[str, str, dict[str, Any] | Callable[[dict[str, Any]], None]]] = [
    ("no way to the host", "network", {"NetworkMode": "host"}),
    ("writes go to scratch", "files", {"ReadonlyRootfs": False}),
    ("scratch is noexec", "files", executable_scratch),
    ("the host's files", "files", host_root),
    ("a full disk", "files", larger_scratch),
    ("not root, no capabilities", "users", {"CapDrop": [], "CapAdd": ["SYS_ADMIN"]}),
    ("no new privileges", "users", {"SecurityOpt": []}),
    ("a seccomp filter", "kernel", {"SecurityOpt": ["seccomp=unconfined"]}),
    ("mount, unshare", "kernel", {"SecurityOpt": ["seccomp=unconfined"]}),
    ("PID, network, IPC", "kernel", {"PidMode": "host"}),
    ("PID, network, IPC", "kernel", {"IpcMode": "host"}),
    ("only the devices", "kernel", a_device),
    ("core dumps", "limits", unlimited),
    ("processes: a fork bomb", "limits", {"PidsLimit": 1000}),
]
"""The promise that is broken, its topic, and the change to the container's configuration."""


@pytest.mark.parametrize(
    ("promise", "topic", "change"), WEAKENED, ids=[f"{w[0]}-{i}" for i, w in enumerate(WEAKENED)]
)
def test_a_weakened_container_fails_its_check(
    monkeypatch: pytest.MonkeyPatch,
    promise: str,
    topic: str,
    change: dict[str, Any] | Callable[[dict[str, Any]], None],
) -> None:
    strong = docker._host_config

    def weak(*arguments: Any) -> dict[str, Any]:
        config: dict[str, Any] = strong(*arguments)
        if callable(change):
            change(config)
        else:
            config.update(change)
        return config

    monkeypatch.setattr(docker, "_host_config", weak)
    with SandboxUnderTest("docker", "cpu") as tested:
        results = {f.promise: f for f in conformance.run(tested, [topic])}
    found = next(f for name, f in results.items() if name.startswith(promise))
    assert not found.held
    assert "could not be made" not in str(found.holes)
    assert "broke" not in str(found.holes)


def test_start_connects_and_stop_removes_everything() -> None:
    runner = probing()
    assert containers()
    assert runner.poll() is None
    final = runner.stop()
    assert final == RunnerExit(signal=9, stopped=True)
    assert runner.stop() is final
    assert runner.poll() is final
    assert not containers()
    assert runner.channel.fileno() == -1


def test_an_exception_in_the_judge_removes_the_container() -> None:
    with pytest.raises(RuntimeError, match="judge"), probing():
        raise RuntimeError("the judge failed")
    assert not containers()


def test_a_normal_exit_is_not_reported_as_stopped() -> None:
    runner = probing()
    send_request(runner.channel, {"probe": "leave", "sequence": 1, "status": 3})
    with pytest.raises(WireClosed):
        receive_reply(runner.channel, PATIENCE_S)
    assert runner.stop() == RunnerExit(exit_code=3)


def test_out_of_memory_is_reported_even_when_stopped_at_once() -> None:
    with probing() as runner:
        send_request(runner.channel, {"probe": "allocate", "sequence": 1})
        with pytest.raises(WireClosed):
            receive_reply(runner.channel, PATIENCE_S)
        assert runner.stop().out_of_memory


def test_output_is_kept_at_both_ends() -> None:
    with probing(dataclasses.replace(LIMITS, output_bytes=200_000)) as runner:
        send_request(runner.channel, {"probe": "flood", "sequence": 1})
        with pytest.raises(WireClosed):
            receive_reply(runner.channel, PATIENCE_S)
        assert runner.stop() == RunnerExit(signal=9, output_exceeded=True)
    assert runner.log().startswith(b"flood flood ")
    assert b" bytes left out]" in runner.log()
    assert len(runner.log()) < 2 * END_BYTES + 100


def test_a_runner_that_cannot_start_says_why() -> None:
    with pytest.raises(SandboxError, match=r"No module named grader\.no_such_runner"):
        docker.DockerSandbox(module="grader.no_such_runner").start(LIMITS, "cpu")
    assert not containers()


def test_a_container_that_cannot_start_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    strong = docker._host_config

    def broken(*arguments: Any) -> dict[str, Any]:
        config: dict[str, Any] = strong(*arguments)
        return config | {"Tmpfs": {"/scratch": "no-such-option"}}

    monkeypatch.setattr(docker, "_host_config", broken)
    started = time.monotonic()
    with pytest.raises(SandboxError, match="the Docker engine refused"):
        docker.DockerSandbox().start(LIMITS, "cpu")
    assert time.monotonic() - started < 9  # well below the 10 s that a kill may take
    assert not containers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_judge_removes_its_container(number: int) -> None:
    code = (
        "import signal, time\n"
        # Tests started in the background of a shell inherit ignored signals.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from grader.sandbox import conformance, docker\n"
        "runner = docker.DockerSandbox(module='grader.sandbox.hostile_probe')"
        ".start(conformance.LIMITS, 'cpu')\n"
        "print(runner._id, flush=True)\n"
        "time.sleep(500)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as judge:
        assert judge.stdout is not None
        container = judge.stdout.readline().strip()
        assert container
        judge.send_signal(number)
        judge.wait(PATIENCE_S)
    with docker_client() as api:
        assert not api.containers(all=True, filters={"id": container})


SLEEPS = """
import subprocess, sys, time
def armed():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(500)", "armed"])
    time.sleep(500)
def softmax(x, out):
    armed()
"""
RESISTS = (
    SLEEPS
    + """
import ctypes, os, resource, signal
def softmax(x, out):
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    libc = ctypes.CDLL(None)
    for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
        libc.ptrace(request, 1, 0, 0)
    for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGKILL):
        try:
            os.kill(1, number)
        except OSError:
            pass
    pidfd = os.pidfd_open(1)
    for fd in range(3, 64):
        libc.syscall(438, pidfd, fd, 0)  # pidfd_getfd, to hold the lifeline open
        try:
            os.open(f"/proc/1/fd/{fd}", os.O_RDWR)
        except OSError:
            pass
    if os.fork() == 0:  # keeps the wire open, in another session
        os.setsid()
        armed()
    if os.fork() == 0:
        os.closerange(0, 65536)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(500)
"""
)


@pytest.mark.parametrize("source", [SLEEPS, RESISTS], ids=["sleeps", "resists"])
def test_a_killed_judge_ends_its_container(tmp_path: Path, source: str) -> None:
    """By the container's own first process, before any other judge sweeps."""
    (tmp_path / "kernel.py").write_text(source)
    command = [sys.executable, "-m", "grader.cli", "practice", "softmax"]
    command += [str(tmp_path / "kernel.py"), "--sandbox", "docker", "--device", "cpu"]
    with (
        docker_client() as api,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as judge,
    ):

        def running() -> list[str]:
            listed = api.containers(filters={"label": docker_engine.RUNNER_LABEL})
            owners = {found["Id"]: found["Labels"][docker_engine.OWNER_LABEL] for found in listed}
            return [found for found, whose in owners.items() if whose.split("/")[2] == pid]

        def is_armed() -> bool:
            assert judge.poll() is None
            return any("armed" in str(api.top(found)["Processes"]) for found in running())

        pid = str(judge.pid)
        try:
            until(is_armed)
        finally:
            judge.kill()
        judge.wait()
        until(lambda: not running(), limit_s=5)
        docker_engine.remove_orphans(api)


def test_remove_orphans_keeps_containers_of_live_owners() -> None:
    with probing() as runner, docker_client() as api:
        assert not any(runner._id.startswith(name) for name in docker_engine.remove_orphans(api))
        assert runner._id in containers()


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (lambda own: own, False),
        (lambda own: own.rpartition("/")[0] + "/1", True),  # the pid was reused
        (lambda own: "another-boot" + own[own.index("/") :], True),
        (lambda own: own.replace(own.split("/")[1], "1"), False),  # another namespace
        (lambda own: "", True),
    ],
)
def test_has_exited(change: Callable[[str], str], gone: bool) -> None:
    assert owner.has_exited(change(owner.process_identity(os.getpid()))) is gone


def test_folders_of_exited_owners_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = owner.make_owned_folder()
    _, namespace, pid, _ = owner.process_identity(os.getpid()).split("/")
    dead, unseen = f"grade-{namespace}-{pid}-1-abc", f"grade-1-{pid}-1-abc"
    for name in (dead, unseen, "grade-of-others"):
        (tmp_path / name / "inner").mkdir(parents=True)
    deep = os.open(tmp_path / dead, os.O_PATH)
    for _ in range(3000):  # too deep for Python's recursion
        os.mkdir("d", dir_fd=deep)
        above, deep = deep, os.open("d", os.O_PATH, dir_fd=deep)
        os.close(above)
    os.close(deep)
    other = owner.make_owned_folder()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {mine.name, other.name, unseen, "grade-of-others"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, namespace, pid, _ = owner.process_identity(os.getpid()).split("/")
    foreign = tmp_path / f"grade-{namespace}-{pid}-1-abc"
    foreign.mkdir()
    os.chown(foreign, 12345, 12345)
    owner.make_owned_folder()
    assert foreign.exists()


def test_a_missing_engine_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    assert "start-docker.sh" in str(docker.DockerSandbox.available())
    with pytest.raises(SandboxError, match="no Docker engine answers"):
        docker.DockerSandbox().start(LIMITS, "cpu")


def test_a_remote_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    assert "not on this machine" in str(docker.DockerSandbox.available())


def test_an_image_that_is_missing_or_not_ours() -> None:
    with pytest.raises(SandboxError, match="grade sandbox build"):
        docker.DockerSandbox("no-such-image:1").start(LIMITS, "cpu")
    with docker_client() as api:
        host = images.host_image(api, "cpu").tag
    with pytest.raises(SandboxError, match="lacks the label"):
        docker.DockerSandbox(host).start(LIMITS, "cpu")


def test_the_host_image_is_small_and_reproducible() -> None:
    with docker_client() as api:
        tag = images.host_image(api, "cpu").tag
        assert images.host_image(api, "cpu").tag == tag
        assert api.inspect_image(tag)["Size"] < 10_000


def test_check_prints_how_many_promises_held() -> None:
    done = CliRunner().invoke(app.grade, ["sandbox", "check"], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert f"{len(CHECKS)} of {len(CHECKS)} promises held" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build"], "give --from-host, or --base IMAGE and --wheels DIR"),
        (["build", "--from-host", "--tag", "x"], "--from-host takes no"),
        (["build", "--base", "x", "--wheels", str(ROOT / "sandbox")], "no wheels in "),
        (["check", "--sandbox", "process", "--image", "x"], "--image needs --sandbox docker"),
    ],
)
def test_wrong_options_are_rejected(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app.grade, ["sandbox", *arguments])
    assert done.exit_code != 0
    assert message in done.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_self_contained_image_is_built_without_network_and_holds(
    base_image: str, tmp_path: Path
) -> None:
    wheel(tmp_path)
    arguments = ["build", "--base", base_image, "--wheels", str(tmp_path)]
    done = CliRunner().invoke(app.grade, ["sandbox", *arguments, "--tag", "grade-test:latest"])
    assert done.exit_code == 0, done.output
    try:
        with SandboxUnderTest("docker", "cpu", "grade-test:latest") as tested:
            assert [f for f in conformance.run(tested) if not f.held] == []
        with docker_client() as api:
            made = images.self_contained_image(api, "grade-test:latest", "cpu")
            prove = [made.python, "-c", "import grade_probe_wheel as w; print(w.WORD)"]
            alone = api.create_host_config(network_mode="none")  # an engine may have no bridge
            container = api.create_container(made.tag, prove, host_config=alone)["Id"]
            try:
                api.start(container)
                assert api.wait(container)["StatusCode"] == 0
                assert api.logs(container) == b"installed\n"
            finally:
                api.remove_container(container, force=True)
    finally:
        with docker_client() as api:
            api.remove_image("grade-test:latest", force=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_build_that_fails_names_the_step(base_image: str, tmp_path: Path) -> None:
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no zip file")
    with pytest.raises(SandboxError, match="pip install"), docker_client() as api:
        images.build(api, base_image, tmp_path, "grade-test-broken:latest")
    with pytest.raises(SandboxError, match="no base image"), docker_client() as api:
        images.build(api, "no-such-base:1", tmp_path)


@pytest.fixture(scope="module")
def base_image() -> str:
    """A base image of Debian packages, made once per engine."""
    with docker_client() as api:
        if api.images(BASE):
            return BASE
    made = subprocess.run(
        [ROOT / "sandbox" / "make-base.sh", BASE], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        reason = f"no base image: sandbox/make-base.sh failed: {made.stderr.strip()[-200:]}"
        if os.environ.get("GRADE_REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(f"not run, needs a base image: {reason}")
    return BASE


def wheel(folder: Path) -> None:
    """Write a wheel with one module, the smallest that pip installs."""
    name, info = "grade_probe_wheel", "grade_probe_wheel-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "WORD = 'installed'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")


@pytest.mark.parametrize(
    ("ours", "gpus", "share"),
    [(16, 1, 15), (64, 4, 15), (8, 8, 2), (2, 1, 2), (1, 1, 1), (16, 0, 15)],
)
def test_cpus_are_divided_by_gpus(
    monkeypatch: pytest.MonkeyPatch, ours: int, gpus: int, share: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ours)))
    monkeypatch.setattr(host, "gpu_nodes", lambda: [Path("/dev/nvidia0")] * gpus)
    assert host.runner_cpus("cpu") == ours
    assert host.runner_cpus("cuda") == host.runner_cpus("none") == share
    assert docker._nano_cpus({"CpuCfsQuota": True, "NCPU": ours}) == share * 10**9
    assert docker._nano_cpus({"CpuCfsQuota": False, "NCPU": ours}) is None


def test_a_gpu_runner_gets_its_share_of_the_cpus(tmp_path: Path) -> None:
    image = images.RunnerImage("any", "python", [], {})
    with docker_client() as api:
        ours = docker._host_config(api, image, LIMITS, "cuda", tmp_path)
        assert ours.get("NanoCpus") == docker._nano_cpus(api.info())
        assert not docker._host_config(api, image, LIMITS, "cpu", tmp_path).get("NanoCpus")
        compiling = docker._host_config(api, image, LIMITS, "none", tmp_path)
        assert compiling.get("NanoCpus") == ours.get("NanoCpus")


def test_a_sandbox_that_only_compiles_gives_way(tmp_path: Path) -> None:
    image = images.RunnerImage("any", "python", [], {})
    with docker_client() as api:
        kinds: tuple[RunnerDevice, ...] = ("cpu", "cuda", "none")
        shares = [
            docker._host_config(api, image, LIMITS, kind, tmp_path).get("CpuShares")
            for kind in kinds
        ]
    assert shares == [None, None, docker.COMPILER_SHARES]
