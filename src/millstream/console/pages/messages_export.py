"""Records of a topic as a file: JSON lines, CSV or Parquet, of any size with little memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from millstream.admin.browsing import Asked, read_bounds, records
from millstream.admin.exporting import can_write_parquet, csv_lines, json_lines, parquet
from millstream.admin.reading import Reader
from millstream.client.cluster import Cluster
from millstream.console.actions import Refused, command
from millstream.console.answers import page
from millstream.console.record_views import Fields, now_ms, whole
from millstream.console.sessions import session_of

COUNT_DEFAULT = 10_000
COUNT_MAX = 1_000_000
BYTES_MAX = 4 * 1024**3
SECONDS_MAX = 3600.0

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
    cluster = session_of(request).new_cluster()
    contents = _contents(cluster, topic, asked, write)
    chunks = _in_threads(contents, cluster, _thread(request))
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


def _thread(request: Request) -> anyio.CapacityLimiter:
    """One for the exports of all users, which take turns: the broker may be in this process."""
    state = request.app.state
    if not hasattr(state, "export_thread"):
        state.export_thread = anyio.CapacityLimiter(1)
    thread: anyio.CapacityLimiter = state.export_thread
    return thread


async def _in_threads(
    contents: Iterator[bytes], cluster: Cluster, limiter: anyio.CapacityLimiter
) -> Any:
    try:
        while True:
            chunk = await anyio.to_thread.run_sync(next, contents, None, limiter=limiter)
            if chunk is None:
                return
            yield chunk
    finally:
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
