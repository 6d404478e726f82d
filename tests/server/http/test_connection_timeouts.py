"""Connections that do not come to the point, against uvicorn's protocols, on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from grader.server.http import connection_timeouts
from grader.server.http.connection_timeouts import HEADERS_BYTES, Patience
from tests.waiting import PATIENCE_S, until

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers after longer than one waits for headers."""
    if scope["path"] == "/slow":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connection_timeouts, "HEADERS_S", 2.0)
    config = uvicorn.Config(
        app, port=0, http=Patience, log_config=None, lifespan="off", timeout_keep_alive=30
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
        connection.settimeout(20)  # the server itself would let go after 30
        yield connection


def test_a_connection_without_a_request_is_closed(raw: socket.socket) -> None:
    assert raw.recv(100) == b""


def test_headers_that_drip_are_cut_off(raw: socket.socket) -> None:
    started = time.monotonic()
    with pytest.raises(OSError):
        for byte in REQUEST[:-4] * 100:
            raw.sendall(bytes([byte]))
            time.sleep(0.02)
    assert time.monotonic() - started < 10


def test_headers_without_an_end_are_cut_off(raw: socket.socket) -> None:
    raw.sendall(REQUEST[:-2])
    with pytest.raises(OSError):
        for number in range(HEADERS_BYTES):
            raw.sendall(b"x%d: y\r\n" % number)


def test_whoever_asks_is_served_and_may_ask_again(raw: socket.socket) -> None:
    for _ in range(3):
        raw.sendall(REQUEST)
        assert raw.recv(1000).startswith(b"HTTP/1.1 204")
        time.sleep(0.8)
    raw.sendall(REQUEST[:10])
    assert raw.recv(100) == b"", "the next one is waited for no longer"


def test_a_body_is_none_of_its_business(raw: socket.socket) -> None:
    raw.sendall(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
    for _ in range(10):
        raw.sendall(b"x" * 20_000)
        time.sleep(0.25)
    assert raw.recv(1000).startswith(b"HTTP/1.1 204")
