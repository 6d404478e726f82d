"""The process sandbox against hostile code, which every test really runs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grader.sandbox import Runner, RunnerExit, RunnerLimits, SandboxError, host
from grader.sandbox.process import KILL_TIMEOUT_S, Isolation, ProcessRunner, ProcessSandbox
from grader.wire import receive_reply, sealed_memfd, send_request
from tests.waiting import PATIENCE_S, until

LIMITS = RunnerLimits(memory_bytes=512 << 20, scratch_bytes=32 << 20, output_bytes=4 << 20, pids=64)
ROOT = Path(__file__).resolve().parents[2]

# Like the real runner: a parent that only reaps, and a child that runs the submission.
PRELUDE = """
import contextlib, ctypes, errno, mmap, os, signal, socket, sys, time
os.environ.get("GRADE_JIT") or sys.exit("no environment")
_child = os.fork()
while _child:
    _pid, _status = os.wait()
    if _pid == _child:
        _code = os.waitstatus_to_exitcode(_status)
        os._exit(_code if _code >= 0 else 128 - _code)
def tries(what, action, *arguments):
    try:
        print(what, "->", action(*arguments), flush=True)
    except BaseException as error:
        name = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
        print(what, "refused", name, flush=True)
"""


def _unavailable(isolation: Isolation) -> str | None:
    """Why this isolation is unavailable here; None when it is available."""
    try:
        ProcessSandbox(isolation=isolation).describe()
    except SandboxError as error:
        return str(error)
    return None


@pytest.fixture(params=["namespaces", "none"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Each isolation available to this interpreter here."""
    if reason := _unavailable(request.param):
        pytest.skip(f"not run: {reason}")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def namespaces() -> Isolation:
    if reason := _unavailable("namespaces"):
        pytest.skip(f"not run: {reason}")
    return "namespaces"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test may leave a directory, a control group or a zombie child behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = _traces(folder)  # such as the resource tracker of multiprocessing
    yield
    deadline = time.monotonic() + PATIENCE_S
    while _traces(folder) - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _traces(folder) - before == set()


def _traces(folder: Path) -> set[str]:
    groups = set(_groups(os.getpid()))
    folders = {str(p) for p in folder.iterdir()}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return groups | folders | set(children)


def _groups(owner: int) -> list[str]:
    folders = [folder for folder, _, _ in os.walk("/sys/fs/cgroup")]
    return [folder for folder in folders if Path(folder).name.startswith(f"grade-{owner}-")]


def start(code: str, isolation: Isolation, limits: RunnerLimits = LIMITS) -> ProcessRunner:
    program = PRELUDE + textwrap.dedent(code)
    return ProcessRunner([sys.executable, "-s", "-c", program], limits, "cpu", isolation)


def exit_of(runner: Runner) -> RunnerExit:
    until(runner.poll)
    final = runner.poll()
    assert final is not None
    return final


def run(code: str, isolation: Isolation, limits: RunnerLimits = LIMITS) -> tuple[RunnerExit, str]:
    """Run it to its end; the exit and the output."""
    with start(code, isolation, limits) as runner:
        final = exit_of(runner)
        runner.stop()
        return final, runner.log().decode()


def processes_with(mark: str) -> list[int]:
    """Processes of this host with `mark` in their command line, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


# --- normal runs ---------------------------------------------------------------------------------


def test_the_real_runner_replies_and_stops(isolation: Isolation) -> None:
    source = b"def entry(x, out):\n    pass\nprint('imported')\n"
    fd = sealed_memfd("source", source)
    request = {"kind": "load", "sequence": 5, "source_bytes": len(source), "language": "python"}
    try:
        with ProcessSandbox(isolation=isolation).start(LIMITS, "cpu") as runner:
            extra = {"entry": "entry", "names": ["x", "out"], "roles": ["in", "out"]}
            send_request(runner.channel, request | extra, (fd,))
            until(lambda: b"imported" in runner.log())
            assert runner.poll() is None
            assert runner.stop() == RunnerExit(signal=9, stopped=True)
            assert runner.stop() == runner.poll() == RunnerExit(signal=9, stopped=True)
    finally:
        os.close(fd)


def test_a_compiler_has_no_device(namespaces: Isolation) -> None:
    runner = ProcessSandbox("grader.sandbox.hostile_probe", namespaces).start(LIMITS, "none")
    with runner:
        asked: list[dict[str, Any]] = [{"probe": "devices", "asked": []}, {"probe": "descriptors"}]
        for request in asked:
            send_request(runner.channel, {"sequence": 1, **request})
            assert receive_reply(runner.channel, PATIENCE_S).text == ""
    environment = host.runner_environment(Path("/scratch"), Path("/jit"), "none")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["OMP_NUM_THREADS"] == str(host.runner_cpus("cuda"))


def test_idle_threads_of_a_cpus_runner_do_not_spin() -> None:
    """They would slow down what runs beside them, such as the other runner of a comparison."""
    scratch, jit = Path("/scratch"), Path("/jit")
    assert host.runner_environment(scratch, jit, "cpu")["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in host.runner_environment(scratch, jit, "cuda")


def test_threads_that_numpy_starts_when_it_is_imported_do_not_spin() -> None:
    for device in ("cpu", "cuda"):
        environment = host.runner_environment(Path("/scratch"), Path("/jit"), device)
        assert environment["OPENBLAS_THREAD_TIMEOUT"] == "4"


def test_just_in_time_compilers_have_their_caches_where_files_may_execute() -> None:
    environment = host.runner_environment(Path("/scratch"), Path("/jit"), "cuda")
    for compiler in ("TRITON", "TILELANG", "CUTE_DSL", "CUDA_TILE"):
        assert environment[f"{compiler}_CACHE_DIR"].startswith("/jit/"), compiler


def test_packages_from_pythonpath_may_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUTLASS is found in a folder inside its package's, and both are needed."""
    for name in ("tilelang", "nvidia_cutlass_dsl/dsl_packages/cutlass", "nvidia_cutlass_dsl/lib"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    inner = tmp_path / "nvidia_cutlass_dsl/dsl_packages"
    monkeypatch.setattr("sys.path", [str(inner), str(tmp_path), *sys.path])
    host._site_folders.cache_clear()
    try:
        environment = host.runner_environment(Path("/scratch"), Path("/jit"), "cuda")
        assert {str(tmp_path), str(inner)} <= set(environment["PYTHONPATH"].split(":"))
        assert tmp_path in host.host_paths()
    finally:
        host._site_folders.cache_clear()


def test_exit_status_and_signal_come_through(isolation: Isolation) -> None:
    assert run("os._exit(7)", isolation)[0] == RunnerExit(exit_code=7)
    assert run("sys.exit(0)", isolation)[0] == RunnerExit(exit_code=0)
    assert run("os.kill(os.getpid(), 11)", isolation)[0] == RunnerExit(signal=11)
    assert run("os.kill(os.getpid(), 9)", isolation)[0] == RunnerExit(signal=9)


def test_wire_carries_messages_and_descriptors(isolation: Isolation) -> None:
    code = """
    sock = socket.socket(fileno=3)
    text, fds, _, _ = socket.recv_fds(sock, 100, 4)
    sock.send(text + os.pread(fds[0], 100, 0))
    """
    fd = sealed_memfd("lent", b"of memory")
    with start(code, isolation) as runner:
        socket.send_fds(runner.channel, [b"a block "], [fd])
        runner.channel.settimeout(PATIENCE_S)
        assert runner.channel.recv(100) == b"a block of memory"
    os.close(fd)


def test_describe_names_the_isolation(isolation: Isolation) -> None:
    words = ProcessSandbox(isolation=isolation).describe()
    expected = {"namespaces": "process (namespaces", "none": "process (same user)"}
    assert words.startswith(expected[isolation])


def test_environment_is_clean(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADE_TEST_SECRET", "hunter2")
    _, log = run("print(dict(os.environ)); print(os.listdir('/proc/self/fd'))", isolation)
    assert "hunter2" not in log
    # stdio, the wire, and the directory being listed
    assert "'0', '1', '2', '3', '4']" in log


def test_compilers_may_execute_from_jit_only(namespaces: Isolation) -> None:
    code = """
    import shutil, subprocess
    for place in (os.environ["GRADE_JIT"], os.environ["GRADE_SCRATCH"], "/tmp", "/dev/shm"):
        shutil.copy("/bin/true", place + "/program")
        tries(place, subprocess.call, [place + "/program"])
    """
    _, log = run(code, namespaces)
    assert log.splitlines() == [
        "/jit -> 0",
        "/scratch refused EACCES",
        "/tmp refused EACCES",
        "/dev/shm refused EACCES",
    ]


# --- surviving the run --------------------------------------------------------------------------

SURVIVOR = """
import os, signal, sys, time
def detach():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    for number in range(1, 32):
        if number not in (9, 17, 19):
            signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    detach()
    os.closerange(0, 100)
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(500)", MARK])
"""


@pytest.mark.parametrize("own_end", [False, True])
def test_a_detached_child_does_not_survive(isolation: Isolation, own_end: bool) -> None:
    mark = f"survivor-{os.urandom(6).hex()}"
    code = f"MARK = {mark!r}" + SURVIVOR
    code += "time.sleep(0.5)" if own_end else "print('ready', flush=True); time.sleep(100)"
    with start(code, isolation) as runner:
        until(lambda: processes_with(mark) or runner.poll())
        if own_end:
            exit_of(runner)
        runner.stop()
    until(lambda: not processes_with(mark))


def test_runner_that_ignores_sigterm_is_killed(isolation: Isolation) -> None:
    code = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(100)
    """
    with start(code, isolation) as runner:
        until(lambda: b"ready" in runner.log())
        before = time.monotonic()
        assert runner.stop().stopped
        assert time.monotonic() - before < KILL_TIMEOUT_S  # it would have slept for 100


def test_runner_dies_with_its_judge(isolation: Isolation) -> None:
    mark = f"orphan-{os.urandom(6).hex()}"
    judge = f"""
    import sys, time
    from grader.sandbox.base import RunnerLimits
    from grader.sandbox.process import ProcessRunner
    command = [sys.executable, "-c", "import time; time.sleep(500)", {mark!r}]
    limits = RunnerLimits(1 << 30, 1 << 20, 1 << 20, 64)
    runner = ProcessRunner(command, limits, "cpu", {isolation!r})
    time.sleep(500)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(judge)], cwd=ROOT)
    until(lambda: len(processes_with(mark)) == 3)  # the judge, the launcher and the runner
    process.kill()
    process.wait()
    until(lambda: not processes_with(mark))

    def swept() -> bool:
        start("pass", isolation).stop()  # the next judge cleans up after this one
        return not _groups(process.pid)

    until(swept)


def test_file_left_behind_is_gone(isolation: Isolation) -> None:
    code = """
    for name in ("GRADE_SCRATCH", "GRADE_JIT"):
        path = os.environ[name] + "/left-behind"
        open(path, "w").write("x")
        os.chmod(os.environ[name], 0)
        print(path)
    """
    final, log = run(code, isolation)
    assert final == RunnerExit(exit_code=0)
    assert not any(Path(path).exists() for path in log.splitlines())


# --- resource limits -----------------------------------------------------------------------------


def test_fork_bomb_is_contained(namespaces: Isolation) -> None:
    code = """
    count = 0
    try:
        while True:
            if os.fork() == 0:
                while True:
                    try: os.fork()
                    except OSError: time.sleep(1)
            count += 1
    except OSError as error:
        print("stopped at", errno.errorcode[error.errno], count, flush=True)
        time.sleep(100)
    """
    with start(code, namespaces) as runner:
        # The line can arrive in parts: its end is waited for.
        until(lambda: re.search(rb"stopped at EAGAIN \d+\n", runner.log()))
        assert int(runner.log().split()[-1]) < LIMITS.pids
        before = time.monotonic()
        assert runner.stop().stopped
        assert time.monotonic() - before < KILL_TIMEOUT_S


def test_a_fork_bomb_of_the_same_user_is_killed() -> None:
    mark = f"bomb-{os.urandom(6).hex()}"
    code = f"""
    mark = {mark!r}
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            while True:
                if os.fork(): os._exit(0)
                time.sleep(0.001)
    print("ready", flush=True)
    time.sleep(100)
    """
    with start(code, "none") as runner:
        until(lambda: b"ready" in runner.log())
        runner.stop()
    until(lambda: not processes_with(mark))


