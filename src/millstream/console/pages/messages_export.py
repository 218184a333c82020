"""Records of a topic as a file: JSON lines, CSV or Parquet, of any size with little memory. A child
process reads and writes them (`admin.export_process`)."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from millstream.admin.browsing import Asked, read_bounds
from millstream.admin.export_process import ExportProcess
from millstream.admin.exporting import can_write_parquet
from millstream.client.cluster import Cluster
from millstream.console.actions import Refused, command
from millstream.console.answers import page
from millstream.console.exchanges import exchange_of
from millstream.console.record_views import Fields, now_ms, whole
from millstream.console.sessions import in_cluster, session_of
from millstream.console.threads import in_thread
from millstream.models import dataclass

COUNT_DEFAULT = 10_000
COUNT_MAX = 1_000_000
EXPORTS_MAX = 4  # at once, of all users
EXPORTS_PER_SESSION_MAX = 2

KINDS = {  # types and endings of files
    "json": ("application/x-ndjson", "jsonl"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "parquet": ("application/vnd.apache.parquet", "parquet"),
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
    if kind == "parquet" and not can_write_parquet():
        raise Refused("Parquet needs Arrow: pip install 'millstream[query]'")
    count = max(1, min(COUNT_MAX, whole(parameters.get("count"), COUNT_DEFAULT)))
    asked = replace(Fields.of(parameters).asked(now_ms()), count=count)
    await in_cluster(request, read_bounds, topic, asked.partitions)  # what is refused has a status
    media_type, ending = KINDS[kind]
    chunks = _chunks(request, topic, asked, kind)
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


class Exports:
    """Those that run, each in a child process."""

    def __init__(self) -> None:
        self.threads = asyncio.Semaphore(EXPORTS_MAX)
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


async def _chunks(
    request: Request, topic: str, asked: Asked, kind: str
) -> AsyncGenerator[bytes, None]:
    session, exports = session_of(request), _exports(request)
    exports.begin(session.id)
    begun: list[ExportProcess] = []  # also if the browser leaves while the process starts

    def begin() -> None:
        begun.append(
            ExportProcess(session.bootstrap_servers, session.client_settings, topic, asked, kind)
        )

    try:
        await in_thread(exports.threads, begin)
        while not session.is_closed:
            chunk = await in_thread(exports.threads, begun[0].read)
            if chunk is None:
                return
            if chunk:
                yield chunk
            elif exchange_of(request.scope).is_gone:  # nothing is sent that would notice
                return
        raise HTTPException(401, "you are logged out")
    finally:
        exports.end(session.id)
        for export in begun:
            export.close()


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
