"""The launcher: a small process between judge and runner that starts the runner in its jail.

It uses the standard library only, and forks while it has one thread. It stays outside the jail. It
kills the jail when the judge closes the control socket, so that no runner outlives its judge;
otherwise it ends as the runner ended. On the control socket it sends ``ok`` once the runner has
been executed, or the error.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from grader.sandbox.jail import FAILED, JailConfig, become_subreaper, enter_jail, unshare_processes


def launcher_command(config: JailConfig) -> list[str]:
    """The command that runs `main` with this configuration, ignoring the user's Python settings."""
    program = "import sys; sys.path.append(sys.argv[1]); import grader.sandbox.launch as launch; "
    program += "sys.exit(launch.main(sys.argv[2]))"
    imports = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-I", "-S", "-c", program, imports, json.dumps(config)]


def main(text: str) -> int:
    """Start the runner, wait until it exits or the judge hangs up, and clean up.

    `text` is a `JailConfig` as JSON. Returns the runner's exit status, or dies of its signal.
    """
    config: JailConfig = json.loads(text)
    control = socket.socket(fileno=config["control"])
    os.set_inheritable(config["control"], False)
    os.set_inheritable(config["wire"], False)
    try:
        child = _start(config)
    except OSError as error:
        _remove_folder(config)
        _send(control, str(error))
        return FAILED
    _send(control, "ok")
    os.close(config["wire"])
    code = _supervise(child, control)
    if config["isolation"] != "namespaces":
        _kill_remaining(config)
    _remove_folder(config)
    if code < 0:
        _raise_signal(-code)
    return code


def _send(control: socket.socket, message: str) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # `_supervise` notices the closed socket
        control.sendall(message.encode())


def _start(config: JailConfig) -> int:
    """Fork the runner into its jail. Raises OSError with the child's error text when it fails."""
    if config["isolation"] == "user" and (os.geteuid() != 0 or config["uid"] == 0):
        # Its processes are killed by user, so the user must have no others.
        raise PermissionError("only root can give a runner a separate user")
    for procs in config["cgroups"]:
        with open(procs, "w") as file:
            file.write("0")
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when the host runs out, the runner is killed before the judge
    if config["isolation"] == "namespaces":
        unshare_processes(config["uid"])
    else:
        become_subreaper()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        enter_jail(config, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as status:
        failure = status.read().decode()
    if failure:
        os.waitpid(child, 0)
        raise OSError(failure)
    return child


def _supervise(child: int, control: socket.socket) -> int:
    """Wait; the runner's exit code, negative for a signal, or 0 when the judge hung up first."""
    pidfd = os.pidfd_open(child)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(control, select.POLLIN)
    ready = [fd for fd, _ in poller.poll()]
    if pidfd not in ready:
        os.kill(child, signal.SIGKILL)
    # For the first process of a PID namespace this waits until all others there have exited.
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if pidfd in ready else 0


def _kill_remaining(config: JailConfig) -> None:
    """Kill the processes that the runner left behind, until there are none."""
    while True:
        if config["isolation"] == "user":
            _kill_all_of(config["uid"])
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:  # this process is the subreaper of orphans
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if config["isolation"] != "user" or not _has_processes(config["uid"]):
                return
        time.sleep(0.005)


def _kill_all_of(uid: int) -> None:
    """Kill every process of a user in one system call, so that no fork escapes."""
    killer = os.fork()
    if killer == 0:
        os.setresuid(uid, uid, uid)
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(killer, 0)


def _has_processes(uid: int) -> bool:
    for entry in os.listdir("/proc"):
        with suppress(OSError):
            if entry.isdecimal() and os.stat(f"/proc/{entry}").st_uid == uid:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    if file.read().rpartition(b") ")[2][:1] != b"Z":
                        return True
    return False


def descendants(root: int) -> list[int]:
    """The process ids below `root`, parents before their children."""
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


def _remove_folder(config: JailConfig) -> None:
    if config["isolation"] == "namespaces":  # its content vanished with the namespace
        with suppress(OSError):  # the judge may have removed it
            os.rmdir(config["folder"])
    else:
        subprocess.run(["rm", "-rf", "--", config["folder"]], check=False)


def _raise_signal(number: int) -> None:
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