def test_endless_output_is_cut(isolation: Isolation) -> None:
    code = """
    print("the first line", flush=True)
    while True: os.write(2, b"x" * 8000)
    """
    with start(code, isolation) as runner:
        assert exit_of(runner) == RunnerExit(signal=9, output_exceeded=True)
        assert runner.stop().output_exceeded
        assert runner.log().startswith(b"the first line\n")
        assert len(runner.log()) < 14_000


MEMORY = {
    "private": "hoard = []\nwhile True: hoard.append(bytearray(b'x' * (8 << 20)))",
    "by a child": "os.fork()\nhoard = []\nwhile True: hoard.append(bytearray(b'x' * (8 << 20)))",
}
SHARED_MEMORY = {
    "mapped": """
    hoard = []
    while True:
        hoard.append(mmap.mmap(-1, 8 << 20))
        hoard[-1].write(b"x" * (8 << 20))
    """,
    "memfd": """
    while True:
        fd = os.memfd_create("hoard")
        for _ in range(4): os.write(fd, b"x" * (4 << 20))
    """,
}


@pytest.mark.parametrize("how", MEMORY)
def test_endless_allocation_is_killed(isolation: Isolation, how: str) -> None:
    final, _ = run(textwrap.dedent(MEMORY[how]), isolation)
    assert final == RunnerExit(signal=9, out_of_memory=True)


@pytest.mark.parametrize("how", SHARED_MEMORY)
def test_endless_shared_memory_is_killed(namespaces: Isolation, how: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("not run: only a control group counts shared memory, and making one needs root")
    final, _ = run(SHARED_MEMORY[how], namespaces)
    assert final == RunnerExit(signal=9, out_of_memory=True)


def test_lent_memory_is_not_counted(isolation: Isolation) -> None:
    code = """
    fd = socket.recv_fds(socket.socket(fileno=3), 1, 1)[1][0]
    view = mmap.mmap(fd, 1 << 30)
    for page in range(0, 1 << 30, 4096): view[page] = 1
    print("all touched", flush=True)
    time.sleep(0.2)
    """
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 1 << 30)
    import mmap

    with mmap.mmap(fd, 1 << 30) as arena:  # as the judge fills the memory it lends
        for _ in range(1 << 6):
            arena.write(bytes(1 << 24))
        with start(code, isolation) as runner:
            socket.send_fds(runner.channel, [b"x"], [fd])
            assert exit_of(runner) == RunnerExit(exit_code=0)
            assert b"all touched" in runner.log()
    os.close(fd)


def test_a_full_scratch_is_the_submissions_error(namespaces: Isolation) -> None:
    code = """
    def fill(folder):
        for number in range(100):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(bytes(1 << 20))
    for folder in (os.environ["GRADE_SCRATCH"], os.environ["GRADE_JIT"], "/tmp", "/dev/shm"):
        tries(folder, fill, folder)
    """
    final, log = run(code, namespaces)
    assert final == RunnerExit(exit_code=0)
    assert log.count("ENOSPC") == 4


