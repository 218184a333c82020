"""Parts of a page that change while it is open: one stream of server-sent events per page.

Browsers that show the same page as the same user share a feed, which loads, renders and encodes
once for all of them, while one of them is there; each change is then one write for each browser. A
browser that reads slowly skips versions. A feed whose page takes long is refreshed less often.

Parts are sent as htmx's partials, so that htmx puts them in place: `<hx-partial
hx-target="#live-rows">`. `Event`s with a name reach the page's scripts instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millstream.console.exchanges import Chunk, exchange_of
from millstream.console.sessions import session_of

PARAMETER = "live"
STREAMS_MAX = 1_000
STREAMS_PER_SESSION_MAX = 500  # all browsers of an open console share a session
OWN_PER_SESSION_MAX = 50
HEARTBEAT_SECONDS = 15.0
SHARE_MAX = 0.1  # of the time that loading and rendering a page again may take
INTERVAL_SECONDS_MAX = 5.0  # even so
WRITES_AT_ONCE = 10  # before other tasks, and other threads, get a turn
HEARTBEAT = Chunk.of(b": still here\n\n")
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream"
PROBLEM = "problem"  # a part of every feed: why nothing changes at the moment

_LINE_END = re.compile(r"\r\n|\r|\n")
_log = logging.getLogger(__name__)

Draw = Callable[[Sequence[str]], Awaitable[Mapping[str, "str | Event"]]]


class Partial(NamedTuple):
    """HTML for the element `#live-<part>`: in place of its content, or after it ("beforeend")."""

    part: str
    html: str
    swap: str = "innerMorph"


class Event(NamedTuple):
    """JSON for scripts: a DOM event with this name, at the element that has the stream."""

    name: str
    data: Any


Message = Partial | Event


def encode(message: Message) -> bytes:
    """The message as a server-sent event."""
    if isinstance(message, Event):
        return _sse(json.dumps(message.data, separators=(",", ":")), message.name)
    target = f'hx-target="#live-{message.part}" hx-swap="{message.swap}"'
    return _sse(f"<hx-partial {target}>{message.html}</hx-partial>")


def _sse(data: str, event: str = "") -> bytes:
    lines = [f"event: {event}"] if event else []
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


class Sink(Protocol):
    """A browser that follows a feed; an `Exchange`."""

    on_drain: Callable[[], None] | None

    def offer(self, chunks: Chunk) -> bool: ...


class Feed:
    """What the browsers on one page see: the latest HTML of each part, and its version."""

    def __init__(
        self, parts: Mapping[str, float], draw: Draw, problem: Callable[[Exception], str]
    ) -> None:
        self._parts = parts
        self._draw = draw
        self._problem = problem
        self._versions: dict[str, tuple[int, bytes]] = {}
        self._version = 0
        self._seen: dict[Sink, int] = {}  # the version that each browser has
        self._written_at = time.monotonic()

    @property
    def readers(self) -> int:
        return len(self._seen)

    async def run(self) -> None:
        due = dict.fromkeys(self._parts, 0.0)
        while True:
            started = time.monotonic()
            parts = [part for part in self._parts if due[part] <= started]
            await self._refresh(parts)
            now = time.monotonic()
            least = min((now - started) / SHARE_MAX, INTERVAL_SECONDS_MAX)
            due |= {part: now + max(least, self._parts[part]) for part in parts}
            await self._spread()
            await asyncio.sleep(max(0.05, min(due.values()) - time.monotonic()))

    async def _refresh(self, parts: Sequence[str]) -> None:
        try:
            drawn = {**await self._draw(parts), PROBLEM: ""}
        except Exception as error:  # noqa: BLE001 (any: the page stays, and says why)
            _log.debug("a live page cannot be refreshed: %s", error)
            drawn = {PROBLEM: self._problem(error)}
        for part, html in drawn.items():
            content = encode(html if isinstance(html, Event) else Partial(part, html))
            if part in self._versions and self._versions[part][1] == content:
                continue
            self._version += 1
            self._versions[part] = (self._version, content)

    async def _spread(self) -> None:
        """Write what is new to all browsers, or a sign of life, which also finds lost ones."""
        now = time.monotonic()
        if all(seen == self._version for seen in self._seen.values()):
            if now - self._written_at < HEARTBEAT_SECONDS:
                return
            for sink in list(self._seen):
                with contextlib.suppress(Exception):
                    sink.offer(HEARTBEAT)
        self._written_at = now
        ready: dict[int, Chunk] = {}
        for number, sink in enumerate(list(self._seen), 1):
            if sink in self._seen:
                self._write(sink, ready)
            if number % WRITES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _write(self, sink: Sink, ready: dict[int, Chunk]) -> None:
        """What this browser lacks; `ready` has what others lacked."""
        seen = self._seen[sink]
        if seen == self._version:
            return
        if seen not in ready:
            missing = [it for version, it in sorted(self._versions.values()) if version > seen]
            ready[seen] = Chunk.of(b"".join(missing))
        try:
            if sink.offer(ready[seen]):
                self._seen[sink] = self._version
        except Exception:  # noqa: BLE001 (any: the other browsers must not wait for it)
            _log.exception("a live page cannot be written")

    @contextlib.contextmanager
    def followed_by(self, sink: Sink) -> Iterator[None]:
        """The browser gets the parts, and every change of them."""
        self._seen[sink] = 0
        sink.on_drain = lambda: self._write(sink, {})
        self._write(sink, {})
        try:
            yield
        finally:
            sink.on_drain = None
            del self._seen[sink]


class Streams:
    """All open streams of a console, and the feeds that they share."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[str, str], tuple[Feed, asyncio.Task[None]]] = {}
        self._open: dict[asyncio.Task[Any], tuple[str, bool]] = {}
        self._is_closed = False

    @property
    def count(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def shared(self, key: tuple[str, str], make: Callable[[], Feed], sink: Sink) -> Iterator[None]:
        """The browser follows the feed with this key, which ends with its last browser."""
        if key not in self._feeds:
            feed = make()
            self._feeds[key] = (feed, asyncio.create_task(feed.run()))
        feed, task = self._feeds[key]
        try:
            with feed.followed_by(sink):
                yield
        finally:
            if not feed.readers:
                self._feeds.pop(key, None)
                task.cancel()

    def check(self, session: str, *, is_own: bool) -> None:
        """Raises `HTTPException` if there are too many, of all or of a session. Those that are not
        shared (`is_own`) cost more, such as connections to the brokers."""
        if self.count >= STREAMS_MAX:
            raise HTTPException(503, f"{STREAMS_MAX} pages are open; close some, or reload later")
        most = OWN_PER_SESSION_MAX if is_own else STREAMS_PER_SESSION_MAX
        if sum(it == (session, is_own) for it in self._open.values()) >= most:
            raise HTTPException(
                503, f"{most} such pages of one user are open; close some, or reload later"
            )

    @contextlib.contextmanager
    def counted(self, session: str = "", *, is_own: bool = False) -> Iterator[None]:
        """While the current task sends a stream. `close` ends it there, and the task goes on."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = (session, is_own)
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            task.uncancel()  # the response ends as any other
        finally:
            self._open.pop(task, None)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._is_closed = True
        for task in [*self._open, *(task for _, task in self._feeds.values())]:
            task.cancel()


class _Stream(Response):
    """Server-sent events, as `body` sends them."""

    media_type = MEDIA_TYPE

    def __init__(self, follow: Callable[[Scope, Send], Awaitable[None]]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        if scope["method"] != "HEAD":
            await self._follow(scope, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def follow(
    request: Request,
    parts: Mapping[str, float],
    draw: Draw,
    *,
    problem: Callable[[Exception], str],
) -> Response:
    """A stream of parts, each drawn again after its number of seconds."""
    key = (session_of(request).id, f"{request.scope['path']}?{request.url.query}")
    streams = _streams(request)
    streams.check(key[0], is_own=False)

    async def wait(scope: Scope, send: Send) -> None:
        with (
            streams.counted(key[0]),
            streams.shared(key, lambda: Feed(parts, draw, problem), exchange_of(scope)),
        ):
            await asyncio.Event().wait()  # until the browser leaves, or the console stops

    return _Stream(wait)


def stream(request: Request, messages: AsyncGenerator[Message, None]) -> Response:
    """A stream of its own for one browser, such as a live tail. When the browser leaves, the
    iterator is cancelled where it waits."""
    session, streams = session_of(request).id, _streams(request)
    streams.check(session, is_own=True)

    async def send_all(scope: Scope, send: Send) -> None:
        with streams.counted(session, is_own=True):
            async with contextlib.aclosing(messages):
                async for message in messages:
                    body = encode(message)
                    await send({"type": "http.response.body", "body": body, "more_body": True})

    return _Stream(send_all)


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams
