"""Serves a console: in the foreground, or in a thread beside a broker, with its own event loop, so
that no page delays a request of the broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable

from millstream.console.app import App
from millstream.console.connections import HttpServer
from millstream.console.entrance import TOKEN_PARAMETER
from millstream.console.memory import give_back
from millstream.console.sessions import Access, access_of
from millstream.console.settings import ConsoleSettings
from millstream.errors import ConfigError, MillstreamError
from millstream.security.networks import is_loopback

STOP_SECONDS_MAX = 10.0
TIDY_SECONDS = 20.0
_log = logging.getLogger(__name__)


class ConsoleServer:
    """One console at one address. `run` blocks; `start` and `stop` use a thread."""

    def __init__(self, settings: ConsoleSettings, listen: str | socket.socket) -> None:
        """`listen` is HOST:PORT, or a socket of `bind`. Raises `ConfigError`."""
        self._settings = settings
        self._tls = tls_context(settings)
        self._app = App(settings)
        self._socket = bind(listen) if isinstance(listen, str) else listen
        self.host, port = self._socket.getsockname()[:2]
        scheme = "https" if settings.tls_certificate else "http"
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{scheme}://{shown}:{port}/"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._has_given_back = False

    @property
    def entrance(self) -> str:
        """The address to open, with the token if one is needed."""
        token = self._app.state.sessions.token
        return f"{self.url}?{TOKEN_PARAMETER}={token}" if token else self.url

    @property
    def warnings(self) -> list[str]:
        """Risks of its address and settings."""
        return warnings_of(self._settings, self.host)

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; in the main thread, until SIGINT or SIGTERM."""
        import uvloop  # not earlier: tools that only look at the settings do without

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(ready))

    def start(self) -> None:
        """Serve in a thread; returns when it answers."""
        ready = threading.Event()

        def serve() -> None:
            try:
                self.run(ready.set)
            except BaseException as error:  # noqa: BLE001 (raised by `start`, or logged)
                self._failure = error
                _log.exception("the console stopped")
            finally:
                ready.set()

        self._thread = threading.Thread(target=serve, name="console", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            raise MillstreamError(f"the console did not start: {self._failure}") from self._failure

    def stop(self) -> None:
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS_MAX)

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._stopping.set)
        app, server = self._app, HttpServer(self._app)
        try:
            await server.start(self._socket, self._tls)
            if app.state.sessions.shared is not None:
                app.state.samplers.of(app.state.sessions.shared)  # so that there is a history
            ready()
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TIDY_SECONDS):
                        await self._stopping.wait()
                self._tidy()
        finally:
            app.state.streams.close()
            await server.stop()
            app.state.samplers.close()
            app.state.sessions.close()
            self._socket.close()

    def _tidy(self) -> None:
        self._app.state.sessions.tidy()
        self._app.state.samplers.tidy()
        if self._app.state.renderer is not None and not self._has_given_back:
            self._has_given_back = True
            give_back()


def warnings_of(settings: ConsoleSettings, host: str) -> list[str]:
    """Risks of a console that listens on this address."""
    if is_loopback(host):
        return []
    found = []
    if access_of(settings) is Access.OPEN:
        found.append(
            f"the console listens on {host} and asks for no log-in: all who reach it can change "
            "the cluster"
        )
    elif not settings.tls_certificate:
        found.append(
            f"the console listens on {host} without TLS: passwords can be read on the way; use "
            "--tls-certificate and --tls-key (beside a broker, --console-tls-certificate and "
            "--console-tls-key), or a proxy"
        )
    return found


def tls_context(settings: ConsoleSettings) -> ssl.SSLContext | None:
    """None without a certificate. Raises `ConfigError`."""
    if not settings.tls_certificate:
        if settings.tls_key:
            raise ConfigError("the console has a TLS key and no certificate for it")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = " and ".join(it for it in (settings.tls_certificate, settings.tls_key) if it)
        reason = error.strerror if error.strerror and error.errno else str(error)
        raise ConfigError(f"the console cannot use the certificate of {files}: {reason}") from error
    return context


def bind(listen: str) -> socket.socket:
    """A socket at HOST:PORT; port 0 is any free one. Raises `ConfigError`."""
    host, colon, port = listen.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"console address {listen!r}: write it as HOST:PORT")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(256)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise ConfigError(f"the console cannot listen on {listen}: {error.strerror}") from error
    return bound
