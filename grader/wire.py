"""The frames between judge and runner, and the passing of file descriptors.

The wire is a Unix ``SOCK_SEQPACKET`` socket: a message arrives whole or not at all. The two
directions differ, because trust does:

- judge → runner: a request, JSON of at most `REQUEST_BYTES`, and up to `MAX_FDS` descriptors.
  Bulk (source, layout, tensors) goes by descriptor, never in the message.
- runner → judge: a `Reply`, a fixed binary struct and at most `TEXT_BYTES` of text. It is a claim.
  It is never parsed as anything but numbers and text. Descriptors sent with it are refused by the
  kernel (`refuse_descriptors`), or else dropped, since the judge receives with no room for them.

Every reply names the request it answers; the judge takes exactly one reply per request.
"""

from __future__ import annotations

import array
import errno
import json
import os
import select
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

REQUEST_BYTES = 64 * 1024
TEXT_BYTES = 4096
MAX_FDS = 4
_REPLY = struct.Struct("<4sIBBHQQ")
_MAGIC = b"GRD1"
SO_PASSRIGHTS = 83
"""The socket option of Linux 6.16 and later that lets descriptors in; Python has no name for it."""
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


class WireError(Exception):
    """The other side broke the protocol. The text says how, in words of ours."""


class WireClosed(WireError):
    """The other side is gone."""


class WireTimeout(Exception):
    """No reply came in time."""


class Status(IntEnum):
    """What a runner says became of a request. Everything but OK is a confession, and believed."""

    OK = 0
    COMPILE_ERROR = 1
    RUNTIME_ERROR = 2
    OUT_OF_MEMORY = 3


class Flag(IntFlag):
    """What a reply may tell besides its status."""

    GRAPH = 1
    """A round was captured into a CUDA graph."""
    RETURNS = 2
    """The entry returns its outputs; copying them is part of a call."""


@dataclass(frozen=True)
class Reply:
    """What the runner claims about one request."""

    sequence: int
    status: Status
    flags: int = 0
    reported_ns: int = 0
    """Time of a timed round by the runner's own clock, nanoseconds."""
    calls: int = 0
    text: str = ""

    def pack(self) -> bytes:
        """The frame of this reply; text beyond `TEXT_BYTES` is cut."""
        text = self.text.encode("utf-8", "replace")[:TEXT_BYTES]
        head = _REPLY.pack(
            _MAGIC, self.sequence, self.status, self.flags, len(text), self.reported_ns, self.calls
        )
        return head + text

    @classmethod
    def unpack(cls, frame: bytes) -> Reply:
        """Read a frame. Raises `WireError` unless it is exactly one well-formed reply."""
        if len(frame) < _REPLY.size:
            raise WireError(f"a message of {len(frame)} bytes, shorter than any reply")
        magic, sequence, status, flags, length, reported_ns, calls = _REPLY.unpack_from(frame)
        if magic != _MAGIC or length > TEXT_BYTES or len(frame) != _REPLY.size + length:
            raise WireError("a message that is no reply")
        if status not in Status.__members__.values():
            raise WireError(f"a reply of unknown status {status}")
        text = frame[_REPLY.size :].decode("utf-8", "replace")
        return cls(sequence, Status(status), flags, reported_ns, calls, text)


def refuse_descriptors(sock: socket.socket) -> None:
    """Have whoever sends descriptors here be refused, where the kernel knows of that: what is only
    dropped is closed by the one who drops it, and closing may take long."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def pack_request(request: dict[str, Any]) -> bytes:
    """The frame of a request. Raises ValueError when it is too long."""
    payload = json.dumps(request, separators=(",", ":")).encode()
    if len(payload) > REQUEST_BYTES:
        raise ValueError(f"request of {len(payload)} bytes; bulk goes by descriptor")
    return payload


def send_request(sock: socket.socket, request: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one request; see `send_packed`."""
    send_packed(sock, pack_request(request), fds)


def send_packed(sock: socket.socket, payload: bytes, fds: tuple[int, ...] = ()) -> None:
    """Send one packed request with descriptors. Raises `WireClosed` when the runner is gone, and
    OSError for what is no doing of his.

    A runner that does not read cannot hold us up: the socket is written without waiting, and a
    full queue, which an honest runner never causes, counts as abuse of the wire (`WireError`), as
    does a runner that refuses descriptors.
    """
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([payload], control, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError:
        raise WireError("the runner does not read its requests") from None
    except PermissionError:
        raise WireError("the runner does not take what it is lent") from None
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise WireClosed(f"the runner is gone ({error.strerror})") from None


def has_request(sock: socket.socket) -> bool:
    """Runner's side: whether a request waits, or the judge is gone."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def spin_until_request(sock: socket.socket) -> None:
    """Runner's side: wait for a request without sleeping, since the judge's clock may run."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(0):
        pass


def receive_request(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Runner's side: the next request and its descriptors. Raises `WireClosed` at the end."""
    payload, control, _, _ = sock.recvmsg(
        REQUEST_BYTES, socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    )
    if not payload:
        raise WireClosed("the judge is gone")
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(payload), list(fds)


def receive_reply(sock: socket.socket, timeout_s: float, busy_wait: bool = False) -> Reply:
    """Judge's side: the next reply. `busy_wait`: poll without sleeping, as a clock is running.

    Raises `WireTimeout` after `timeout_s` seconds, `WireClosed` when the runner is gone, and
    `WireError` for anything that is not a reply.
    """
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        left_s = deadline - time.monotonic()
        # Asked again and again, a waiting thread is not put to sleep, whose waking would be timed.
        if not poller.poll(0 if busy_wait else max(0, int(left_s * 1000) + 1)):
            if left_s > 0:
                continue
            raise WireTimeout
        try:
            # Plain recv: the kernel drops any descriptors the runner attached.
            frame = sock.recv(_REPLY.size + TEXT_BYTES + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except OSError as error:
            raise WireClosed(f"the runner is gone ({error.strerror})") from None
        if not frame:
            raise WireClosed("the runner closed the wire")
        return Reply.unpack(frame)


def send_reply(sock: socket.socket, reply: Reply) -> None:
    """Runner's side: answer a request."""
    sock.sendall(reply.pack())


def sealed_memfd(name: str, content: bytes) -> int:
    """A read-only, sealed memory file holding `content`; the caller closes the descriptor."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def fixed_size_memfd(name: str, nbytes: int) -> int:
    """A memory file to be filled, whose size nobody can change; the caller closes it."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd
