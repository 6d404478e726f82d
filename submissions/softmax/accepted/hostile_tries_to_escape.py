"""Tries sockets, mounts, namespaces, devices, other users and signals, then computes.

Every attempt must fail; one that succeeds is printed with "GOT".
"""

import ctypes
import os
import signal
import socket

import torch

libc = ctypes.CDLL(None, use_errno=True)


def connect(address):
    with socket.socket() as sock:
        sock.settimeout(0.2)
        sock.connect(address)


def system(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


ATTEMPTS = {
    "loopback": lambda: connect(("127.0.0.1", 22)),
    "internet": lambda: connect(("1.1.1.1", 53)),
    "engine": lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"),
    "root": lambda: os.setuid(0),
    "mount": lambda: system("mount", b"none", b"/scratch", b"tmpfs", 0, None),
    "namespace": lambda: system("unshare", 0x10000000),
    "device": lambda: os.mknod("device", 0o020666, os.makedev(1, 1)),
    "real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "priority": lambda: os.nice(-5),
    "program": lambda: open("/usr/bin/hostile", "w").close(),
    "package": lambda: open(os.path.join(os.path.dirname(torch.__file__), "hostile"), "w").close(),
}
for what, attempt in ATTEMPTS.items():
    try:
        attempt()
        print("GOT", what)
    except OSError as error:
        print(what, "refused:", error.strerror)
os.kill(os.getppid(), signal.SIGSTOP)  # the runner's parent, which a stop does not reach


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
