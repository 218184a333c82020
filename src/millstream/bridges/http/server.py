"""The HTTP server of a bridge, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator

import uvicorn

from millstream.bridges.http.app import Gateway, create_app
from millstream.errors import MillstreamError
from millstream.metrics.threaded import parse_address

CONNECTIONS_MAX = 1_000
STOP_SECONDS_MAX = 15.0
START_SECONDS_MAX = 60.0


class _Server(uvicorn.Server):
    """Leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Listens when it is made; serves from `start` to `stop`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        host, port = parse_address(gateway.config.listen)
        try:
            self._socket = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise MillstreamError(
                f"cannot listen on {gateway.config.listen}: {error.strerror}"
            ) from error
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(
            uvicorn.Config(
                create_app(gateway),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
            )
        )
        self._thread = threading.Thread(target=self._run, name="bridge-http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting, answer what is in flight, end streams."""
        self._gateway.is_stopping = True
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)
        self._socket.close()

    def _run(self) -> None:
        import uvloop  # only where it is used

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))
