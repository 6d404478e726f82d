"""The wire: honest messages arrive, and no other message does harm."""

from __future__ import annotations

import array
import contextlib
import os
import platform
import re
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.wire import (
    REQUEST_BYTES,
    TEXT_BYTES,
    Reply,
    Status,
    WireClosed,
    WireError,
    WireTimeout,
    fixed_size_memfd,
    receive_reply,
    receive_request,
    refuse_descriptors,
    sealed_memfd,
    send_reply,
    send_request,
)

Pair = tuple[socket.socket, socket.socket]
needs_refusal = pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 16),
    reason="Linux before 6.16 cannot refuse descriptors, only drop them",
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    judge, runner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with judge, runner:
        yield judge, runner


def test_a_request_arrives_with_its_descriptor(pair: Pair) -> None:
    judge, runner = pair
    fd = sealed_memfd("source", b"import torch")
    send_request(judge, {"kind": "load", "sequence": 1}, (fd,))
    os.close(fd)
    request, fds = receive_request(runner)
    assert request == {"kind": "load", "sequence": 1}
    assert os.pread(fds[0], 100, 0) == b"import torch"
    os.close(fds[0])


def test_a_sealed_memfd_cannot_be_changed(pair: Pair) -> None:
    fd = sealed_memfd("source", b"honest")
    with pytest.raises(OSError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(OSError):
        os.ftruncate(fd, 0)
    os.close(fd)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(Status),
    st.integers(0, 2**64 - 1),
    st.text(max_size=200),
)
def test_reply_round_trip(sequence: int, status: Status, reported_ns: int, text: str) -> None:
    reply = Reply(sequence, status, 3, reported_ns, 7, text)
    again = Reply.unpack(reply.pack())
    assert (again.sequence, again.status, again.reported_ns) == (sequence, status, reported_ns)
    assert again.text == text.encode("utf-8", "replace").decode()


@given(st.binary(max_size=6000))
def test_any_bytes_are_a_reply_or_a_wire_error(frame: bytes) -> None:
    with contextlib.suppress(WireError):
        Reply.unpack(frame)


def test_long_text_is_cut() -> None:
    frame = Reply(1, Status.RUNTIME_ERROR, text="x" * 100_000).pack()
    assert len(Reply.unpack(frame).text) == TEXT_BYTES


@pytest.mark.parametrize(
    "frame",
    [
        b"x",
        b"GRD1" + bytes(200),
        Reply(1, Status.OK, text="abc").pack() + b"more",
        Reply(1, Status.OK, text="abc").pack()[:-1],
        Reply(1, Status.OK).pack().replace(b"GRD1", b"GRD2"),
        bytes(TEXT_BYTES * 3),
    ],
)
def test_a_malformed_frame_is_rejected(pair: Pair, frame: bytes) -> None:
    judge, runner = pair
    runner.send(frame)
    with pytest.raises(WireError):
        receive_reply(judge, 1)


def test_descriptors_sent_with_a_reply_are_dropped(pair: Pair) -> None:
    judge, runner = pair
    before = len(os.listdir("/proc/self/fd"))
    rights = array.array("i", [runner.fileno()] * 50)
    runner.sendmsg([Reply(1, Status.OK).pack()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    assert receive_reply(judge, 1).sequence == 1
    assert len(os.listdir("/proc/self/fd")) == before


@needs_refusal
def test_descriptors_are_refused_and_can_still_be_sent(pair: Pair) -> None:
    judge, runner = pair
    refuse_descriptors(judge)
    rights = array.array("i", [runner.fileno()])
    with pytest.raises(PermissionError):
        runner.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    send_request(judge, {"kind": "load", "sequence": 1}, (judge.fileno(),))
    _, fds = receive_request(runner)
    os.close(fds[0])
    send_reply(runner, Reply(1, Status.OK))
    assert receive_reply(judge, 1).sequence == 1


@needs_refusal
def test_a_runner_that_refuses_descriptors_is_at_fault(pair: Pair) -> None:
    judge, runner = pair
    refuse_descriptors(runner)
    send_request(judge, {"kind": "call"})
    with pytest.raises(WireError, match="does not take what it is lent"):
        send_request(judge, {"kind": "load"}, (judge.fileno(),))


def test_other_send_failures_are_not_the_runners_fault(pair: Pair) -> None:
    judge, _ = pair
    closed = os.dup(judge.fileno())
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        send_request(judge, {"kind": "load"}, (closed,))


def test_silence_times_out_and_a_closed_wire_is_reported(pair: Pair) -> None:
    judge, runner = pair
    with pytest.raises(WireTimeout):
        receive_reply(judge, 0.01)
    runner.close()
    with pytest.raises(WireClosed):
        receive_reply(judge, 1)
    with pytest.raises(WireClosed):
        send_request(judge, {"kind": "call"})


def test_an_empty_message_counts_as_closed(pair: Pair) -> None:
    judge, runner = pair
    runner.send(b"")
    with pytest.raises(WireError):
        receive_reply(judge, 1)


def test_a_runner_that_never_reads_does_not_block_the_judge(pair: Pair) -> None:
    judge, _ = pair
    with pytest.raises(WireError):
        for _ in range(10_000):
            send_request(judge, {"kind": "call", "order": [0] * 1000})


def test_the_largest_request_arrives(pair: Pair) -> None:
    judge, runner = pair
    request = {"text": "x" * (REQUEST_BYTES - len('{"text":""}'))}
    send_request(judge, request)
    assert receive_request(runner) == (request, [])


def test_a_large_request_is_rejected(pair: Pair) -> None:
    judge, _ = pair
    with pytest.raises(ValueError):
        send_request(judge, {"text": "x" * REQUEST_BYTES})


def test_the_runner_notices_that_the_judge_is_gone(pair: Pair) -> None:
    judge, runner = pair
    judge.close()
    with pytest.raises(WireClosed):
        receive_request(runner)


def test_sent_replies_are_received_in_order(pair: Pair) -> None:
    judge, runner = pair
    for sequence in range(3):
        send_reply(runner, Reply(sequence, Status.OK))
    assert [receive_reply(judge, 1).sequence for _ in range(3)] == [0, 1, 2]


def test_a_fixed_size_memfd_cannot_be_resized() -> None:
    fd = fixed_size_memfd("lent", 16)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        assert os.pwrite(fd, b"hello", 0) == 5
        for size in (0, 8, 32):
            with pytest.raises(PermissionError):
                file.truncate(size)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"more", 16)
        assert file.read() == b"hello" + bytes(11)
