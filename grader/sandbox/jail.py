"""The jail of a process sandbox, built from inside: `enter_jail` turns a fork into the runner.

Standard library only, and small: the launcher imports it for every runner.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import struct
from contextlib import suppress
from typing import Any, Literal, NoReturn, TypedDict

WIRE_FD = 3
"""The runner's descriptor of the wire."""

FAILED = 125
"""Exit status of the launcher when the jail could not be built."""

WRITABLE_FOLDERS = {"scratch": 0o700, "jit": 0o700, "tmp": 0o1777, "shm": 0o1777}
"""Writable folders → mode. All count against `scratch_bytes`; files may execute in jit only."""

WRITABLE_FILES = 100_000
"""Most files in the writable folders: each takes kernel memory that no size limit counts."""


class JailConfig(TypedDict):
    """The launcher's configuration."""

    isolation: Literal["namespaces", "user", "none"]
    uid: int
    """User id of the runner; inside the namespace when the launcher is not root."""
    folder: str
    """A private folder. Without namespaces the runner's scratch and jit lie below it."""
    binds: list[str]
    """Host paths to bind read-only at the same place."""
    devices: list[str]
    environment: dict[str, str]
    command: list[str]
    scratch_bytes: int
    rlimits: dict[str, int]
    """By name without ``RLIMIT_``."""
    cgroups: list[str]
    """``cgroup.procs`` files to enter."""
    filter: str
    """Seccomp filter as a hexadecimal BPF program; empty for none."""
    wire: int
    control: int


_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND_REC, _MS_PRIVATE_REC = 0x1000 | 0x4000, 0x40000 | 0x4000
_MS_REMOUNT = 0x20
_NEW_PID, _NEW_USER = 0x20000000, 0x10000000
_NEW_OTHERS = 0x00020000 | 0x08000000 | 0x04000000 | 0x40000000 | 0x02000000
"""Mount, IPC, UTS, network, cgroup."""
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
"""The same numbers for mount, mount_setattr and statvfs."""
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SYS_MOUNT_SETATTR = 442
_SYS_BY_MACHINE = {
    "x86_64": {"pivot_root": 155, "capset": 126},
    "aarch64": {"pivot_root": 41, "capset": 91},
}


def _check(call: str, result: int) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), call)
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    result = _libc.mount(
        source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data.encode()
    )
    _check(f"mount {target}", result)


def _restrict(target: str, attributes: int, recursive: bool = True) -> None:
    value = struct.pack("=4Q", attributes, 0, 0, 0)
    flags = 0x8000 if recursive else 0
    result = _libc.syscall(_SYS_MOUNT_SETATTR, -100, target.encode(), flags, value, len(value))
    if result == -1 and ctypes.get_errno() == errno.ENOSYS:  # before Linux 5.12: the mount itself
        kept = os.statvfs(target).f_flag & 0xC0F
        return _mount("none", target, None, _MS_REMOUNT | _MS_BIND_REC | kept | attributes)
    _check(f"mount_setattr {target}", result)


def _prctl(option: int, value: int, more: Any = 0) -> None:
    _check(f"prctl {option}", _libc.prctl(option, ctypes.c_ulong(value), more, 0, 0))


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _syscall(name: str, *arguments: Any) -> None:
    numbers = _SYS_BY_MACHINE.get(platform.machine())
    if numbers is None:
        raise OSError(f"no system call numbers for {platform.machine()}")
    _check(name, _libc.syscall(numbers[name], *arguments))


def unshare_processes(uid: int) -> None:
    """Put children into a PID namespace and, unless root, this process into a user namespace.

    In the user namespace `uid` maps to the current user, who has the capabilities to build a root.
    """
    own_uid, own_gid = os.geteuid(), os.getegid()
    user = _NEW_USER if own_uid != 0 else 0
    # Only children enter the PID namespace; this process keeps its own, and its mounts.
    _check("unshare", _libc.unshare(_NEW_PID | user))
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {own_uid} 1"),
            ("gid_map", f"{uid} {own_gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


# --- The rest runs in the fork -------------------------------------------------------------------


def enter_jail(config: JailConfig, status: int) -> NoReturn:
    """In the fork: build the jail, drop privileges, execute. Writes any error to `status`."""
    try:
        os.setsid()
        os.umask(0o022)
        if config["isolation"] == "namespaces":
            _build_root(config)
        else:
            _make_writable_folders(config["folder"], config)
        _drop_privileges(config)
        for path in config["binds"]:
            if not os.access(path, os.R_OK):
                raise PermissionError(f"user {config['uid']} can't read {path}")
        os.chdir(config["environment"]["GRADE_SCRATCH"])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        os.dup2(config["wire"], WIRE_FD, inheritable=True)
        if config["wire"] == WIRE_FD:
            os.set_inheritable(WIRE_FD, True)
        os.execve(config["command"][0], config["command"], config["environment"])
    except BaseException as error:  # noqa: BLE001 - a fork must not return; the error goes to `status`
        os.write(status, f"{type(error).__name__}: {error}"[:2000].encode())
    os._exit(FAILED)


def _build_root(config: JailConfig) -> None:
    """Build a new root: the host read-only, a small /dev and /etc, and limited writable folders."""
    root = config["folder"]
    _check("unshare", _libc.unshare(_NEW_OTHERS))
    _mount("none", "/", None, _MS_PRIVATE_REC)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m,nr_inodes=2000")
    # First, because a host path below /tmp may be among the binds.
    _mount_writable_folders(root, config)
    for path in config["binds"]:
        _bind(path, root + path, _RDONLY | _NOSUID | _NODEV)
    for path in config["devices"]:
        _bind(path, root + path, _NOSUID | _NOEXEC)
    streams = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in streams.items():
        os.symlink(target, f"{root}/dev/{name}")
    _write_users(f"{root}/etc", config["uid"])
    os.mkdir(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    with suppress(OSError), open("/proc/sys/kernel/shmall", "w") as file:
        file.write(str(config["scratch_bytes"] // resource.getpagesize()))
    socket.sethostname("sandbox")
    os.chdir(root)
    _syscall("pivot_root", b".", b".")
    _check("umount2", _libc.umount2(b".", 2))
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


def _mount_writable_folders(root: str, config: JailConfig) -> None:
    """Back all writable folders with one sized tmpfs, so that one limit bounds their sum."""
    space = f"{root}/space"
    os.mkdir(space)
    size = f"mode=0755,size={config['scratch_bytes']},nr_inodes={WRITABLE_FILES}"
    _mount("tmpfs", space, "tmpfs", _NOSUID | _NODEV, size)
    _make_writable_folders(space, config)
    targets = {"scratch": "/scratch", "jit": "/jit", "tmp": "/tmp", "shm": "/dev/shm"}
    for name, target in targets.items():
        noexec = 0 if name == "jit" else _NOEXEC
        _bind(f"{space}/{name}", root + target, _NOSUID | _NODEV | noexec)
    _check("umount2", _libc.umount2(space.encode(), 0))
    os.rmdir(space)


def _make_writable_folders(folder: str, config: JailConfig) -> None:
    owner = config["uid"] if config["isolation"] != "none" else -1
    for name, mode in WRITABLE_FOLDERS.items():
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


def _drop_privileges(config: JailConfig) -> None:
    """Set resource limits, user, capabilities and the seccomp filter, in this order."""
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
    # After the change of user, which clears it. It needs a launcher with one thread.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if config["filter"]:
        program = ctypes.create_string_buffer(bytes.fromhex(config["filter"]))
        header = struct.pack("@HP", len(config["filter"]) // 16, ctypes.addressof(program))
        _prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header))
