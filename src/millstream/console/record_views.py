"""Records as pages show them, and what a request asks of a topic.

Times without a zone are in the browser's time zone, which pages send as `zone`, in minutes east of
UTC.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from millstream.admin.browsing import COUNT_DEFAULT, COUNT_MAX, Asked, Start
from millstream.admin.moments import parse_moment_ms
from millstream.admin.paging import decode_positions
from millstream.admin.reading import Header, ReadRecord
from millstream.admin.values import Decoder, Form, Shown, visible
from millstream.client.schema_registry import (
    RegisteredSchema,
    Registry,
    RegistryError,
    RegistrySettings,
    UnknownSchema,
)
from millstream.console.actions import Refused, command
from millstream.console.paths import link
from millstream.models import dataclass

if TYPE_CHECKING:
    from starlette.requests import Request

REGISTRY_PATIENCE_MS = 3_000  # a page does not wait for longer
FAILURE_SECONDS = 10.0  # for which a registry that failed is not asked again
UNKNOWN_MAX = 100  # ids in that time
ZONE_MINUTES_MAX = 14 * 60
HEADERS_SHOWN = 3
PARTITIONS_SHOWN_MAX = 1_000

STARTS = (
    ("newest", "Newest"),
    ("oldest", "Oldest"),
    ("offset", "From offset"),
    ("time", "From time"),
    ("as-of", "As of time"),
)
FORMS = (("auto", "Auto"), ("json", "JSON"), ("avro", "Avro"), ("text", "Text"), ("hex", "Hex"))


@dataclass(frozen=True)
class Line:
    """A record in a list."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: Sequence[str]  # the first few
    header_count: int
    state: str
    path: str


@dataclass(frozen=True)
class Fields:
    """The fields of the form above a list, as they were sent."""

    start: str = "newest"
    at: str = ""
    partition: str = ""
    count: int = COUNT_DEFAULT
    key: str = "auto"
    value: str = "auto"
    committed: bool = False
    zone: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Fields:
        start = parameters.get("start", "newest")
        return cls(
            start=start if start in Start._value2member_map_ else "newest",
            at=parameters.get("at", "").strip()[:64_000],
            partition=parameters.get("partition", "").strip(),
            count=max(1, min(COUNT_MAX, whole(parameters.get("count"), COUNT_DEFAULT))),
            key=_form(parameters.get("key")).value,
            value=_form(parameters.get("value")).value,
            committed=parameters.get("committed", "") in ("1", "on", "true"),
            zone=whole(parameters.get("zone"), 0),
        )

    def asked(self, now_ms: float) -> Asked:
        """Raises `Refused` for what makes no sense, `MillstreamError` for positions and times."""
        start = Start(self.start)
        partitions = (_partition(self.partition),) if self.partition else ()
        asked = Asked(
            start, partitions=partitions, count=self.count, is_committed_only=self.committed
        )
        match start:
            case Start.NEWEST | Start.OLDEST:
                return asked
            case Start.OFFSET:
                return _with(asked, offset=_offset(self.at))
            case Start.TIME | Start.AS_OF:
                return _with(asked, time_ms=self.moment_ms(self.at, now_ms))
            case _:
                return _with(asked, positions=decode_positions(self.at))

    def moment_ms(self, text: str, now_ms: float) -> int:
        if not text:
            raise Refused("a time is missing; write 2026-11-14T08:30, yesterday or 15m (ago)")
        minutes = max(-ZONE_MINUTES_MAX, min(ZONE_MINUTES_MAX, self.zone))
        zone = timezone(timedelta(minutes=minutes))
        try:
            found = parse_moment_ms(text, datetime.fromtimestamp(now_ms / 1000, zone))
        except (OverflowError, ValueError):
            found = -1
        if not 0 <= found < 2**63:
            raise Refused(f"{text!r} is not a time that there can be records of")
        return found


def _with(asked: Asked, **changes: object) -> Asked:
    return replace(asked, **changes)  # type: ignore[arg-type]


def whole(text: str | None, default: int) -> int:
    """A whole number of limited size, or the default."""
    digits = (text or "").removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        return default
    return int(text or "")


