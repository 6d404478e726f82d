"""Build the jail of a process sandbox, run the runner in it, and end with it.

Run as a program of its own, ``python -I -S launch.py CONFIG``, with nothing but the standard
library: it must be small and quick, and it is forked while it has one thread. It stays outside the
jail as a supervisor. It ends the jail when the judge hangs up the control socket, so that no runner
outlives its judge, and otherwise ends as the runner ended.

CONFIG is the JSON form of `Config`. On the control socket it says ``ok`` once the runner has been
executed, or why it could not be.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Literal, NoReturn, TypedDict

WIRE_FD = 3
"""The runner's end of the wire in the runner."""

FAILED = 125
"""Our exit status when the jail could not be built."""

SPACES = {"scratch": 0o700, "jit": 0o700, "tmp": 0o1777, "shm": 0o1777}
"""What is writable in the jail; all of it counts against `scratch_bytes`. Only jit may execute."""

SPACE_FILES = 100_000
"""Files in the writable space: each costs the kernel memory that no size limit counts."""


class Config(TypedDict):
    """What the launcher is told."""

    isolation: Literal["namespaces", "user", "none"]
    uid: int
    """User the runner becomes; inside the namespace, when we are not root."""
    folder: str
    """A directory of ours. Without namespaces the runner's scratch and jit lie below it."""
    binds: list[str]
    """Host paths to show read-only at the same place."""
    devices: list[str]
    environment: dict[str, str]
    command: list[str]
    scratch_bytes: int
    rlimits: dict[str, int]
    """By name without the ``RLIMIT_``."""
    cgroups: list[str]
    """``cgroup.procs`` files to enter."""
    filter: str
    """System call filter as a hexadecimal BPF program; empty for none."""
    wire: int
    control: int


# --- the kernel's interface, as far as Python 3.11 lacks it ------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND_REC, _MS_PRIVATE_REC = 0x1000 | 0x4000, 0x40000 | 0x4000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_NEW_PID, _NEW_USER = 0x20000000, 0x10000000
_NEW_OTHERS = 0x00020000 | 0x08000000 | 0x04000000 | 0x40000000 | 0x02000000
"""Mount, IPC, UTS, network, cgroup."""
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SYS_MOUNT_SETATTR = 442
_SYS_BY_MACHINE = {
    "x86_64": {"pivot_root": 155, "capset": 126},
    "aarch64": {"pivot_root": 41, "capset": 91},
}


def _checked(what: str, result: int) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    result = _libc.mount(
        source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data.encode()
    )
    _checked(f"mount {target}", result)


def _restrict(target: str, attributes: int, recursive: bool = True) -> None:
    value = struct.pack("=4Q", attributes, 0, 0, 0)
    flags = 0x8000 if recursive else 0
    result = _libc.syscall(_SYS_MOUNT_SETATTR, -100, target.encode(), flags, value, len(value))
    _checked(f"mount_setattr {target}", result)


def _prctl(option: int, value: int, more: Any = 0) -> None:
    _checked(f"prctl {option}", _libc.prctl(option, ctypes.c_ulong(value), more, 0, 0))


def _syscall(name: str, *arguments: Any) -> None:
    numbers = _SYS_BY_MACHINE.get(platform.machine())
    if numbers is None:
        raise OSError(f"no system call numbers for {platform.machine()}")
    _checked(name, _libc.syscall(numbers[name], *arguments))


# --- the supervisor ------------------------------------------------------------------------------


def main(config: Config) -> int:
    """Start the runner, wait for it or for the judge to hang up, leave nothing behind."""
    control = socket.socket(fileno=config["control"])
    os.set_inheritable(config["control"], False)
    os.set_inheritable(config["wire"], False)
    try:
        child = _start(config)
    except OSError as error:
        _remove_folder(config)
        _tell(control, str(error))
        return FAILED
    _tell(control, "ok")
    os.close(config["wire"])
    code = _supervise(child, control)
    if config["isolation"] != "namespaces":
        _sweep(config)
    _remove_folder(config)
    if code < 0:
        _die_of(-code)
    return code


