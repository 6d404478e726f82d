"""Slow and large headers, on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from grader.server.http import connection_timeouts
from grader.server.http.connection_timeouts import MAX_HEADERS_BYTES, ConnectionTimeouts
from tests.waiting import PATIENCE_S, until

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and answers 204."""
    if scope["path"] == "/slow":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connection_timeouts, "HEADERS_S", 2.0)
    config = uvicorn.Config(
        app, port=0, http=ConnectionTimeouts, log_config=None, lifespan="off", timeout_keep_alive=30
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield int(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join(PATIENCE_S)


@pytest.fixture
def raw(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(20)  # uvicorn's keep-alive timeout is 30
        yield connection


def test_a_connection_without_a_request_is_closed(raw: socket.socket) -> None:
    assert raw.recv(100) == b""


def test_slow_headers_are_cut_off(raw: socket.socket) -> None:
    started = time.monotonic()
    with pytest.raises(OSError):
        for byte in REQUEST[:-4] * 100:
            raw.sendall(bytes([byte]))
            time.sleep(0.02)
    assert time.monotonic() - started < 10


def test_endless_headers_are_cut_off(raw: socket.socket) -> None:
    raw.sendall(REQUEST[:-2])
    with pytest.raises(OSError):
        for number in range(MAX_HEADERS_BYTES):
            raw.sendall(b"x%d: y\r\n" % number)


def test_the_timer_restarts_for_each_request_on_a_connection(raw: socket.socket) -> None:
    for _ in range(3):
        raw.sendall(REQUEST)
        assert raw.recv(1000).startswith(b"HTTP/1.1 204")
        time.sleep(0.8)
    raw.sendall(REQUEST[:10])
    assert raw.recv(100) == b"", "the next request has the same limit"


def test_a_slow_body_is_not_cut_off(raw: socket.socket) -> None:
    raw.sendall(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
    for _ in range(10):
        raw.sendall(b"x" * 20_000)
        time.sleep(0.25)
    assert raw.recv(1000).startswith(b"HTTP/1.1 204")
