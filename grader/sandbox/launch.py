"""Start the runner of a process sandbox in its jail, and end with it.

A small process of its own between the judge and the runner, with nothing but the standard library,
forked while it has one thread. It stays outside the jail. It ends the jail when the judge hangs up
the control socket, so that no runner outlives its judge, and otherwise ends as the runner ended. On
the control socket it says ``ok`` once the runner has been executed, or why it could not be.
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

from grader.sandbox.jail import FAILED, Config, become_subreaper, enter, unshare_processes


def launcher_command(config: Config) -> list[str]:
    """The command that runs `main` with this configuration, seeing none of the user's settings."""
    program = "import sys; sys.path.append(sys.argv[1]); import grader.sandbox.launch as launch; "
    program += "sys.exit(launch.main(sys.argv[2]))"
    imports = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-I", "-S", "-c", program, imports, json.dumps(config)]


def main(text: str) -> int:
    """Start the runner, wait for it or for the judge to hang up, leave nothing behind.

    `text` is a `Config` as JSON. Returns the runner's exit status, or dies of its signal.
    """
    config: Config = json.loads(text)
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
        unshare_processes(config["uid"])
    else:
        become_subreaper()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        enter(config, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as status:
        failure = status.read().decode()
    if failure:
        os.waitpid(child, 0)
        raise OSError(failure)
    return child


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
        with suppress(OSError):  # the judge looks after it too
            os.rmdir(config["folder"])
    else:
        subprocess.run(["rm", "-rf", "--", config["folder"]], check=False)


def _die_of(number: int) -> None:
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
