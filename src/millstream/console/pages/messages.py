"""Messages of a topic: pages of records from any position, one record, and its parts as files.

The other views of a topic's records have modules of their own: the live tail, search, export and
producing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from millstream.admin.browsing import Bounds, Listing, Start, browse, read_bounds
from millstream.admin.paging import encode_positions
from millstream.admin.reading import Reader, ReadRecord
from millstream.admin.values import Decoder, Form, Shown, visible
from millstream.client.cluster import Cluster
from millstream.console.actions import command
from millstream.console.answers import page
from millstream.console.pages import (
    messages_export,
    messages_live,
    messages_produce,
    messages_search,
)
from millstream.console.paths import link
from millstream.console.record_views import (
    Fields,
    Line,
    decoder_of,
    lines_of,
    now_ms,
    query_command,
    whole,
)
from millstream.console.sessions import in_cluster
from millstream.models import dataclass

HEADERS_MAX = 200
NEXT_LOOKED_FOR = 10_000  # offsets after a gap
POSITIONS_TOLD_MAX = 200


@dataclass(frozen=True)
class Messages:
    """The model of a page of records."""

    name: str
    fields: Fields
    lines: Sequence[Line]
    partitions: int
    records: int  # offsets from the start to the end of all partitions
    older: str  # the query of the page, empty if there is none
    newer: str
    goes_back: bool
    is_incomplete: bool
    hidden: int
    command: str


@dataclass(frozen=True)
class HeaderLine:
    name: str
    value: Shown
    path: str


@dataclass(frozen=True)
class One:
    """The model of the page of a record."""

    name: str
    partition: int
    offset: int
    bounds: Bounds
    record: Found | None  # None: there is none at this offset
    next_path: str
    previous_path: str
    fields: Fields
    command: str


@dataclass(frozen=True)
class Found:
    timestamp_ms: int
    is_append_time: bool
    key: Shown
    value: Shown
    headers: Sequence[HeaderLine]
    header_count: int
    state: str
    is_transactional: bool
    producer_id: int
    producer_epoch: int
    compression: str


async def show(request: Request) -> Response:
    topic = request.path_params["name"]
    fields = Fields.of(request.query_params)
    asked = fields.asked(now_ms())
    decoder = decoder_of(request)
    told = browse_command(request, topic, fields)

    def load(cluster: Cluster) -> Messages:
        return _messages(topic, fields, browse(cluster, topic, asked), decoder, told)

    return await page(request, "messages.html", load)


def _messages(
    topic: str, fields: Fields, listing: Listing, decoder: Decoder, told: str
) -> Messages:
    return Messages(
        topic,
        fields,
        lines_of(listing.records, topic, decoder, fields.key, fields.value),
        len(listing.bounds),
        sum(it.end - it.start for it in listing.bounds.values()),
        _page_query(fields, Start.BEFORE, listing.older),
        _page_query(fields, Start.FROM, listing.newer),
        Start(fields.start).goes_back,
        listing.is_incomplete,
        listing.hidden,
        told,
    )


def _page_query(fields: Fields, start: Start, positions: Mapping[int, int] | None) -> str:
    at = "" if positions is None else encode_positions(positions)
    return "?" + urlencode(form_query(fields) | {"start": start.value, "at": at}) if at else ""


def form_query(fields: Fields) -> dict[str, str]:
    """The fields that differ from their defaults, for links."""
    default = Fields()
    given = {name: getattr(fields, name) for name in fields.__dataclass_fields__}
    return {
        name: "1" if it is True else str(it)
        for name, it in given.items()
        if it != getattr(default, name)
    }


def browse_command(request: Request, topic: str, fields: Fields) -> str:
    """The command line that prints the same records."""
    count = str(fields.count)
    options = ["consume", topic, "--no-follow", "--metadata", "--keys"]
    match fields.start:
        case "newest":
            options += ["--last", count]
        case "oldest":
            options += ["--from-beginning", "--count", count]
        case "offset":
            options += ["--offset", fields.at, "--count", count]
        case "time":
            options += ["--since", fields.at, "--count", count]
        case "as-of":
            at = fields.moment_ms(fields.at, now_ms()) / 1000
            where = f"_timestamp < to_timestamp({at})"
            if fields.partition:
                where += f" and _partition = {whole(fields.partition, 0)}"
            end = f"order by _timestamp desc limit {count}"
            return query_command(request, topic, f"{where} {end}", fields)
        case _:
            return positions_command(request, topic, fields)
    if fields.partition:
        options += ["--partition", fields.partition]
    if not fields.committed:
        options.append("--read-uncommitted")
    return command(request, *options)


def positions_command(request: Request, topic: str, fields: Fields) -> str:
    """The same for a page of older or newer records, which begins at an offset of each partition;
    empty if there are too many of them for a command line."""
    positions = fields.asked(now_ms()).positions
    if not 0 < len(positions) <= POSITIONS_TOLD_MAX:
        return ""
    is_back = Start(fields.start).goes_back
    sign, order = ("<", "_timestamp desc") if is_back else (">=", "_timestamp")
    if fields.partition:
        only = whole(fields.partition, 0)
        positions = {it: at for it, at in positions.items() if it == only}
    parts = [f"_partition = {it} and _offset {sign} {at}" for it, at in sorted(positions.items())]
    where = parts[0] if len(parts) == 1 else " or ".join(f"({it})" for it in parts)
    return query_command(request, topic, f"{where} order by {order} limit {fields.count}", fields)


async def show_one(request: Request) -> Response:
    topic, partition, offset = place_of(request)
    fields = Fields.of(request.query_params)
    decoder = decoder_of(request)
    told = record_command(request, topic, partition, offset)

    def load(cluster: Cluster) -> One:
        bounds = read_bounds(cluster, topic, [partition])[partition]
        reader = Reader(cluster, topic, kept_bytes=None)
        record = reader.one(partition, offset) if bounds.start <= offset < bounds.end else None
        following = offset + 1
        if record is None and bounds.start <= offset < bounds.end:
            end = min(bounds.end, offset + NEXT_LOOKED_FOR)
            after = Reader(cluster, topic, kept_bytes=1).forward(partition, offset, end)
            following = next((it.offset for it in after), bounds.end)
        return One(
            topic,
            partition,
            offset,
            bounds,
            None if record is None else _found(topic, record, decoder, fields),
            record_path(topic, partition, following) if following < bounds.end else "",
            record_path(topic, partition, offset - 1) if offset > bounds.start else "",
            fields,
            told,
        )

    if "fragment" in request.query_params:  # below a row of a list
        model = await in_cluster(request, load)
        context = {"query": QueryParams()}
        renderer = request.app.state.renderer
        return HTMLResponse(renderer.block("message.html", "record", model, context))
    return await page(request, "message.html", load)


def _found(topic: str, record: ReadRecord, decoder: Decoder, fields: Fields) -> Found:
    path = record_path(topic, record.partition, record.offset)
    headers = [
        HeaderLine(
            visible(it.name), decoder.preview(it.value, Form.AUTO), f"{path}/headers/{index}"
        )
        for index, it in enumerate(record.headers[:HEADERS_MAX])
    ]
    return Found(
        record.timestamp_ms,
        record.is_append_time,
        decoder.show(record.key, Form(fields.key)),
        decoder.show(record.value, Form(fields.value)),
        headers,
        len(record.headers),
        record.state.value,
        record.is_transactional,
        record.producer_id,
        record.producer_epoch,
        record.compression,
    )


def place_of(request: Request) -> tuple[str, int, int]:
    """The topic, partition and offset in the path."""
    parameters = request.path_params
    partition, offset = parameters["partition"], parameters["offset"]
    if partition >= 2**31 or offset >= 2**63:
        raise HTTPException(404, f"there is no offset {offset} in partition {partition}")
    return parameters["name"], partition, offset


def record_path(topic: str, partition: int, offset: int) -> str:
    return link("topics", topic, "messages", str(partition), str(offset))


def record_command(request: Request, topic: str, partition: int, offset: int) -> str:
    options = ["--partition", str(partition), "--offset", str(offset), "--count", "1"]
    return command(request, "consume", topic, *options, "--read-uncommitted", "--json")


async def download(request: Request) -> Response:
    """The key, the value or a header of a record, as a file; never shown by the browser."""
    topic, partition, offset = place_of(request)
    part = request.path_params["part"]

    def load(cluster: Cluster) -> bytes | None:
        record = Reader(cluster, topic, kept_bytes=None).one(partition, offset)
        if record is None:
            raise HTTPException(404, f"{topic} has no record at {offset} in partition {partition}")
        if part != "headers":
            return record.key if part == "key" else record.value
        index: int = request.path_params.get("index", 0)
        if index >= len(record.headers):
            raise HTTPException(404, f"the record has {len(record.headers)} headers")
        return record.headers[index].value

    if part not in ("key", "value", "headers"):
        raise HTTPException(404, "a record has a key, a value and headers")
    content = await in_cluster(request, load)
    if content is None:
        raise HTTPException(404, f"the {part} of this record is null")
    return Response(
        content,
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{partition}-{offset}-{part}.bin"',
            "Cache-Control": "no-store",
        },
    )


ONE = "/topics/{name:name}/messages/{partition:int}/{offset:int}"
ROUTES = [
    Route("/topics/{name:name}/messages", show),
    Route(ONE, show_one),
    Route(ONE + "/{part}", download),
    Route(ONE + "/{part}/{index:int}", download),
    *messages_live.ROUTES,
    *messages_search.ROUTES,
    *messages_export.ROUTES,
    *messages_produce.ROUTES,
]
