"""The set of stored queries, moved forward by the records of their topic.

A record's key is the id of a query. Its value is JSON, or absent to remove the query:

    bikes-ada    {"where": "category = 'bike' AND price < 300", "since": "2026-01-31T10:00:00Z"}

`since` is optional. The version of a query is the offset of its record. A version is in force from
`since`, or from the record's timestamp if that is later, until the next record of its id is in
force: for an event of time t, the version counts that has the highest offset among those that are
in force at t. So the result depends on the records and on the event alone, and not on when it was
read, if all records that are in force at t have been read.

A record that is no query is refused with a reason, and the earlier version stays in force. Ids that
begin with `_` are reserved: `_schema` has the columns that queries are checked against when they
are added.

Queries that no index helps to find are evaluated for every event. The oldest `scans_max` of them
are in force; the others are suspended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.standing.events import Events, Rows
from millstream.pipelines.standing.lexing import QueryError
from millstream.pipelines.standing.segment import Hits, Segment
from millstream.pipelines.standing.templates import Compiler, Query
from millstream.pipelines.standing.whys import TYPE as WHY_TYPE
from millstream.pipelines.standing.whys import Whys

FOREVER = np.iinfo(np.int64).max
NO_TIME = np.iinfo(np.int64).min  # of an event without a time
ID_CHARACTERS_MAX = 200
VERSIONS_MAX = 1_000_000
SCANS_MAX = 100
RECENT_MIN = 1_000  # queries that are compiled again with every change
RECENT_SHARE = 16  # or this part of all queries
SCHEMA_ID = "_schema"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MATCHES = pa.schema(
    [
        pa.field("_query", pa.string(), nullable=False),
        pa.field("_version", pa.int64(), nullable=False),
        pa.field("_why", WHY_TYPE, nullable=False),
    ]
)


class TooManyVersions(MillstreamError):
    """The topic has more queries than an index can have."""


class QueryRecord(NamedTuple):
    """A record of the topic of queries."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Refused(NamedTuple):
    """A record that is no query, and the reason."""

    query_id: str
    version: int
    reason: str


class Definition(NamedTuple):
    """The value of a record."""

    where: str
    since_us: int | None


class Matches(NamedTuple):
    """The rows of events that match, and for each the columns of `MATCHES`."""

    rows: Rows
    columns: pa.RecordBatch


@dataclass(eq=False)
class Version:
    """A version of a query, and when it is in force."""

    query_id: str
    version: int
    query: Query
    since_us: int
    until_us: int = FOREVER
    is_suspended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it is in force at no time."""
        return self.until_us <= self.since_us

    @property
    def is_scan(self) -> bool:
        """Whether it is evaluated for every event."""
        return not self.query.shape.is_indexed


class _Part:
    """Compiled versions, in the order of the segment's rows."""

    def __init__(self, versions: list[Version], whys: Whys) -> None:
        self._segment = Segment([it.query for it in versions], whys)
        self.versions = [versions[it] for it in self._segment.order]
        self._since_us = np.array([it.since_us for it in self.versions], np.int64)
        self.refresh()

    def refresh(self) -> None:
        """Take over when versions end."""
        self._until_us = np.array([it.until_us for it in self.versions], np.int64)

    def match(self, events: Events, times_us: Rows | None) -> Hits:
        """The hits of versions that are in force, in any order."""
        hits = self._segment.match(events)
        if times_us is None:
            keep = self._until_us[hits.queries] == FOREVER
        else:
            time_us = times_us[hits.events]
            keep = (self._since_us[hits.queries] <= time_us) & (
                time_us < self._until_us[hits.queries]
            )
        return hits if keep.all() else Hits(*(it[keep] for it in hits))


class _Compiled:
    """Parts that are matched one after another: a large one, and one of recent versions."""

    def __init__(self, parts: Sequence[_Part], whys: Whys) -> None:
        self.parts = parts
        self._whys = whys
        versions = [version for part in self.parts for version in part.versions]
        numbers = np.array([it.version for it in versions], np.int64)
        order = np.argsort(numbers)
        self._numbers = numbers[order]
        self._ids = pa.array([versions[it].query_id for it in order.tolist()], pa.string())
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        ends = np.cumsum([0, *(len(it.versions) for it in parts)]).tolist()
        self._ranks = [ranks[start:end] for start, end in pairwise(ends)]

    def __len__(self) -> int:
        return len(self._numbers)

    def match(self, events: Events, times_us: Rows | None) -> Matches:
        """The hits, in the order of events and versions."""
        self._whys.trim()
        keys, whys = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part, ranks in zip(self.parts, self._ranks, strict=True):
            if not part.versions:
                continue
            hits = part.match(events, times_us)
            keys.append(hits.events * len(self) + ranks[hits.queries])
            whys.append(hits.whys)
        every = np.concatenate(keys)
        order = np.argsort(every)
        rows, found = np.divmod(every[order], max(len(self), 1))
        columns = [
            self._ids.take(pa.array(found)),
            pa.array(self._numbers[found]),
            self._whys.take(np.concatenate(whys)[order]),
        ]
        return Matches(rows, pa.RecordBatch.from_arrays(columns, schema=MATCHES))


class StoredQueries:
    """The queries of a topic up to `position`, compiled for events of a schema."""

    def __init__(self, schema: pa.Schema, scans_max: int = SCANS_MAX) -> None:
        self._compiler = Compiler(schema)
        self._scans_max = scans_max
        self._versions: dict[str, list[Version]] = {}
        self._recent: list[Version] = []
        self._scans: dict[str, Version] = {}  # the newest versions that are evaluated for all
        self._whys = Whys()
        self._compiled = _Compiled([], self._whys)
        self._is_changed = False
        self.version_count = 0
        self.position = 0

    def advance(self, records: Iterable[QueryRecord], end: int) -> list[Refused]:
        """Apply the records from `position` to `end`, and return those that are refused."""
        refused = []
        for record in records:
            try:
                self._apply(record)
            except QueryError as error:
                refused.append(Refused(_id_text(record), record.offset, error.reason()))
            except ConfigError as error:
                refused.append(Refused(_id_text(record), record.offset, str(error)))
        self.position = max(self.position, end)
        return refused

    def _apply(self, record: QueryRecord) -> None:
        query_id = parse_id(record.key)
        if query_id.startswith("_"):
            return
        since_us = record.timestamp_ms * 1000
        if record.value is not None:
            definition = parse_definition(record.value)
            query = self._compiler.compile(definition.where)
            since_us = max(since_us, definition.since_us or since_us)
        self._is_changed = True
        known = self._versions.get(query_id, [])
        for it in known:
            it.until_us = min(it.until_us, since_us)
        known = [it for it in known if not it.is_over]
        self._scans.pop(query_id, None)
        if record.value is not None:
            added = Version(query_id, record.offset, query, since_us)
            known.append(added)
            self._recent.append(added)
            if added.is_scan:
                self._scans[query_id] = added
            self.version_count += 1
            if self.version_count > VERSIONS_MAX:
                raise TooManyVersions(
                    f"the topic of queries has more than {VERSIONS_MAX} versions: enable "
                    "compaction, or use several topics"
                )
        self._versions[query_id] = known

    def match(self, batch: pa.RecordBatch, times_us: Rows | None) -> Matches:
        """Each event with each query that matches it, in the order of events and versions. With
        `times_us`, the versions count that are in force at the time of the event; one with
        `NO_TIME` matches nothing. Without, the newest count."""
        self.compile()
        return self._compiled.match(Events(batch, self._compiler.columns), times_us)

    def current(self) -> dict[str, Version]:
        """The newest version of each query that is not removed."""
        newest = {name: it[-1] for name, it in self._versions.items() if it}
        return {name: it for name, it in newest.items() if it.until_us == FOREVER}

    def counts(self) -> dict[str, int]:
        """How many queries there are, in how many shapes, and how many no index helps to find."""
        current = self.current().values()
        return {
            "queries": len(current),
            "shapes": len({it.query.shape for it in current}),
            "scans": len(self._scans),
            "suspended": self.suspended_count,
        }

    @property
    def suspended_count(self) -> int:
        return max(len(self._scans) - self._scans_max, 0)

    @property
    def compiled_count(self) -> int:
        """The versions that events were last matched with."""
        return len(self._compiled)

    def compile(self) -> None:
        """Compile new versions: a small part again and again, until it is merged into the large
        one. `match` does it if it is not done."""
        if not self._is_changed:
            return
        self._is_changed = False
        has_moved = self._suspend()
        large = self._compiled.parts[0] if self._compiled.parts else None
        size = 0 if large is None else len(large.versions)
        recent_max = max(RECENT_MIN, size // RECENT_SHARE)
        if large is not None and not has_moved and len(self._recent) <= recent_max:
            large.refresh()
            parts = [large, self._part(self._recent)]
        else:
            parts = [self._part(it for known in self._versions.values() for it in known)]
            self._recent = []
        self._compiled = _Compiled(parts, self._whys)

    def _part(self, versions: Iterable[Version]) -> _Part:
        """The versions that are evaluated, compiled."""
        wanted = [it for it in versions if not it.is_over and not it.is_suspended]
        return _Part(wanted, self._whys)

    def _suspend(self) -> bool:
        """Suspend what is more than `scans_max`; returns whether that has changed for a version
        that is not recent."""
        recent = set(self._recent)
        has_moved = False
        for place, it in enumerate(sorted(self._scans.values(), key=lambda it: it.version)):
            is_suspended = place >= self._scans_max
            has_moved |= is_suspended != it.is_suspended and it not in recent
            it.is_suspended = is_suspended
        return has_moved


def parse_id(key: bytes | None) -> str:
    """The id of a query. Raises `ConfigError`."""
    try:
        query_id = (key or b"").decode()
    except UnicodeDecodeError:
        raise ConfigError("the key is no text in UTF-8; it must be the id of a query") from None
    if not query_id or len(query_id) > ID_CHARACTERS_MAX:
        raise ConfigError(
            f"the key has {len(query_id)} characters; it must be the id of a query, of 1 to "
            f"{ID_CHARACTERS_MAX}"
        )
    return query_id


def parse_definition(value: bytes) -> Definition:
    """The value of a record. Raises `ConfigError`."""
    example = """{"where": "price < 300"}"""
    try:
        found: Any = json.loads(value)
    except ValueError:
        raise ConfigError(f"the value is no JSON; write {example}") from None
    if not isinstance(found, Mapping) or not isinstance(found.get("where"), str):
        raise ConfigError(f'the value is no object with a string "where"; write {example}')
    since = found.get("since")
    return Definition(found["where"], None if since is None else parse_moment(since))


def parse_moment(text: object) -> int:
    """A moment in microseconds; in UTC unless it has a zone. Raises `ConfigError`."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise ConfigError(
            f"since is {text!r}; write a moment such as 2026-01-31T10:00:00Z"
        ) from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _id_text(record: QueryRecord) -> str:
    return (record.key or b"").decode(errors="replace")[:ID_CHARACTERS_MAX]