def _tell(control: socket.socket, word: str) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the judge is gone: we shall see it
        control.sendall(word.encode())


def _start(config: Config) -> int:
    """Fork the runner into its jail; raises OSError with the child's own words when it fails."""
    if config["isolation"] == "user" and (os.geteuid() != 0 or config["uid"] == 0):
        # Its processes are ended by user: that must be one that nobody else is.
        raise PermissionError("only root can give a runner a user of its own")
    for procs in config["cgroups"]:
        with open(procs, "w") as file:
            file.write("0")
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when the machine itself runs out, we go first, never the judge
    if config["isolation"] == "namespaces":
        _unshare(config["uid"])
    else:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _become_runner(config, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as status:
        failure = status.read().decode()
    if failure:
        os.waitpid(child, 0)
        raise OSError(failure)
    return child


def _unshare(uid: int) -> None:
    own_uid, own_gid = os.geteuid(), os.getegid()
    user = _NEW_USER if own_uid != 0 else 0
    # Our children get the PID namespace; we keep our own, and our view of the file system.
    _checked("unshare", _libc.unshare(_NEW_PID | user))
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {own_uid} 1"),
            ("gid_map", f"{uid} {own_gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _supervise(child: int, control: socket.socket) -> int:
    """Exit code of the runner, negative for a signal; 0 when the judge hung up first."""
    pidfd = os.pidfd_open(child)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(control, select.POLLIN)
    ready = [fd for fd, _ in poller.poll()]
    if pidfd not in ready:
        os.kill(child, signal.SIGKILL)
    # For the first process of a PID namespace this waits until all others there are dead too.
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if pidfd in ready else 0


def _sweep(config: Config) -> None:
    """Kill what the runner left behind, until nothing is."""
    while True:
        if config["isolation"] == "user":
            _kill_all_of(config["uid"])
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:  # orphans are handed to us, their subreaper
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if config["isolation"] != "user" or not _user_runs(config["uid"]):
                return
        time.sleep(0.005)


def _kill_all_of(uid: int) -> None:
    """Every process of that user at one stroke, forks in flight included."""
    killer = os.fork()
    if killer == 0:
        os.setresuid(uid, uid, uid)
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(killer, 0)


def _user_runs(uid: int) -> bool:
    for entry in os.listdir("/proc"):
        with suppress(OSError):
            if entry.isdecimal() and os.stat(f"/proc/{entry}").st_uid == uid:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    if file.read().rpartition(b") ")[2][:1] != b"Z":
                        return True
    return False


def descendants(root: int) -> list[int]:
    """Processes below `root`, parents before their children."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError):
            if entry.isdecimal():
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parents[int(entry)] = int(file.read().rpartition(b") ")[2].split()[1])
    found, seen = [root], {root}
    for ancestor in found:
        found += [pid for pid, parent in parents.items() if parent == ancestor and pid not in seen]
        seen.update(found)
    return found[1:]


def _remove_folder(config: Config) -> None:
    if config["isolation"] == "namespaces":  # everything in it went with the namespace
        os.rmdir(config["folder"])
    else:
        subprocess.run(["rm", "-rf", "--", config["folder"]], check=False)


def _die_of(number: int) -> None:
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)


# --- the runner's side ---------------------------------------------------------------------------


def _become_runner(config: Config, status: int) -> NoReturn:
    """In the fork: build the jail, give up every power, execute. Tells `status` why it can't."""
    try:
        os.setsid()
        os.umask(0o022)
        if config["isolation"] == "namespaces":
            _build_root(config)
        else:
            _make_space(config["folder"], config)
        _drop(config)
        for path in config["binds"]:
            if not os.access(path, os.R_OK):
                raise PermissionError(f"user {config['uid']} can't read {path}")
        os.chdir(config["environment"]["GRADE_SCRATCH"])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # our interpreter ignores it
        os.dup2(config["wire"], WIRE_FD, inheritable=True)
        if config["wire"] == WIRE_FD:
            os.set_inheritable(WIRE_FD, True)
        os.execve(config["command"][0], config["command"], config["environment"])
    except BaseException as error:  # noqa: BLE001 - a fork must not return; the judge is told
        os.write(status, f"{type(error).__name__}: {error}"[:2000].encode())
    os._exit(FAILED)


def _build_root(config: Config) -> None:
    """A root of our own: the host read-only, a small /dev and /etc, sized writable space."""
    root = config["folder"]
    _checked("unshare", _libc.unshare(_NEW_OTHERS))
    _mount("none", "/", None, _MS_PRIVATE_REC)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m,nr_inodes=2000")
    for path in config["binds"]:
        _bind(path, root + path, _RDONLY | _NOSUID | _NODEV)
    for path in config["devices"]:
        _bind(path, root + path, _NOSUID | _NOEXEC)
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(target, f"{root}/dev/{name}")
    _write_users(f"{root}/etc", config["uid"])
    os.mkdir(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", _MS_NOSUID_NODEV_NOEXEC)
    _mount_space(root, config)
    with suppress(OSError), open("/proc/sys/kernel/shmall", "w") as file:
        file.write(str(config["scratch_bytes"] // resource.getpagesize()))
    socket.sethostname("sandbox")
    os.chdir(root)
    _syscall("pivot_root", b".", b".")
    _checked("umount2", _libc.umount2(b".", 2))
    os.chdir("/")
    _restrict("/", _RDONLY | _NOSUID | _NODEV, recursive=False)


def _bind(source: str, target: str, attributes: int) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "xb"):
            pass
    _mount(source, target, None, _MS_BIND_REC)
    _restrict(target, attributes)


def _mount_space(root: str, config: Config) -> None:
    """One sized file system behind every writable directory, so that one number bounds them all."""
    space = f"{root}/space"
    os.mkdir(space)
    size = f"mode=0755,size={config['scratch_bytes']},nr_inodes={SPACE_FILES}"
    _mount("tmpfs", space, "tmpfs", _NOSUID | _NODEV, size)
    _make_space(space, config)
    places = {"scratch": "/scratch", "jit": "/jit", "tmp": "/tmp", "shm": "/dev/shm"}
    for name, place in places.items():
        _bind(f"{space}/{name}", root + place, _NOSUID | _NODEV | (0 if name == "jit" else _NOEXEC))
    _checked("umount2", _libc.umount2(space.encode(), 0))
    os.rmdir(space)


def _make_space(folder: str, config: Config) -> None:
    owner = config["uid"] if config["isolation"] != "none" else -1
    for name, mode in SPACES.items():
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", mode)
        os.chown(f"{folder}/{name}", owner, owner)
    os.mkdir(f"{folder}/jit/tmp", 0o700)
    os.chown(f"{folder}/jit/tmp", owner, owner)


def _write_users(folder: str, uid: int) -> None:
    files = {
        "passwd": f"runner:x:{uid}:{uid}:runner:/scratch:/bin/sh\n",
        "group": f"runner:x:{uid}:\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "hosts": "127.0.0.1 localhost\n",
    }
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(f"{folder}/{name}", "x") as file:
            file.write(text)


def _drop(config: Config) -> None:
    """Limits, then identity, then capabilities, then what can't be taken back."""
    for name, value in config["rlimits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if config["isolation"] != "none":
        capability = 0
        while _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == 0:
            capability += 1
        if os.geteuid() != config["uid"]:
            os.setgroups([])
            os.setresgid(config["uid"], config["uid"], config["uid"])
            os.setresuid(config["uid"], config["uid"], config["uid"])
    _syscall("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))
    # A change of user clears it, so it comes after; the supervisor has one thread, as it needs.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if config["filter"]:
        program = ctypes.create_string_buffer(bytes.fromhex(config["filter"]))
        header = struct.pack("@HP", len(config["filter"]) // 16, ctypes.addressof(program))
        _prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