def _form(text: str | None) -> Form:
    return Form(text) if text and text in Form._value2member_map_ else Form.AUTO


def _partition(text: str) -> int:
    number = whole(text, -1)
    if not 0 <= number < 2**31:
        raise Refused(f"{text!r} is not the number of a partition")
    return number


def _offset(text: str) -> int:
    number = whole(text, -1)
    if number < 0:
        raise Refused(f"{text!r} is not an offset; write a number from 0 on")
    return number


def lines_of(
    records: Iterable[ReadRecord], topic: str, decoder: Decoder, key: str, value: str
) -> list[Line]:
    """Records as rows of a list."""
    return [
        Line(
            it.partition,
            it.offset,
            it.timestamp_ms,
            decoder.preview(it.key, Form(key), it.key_bytes),
            decoder.preview(it.value, Form(value), it.value_bytes),
            [header_text(header) for header in it.headers[:HEADERS_SHOWN]],
            len(it.headers),
            it.state.value,
            link("topics", topic, "messages", str(it.partition), str(it.offset)),
        )
        for it in records
    ]


def header_text(header: Header) -> str:
    """`name: value`, short."""
    shown = Decoder().preview(header.value, Form.AUTO, header.size_bytes)
    text = "null" if header.value is None else shown.text[:60]
    return f"{visible(header.name)[:60]}: {text}"


class Schemas:
    """The schema registry of a console. One that failed is left alone for a while, so that a page
    with a hundred records waits for it once. Ids that it does not know are asked for seldom: any
    bytes that begin with zero look like one. Blocks, so it is for threads."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._registry = Registry(settings)
        self._unknown: dict[int, tuple[float, RegistryError]] = {}
        self._failure: tuple[float, RegistryError] | None = None

    def schema(self, schema_id: int) -> RegisteredSchema:
        if self._registry.has(schema_id):
            return self._registry.schema(schema_id)
        since = time.monotonic() - FAILURE_SECONDS
        for known in (self._failure, self._unknown.get(schema_id)):
            if known is not None and known[0] > since:
                raise known[1]
        self._limit_unknown(since)
        try:
            found = self._registry.schema(schema_id)
        except UnknownSchema as failure:
            self._unknown[schema_id] = (time.monotonic(), failure)
            raise
        except RegistryError as failure:
            self._failure = (time.monotonic(), failure)
            raise
        self._failure = None
        return found

    def _limit_unknown(self, since: float) -> None:
        """Raises `RegistryError` if too many ids were unknown of late."""
        if len(self._unknown) < UNKNOWN_MAX:
            return
        self._unknown = {it: known for it, known in list(self._unknown.items()) if known[0] > since}
        if len(self._unknown) >= UNKNOWN_MAX:
            raise RegistryError(
                f"the registry did not know {UNKNOWN_MAX} of the ids that records begin with: it "
                f"is asked again in {FAILURE_SECONDS:.0f} s"
            )


def decoder_of(request: Request) -> Decoder:
    """Decodes by the registry that the console's settings name, if any."""
    state = request.app.state
    if not hasattr(state, "record_decoder"):
        settings = RegistrySettings.named(state.settings.client_settings.get, REGISTRY_PATIENCE_MS)
        state.record_decoder = Decoder(None if settings is None else Schemas(settings).schema)
    decoder: Decoder = state.record_decoder
    return decoder


def query_command(request: Request, topic: str, where: str, fields: Fields) -> str:
    """`millstream query` for the records of a topic that match; `where` and what follows it."""
    is_plain = re.fullmatch(r"[a-z_][a-z0-9_]*", topic) is not None
    table = topic if is_plain else '"' + topic.replace('"', '""') + '"'
    options = [] if fields.committed else ["--read-uncommitted"]
    line = command(request, "query", "SQL", *options)
    return line.replace("SQL", shell_quoted(f"select * from {table} where {where}"), 1)


def sql_text(text: str) -> str:
    """Text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def shell_quoted(text: str) -> str:
    """For a shell; in double quotes where that is easier to read, since SQL has single ones."""
    return shlex.quote(text) if {*'"$`\\!\n'} & {*text} else f'"{text}"'


def now_ms() -> float:
    return time.time() * 1000
