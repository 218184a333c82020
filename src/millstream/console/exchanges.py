"""One HTTP request and the answer to it, between a connection and the application (ASGI).

A connection feeds the request's body in, the application takes it with `receive`, and answers with
`send`. Streams that many browsers share are offered to each of them (`offer`) as bytes that are
ready to be written, without a turn of the application for each.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, NamedTuple, Protocol

from starlette.types import Message

EXTENSION = "millstream.exchange"  # in the scope: the exchange itself
BODY_BYTES_AHEAD = 64 * 1024  # of a request; the rest waits in the socket
WITHOUT_BODY = (204, 304)
_NOT_IN_HEADERS = b"\r\n\0"


class Wire(Protocol):
    """The connection of an exchange."""

    @property
    def is_writable(self) -> bool:
        """Whether the browser keeps up with what is written."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def read_on(self) -> None: ...
    def end(self, exchange: Exchange) -> None: ...


class Chunk(NamedTuple):
    """A piece of an answer whose length is not known in advance."""

    content: bytes
    framed: bytes

    @classmethod
    def of(cls, content: bytes) -> Chunk:
        return cls(content, b"%x\r\n%b\r\n" % (len(content), content))


class Exchange:
    """See the module."""

    def __init__(
        self, wire: Wire, scope: dict[str, Any], *, keeps_open: bool, expects_continue: bool
    ) -> None:
        self.scope = scope
        self.keeps_open = keeps_open
        self.is_received = False  # the whole request
        self.is_started = False  # the answer
        self.is_answered = False
        self.is_gone = False  # the browser
        self.on_drain: Callable[[], None] | None = None  # it keeps up again
        self._wire = wire
        self._expects_continue = expects_continue
        self._body = bytearray()
        self._news = asyncio.Event()
        self._is_chunked = False
        self._left: int | None = None  # bytes of the answer that are still to come

    @property
    def awaits_permission(self) -> bool:
        """Whether the client waits for a word before it sends the body."""
        return self._expects_continue

    @property
    def has_enough(self) -> bool:
        """Whether more of the body should wait."""
        return len(self._body) > BODY_BYTES_AHEAD

    def feed(self, data: bytes) -> None:
        if not self.is_answered:
            self._body += data
            self._news.set()

    def finish(self) -> None:
        """The request is complete."""
        self.is_received = True
        self._news.set()

    def leave(self) -> None:
        """The connection is lost."""
        self.is_gone = True
        self._news.set()

    async def receive(self) -> Message:
        if self._expects_continue and not self.is_started:
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects_continue = False
        if not self.is_gone and not self.is_answered:
            self._wire.read_on()
            await self._news.wait()
            self._news.clear()
        if self.is_gone or self.is_answered:
            return {"type": "http.disconnect"}
        body = bytes(self._body)
        self._body.clear()
        self._wire.read_on()
        return {"type": "http.request", "body": body, "more_body": not self.is_received}

    async def send(self, message: Message) -> None:
        """Raises `ConnectionResetError` if the browser is gone."""
        if not self._wire.is_writable and not self.is_gone:
            await self._wire.drain()
        if self.is_gone:
            raise ConnectionResetError("the browser is gone")
        if message["type"] == "http.response.start" and not self.is_started:
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and self.is_started and not self.is_answered:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"unexpected message of the application: {message['type']}")

    def _start(self, status: int, headers: Any) -> None:
        lines = [b"HTTP/1.1 %d %b" % (status, http.HTTPStatus(status).phrase.encode())]
        has_length = False
        for name, value in headers:
            if any(it in value for it in _NOT_IN_HEADERS):
                raise RuntimeError(f"invalid value of header {name!r}")
            name = name.lower()
            if name == b"content-length":
                has_length, self._left = True, int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keeps_open = False
                continue
            lines.append(name + b": " + value)
        has_body = status not in WITHOUT_BODY and self.scope["method"] != "HEAD"
        if not has_body:
            self._left = 0
        elif not has_length and self.scope["http_version"] == "1.1":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked")
        elif not has_length:
            self.keeps_open = False  # the end of the connection is the end of the answer
        if not self.keeps_open:
            lines.append(b"connection: close")
        lines += [b"date: " + current_date(), b"", b""]
        self.is_started = True
        self._wire.write(b"\r\n".join(lines))

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self._left is not None:
            body = b"" if self.scope["method"] == "HEAD" else bytes(body)
            if len(body) > self._left:
                raise RuntimeError("the answer is longer than its Content-Length")
            self._left -= len(body)
            if is_last and self._left:
                raise RuntimeError("the answer is shorter than its Content-Length")
            self._wire.write(body)
        elif self._is_chunked:
            framed = Chunk.of(bytes(body)).framed if body else b""
            self._wire.write(framed + (b"0\r\n\r\n" if is_last else b""))
        else:
            self._wire.write(bytes(body))
        if is_last:
            self.is_answered = True
            self._news.set()
            self._wire.end(self)

    def offer(self, chunks: Chunk) -> bool:
        """Write this much of a stream, unless the browser is behind: then `on_drain` is called
        when it is not."""
        if self.is_gone or not self._wire.is_writable:
            return False
        if self.scope["method"] != "HEAD":
            self._wire.write(chunks.framed if self._is_chunked else chunks.content)
        return True


def exchange_of(scope: Any) -> Exchange:
    """The exchange of a request, by its scope."""
    exchange: Exchange = scope["extensions"][EXTENSION]
    return exchange


_dated: tuple[int, bytes] = (0, b"")


def current_date() -> bytes:
    """The time for headers; made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, formatdate(now, usegmt=True).encode())
    return _dated[1]
