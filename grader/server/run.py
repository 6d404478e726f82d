"""A server's life: from the first request that it takes to the last grading that it lets end."""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
import threading
import time
from contextlib import suppress
from types import FrameType

import uvicorn

from grader.fleet.dispatch import Dispatcher
from grader.fleet.engine import Engine
from grader.server.app import create_app
from grader.server.http.connection_timeouts import Patience
from grader.server.services.services import Services

log = logging.getLogger(__name__)

ANSWER_S = 5
"""How long requests that run when the server ends may take to be answered."""


class CannotListen(Exception):
    """No socket can be had. The text is one line for the operator."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free. Raises `CannotListen`."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CannotListen(
            f"cannot listen on {host} port {port}: {why}; choose others with --host and --port"
        ) from None


def serve(
    services: Services, dispatcher: Dispatcher, engine: Engine, listener: socket.socket
) -> None:
    """Serve until SIGTERM or SIGINT, and then, with nothing new taken, for as long as running
    gradings take to end, here and on workers that pull, but at most `Settings.drain_s`. What runs
    here then is given back. A second signal ends that wait, a third one that for open requests.

    Closes everything that it is given.
    """
    _raise_limit_of_files()
    services.metrics.watch_sweeps(lambda: dispatcher.swept)
    config = uvicorn.Config(
        create_app(services),
        http=Patience,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # Whose word on the client's address is taken: nobody's, unless the operator names proxies.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
        timeout_graceful_shutdown=ANSWER_S,
        lifespan="off",
    )
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it all again takes up to 0.1 s each time
    try:
        dispatcher.start()
        _Server(config, services, dispatcher).run(sockets=[listener])
    finally:
        dispatcher.drain(0)
        engine.close(0)
        listener.close()
        services.close()


class _Server(uvicorn.Server):
    """Ends when it is told to and all is drained; uvicorn itself would close at once, and send the
    signal on to us."""

    def __init__(self, config: uvicorn.Config, services: Services, dispatcher: Dispatcher) -> None:
        super().__init__(config)
        self._services = services
        self._told = 0
        drain_s = services.settings.drain_s
        self._drain = threading.Thread(target=dispatcher.drain, args=(drain_s,), daemon=True)
        self._drain_until = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Count, no more: a lock taken in here may be held by what was interrupted."""
        self._told += 1
        self.force_exit = self._told > 2

    async def on_tick(self, counter: int) -> bool:
        """Whether to close, which is asked all the time."""
        ends = await super().on_tick(counter)
        if self._told and not self._services.ending.begun:
            self._begin_to_end()
        return ends or self._told > 1 or self._is_drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let listeners go, and answer what has been asked."""
        self._services.hub.close()
        await super().shutdown(sockets)

    def _begin_to_end(self) -> None:
        log.info("told to stop: nothing new is taken, and what runs may end")
        self._services.ending.begun = True
        self._drain_until = time.monotonic() + self._services.settings.drain_s
        self._drain.start()

    def _is_drained(self) -> bool:
        """Whether nothing runs any more, or it took too long. What workers that pull have is asked
        for last: they must still reach us."""
        ending = self._services.ending
        is_idle = ending.begun and not self._drain.is_alive() and not ending.leases
        return is_idle or time.monotonic() >= self._drain_until


def _raise_limit_of_files() -> None:
    """Every listener holds one; what shells allow is too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
