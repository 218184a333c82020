"""Records of a topic as a file: JSON lines, CSV or Parquet, of any size with little memory."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from millstream.admin.browsing import Asked, read_bounds, records
from millstream.admin.exporting import can_write_parquet, csv_lines, json_lines, parquet
from millstream.admin.reading import Reader
from millstream.client.cluster import Cluster
from millstream.console.actions import Refused, command
from millstream.console.answers import page
from millstream.console.exchanges import exchange_of
from millstream.console.record_views import Fields, now_ms, whole
from millstream.console.sessions import session_of
from millstream.console.threads import in_thread
from millstream.models import dataclass

COUNT_DEFAULT = 10_000
COUNT_MAX = 1_000_000
BYTES_MAX = 4 * 1024**3
SECONDS_MAX = 3600.0
EXPORTS_MAX = 16  # at once, of all users
EXPORTS_PER_SESSION_MAX = 4

Write = Callable[[str, Any], Iterator[bytes]]
KINDS: dict[str, tuple[Write, str, str]] = {
    "json": (json_lines, "application/x-ndjson", "jsonl"),
    "csv": (csv_lines, "text/csv; charset=utf-8", "csv"),
    "parquet": (parquet, "application/vnd.apache.parquet", "parquet"),
}


@dataclass(frozen=True)
class Export:
    """The model of the page."""

    name: str
    fields: Fields
    count: int
    partitions: int
    records: int
    can_write_parquet: bool
    command: str


async def show(request: Request) -> Response:
    topic = request.path_params["name"]
    fields = Fields.of(request.query_params)
    told = command(request, "consume", topic, "--from-beginning", "--no-follow", "--json")

    def load(cluster: Cluster) -> Export:
        bounds = read_bounds(cluster, topic)
        total = sum(it.end - it.start for it in bounds.values())
        is_there = can_write_parquet()
        return Export(topic, fields, COUNT_DEFAULT, len(bounds), total, is_there, told)

    return await page(request, "messages_export.html", load)


async def download(request: Request) -> Response:
    topic = request.path_params["name"]
    parameters = request.query_params
    kind = parameters.get("as", "json")
    if kind not in KINDS:
        raise Refused(f"{kind!r} is not a format; choose one of {', '.join(KINDS)}")
    count = max(1, min(COUNT_MAX, whole(parameters.get("count"), COUNT_DEFAULT)))
    asked = replace(Fields.of(parameters).asked(now_ms()), count=count)
    write, media_type, ending = KINDS[kind]
    exports = _exports(request)
    session = session_of(request)
    exports.begin(session.id)
    cluster = session.new_cluster()
    contents = _contents(cluster, topic, asked, write)
    chunks = _in_threads(request, contents, cluster, exports)
    try:
        first = await anext(chunks, b"")  # a refusal is still an error, not half a file
    except BaseException:
        await chunks.aclose()
        raise
    name = re.sub(r"[^A-Za-z0-9._-]", "_", topic)[:100]
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.{ending}"',
        "Cache-Control": "no-store",
    }
    return StreamingResponse(_rest(first, chunks), media_type=media_type, headers=headers)


def _contents(cluster: Cluster, topic: str, asked: Asked, write: Write) -> Iterator[bytes]:
    reader = Reader(cluster, topic, kept_bytes=None, bytes_max=BYTES_MAX, seconds_max=SECONDS_MAX)
    yield from write(topic, records(cluster, topic, asked, reader))


class Exports:
    """Those that run. They take turns in one thread: the broker may be in this process."""

    def __init__(self) -> None:
        self.thread = asyncio.Semaphore(1)
        self._running: Counter[str] = Counter()

    def begin(self, session: str) -> None:
        if (
            self._running.total() >= EXPORTS_MAX
            or self._running[session] >= EXPORTS_PER_SESSION_MAX
        ):
            raise HTTPException(
                503,
                f"{EXPORTS_PER_SESSION_MAX} exports of one user, and {EXPORTS_MAX} of all, can "
                "run at once; try again later",
            )
        self._running[session] += 1

    def end(self, session: str) -> None:
        self._running[session] -= 1
        self._running += Counter()  # forgets those that are zero


def _exports(request: Request) -> Exports:
    state = request.app.state
    if not hasattr(state, "exports"):
        state.exports = Exports()
    exports: Exports = state.exports
    return exports


async def _in_threads(
    request: Request, contents: Iterator[bytes], cluster: Cluster, exports: Exports
) -> Any:
    session = session_of(request)
    try:
        while not session.is_closed:
            chunk = await in_thread(exports.thread, next, contents, None)
            if chunk is None:
                return
            if chunk:
                yield chunk
            elif exchange_of(request.scope).is_gone:  # nothing is sent yet that would notice
                return
        raise HTTPException(401, "you are logged out")
    finally:
        exports.end(session.id)
        contents.close()  # type: ignore[attr-defined]
        cluster.close()


async def _rest(first: bytes, chunks: Any) -> AsyncIterator[bytes]:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()


ROUTES = [
    Route("/topics/{name:name}/messages/export", show),
    Route("/topics/{name:name}/messages/export/file", download),
]
