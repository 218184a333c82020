"""A small HTTP/1.1 server for GET requests: metrics and probes.

It answers one request per connection and closes it. Everything is bounded: the size of a request's
head, the time for it and for the response, and the number of connections. When there are too many,
the one that has been sending its head for longest is closed, and pages that are not public are
served to half of them at most: probes get through. Bytes that are no HTTP get 400 and harm nothing.
A page is computed in the event loop, in pieces: after each piece the loop serves other work.
Compression runs in a thread.

There is no TLS: listen on the loopback interface, or behind a proxy. `token`, if set, is expected
as a bearer token or as the password of basic authentication, for all pages but the public ones.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from millstream.errors import MillstreamError

logger = logging.getLogger("millstream.metrics")

HEAD_BYTES_MAX = 16 * 1024
HEAD_SECONDS = 10.0
RESPONSE_SECONDS = 60.0
CONNECTIONS_MAX = 16
PRIVATE_PAGES_MAX = CONNECTIONS_MAX // 2  # that are served at once; the other places are for probes
COMPRESS_ABOVE_BYTES = 1024
COMPRESSION_LEVEL = 1
GZIP_WINDOW_BITS = 31

PLAIN = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """A response: its status, and its text in pieces."""

    pieces: AsyncIterator[str]
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN


GetPage: TypeAlias = Callable[[], Awaitable[Page]]


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str = "", headers: str = "") -> None:
        super().__init__(why or status.phrase)
        self.status = status
        self.headers = headers


class _Request(NamedTuple):
    path: str
    headers: Mapping[str, str]
    wants_body: bool  # False for HEAD: the response consists of its head


async def text_page(
    text: str, status: HTTPStatus = HTTPStatus.OK, content_type: str = PLAIN
) -> Page:
    async def pieces() -> AsyncIterator[str]:
        yield text

    return Page(pieces(), status, content_type)


class Endpoint:
    """Serves pages by path."""

    def __init__(
        self,
        pages: Mapping[str, GetPage],
        *,
        token: str | None = None,
        public: frozenset[str] = frozenset(),
    ) -> None:
        self._pages = pages
        self._token = None if token is None else token.encode()
        self._public = public
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._sending_head: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._private_pages = 0

    async def listen(self, host: str, port: int) -> None:
        """Raises `MillstreamError` if the address cannot be used."""
        try:
            self._server = await asyncio.start_server(
                self._accept, host or None, port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise MillstreamError(
                f"cannot listen on {host or '*'}:{port} (metrics): {error.strerror or error}"
            ) from error

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._sending_head), None)
            if oldest is None:
                writer.transport.abort()
                return
            del self._sending_head[oldest]
            oldest.transport.abort()
        self._sending_head[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await self._read(reader)
            self._sending_head.pop(writer, None)
            async with asyncio.timeout(RESPONSE_SECONDS):
                with self._counting(request):
                    await self._answer(request, writer)
                    await writer.drain()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        except Exception:
            logger.exception("a request for metrics failed")
            writer.transport.abort()
        finally:
            self._sending_head.pop(writer, None)
            with contextlib.suppress(OSError):
                writer.close()

    @contextlib.contextmanager
    def _counting(self, request: _Request | _Refused) -> Iterator[None]:
        is_private = isinstance(request, _Request) and request.path not in self._public
        self._private_pages += is_private
        try:
            yield
        finally:
            self._private_pages -= is_private

    async def _read(self, reader: asyncio.StreamReader) -> _Request | _Refused:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        try:
            return _parse(head)
        except _Refused as refused:
            return refused

    async def _answer(self, request: _Request | _Refused, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(request, _Refused):
                raise request
            page = await self._find(request)
        except _Refused as refused:
            body = [f"{refused}\n".encode()]
            writer.write(_head(refused.status, PLAIN, body, refused.headers) + body[0])
            return
        body = [piece.encode() async for piece in _with_pauses(page.pieces)]
        headers = ""
        if sum(map(len, body)) > COMPRESS_ABOVE_BYTES and _accepts_gzip(request.headers):
            body = await asyncio.to_thread(_compress, body)
            headers = "Content-Encoding: gzip\r\n"
        writer.write(_head(page.status, page.content_type, body, headers))
        for piece in body if request.wants_body else ():
            writer.write(piece)
            await writer.drain()

    async def _find(self, request: _Request) -> Page:
        page = self._pages.get(request.path)
        if page is None:
            known = " ".join(sorted(self._pages))
            raise _Refused(HTTPStatus.NOT_FOUND, f"not found; there is: {known}")
        if request.path not in self._public and not self._is_allowed(request.headers):
            raise _Refused(
                HTTPStatus.UNAUTHORIZED,
                "a token is needed: Authorization: Bearer TOKEN",
                'WWW-Authenticate: Basic realm="metrics"\r\n',
            )
        if request.path not in self._public and self._private_pages > PRIVATE_PAGES_MAX:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
        return await page()

    def _is_allowed(self, headers: Mapping[str, str]) -> bool:
        if self._token is None:
            return True
        scheme, _, value = headers.get("authorization", "").strip().partition(" ")
        sent = value.strip().encode("latin-1")  # the bytes that were sent
        if scheme.lower() == "basic":
            try:
                sent = base64.b64decode(sent, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(sent, self._token)


async def _with_pauses(pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    async for piece in pieces:
        yield piece
        await asyncio.sleep(0)  # the loop serves other work between two pieces


def _parse(head: bytes) -> _Request:
    try:
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise _Refused(HTTPStatus.BAD_REQUEST) from None
    if not version.startswith("HTTP/1."):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    if method not in ("GET", "HEAD"):
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, headers="Allow: GET, HEAD\r\n")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise _Refused(HTTPStatus.BAD_REQUEST)
        headers[name.strip().lower()] = value.strip()
    return _Request(target.partition("?")[0], headers, method == "GET")


def _accepts_gzip(headers: Mapping[str, str]) -> bool:
    for item in headers.get("accept-encoding", "").split(","):
        coding, _, quality = item.partition(";")
        if coding.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0")
    return False


def _compress(pieces: list[bytes]) -> list[bytes]:
    codec = zlib.compressobj(COMPRESSION_LEVEL, wbits=GZIP_WINDOW_BITS)
    return [*(codec.compress(piece) for piece in pieces), codec.flush()]


def _head(status: HTTPStatus, content_type: str, body: list[bytes], headers: str) -> bytes:
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {sum(map(len, body))}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{headers}"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
