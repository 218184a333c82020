"""HTTP/1.1 connections of browsers, for an ASGI application, and how much each may take.

uvicorn would do the same; it needs 3 MB for what a console does not use (a command line, processes,
configuration of logs), of the 12 that a console may add to a broker. Each connection takes a file
descriptor of a process that may be the broker's. So one is closed that is too many, whose next
request or whose body takes too long to come, or whose headers are too large.

Requests of one connection are answered in their order. A browser that leaves while an answer is
being sent cancels the application's task.
"""

from __future__ import annotations

import asyncio
import http
import logging
import socket
import ssl
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from starlette.types import ASGIApp

from millstream.console.exchanges import EXTENSION, Exchange

if TYPE_CHECKING:
    from millstream.console.tls import TlsListener

CONNECTIONS_MAX = 2_000  # beyond, requests are answered with 503
ACCEPTED_MAX = CONNECTIONS_MAX + 200  # beyond, connections are closed at once
HEADERS_SECONDS_MAX = 30.0  # from the start, or from the end of the last answer
BODY_SECONDS_MAX = 120.0
REST_SECONDS_MAX = 5.0  # for the rest of a body that nobody reads any more
HEADER_BYTES_MAX = 128 * 1024
WAITING_MAX = 20  # requests that are sent before the answer to the first one
STOP_SECONDS = 2.0

_log = logging.getLogger(__name__)


class HttpServer:
    """All connections of one listening socket."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | TlsListener | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        if tls is not None:
            from millstream.console.tls import TlsListener

            self._server = TlsListener(listening, tls, lambda: Connection(self))
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), sock=listening, backlog=256
        )

    async def stop(self) -> None:
        """Answers that are under way get a moment."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.stop()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=STOP_SECONDS)
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=STOP_SECONDS)
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """See the module."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._addresses: dict[str, Any] = {}
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._receiving: Exchange | None = None  # whose body comes next
        self._waiting: deque[Exchange] = deque()  # behind the one that is answered
        self._current: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._is_paused = False
        self._is_deaf = False
        self._writable = asyncio.Event()
        self._writable.set()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if len(self._server.connections) >= ACCEPTED_MAX:
            transport.close()
            return
        self._server.connections.add(self)
        self._addresses = {
            "server": _address(transport, "sockname"),
            "client": _address(transport, "peername"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        }
        self._await(HEADERS_SECONDS_MAX, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._stop_waiting()
        self._writable.set()
        for exchange in (self._current, *self._waiting):
            if exchange is not None and not exchange.is_answered:
                exchange.leave()
        self._waiting.clear()
        if self._task is not None and self._current is not None and self._current.is_started:
            self._task.cancel()
        self._parser = None

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        before = self._receiving
        awaited_headers = self._awaits_headers
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # an offer that is not taken
            self._is_deaf = True
            if self._receiving is not None:
                self._receiving.keeps_open = False
            return
        except httptools.HttpParserError:
            self._refuse(400, "this is not a request of HTTP/1.1")
            return
        if awaited_headers and self._awaits_headers and self._receiving is before:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES_MAX:
                self._refuse(431, f"a request has at most {HEADER_BYTES_MAX} bytes of headers here")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._current is not None and self._current.on_drain is not None:
            self._current.on_drain()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        version = self._parser.get_http_version()
        url = httptools.parse_url(self._url)
        raw_path = url.path or b"/"
        expects = any(name == b"expect" and it == b"100-continue" for name, it in self._headers)
        exchange = Exchange(
            self,
            {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.4"},
                "http_version": version,
                "method": self._parser.get_method().decode("ascii"),
                "root_path": "",
                "path": urllib.parse.unquote(raw_path.decode("ascii")),
                "raw_path": raw_path,
                "query_string": url.query or b"",
                "headers": self._headers,
                **self._addresses,
            },
            keeps_open=version == "1.1" and self._parser.should_keep_alive(),
            expects_continue=expects and version == "1.1",
        )
        exchange.scope["extensions"] = {EXTENSION: exchange}
        self._receiving = exchange
        if self._current is None:
            self._begin(exchange)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append(exchange)
            self._pause_reading()
        else:
            self._close()

    def on_body(self, body: bytes) -> None:
        assert self._receiving is not None
        self._receiving.feed(body)
        if self._receiving.has_enough:
            self._pause_reading()

    def on_message_complete(self) -> None:
        assert self._receiving is not None
        self._receiving.finish()
        if self._receiving is self._current:
            self._stop_waiting()
            self.end(self._receiving)

    # What an exchange calls.

    @property
    def is_writable(self) -> bool:
        return self._writable.is_set()

    def write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    def read_on(self) -> None:
        if self._waiting or (self._receiving is not None and self._receiving.has_enough):
            return
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def end(self, exchange: Exchange) -> None:
        """The next request, after one that is both received and answered."""
        if exchange is not self._current or not exchange.is_answered:
            return
        if not exchange.is_received:
            if exchange.awaits_permission:
                self._close()  # what comes next may be the body, or not
                return
            self._await(REST_SECONDS_MAX, self._close)
            self.read_on()
            return
        self._current = self._task = None
        if not exchange.keeps_open or self._is_stopping:
            self._close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
            self.read_on()
        else:
            self._await(HEADERS_SECONDS_MAX, self._close)
            self.read_on()

    # The rest.

    @property
    def _awaits_headers(self) -> bool:
        return self._receiving is None or self._receiving.is_received

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        if exchange.is_received:
            self._stop_waiting()
        else:
            self._await(BODY_SECONDS_MAX, self._body_is_late)
        app = self._server.app
        if len(self._server.connections) > CONNECTIONS_MAX:
            app = _busy
        self._task = self._loop.create_task(self._answer(exchange, app))
        self._server.tasks.add(self._task)
        self._task.add_done_callback(self._server.tasks.discard)

    async def _answer(self, exchange: Exchange, app: ASGIApp) -> None:
        try:
            await app(exchange.scope, exchange.receive, exchange.send)
            if not exchange.is_answered and not exchange.is_gone:
                raise RuntimeError("the application did not answer")
        except asyncio.CancelledError:
            self.abort()
        except Exception:  # noqa: BLE001 (any: it is logged, and answered)
            if exchange.is_gone:
                return
            _log.exception("%s %s failed", exchange.scope["method"], exchange.scope["path"])
            if exchange.is_started:
                self.abort()
            else:
                self._refuse(500, "the console has a fault; see its log for details")

    def _body_is_late(self) -> None:
        self._deadline = None
        if self._current is not None and not self._current.is_started:
            self._refuse(408, f"the request took more than {BODY_SECONDS_MAX:.0f} s to come")
        else:
            self._close()

    def _refuse(self, status: int, message: str) -> None:
        """Without the application; the connection ends."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._current is None or not self._current.is_started:
            body = message.encode() + b"\n"
            head = (
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
                f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self._transport.write(head.encode() + body)
        self._close()

    def _await(self, seconds: float, late: Callable[[], None]) -> None:
        self._stop_waiting()
        self._deadline = self._loop.call_later(seconds, late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _pause_reading(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def stop(self) -> None:
        """End the connection after the answer that is under way."""
        self._is_stopping = True
        if self._current is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    body = b"too many connections; close some pages, or try again later\n"
    headers = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _address(transport: asyncio.Transport, which: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(which)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
