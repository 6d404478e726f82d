"""The seccomp filter of the process sandbox: a BPF program in the kernel's binary format.

It denies what no submission needs: new namespaces (whose owner has every capability inside),
mounts, tracing, kernel administration, and socket families that lead out of the sandbox.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "acct": (163, 89),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    # io_uring can make sockets without the socket call.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
"""Call → its number on x86_64 and on aarch64."""

_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def seccomp_program(network: bool) -> bytes:
    """The program for this machine's architecture, eight bytes per instruction; empty if unknown.

    network: allow Internet sockets, for a runner whose network namespace is empty. VM sockets
        ignore namespaces, so they are always denied.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return b""
    column = list(_ARCHITECTURES).index(machine)
    deny = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        deny,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),  # the x32 ABI of x86_64
        deny,
        # clone3's flags lie in memory, which a filter can't read. Libraries fall back to clone.
        (_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    for numbers in _DENIED.values():
        program += [(_EQUAL, 0, 1, numbers[column]), deny]
    program += [
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        deny,
        (_LOAD, 0, 0, _NUMBER),
    ]
    families = [socket.AF_UNIX, socket.AF_NETLINK]
    families += [socket.AF_INET, socket.AF_INET6] if network else []
    count = len(families)
    program += [(_EQUAL, 0, count + 2, _SOCKET[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    program += [(_EQUAL, count - i, 0, int(family)) for i, family in enumerate(families)]
    program += [(_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in program)
