"""The protocol between judge and runner: message framing and descriptor passing.

The wire is a Unix ``SOCK_SEQPACKET`` socket, so a message arrives whole or not at all. The judge
does not trust the runner, so the two directions differ:

- judge → runner: a request, JSON of at most `REQUEST_BYTES` with up to `MAX_FDS` descriptors.
  Source, layout and tensors go by descriptor, never in the message.
- runner → judge: a `Reply`, a fixed binary struct and at most `TEXT_BYTES` of text, which the judge
  never parses. The kernel refuses descriptors sent with it (`refuse_descriptors`), or drops them,
  since the judge receives without room for them.

Every reply names its request; the judge takes exactly one reply per request.
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

REQUEST_BYTES = 192 * 1024
"""Room for the names of a thousand arguments, which a network's weights are. A message must fit the
socket's send buffer, by Linux's default 208 KiB."""
TEXT_BYTES = 4096
MAX_FDS = 4
_REPLY = struct.Struct("<4sIBBHQQ")
_MAGIC = b"GRD1"
SO_PASSRIGHTS = 83
"""Socket option of Linux 6.16 and later that accepts descriptors; Python has no name for it."""


class _Received(threading.local):
    """A thread's buffer for requests. A new one of this size for each would take 16 µs, which count
    as a round's time."""

    def __init__(self) -> None:
        self.buffer = bytearray(REQUEST_BYTES)


_RECEIVED = _Received()
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class WireError(Exception):
    """The other side broke the protocol. The text says how, and quotes nothing of its message."""


class WireClosed(WireError):
    """The other side closed the wire."""


class WireTimeout(Exception):
    """No reply arrived in time."""


class Status(IntEnum):
    """The runner's result of a request. The judge believes every status but OK."""

    OK = 0
    COMPILE_ERROR = 1
    RUNTIME_ERROR = 2
    OUT_OF_MEMORY = 3


class Flag(IntFlag):
    """Extra facts in a reply."""

    GRAPH = 1
    """A round was captured into a CUDA graph."""
    RETURNS = 2
    """The entry returns its outputs; each call copies them."""


@dataclass(frozen=True)
class Reply:
    """The runner's answer to one request. None of it is trusted."""

    sequence: int
    status: Status
    flags: int = 0
    reported_ns: int = 0
    """Time of the round by the runner's own clock, nanoseconds."""
    calls: int = 0
    text: str = ""

    def pack(self) -> bytes:
        """Serialize; text beyond `TEXT_BYTES` is cut."""
        text = self.text.encode("utf-8", "replace")[:TEXT_BYTES]
        head = _REPLY.pack(
            _MAGIC, self.sequence, self.status, self.flags, len(text), self.reported_ns, self.calls
        )
        return head + text

    @classmethod
    def unpack(cls, frame: bytes) -> Reply:
        """Parse a frame. Raises `WireError` unless it is exactly one well-formed reply."""
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
    """Make the kernel refuse descriptors sent to this socket, if it supports that.

    Dropping them is not enough: the receiver then closes them, which may take long.
    """
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def pack_request(request: dict[str, Any]) -> bytes:
    """Serialize a request. Raises ValueError when it is too long."""
    payload = json.dumps(request, separators=(",", ":")).encode()
    if len(payload) > REQUEST_BYTES:
        raise ValueError(f"request of {len(payload)} bytes; bulk goes by descriptor")
    return payload


def send_request(sock: socket.socket, request: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one request; see `send_packed`."""
    send_packed(sock, pack_request(request), fds)


def send_packed(sock: socket.socket, payload: bytes, fds: tuple[int, ...] = ()) -> None:
    """Send one serialized request with descriptors, without blocking.

    Raises `WireClosed` when the runner has closed the wire, and `WireError` when its queue is full,
    which an honest runner never causes, or when it refuses descriptors. Raises OSError for failures
    that are not the runner's fault.
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


def connect_to_judge(path: str) -> tuple[socket.socket, socket.socket]:
    """Runner's side: the wire, and a lifeline.

    Nothing is sent on the lifeline. It closes with the judge, however that ends, and the process
    that holds it then ends the sandbox."""
    wire, lifeline = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    for sock in (wire, lifeline):
        sock.connect(path)
    return wire, lifeline


def exit_with(lifeline: socket.socket) -> None:
    """Exit when the judge's end of the lifeline closes, in a thread; as if killed, as the kernel
    kills the other processes of a sandbox when its first one ends."""

    def wait() -> None:
        with suppress(OSError):
            lifeline.recv(1)
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def has_request(sock: socket.socket) -> bool:
    """Runner's side: whether a request is waiting, or the judge has closed the wire."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def spin_until_request(sock: socket.socket) -> None:
    """Runner's side: busy-wait for a request, as waking up would cost measured time."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(0):
        pass


def receive_request(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Runner's side: the next request and its descriptors. Raises `WireClosed` after the last."""
    received = _RECEIVED.buffer
    length, control, _, _ = sock.recvmsg_into(
        [received], socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    )
    if not length:
        raise WireClosed("the judge is gone")
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(received[:length]), list(fds)


def receive_reply(sock: socket.socket, timeout_s: float, busy_wait: bool = False) -> Reply:
    """Judge's side: the next reply. `busy_wait` polls without sleeping, while a clock is running.

    Raises `WireTimeout` after `timeout_s` seconds, `WireClosed` when the runner has closed the
    wire, and `WireError` for anything that is not a reply.
    """
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        left_s = deadline - time.monotonic()
        # With a timeout of 0 the thread never sleeps, so no wake-up is timed.
        if not poller.poll(0 if busy_wait else max(0, int(left_s * 1000) + 1)):
            if left_s > 0:
                continue
            raise WireTimeout
        try:
            # Plain recv: the kernel drops any descriptors that the runner attached.
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
    """A read-only memfd with this content; the caller closes it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_WRITE)
    return fd


def fixed_size_memfd(name: str, nbytes: int) -> int:
    """A writable memfd of zeros whose size is sealed; the caller closes it.

    Raises OSError when memory is short.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
