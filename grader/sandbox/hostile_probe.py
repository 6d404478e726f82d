"""A stand-in for the runner that tries what a hostile submission would try.

`python -m grader.sandbox.hostile_probe (--fd N | --connect PATH)` serves requests
``{"probe": NAME, ...}``. A probe returns one line per attempt that succeeded, so an empty list when
the sandbox holds. It imports only the standard library and the wire.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grader.sandbox.escape_attempts import system_calls
from grader.wire import (
    Reply,
    Status,
    WireClosed,
    connect_to_judge,
    exit_with,
    receive_request,
    send_reply,
)

_STANDARD_DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
_WRITABLE = {"scratch": os.environ["GRADE_SCRATCH"], "jit": os.environ["GRADE_JIT"]}
_INITIAL_FDS = set(os.listdir("/proc/self/fd"))


def network(loopback_port: int, addresses: list[str], abstract: str) -> list[str]:
    """Connect to the host, which listens on the given port and abstract socket, or the Internet."""
    got = []
    for address in ["127.0.0.1", *addresses]:
        got += _through(f"connected to the host at {address}", _connect, address, loopback_port)
    got += _through("connected to the host's abstract socket", _connect_abstract, abstract)
    got += _through("has a route for IPv4", _datagram, socket.AF_INET, "192.0.2.1")
    got += _through("has a route for IPv6", _datagram, socket.AF_INET6, "2001:db8::1")
    got += _through("resolved a name", socket.getaddrinfo, "example.com", 80)
    return got


def raw_sockets() -> list[str]:
    """Open sockets that see or forge other programs' packets."""
    got = _through("raw IPv4 socket", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
    return got + _through("packet socket", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)


def writes(allowed: list[str]) -> list[str]:
    """Find other writable paths than those allowed: among mounts, and three levels below /."""
    allowed = [*allowed, *_WRITABLE.values()]
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    places = {Path(mount) for mount in mounts}
    for folder, below, _ in os.walk("/"):
        places.add(Path(folder))
        if folder in ("/proc", "/sys") or folder in allowed or folder.count("/") >= 3:
            below.clear()
    places = {p for p in places if not any(p.is_relative_to(a) for a in (*allowed, "/proc"))}
    # A device such as /dev/null may be a mount; the probe `devices` covers those.
    places = {p for p in places if p.is_dir() or p.is_file()}
    return [f"can write {place}" for place in sorted(places) if os.access(place, os.W_OK)]


def kernel_files() -> list[str]:
    """Write kernel settings, or read kernel files that are for root only."""
    settings = [
        *map(Path, ("/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/proc/irq")),
        # Anyone can open ns_last_pid; it belongs to the namespace and rejects writes.
        *(p for p in Path("/proc/sys/kernel").glob("*") if p.name != "ns_last_pid"),
        *Path("/sys/kernel/mm").rglob("enabled"),
        *Path("/sys/fs/cgroup").rglob("cgroup.procs"),
    ]
    got = [f"can write {p}" for p in settings if p.is_file() and _opens(p, os.O_WRONLY)]
    secret = [Path("/proc/kcore"), Path("/proc/keys"), Path("/dev/mem"), Path("/proc/timer_list")]
    return got + [f"can read {p}" for p in secret if p.exists() and _reads(p)]


def execution() -> list[str]:
    """Execute from scratch, by exec and by mmap, which must fail; from jit it must work."""
    got = []
    program = Path("/bin/true").read_bytes()
    for name, allowed in (("scratch", False), ("jit", True)):
        copy = Path(_WRITABLE[name]) / "probe-program"
        copy.write_bytes(program)
        copy.chmod(0o755)
        if _runs(copy) is not allowed:
            got.append(f"{copy} {'cannot be executed' if allowed else 'was executed'}")
        if _maps_executable(copy) is not allowed:
            got.append(f"{copy} {'cannot' if allowed else 'can'} be mapped executable")
        copy.unlink()
    return got


def identity(owner_uid: int) -> list[str]:
    """Be root or the judge's user, belong to root's group, hold or gain a capability."""
    got = [f"is uid {n}" for n in os.getresuid() if n in (0, owner_uid)]
    got += [f"is gid {n}" for n in (*os.getresgid(), *os.getgroups()) if n == 0]
    status = _status()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(status[name], 16):
            got.append(f"{name} is {status[name]}")
    got += _through("became root", os.setuid, 0)
    return got


def flag(name: str, value: str) -> list[str]:
    """Check one line of /proc/self/status."""
    found = _status().get(name, "missing")
    return [] if found == value else [f"{name} is {found}"]


def namespaces(host: dict[str, str]) -> list[str]:
    """Share a namespace with the host, or see another namespace's processes."""
    got = []
    for kind, name in host.items():
        if os.readlink(f"/proc/self/ns/{kind}") == name:
            got.append(f"shares the host's {kind} namespace")
    if os.readlink("/proc/self") != str(os.getpid()):
        got.append("/proc shows the processes of another namespace")
    return got


def secrets(paths: list[str], variables: list[str]) -> list[str]:
    """Read the host's files and the judge's environment."""
    got = [f"can read {path}" for path in paths if _reads(Path(path))]
    return got + [f"has {name} in its environment" for name in variables if name in os.environ]


def devices(asked: list[str]) -> list[str]:
    """Find devices that were not requested, or make one."""
    got = []
    for folder, _, names in os.walk("/dev"):
        for path in (Path(folder) / name for name in names):
            mode = path.lstat().st_mode
            special = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
            standard = path.name in _STANDARD_DEVICES or folder == "/dev/pts"
            if special and not standard and str(path) not in asked:
                got.append(f"has {path}")
    got += [f"lacks {path}" for path in asked if not os.path.exists(path)]
    made = Path(_WRITABLE["jit"]) / "device"
    return got + _through("made a device node", os.mknod, made, stat.S_IFCHR | 0o600, 259)


def descriptors() -> list[str]:
    """Start with more descriptors than stdio and the wire."""
    # One extra is the listed directory, and one the wire where it is inherited.
    extra = len(_INITIAL_FDS - {"0", "1", "2"}) - 1
    return [] if extra <= 1 else [f"{extra} descriptors besides stdio: {sorted(_INITIAL_FDS)}"]


def limits(open_files: int) -> list[str]:
    """Have no limit on core dumps or open files."""
    import resource

    got = []
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        got.append("may dump core")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] > open_files:
        got.append(f"may open {resource.getrlimit(resource.RLIMIT_NOFILE)[1]} files")
    return got


def full_disk(places: list[str], bound_bytes: int) -> list[str]:
    """Fill each folder: it must fail with an error at the limit, without a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    got = []
    for folder in (_WRITABLE.get(place, place) for place in places):
        written = 0
        filling: list[Path] = []
        try:
            while written <= bound_bytes:
                filling.append(Path(folder) / f"fill-{len(filling)}")
                with filling[-1].open("wb", buffering=0) as file:
                    for _ in range(8):
                        written += file.write(bytes(1 << 20))
            got.append(f"wrote {written >> 20} MiB to {folder}")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                got.append(f"{folder}: {error}")
        for path in filling:
            path.unlink(missing_ok=True)
    return got


def lent_memory(fds: list[int]) -> list[str]:
    """Check that memory passed by descriptor is shared with the judge."""
    with mmap.mmap(fds[0], 4096) as memory:
        if memory[:5] != b"judge":
            return ["does not see what the judge wrote"]
        memory[:6] = b"runner"
    return []


def processes(fds: list[int], at_most: int) -> list[str]:
    """Fork children in new sessions until it fails. They hold the lent descriptor."""
    count = 0
    try:
        while count <= at_most:
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(3600)
            count += 1
    except OSError:
        return []
    return [f"made {count} processes"]


def linger(fds: list[int]) -> list[str]:
    """Keep the lent descriptor open, also in a daemon that has left the process tree."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    return []


def allocate() -> list[str]:
    """Allocate until killed, in a child, and exit as it does: the runner forks too."""
    child = os.fork()
    taken = []
    while child == 0:
        taken.append(b"x" * (16 << 20))
    _, status = os.waitpid(child, 0)
    os._exit(128 - os.waitstatus_to_exitcode(status))


def flood() -> list[str]:
    """Print forever."""
    while True:
        os.write(1, b"flood " * 10_000)


def spin() -> list[str]:
    """Run forever and ignore every signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def leave(status: int) -> list[str]:
    """Exit at once."""
    os._exit(status)


def _through(what: str, function: Callable[..., object], *arguments: object) -> list[str]:
    """A line `what` when the call succeeds."""
    try:
        function(*arguments)
    except OSError:
        return []
    return [what]


def _connect(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect((address, port))


def _connect_abstract(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + name)


def _datagram(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 53))


def _opens(path: Path, flags: int) -> bool:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _reads(path: Path) -> bool:
    """Whether it can be listed, read or connected to."""
    try:
        if path.is_dir():
            return bool(os.listdir(path))
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
            return True
        with path.open("rb", buffering=0) as file:
            return bool(file.read(1))
    except OSError:
        return False


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program], check=False, timeout=10).returncode == 0
    except OSError:
        return False


def _maps_executable(path: Path) -> bool:
    with path.open("rb") as file:
        rights = mmap.PROT_READ | mmap.PROT_EXEC
        try:
            mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, rights).close()
        except OSError:
            return False
    return True


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


_PROBES: dict[str, Callable[..., list[str]]] = {
    probe.__name__: probe
    for probe in (
        network, raw_sockets, writes, kernel_files, execution, identity, flag, namespaces,
        system_calls, secrets, devices, descriptors, limits, full_disk, lent_memory, processes,
        linger, allocate, flood, spin, leave,
    )
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Serve the judge's requests until it hangs up."""
    if arguments[0] == "--fd":
        sock = socket.socket(fileno=int(arguments[1]))
    else:
        sock, lifeline = connect_to_judge(arguments[1])
        exit_with(lifeline)
    while True:
        try:
            request, fds = receive_request(sock)
        except WireClosed:
            return
        name, number = request.pop("probe"), request.pop("sequence")
        if fds:
            request["fds"] = fds
        try:
            reply = Reply(number, Status.OK, text="\n".join(_PROBES[name](**request)))
        except Exception as error:  # noqa: BLE001 - reported, and never counted as held
            reply = Reply(number, Status.RUNTIME_ERROR, text=f"{type(error).__name__}: {error}")
        send_reply(sock, reply)


if __name__ == "__main__":
    main(sys.argv[1:])
