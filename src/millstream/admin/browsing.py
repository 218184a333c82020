"""Pages of a topic's records, from all partitions or some, merged by time.

A page starts at the newest records, at the oldest, at an offset, at a time, or shows the topic as
it was at a time. Pages that go back in time have the newest record first, the others the oldest.
Within a partition, records always stay in the order of their offsets, whatever their timestamps.

Reading is lazy: from each partition only a few records are fetched first, and more only from those
whose records are on the page.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from millstream.admin.reading import KEPT_BYTES, Reader, ReadRecord, State
from millstream.client.cluster import Cluster, check
from millstream.client.fetching import EARLIEST, LATEST, READ_UNCOMMITTED
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass

COUNT_DEFAULT = 50
COUNT_MAX = 500
MERGED_MAX = 64  # partitions that are all read for a page of the newest records
METADATA_SECONDS = 10.0  # after which a tail looks for new partitions
MAX_TIMESTAMP = -3  # ListOffsets: the record with the largest timestamp (KIP-734)
FIRST_WITH_MAX_TIMESTAMP = 7
OFFSET_MAX = 2**63 - 1


class Start(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"
    AS_OF = "as-of"
    BEFORE = "before"  # positions: the page of older records
    FROM = "from"  # positions: the page of newer records

    @property
    def goes_back(self) -> bool:
        return self in (Start.NEWEST, Start.AS_OF, Start.BEFORE)


@dataclass(frozen=True)
class Asked:
    """The records that a user wants to see."""

    start: Start = Start.NEWEST
    offset: int = 0
    time_ms: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    partitions: tuple[int, ...] = ()  # all, if empty
    count: int = COUNT_DEFAULT
    is_committed_only: bool = False


class Bounds(NamedTuple):
    start: int
    end: int  # the high watermark


@dataclass(frozen=True)
class Listing:
    """A page of records, and the positions of the pages around it."""

    records: list[ReadRecord]
    bounds: Mapping[int, Bounds]
    older: Mapping[int, int] | None  # None: there are none
    newer: Mapping[int, int] | None
    is_incomplete: bool  # the limits of one page were reached; `older` or `newer` go on
    hidden: int  # records of open and aborted transactions, if only committed ones are wanted


def browse(cluster: Cluster, topic: str, asked: Asked, *, kept_bytes: int = KEPT_BYTES) -> Listing:
    """Raises `ApiError` if the topic or partition does not exist, or the user may not read it."""
    bounds = read_bounds(cluster, topic, asked.partitions)
    positions = start_positions(cluster, topic, asked, bounds)
    reader = Reader(cluster, topic, kept_bytes=kept_bytes)
    merged = _merged(cluster, topic, asked, reader, bounds, positions)
    shown: list[ReadRecord] = []
    reached: dict[int, int] = {}
    hidden = 0
    for record in merged:
        reached[record.partition] = record.offset
        if asked.is_committed_only and record.state is not State.COMMITTED:
            hidden += 1
            continue
        shown.append(record)
        if len(shown) == asked.count:
            break
    is_incomplete = reader.is_spent and len(shown) < asked.count
    if asked.start.goes_back:
        older = {it: reached.get(it, at) for it, at in positions.items()}
        if len(shown) < asked.count and not is_incomplete:
            older = {it: bounds[it].start for it in positions}
        newer = dict(positions)
    else:
        older = dict(positions)
        newer = {it: reached[it] + 1 if it in reached else at for it, at in positions.items()}
    return Listing(
        shown,
        bounds,
        older if any(at > bounds[it].start for it, at in older.items()) else None,
        newer if any(at < bounds[it].end for it, at in newer.items()) else None,
        is_incomplete,
        hidden,
    )


def _merged(
    cluster: Cluster,
    topic: str,
    asked: Asked,
    reader: Reader,
    bounds: Mapping[int, Bounds],
    positions: Mapping[int, int],
) -> Iterator[ReadRecord]:
    read = positions
    if asked.start is Start.NEWEST and len(positions) > MERGED_MAX:
        read = _newest_partitions(cluster, topic, positions, asked.count)
    streams = [_stream(reader, asked.start, bounds[it], it, read[it]) for it in sorted(read)]
    return heapq.merge(*streams, key=lambda it: it.timestamp_ms, reverse=asked.start.goes_back)


def records(cluster: Cluster, topic: str, asked: Asked, reader: Reader) -> Iterator[ReadRecord]:
    """All records that are asked for, one after the other, as far as the reader may read."""
    bounds = read_bounds(cluster, topic, asked.partitions)
    positions = start_positions(cluster, topic, asked, bounds)
    merged = _merged(cluster, topic, asked, reader, bounds, positions)
    wanted = (it for it in merged if not asked.is_committed_only or it.state is State.COMMITTED)
    return islice(wanted, asked.count)


@dataclass(frozen=True)
class Followed:
    """Records that are new since some positions, the oldest first."""

    records: list[ReadRecord]
    positions: Mapping[int, int]  # to continue from
    skipped: int  # offsets of older records, if more came than were wanted


def follow(
    cluster: Cluster,
    topic: str,
    positions: Mapping[int, int] | None,
    *,
    partitions: tuple[int, ...] = (),
    count: int,
) -> Followed:
    """The newest records after `positions`; without these, none, and the ends of the partitions.

    A partition that is new is read from its start. One that became shorter, as that of a recreated
    topic, continues at its end.
    """
    known = cluster.retrying(lambda: cluster.topic(topic, seconds_old_max=METADATA_SECONDS))
    wanted = partitions or tuple(range(len(known.partitions)))
    found = list_offsets(cluster, topic, wanted, LATEST)
    ends = {it: found[it].offset for it in wanted}
    if positions is None:
        return Followed([], ends, 0)
    grown = {it: positions.get(it, 0) for it in wanted if positions.get(it, 0) < ends[it]}
    reader = Reader(cluster, topic)
    streams = [reader.backward(it, first, ends[it]) for it, first in grown.items()]
    merged = heapq.merge(*streams, key=lambda it: it.timestamp_ms, reverse=True)
    records = list(islice(merged, count))
    skipped = 0
    if len(records) == count:
        skipped = max(0, sum(ends[it] - first for it, first in grown.items()) - count)
    return Followed(records[::-1], ends, skipped)


def _stream(
    reader: Reader, start: Start, bounds: Bounds, partition: int, position: int
) -> Iterator[ReadRecord]:
    if start.goes_back:
        return reader.backward(partition, bounds.start, position)
    return reader.forward(partition, position, bounds.end)


def start_positions(
    cluster: Cluster, topic: str, asked: Asked, bounds: Mapping[int, Bounds]
) -> dict[int, int]:
    """Where the page starts in each partition: before that offset if it goes back, else at it."""
    match asked.start:
        case Start.NEWEST:
            wanted = {it: bound.end for it, bound in bounds.items()}
        case Start.OLDEST:
            wanted = {it: bound.start for it, bound in bounds.items()}
        case Start.OFFSET:
            wanted = dict.fromkeys(bounds, asked.offset)
        case Start.TIME | Start.AS_OF:
            at = list_offsets(cluster, topic, bounds, asked.time_ms)
            wanted = {
                it: at[it].offset if at[it].offset >= 0 else bound.end
                for it, bound in bounds.items()
            }
        case _:
            default = OFFSET_MAX if asked.start.goes_back else 0
            wanted = {it: asked.positions.get(it, default) for it in bounds}
    return {it: min(max(at, bounds[it].start), bounds[it].end) for it, at in wanted.items()}


def _newest_partitions(
    cluster: Cluster, topic: str, positions: Mapping[int, int], count: int
) -> dict[int, int]:
    """The partitions that can have records on a page of the newest ones."""
    try:
        newest = list_offsets(cluster, topic, positions, MAX_TIMESTAMP)
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return dict(positions)
    chosen = heapq.nlargest(count, positions, key=lambda it: newest[it].timestamp_ms)
    return {it: positions[it] for it in chosen}


def read_bounds(cluster: Cluster, topic: str, partitions: Iterable[int] = ()) -> dict[int, Bounds]:
    """Where the partitions (none named: all) begin and end."""
    known = cluster.retrying(lambda: cluster.topic(topic, seconds_old_max=1.0)).partitions
    wanted = sorted(set(partitions)) or range(len(known))
    for partition in wanted:
        if not 0 <= partition < len(known):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has no partition {partition}, only 0 to {len(known) - 1}",
            )
    starts = list_offsets(cluster, topic, wanted, EARLIEST)
    ends = list_offsets(cluster, topic, wanted, LATEST)
    return {it: Bounds(starts[it].offset, ends[it].offset) for it in wanted}


class Found(NamedTuple):
    offset: int
    timestamp_ms: int


def list_offsets(
    cluster: Cluster, topic: str, partitions: Iterable[int], timestamp_ms: int
) -> dict[int, Found]:
    """The offset of a time (or EARLIEST, LATEST, MAX_TIMESTAMP) in each partition, -1 for none."""
    wanted = list(partitions)
    return cluster.retrying(lambda: _ask_leaders(cluster, topic, wanted, timestamp_ms))


def _ask_leaders(
    cluster: Cluster, topic: str, partitions: list[int], timestamp_ms: int
) -> dict[int, Found]:
    by_leader: dict[int, list[int]] = {}
    for partition in partitions:
        by_leader.setdefault(cluster.leader(topic, partition), []).append(partition)
    found: dict[int, Found] = {}
    for leader, them in by_leader.items():
        asked = [
            {"partition_index": it, "current_leader_epoch": -1, "timestamp": timestamp_ms}
            for it in them
        ]
        fields = {
            "replica_id": -1,
            "isolation_level": READ_UNCOMMITTED,
            "topics": [{"name": topic, "partitions": asked}],
        }
        answer = cluster.connection(leader).call("list_offsets", fields)
        for it in answer.topics[0].partitions:
            where = f"offsets of {topic}-{it.partition_index}"
            check(it.error_code, where, "list_offsets")
            found[int(it.partition_index)] = Found(int(it.offset), int(it.timestamp))
    return found
