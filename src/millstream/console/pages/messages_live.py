"""The live tail of a topic: records as they are written, the newest on top.

On a fast topic only the newest records of each moment are shown, and the others are counted. A
tail that was paused, or lost its connection, continues where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.browsing import Followed, follow
from millstream.admin.paging import decode_positions, encode_positions
from millstream.client.cluster import Cluster
from millstream.console.actions import command
from millstream.console.answers import explain, page
from millstream.console.live import Event, stream
from millstream.console.record_views import Fields, Line, decoder_of, lines_of
from millstream.console.sessions import session_of
from millstream.console.threads import in_thread
from millstream.errors import MillstreamError
from millstream.models import dataclass

INTERVAL_SECONDS = 0.5
FAILED_SECONDS = 3.0
SHOWN_MAX = 50  # records of each moment
THREADS_MAX = 8


@dataclass(frozen=True)
class Live:
    """The model of the page."""

    name: str
    fields: Fields
    partitions: int
    command: str


async def show(request: Request) -> Response:
    topic = request.path_params["name"]
    fields = Fields.of(request.query_params)
    options = ["--partition", fields.partition] if fields.partition else []
    told = command(request, "consume", topic, "--metadata", "--keys", *options)

    def load(cluster: Cluster) -> Live:
        found = cluster.retrying(lambda: cluster.topic(topic, seconds_old_max=1.0))
        return Live(topic, fields, len(found.partitions), told)

    return await page(request, "messages_live.html", load)


async def records(request: Request) -> Response:
    """The stream: an event `records` with rows as HTML, the position, and what was skipped."""
    fields = Fields.of(request.query_params)
    fields.asked(0)  # what makes no sense is refused at once
    at = decode_positions(fields.at) if fields.at else None
    return stream(request, _tail(request, fields, at))


async def _tail(
    request: Request, fields: Fields, positions: Mapping[int, int] | None
) -> AsyncGenerator[Event, None]:
    topic = request.path_params["name"]
    partitions = (int(fields.partition),) if fields.partition else ()
    session = session_of(request)
    cluster = session.new_cluster()
    threads = _threads(request)

    decoder = decoder_of(request)

    def advance(since: Mapping[int, int] | None) -> tuple[Followed, list[Line]]:
        found = follow(cluster, topic, since, partitions=partitions, count=SHOWN_MAX)
        # Here, since a registry may be asked.
        return found, lines_of(found.records[::-1], topic, decoder, fields.key, fields.value)

    try:
        while not session.is_closed:
            try:
                found, lines = await in_thread(threads, advance, positions)
            except (MillstreamError, OSError) as error:
                yield Event("problem", explain(error).message)
                await asyncio.sleep(FAILED_SECONDS)
                continue
            if positions is None or found.records or found.positions != positions:
                yield Event("records", _rows(request, found, lines))
            positions = found.positions
            await asyncio.sleep(INTERVAL_SECONDS)
        yield Event("problem", "you are logged out")
    finally:
        cluster.close()


def _rows(request: Request, found: Followed, lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "html": render_rows(request, lines),
        "count": len(lines),
        "skipped": found.skipped,
        "at": encode_positions(found.positions),
    }


def render_rows(request: Request, lines: Any) -> str:
    """Rows of a table of records, as HTML."""
    html: str = request.app.state.renderer.block("message_rows.html", "rows", lines, {})
    return html


def _threads(request: Request) -> asyncio.Semaphore:
    state = request.app.state
    if not hasattr(state, "tail_threads"):
        state.tail_threads = asyncio.Semaphore(THREADS_MAX)
    threads: asyncio.Semaphore = state.tail_threads
    return threads


ROUTES = [
    Route("/topics/{name:name}/messages/live", show),
    Route("/topics/{name:name}/messages/live/records", records),
]
