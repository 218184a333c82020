"""Search over the history of a topic: by text, by header, or by a predicate in SQL.

A child process scans (`query.search`), at low priority and with limited memory, so that a search
delays neither the broker nor another page. Hits are shown as they are found. A search that is
cancelled, or that has found enough, leaves a cursor in the page's address, from where it continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.browsing import Bounds, list_offsets, read_bounds
from millstream.admin.paging import decode_ranges, encode_ranges
from millstream.admin.reading import Reader, ReadRecord
from millstream.client.cluster import Cluster
from millstream.console.actions import Refused
from millstream.console.answers import explain, json_answer, page, wants_json
from millstream.console.live import Event, stream
from millstream.console.pages.messages_live import render_rows
from millstream.console.record_views import (
    Fields,
    Line,
    decoder_of,
    lines_of,
    now_ms,
    query_command,
    sql_text,
    whole,
)
from millstream.console.sessions import in_cluster, session_of
from millstream.console.threads import in_thread
from millstream.errors import MillstreamError
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.query.search import Progress, Search, SearchRequest

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
SEARCHES_MAX = 4  # at once, of all users
SEARCHES_PER_SESSION_MAX = 2
HITS_AT_ONCE = 20
JSON_SECONDS_MAX = 30.0  # a script gets what was found until then, and a cursor
KINDS = ("text", "sql", "header")
TEXT_CHARACTERS_MAX = 10_000


@dataclass(frozen=True)
class Wanted:
    """What a search is asked for: its address."""

    kind: str = "text"
    q: str = ""
    header: str = ""
    since: str = ""
    until: str = ""
    order: str = "newest"
    limit: int = LIMIT_DEFAULT
    cursor: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Wanted:
        kind, order = parameters.get("kind", "text"), parameters.get("order", "newest")
        return cls(
            kind=kind if kind in KINDS else "text",
            q=parameters.get("q", "")[:TEXT_CHARACTERS_MAX],
            header=parameters.get("header", "")[:TEXT_CHARACTERS_MAX],
            since=parameters.get("since", "").strip(),
            until=parameters.get("until", "").strip(),
            order="oldest" if order == "oldest" else "newest",
            limit=max(1, min(LIMIT_MAX, whole(parameters.get("limit"), LIMIT_DEFAULT))),
            cursor=parameters.get("cursor", ""),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.header.strip() if self.kind == "header" else self.q.strip())


@dataclass(frozen=True)
class SearchPage:
    """The model of the page."""

    name: str
    wanted: Wanted
    fields: Fields
    partitions: int
    columns: Sequence[str]
    is_available: bool
    stream: str  # the address of the results, empty if nothing is searched
    command: str


async def show(request: Request) -> Response:
    topic = request.path_params["name"]
    wanted, fields = Wanted.of(request.query_params), Fields.of(request.query_params)
    if wants_json(request) and not wanted.is_empty:
        return await _all_at_once(request, wanted, fields)
    told = "" if wanted.is_empty else search_command(request, topic, wanted, fields)

    def load(cluster: Cluster) -> SearchPage:
        found = cluster.retrying(lambda: cluster.topic(topic, seconds_old_max=1.0))
        path = request.url_for("message_hits", name=topic).path
        query = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "format"])
        return SearchPage(
            topic,
            wanted,
            fields,
            len(found.partitions),
            COLUMNS,
            is_available(),
            "" if wanted.is_empty or not is_available() else f"{path}?{query}",
            told,
        )

    return await page(request, "messages_search.html", load)


COLUMNS = ("_key", "_value", "_headers", "_partition", "_offset", "_timestamp")


def is_available() -> bool:
    from millstream.query import search

    return search.is_available()


def search_command(request: Request, topic: str, wanted: Wanted, fields: Fields) -> str:
    """The query that finds the same on the command line."""
    text, name = sql_text(wanted.q), sql_text(wanted.header.strip())
    match wanted.kind:
        case "sql":
            conditions = [wanted.q.strip()]
        case "header":
            value = f" and h.value = {text}" if wanted.q else ""
            conditions = [f"len(list_filter(_headers, lambda h: h.key = {name}{value})) > 0"]
        case _:
            conditions = [f"contains(_value, {text}) or contains(_key, {text})"]
    for moment, comparison in ((wanted.since, ">="), (wanted.until, "<")):
        if moment:
            at = fields.moment_ms(moment, now_ms())
            conditions.append(f"_timestamp {comparison} to_timestamp({at / 1000})")
    if fields.partition:
        conditions.append(f"_partition = {whole(fields.partition, 0)}")
    where = conditions[0]
    if len(conditions) > 1:
        where = " and ".join(f"({it})" for it in conditions)
    order = "_timestamp desc" if wanted.order == "newest" else "_timestamp"
    return query_command(request, topic, f"{where} order by {order} limit {wanted.limit}", fields)


@dataclass
class Searches:
    """The searches that run, by session."""

    running: dict[str, int] = field(default_factory=dict)

    def begin(self, session: str) -> None:
        mine = self.running.get(session, 0)
        if sum(self.running.values()) >= SEARCHES_MAX or mine >= SEARCHES_PER_SESSION_MAX:
            raise HTTPException(
                503,
                f"{SEARCHES_PER_SESSION_MAX} searches of one user, and {SEARCHES_MAX} of all, can "
                "run at once; cancel one, or try again later",
            )
        self.running[session] = mine + 1

    def end(self, session: str) -> None:
        left = self.running.get(session, 1) - 1
        self.running[session] = left
        if left <= 0:
            self.running.pop(session, None)


def _searches(request: Request) -> Searches:
    state = request.app.state
    if not hasattr(state, "searches"):
        state.searches = Searches()
    searches: Searches = state.searches
    return searches


async def hits(request: Request) -> Response:
    """The stream: events `hits`, `progress`, and at the end `done` or `problem`."""
    wanted, fields = Wanted.of(request.query_params), Fields.of(request.query_params)
    return stream(request, _run(request, wanted, fields))


async def _run(request: Request, wanted: Wanted, fields: Fields) -> AsyncGenerator[Event, None]:
    session, searches = session_of(request).id, _searches(request)
    topic = request.path_params["name"]
    began = False
    try:
        searches.begin(session)
        began = True
        asked = await in_cluster(request, _request_of, topic, wanted, fields)
        async with aclosing(_scan(request, asked, fields)) as steps:
            async for found in steps:
                lines = found.lines
                if lines:
                    html = render_rows(request, lines)
                    yield Event("hits", {"html": html, "count": len(lines)})
                if found.progress is not None:
                    yield Event("progress", progress_of(found.progress))
                if found.done:
                    yield Event("done", found.done)
    except (MillstreamError, OSError, HTTPException) as error:
        yield Event("problem", explain(error).message)
    finally:
        if began:
            searches.end(session)


async def _all_at_once(request: Request, wanted: Wanted, fields: Fields) -> Response:
    """For scripts: what is found within some seconds, and the cursor."""
    session, searches = session_of(request).id, _searches(request)
    topic = request.path_params["name"]
    lines: list[Line] = []
    last: dict[str, Any] = {}
    reason = "time"
    searches.begin(session)
    try:
        asked = await in_cluster(request, _request_of, topic, wanted, fields)
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(JSON_SECONDS_MAX),
                aclosing(_scan(request, asked, fields)) as steps,
            ):
                async for found in steps:
                    lines += found.lines
                    last = last if found.progress is None else progress_of(found.progress)
                    reason = found.done or reason
    finally:
        searches.end(session)
    return json_answer({"records": lines, "progress": last, "reason": reason})


def progress_of(progress: Progress) -> dict[str, Any]:
    return {
        "scanned": progress.scanned_records,
        "total": progress.total_records,
        "bytes": progress.scanned_bytes,
        "hits": progress.hits,
        "seconds": progress.seconds,
        "rate": progress.rate,
        "remaining": progress.remaining_seconds,
        "cursor": encode_ranges((it.partition, it.first, it.end) for it in progress.rest),
    }


def _request_of(cluster: Cluster, topic: str, wanted: Wanted, fields: Fields) -> SearchRequest:
    from millstream.query.ranges import ScanRange
    from millstream.query.search import SearchRequest

    if wanted.is_empty:
        raise Refused("write what to search for")
    asked = fields.asked(now_ms()) if fields.start in ("newest", "oldest") else None
    partitions = asked.partitions if asked else ()
    bounds = read_bounds(cluster, topic, partitions)
    if wanted.cursor:
        ranges = [it for it in decode_ranges(wanted.cursor) if it[0] in bounds]
        scanned = [
            (it, max(first, bounds[it].start), min(end, bounds[it].end))
            for it, first, end in ranges
        ]
    else:
        scanned = _between(cluster, topic, wanted, fields, bounds)
    is_header = wanted.kind == "header"
    return SearchRequest(
        topic,
        tuple(ScanRange(*it) for it in scanned if it[1] < it[2]),
        where=wanted.q if wanted.kind == "sql" else "",
        text=wanted.q if wanted.kind == "text" else "",
        header=wanted.header.strip() if is_header else "",
        header_value=(wanted.q or None) if is_header else None,
        limit=wanted.limit,
        newest_first=wanted.order == "newest",
        committed=fields.committed,
    )


def _between(
    cluster: Cluster, topic: str, wanted: Wanted, fields: Fields, bounds: Mapping[int, Bounds]
) -> list[tuple[int, int, int]]:
    """The offsets of the wanted times."""
    firsts = {it: bound.start for it, bound in bounds.items()}
    ends = {it: bound.end for it, bound in bounds.items()}
    for text, limits in ((wanted.since, firsts), (wanted.until, ends)):
        if text:
            at = list_offsets(cluster, topic, bounds, fields.moment_ms(text, now_ms()))
            for it, bound in bounds.items():
                limits[it] = at[it].offset if at[it].offset >= 0 else bound.end
    return [(it, firsts[it], ends[it]) for it in sorted(bounds)]


@dataclass
class Step:
    """What a search has to show since the last one."""

    lines: Sequence[Line] = ()
    progress: Progress | None = None
    done: str = ""


async def _scan(
    request: Request, asked: SearchRequest, fields: Fields
) -> AsyncGenerator[Step, None]:
    """The steps of a search; its child ends with it."""
    from millstream.query.search import Search

    session = session_of(request)
    alone = asyncio.Semaphore(1)
    cluster = session.new_cluster()
    decoder = decoder_of(request)
    begun: list[Search] = []  # also if the browser leaves while the child starts

    def begin() -> None:
        begun.append(Search(session.bootstrap_servers, session.client_settings, asked))

    def advance() -> Step:
        step, records = _step(events, cluster, asked.topic)
        # Here, since a registry may be asked.
        step.lines = lines_of(records, asked.topic, decoder, fields.key, fields.value)
        return step

    try:
        await in_thread(alone, begin)
        events = iter(begun[0])
        while True:
            if session.is_closed:
                raise HTTPException(401, "you are logged out")
            step = await in_thread(alone, advance, abandons=True)
            yield step
            if step.done:
                return
    finally:
        for search in begun:
            search.cancel()
            search.close()
        cluster.close()


def _step(events: Any, cluster: Cluster, topic: str) -> tuple[Step, list[ReadRecord]]:
    """The next hits, as records, and the progress after them."""
    from millstream.query.search import Done, Hit, Progress

    step = Step()
    records: list[ReadRecord] = []
    reader = Reader(cluster, topic)
    for event in events:
        if isinstance(event, Hit):
            record = reader.one(event.partition, event.offset)
            if record is not None:  # retention may have been faster
                records.append(record)
            if len(records) >= HITS_AT_ONCE:
                return step, records
        elif isinstance(event, Progress):
            step.progress = event
            return step, records
        elif isinstance(event, Done):
            step.done = event.reason
            return step, records
    step.done = step.done or "end"
    return step, records


ROUTES = [
    Route("/topics/{name:name}/messages/search", show),
    Route("/topics/{name:name}/messages/search/hits", hits, name="message_hits"),
]