def test_files_count_as_memory(namespaces: Isolation) -> None:
    code = """
    with open(os.environ["GRADE_SCRATCH"] + "/big", "wb") as file:
        while True: file.write(bytes(1 << 20))
    """
    final, _ = run(code, namespaces, replace(LIMITS, scratch_bytes=4 << 30))
    assert final.out_of_memory


def test_without_namespaces_each_file_is_limited() -> None:
    code = "tries('write', os.posix_fallocate, os.open('big', 66), 0, 64 << 20)"
    _, log = run(code, "none")
    assert "refused EFBIG" in log


# --- escaping ------------------------------------------------------------------------------------


def test_host_files_and_processes_are_out_of_sight(namespaces: Isolation, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    paths = [secret, ROOT / "tests", ROOT / "pyproject.toml", ROOT / ".git", Path.home() / ".ssh"]
    paths += [Path("/etc/shadow"), Path("/var"), Path("/run"), Path("/sys/fs/cgroup")]
    paths += [Path("/var/run/docker.sock"), Path("/dev/shm/x"), Path("/proc/1/root/home")]
    code = f"""
    for path in {[str(p) for p in paths]!r}:
        tries(path, os.stat, path)
    print("processes", sorted(int(p) for p in os.listdir("/proc") if p.isdecimal()))
    print("home", os.listdir("/root") if os.path.isdir("/root") and os.access("/root", 4) else [])
    print("user", os.getresuid(), os.getgroups())
    print([line for line in open("/proc/self/status") if line.startswith(("Cap", "NoNew", "Sec"))])
    """
    _, log = run(code, namespaces)
    assert "->" not in log
    assert "processes [1, 2]" in log
    assert f"({os.geteuid()}," not in log.split("user")[1]
    assert log.count("0000000000000000") == 5
    assert "NoNewPrivs:\\t1" in log
    assert "Seccomp:\\t2" in log


def test_only_the_writable_folders_are_writable(namespaces: Isolation) -> None:
    code = """
    for folder, names, _ in os.walk("/"):
        if folder in ("/proc", "/sys"): names.clear()
        if os.access(folder, os.W_OK): print(folder); names.clear()
    tries("root", open, "/x", "w"); tries("usr", open, "/usr/x", "w")
    """
    _, log = run(code, namespaces)
    assert sorted(log.splitlines()) == sorted(
        ["/tmp", "/scratch", "/jit", "/dev/shm", "root refused EROFS", "usr refused EROFS"]
    )


def test_host_network_is_out_of_reach(isolation: Isolation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
        def connect(family, kind, *where):
            with socket.socket(family, kind) as sock:
                sock.settimeout(2)
                sock.connect(*where)
                return "connected"
        inet, stream = socket.AF_INET, socket.SOCK_STREAM
        tries("loopback", connect, inet, stream, ("127.0.0.1", {port}))
        tries("world", connect, inet, socket.SOCK_DGRAM, ("192.0.2.1", 9))
        tries("six", connect, socket.AF_INET6, stream, ("::1", {port}))
        tries("vm", socket.socket, socket.AF_VSOCK, stream)
        tries("raw", socket.socket, inet, socket.SOCK_RAW, 1)
        tries("packet", socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
        """
        _, log = run(code, isolation)
    assert log.count("refused") == 6, log


def test_escaping_system_calls_are_denied(isolation: Isolation) -> None:
    code = """
    libc = ctypes.CDLL(None, use_errno=True)
    def call(name, *arguments):
        if getattr(libc, name)(*arguments) == -1:
            code = ctypes.get_errno()
            raise OSError(code, "no")
        return "done"
    tries("unshare user", call, "unshare", 0x10000000)
    tries("unshare mount", call, "unshare", 0x20000)
    tries("mount", call, "mount", b"none", b"/tmp", b"tmpfs", 0, b"")
    tries("ptrace parent", call, "ptrace", 16, os.getppid(), 0, 0)
    tries("chroot", os.chroot, "/")
    tries("become root", os.setuid, 0)
    tries("bpf", call, "syscall", 321, 0, 0, 0)
    tries("io_uring", call, "syscall", 425, 8, 0)
    tries("clone3", call, "syscall", 435, 0, 0)
    tries("priority", os.nice, -5)
    """
    _, log = run(code, isolation)
    if isolation == "none" and os.geteuid() == 0:
        log = log.replace("become root -> None", "become root refused, as it already is")
    assert log.count("refused") == 10, log


def test_kill_all_reaches_only_the_sandbox(namespaces: Isolation) -> None:
    code = f"""
    tries("judge", os.kill, {os.getpid()}, 0)
    tries("everyone", os.kill, -1, signal.SIGKILL)
    print("still here", flush=True)
    """
    final, log = run(code, namespaces)
    assert final == RunnerExit(exit_code=0)
    assert log.splitlines() == ["judge refused ESRCH", "everyone refused ESRCH", "still here"]


def test_judge_is_not_dumpable_while_a_runner_lives(isolation: Isolation) -> None:
    get_dumpable = 3
    libc = ctypes.CDLL(None)
    assert libc.prctl(get_dumpable, 0, 0, 0, 0) == 1
    with start("time.sleep(100)", isolation), start("time.sleep(100)", isolation) as second:
        second.stop()
        second.stop()
        assert libc.prctl(get_dumpable, 0, 0, 0, 0) == 0
    assert libc.prctl(get_dumpable, 0, 0, 0, 0) == 1


def test_two_runners_have_different_users(namespaces: Isolation) -> None:
    if os.geteuid() != 0:
        pytest.skip("not run: only root can give each runner a separate user")
    code = "print(os.getuid(), flush=True); time.sleep(100)"
    with start(code, namespaces) as one, start(code, namespaces) as other:
        until(lambda: one.log() and other.log())
        assert one.log() != other.log()
        assert int(one.log()) >= 60_706


# --- errors --------------------------------------------------------------------------------------


def test_closing_all_descriptors_does_not_hang_the_judge(isolation: Isolation) -> None:
    code = """
    print("before", flush=True)
    os.closerange(0, 4096)
    time.sleep(100)
    """
    with start(code, isolation) as runner:
        runner.channel.settimeout(1)
        until(lambda: b"before" in runner.log())
        before = time.monotonic()
        assert runner.stop().stopped
        assert time.monotonic() - before < KILL_TIMEOUT_S  # it would have slept for 100


def test_stop_from_many_threads_at_once(isolation: Isolation) -> None:
    with start("time.sleep(100)", isolation) as runner:
        endings: list[RunnerExit] = []
        threads = [threading.Thread(target=lambda: endings.append(runner.stop())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert endings == [RunnerExit(signal=9, stopped=True)] * 8


def test_killing_the_launcher_kills_the_runner(namespaces: Isolation) -> None:
    mark = f"headless-{os.urandom(6).hex()}"
    command = [sys.executable, "-c", "import time; time.sleep(500)", mark]
    with ProcessRunner(command, LIMITS, "cpu", namespaces) as runner:
        os.kill(runner._process.pid, signal.SIGKILL)
        until(lambda: not processes_with(mark))
        assert exit_of(runner) == RunnerExit(signal=9)


def test_a_command_that_cannot_be_executed_is_a_sandbox_error(isolation: Isolation) -> None:
    with pytest.raises(SandboxError, match=r"No such file.*no-such-program"):
        ProcessRunner(["/no-such-program"], LIMITS, "cpu", isolation)


def test_a_runner_that_dies_at_once_says_why(isolation: Isolation) -> None:
    with ProcessSandbox("grader.no_such_module", isolation).start(LIMITS, "cpu") as runner:
        assert exit_of(runner) == RunnerExit(exit_code=1)
        until(lambda: b"No module named grader.no_such_module" in runner.log())


def test_only_root_may_assign_a_user(tmp_path: Path) -> None:
    """Otherwise killing by user would kill every process of the person who grades."""
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("not run: needs root, and a Python in /usr/bin that any user can run")
    report = _as_other(python, 1000, "user")
    assert "only root can give a runner a separate user" in report["error"]


@pytest.mark.parametrize(
    ("uid", "isolation", "words"),
    [(0, "user", "process (own user)"), (1000, "namespaces", "process (namespaces)")],
)
def test_the_other_isolations(uid: int, isolation: str, words: str) -> None:
    """With an interpreter that every user can read, and as a user other than root."""
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("not run: needs root, and a Python in /usr/bin that any user can run")
    report = _as_other(python, uid, isolation)
    if "unshare" in report.get("error", ""):
        pytest.skip(f"not run: {report['error']}")
    assert report["words"] == words
    assert report["out_of_memory"] is True
    assert report["stopped"] is True
    assert report["left"] == []
    assert "judge refused" in report["log"]


def _as_other(python: str, uid: int, isolation: str) -> dict[str, Any]:
    """Run a judge as another user or with another interpreter; its findings as JSON."""
    mark = f"other-{os.urandom(6).hex()}"
    survive = f"MARK = {mark!r}{SURVIVOR}tries('judge', os.kill, JUDGE, 0)\ntime.sleep(100)"
    judge = f"""
import json, os, sys, time
from pathlib import Path
from grader.sandbox.base import RunnerLimits, SandboxError
from grader.sandbox.process import ProcessRunner, ProcessSandbox
limits = RunnerLimits({256 << 20}, {8 << 20}, {1 << 20}, 64)
def start(code):
    command = [sys.executable, "-s", "-c", {PRELUDE!r} + code]
    return ProcessRunner(command, limits, "cpu", {isolation!r})
def marked():
    found = [p for p in Path("/proc").glob("[0-9]*/cmdline") if int(p.parts[2]) != os.getpid()]
    return [str(p) for p in found if {mark.encode()!r} in read(p)]
def read(path):
    try: return path.read_bytes()
    except OSError: return b""
try:
    words = ProcessSandbox(isolation={isolation!r}).describe()
except SandboxError as error:
    print(json.dumps({{"error": str(error)}}))
    sys.exit()
with start({MEMORY["private"]!r}) as runner:
    while runner.poll() is None: time.sleep(0.01)
    out_of_memory = runner.poll().out_of_memory
with start(f"JUDGE = {{os.getpid()}}\\n" + {survive!r}) as runner:
    while b"\\n" not in runner.log().partition(b"judge")[2]: time.sleep(0.01)
    stopped = runner.stop().stopped
    log = runner.log().decode()
print(json.dumps(dict(words=words, out_of_memory=out_of_memory, stopped=stopped, log=log,
                      left=marked())))
"""
    done = subprocess.run(
        [python, "-c", judge],
        cwd=ROOT,
        user=uid,
        group=uid,
        extra_groups=[],
        env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def test_an_installation_below_tmp_is_visible(namespaces: Isolation, tmp_path: Path) -> None:
    """The runner's private /tmp must not hide a checkout below the host's /tmp."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "grader", copy / "grader")
    judge = f"""
    from grader.sandbox.base import RunnerLimits
    from grader.sandbox.process import ProcessSandbox
    sandbox = ProcessSandbox("grader.wire", {namespaces!r})
    with sandbox.start(RunnerLimits(1 << 30, 1 << 20, 1 << 20, 64), "cpu") as runner:
        while runner.poll() is None: pass
        print(runner.poll().exit_code)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(judge)],
        env={**os.environ, "PYTHONPATH": str(copy)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
