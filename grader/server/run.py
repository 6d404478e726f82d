"""Running the server: listening, serving, and shutting down after running gradings have ended."""

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
from grader.fleet.grading_engine import Engine
from grader.server.app import create_app
from grader.server.http.connection_timeouts import ConnectionTimeouts
from grader.server.services.container import Services

log = logging.getLogger(__name__)

SHUTDOWN_S = 5
"""How long open requests may take to be answered after the drain."""


class CannotListen(Exception):
    """The server cannot open its socket. The text is one line for the operator."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free port. Raises `CannotListen`."""
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
    """Serve until SIGTERM or SIGINT, then drain and close everything that was passed in.

    While the server drains it takes no new work, and waits up to `Settings.drain_s` for running
    gradings, its own and those of pulling workers. Its own unfinished gradings are then returned to
    the queue. A second signal ends the wait for gradings, a third one that for open requests.
    """
    _raise_open_files_limit()
    services.metrics.watch_sweeps(lambda: dispatcher.swept)
    services.reload.watch(dispatcher.set_problems)
    config = uvicorn.Config(
        create_app(services),
        http=ConnectionTimeouts,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # Proxies whose X-Forwarded-* headers are trusted; none unless the operator names them.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
        timeout_graceful_shutdown=SHUTDOWN_S,
        lifespan="off",
    )
    gc.collect()
    gc.freeze()  # objects alive now stay alive; scanning them in each collection takes up to 0.1 s
    try:
        dispatcher.start()
        services.retention.start()
        _Server(config, services, dispatcher).run(sockets=[listener])
    finally:
        dispatcher.drain(0)
        engine.close(0)
        listener.close()
        services.close()


class _Server(uvicorn.Server):
    """Drains before it exits. uvicorn itself would exit at the first signal and raise it again."""

    def __init__(self, config: uvicorn.Config, services: Services, dispatcher: Dispatcher) -> None:
        super().__init__(config)
        self._services = services
        self._signals = 0
        drain_s = services.settings.drain_s
        self._drain = threading.Thread(target=dispatcher.drain, args=(drain_s,), daemon=True)
        self._drain_until = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Only count the signal: the interrupted code may hold any lock that we would take."""
        self._signals += 1
        self.force_exit = self._signals > 2

    async def on_tick(self, counter: int) -> bool:
        """Whether to exit. uvicorn calls this every 0.1 s."""
        should_exit = await super().on_tick(counter)
        if self._signals and not self._services.drain.started:
            self._start_drain()
        return should_exit or self._signals > 1 or self._is_drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, and answer open requests."""
        self._services.events.close()
        await super().shutdown(sockets)

    def _start_drain(self) -> None:
        log.info("stopping: no new work is taken, and running gradings may end")
        self._services.drain.started = True
        self._drain_until = time.monotonic() + self._services.settings.drain_s
        self._drain.start()

    def _is_drained(self) -> bool:
        """Whether no grading runs any more, or the time is up.

        Remote leases are checked last, since their workers must still reach this server.
        """
        drain = self._services.drain
        is_idle = drain.started and not self._drain.is_alive() and not drain.leases
        return is_idle or time.monotonic() >= self._drain_until


def _raise_open_files_limit() -> None:
    """Each event stream holds an open file, and the default limit of shells is too low."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
