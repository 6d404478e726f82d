"""A server's life: from the first request that it takes to the last grading that it lets end."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from grader.fleet.dispatch import Dispatcher
from grader.fleet.engine import Engine
from grader.server.app import create_app
from grader.server.patience import Patience
from grader.server.services import Services

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
    """Serve until SIGTERM or SIGINT, and then for as long as running gradings take to end, but at
    most `Settings.drain_s`; what runs then is given back. A second signal ends that wait.

    Closes everything that it is given.
    """
    _raise_limit_of_files()
    drain_s = services.settings.drain_s

    def on_exit() -> None:
        services.hub.close()
        # No job is taken any more from this moment on, while requests are still answered.
        threading.Thread(target=dispatcher.drain, args=(drain_s,), daemon=True).start()

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
    try:
        dispatcher.start()
        server = _Server(config, on_exit)
        server.run(sockets=[listener])
        dispatcher.drain(0 if server.force_exit else drain_s)
    finally:
        dispatcher.drain(0)
        engine.close(0)
        listener.close()
        services.close()


class _Server(uvicorn.Server):
    """Ends at a signal, and says so at once; uvicorn itself would send the signal on to us."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends it, the second one without waiting for answers. Nothing is done in
        here that takes a lock: the thread that was interrupted may hold it."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell the others that it ends, and answer what has been asked."""
        self._on_exit()
        await super().shutdown(sockets)


def _raise_limit_of_files() -> None:
    """Every listener holds one; what shells allow is too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
