"""Parts of a page that change while it is open: one stream of server-sent events per page.

Browsers that show the same page as the same user share a feed, which loads and renders once for all
of them, while one of them is there. A browser that reads slowly skips versions. Parts are sent as
htmx's partials, so that htmx puts them in place: `<hx-partial hx-target="#live-rows">`. `Event`s
with a name reach the page's scripts instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millstream.console.sessions import session_of

PARAMETER = "live"
STREAMS_MAX = 1_000
STREAMS_PER_SESSION_MAX = 500  # all browsers of an open console share a session
OWN_PER_SESSION_MAX = 50
HEARTBEAT_SECONDS = 15.0
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
        self._changed = asyncio.Event()
        self.readers = 0

    async def run(self) -> None:
        due = dict.fromkeys(self._parts, 0.0)
        while True:
            now = time.monotonic()
            parts = [part for part in self._parts if due[part] <= now]
            await self._refresh(parts)
            now = time.monotonic()
            due |= {part: now + self._parts[part] for part in parts}
            await asyncio.sleep(max(0.05, min(due.values()) - now))

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
            self._changed.set()
            self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[bytes]:
        """The parts, and every change of them."""
        seen = 0
        while True:
            changed, newest = self._changed, self._version
            for version, content in sorted(self._versions.values()):
                if version > seen:
                    yield content
            seen = newest  # what changed while it was sent comes next
            if self._changed is not changed:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()
                continue
            yield b": still here\n\n"


class Streams:
    """All open streams of a console, and the feeds that they share."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[str, str], tuple[Feed, asyncio.Task[None]]] = {}
        self._open: dict[asyncio.Task[Any], tuple[str, bool]] = {}
        self._is_closed = False

    @property
    def count(self) -> int:
        return len(self._open)

    async def shared(self, key: tuple[str, str], make: Callable[[], Feed]) -> AsyncIterator[bytes]:
        if key not in self._feeds:
            feed = make()
            self._feeds[key] = (feed, asyncio.create_task(feed.run()))
        feed, task = self._feeds[key]
        feed.readers += 1
        try:
            async for content in feed.follow():
                yield content
        finally:
            feed.readers -= 1
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

    async def counted(
        self, contents: AsyncIterator[bytes], session: str = "", *, is_own: bool = False
    ) -> AsyncIterator[bytes]:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = (session, is_own)
        try:
            async for content in contents:
                yield content
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            task.uncancel()  # the response ends as any other
        finally:
            self._open.pop(task, None)
            if isinstance(contents, _Closable):
                await contents.aclose()

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._is_closed = True
        for task in [*self._open, *(task for _, task in self._feeds.values())]:
            task.cancel()


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> None: ...


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
    contents = streams.shared(key, lambda: Feed(parts, draw, problem))
    return _answer(streams.counted(contents, key[0]))


def stream(request: Request, messages: AsyncIterator[Message]) -> Response:
    """A stream of its own for one browser, such as a live tail. When the browser leaves, the
    iterator is cancelled where it waits."""

    async def contents() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(messages):  # type: ignore[type-var]
            async for message in messages:
                yield encode(message)

    session, streams = session_of(request).id, _streams(request)
    streams.check(session, is_own=True)
    return _answer(streams.counted(contents(), session, is_own=True))


def _answer(contents: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(contents, media_type="text/event-stream", headers=headers)


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams
