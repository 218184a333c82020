"""Finds the records that are to go: of a key or a predicate, in a topic and its dead letters.

All records count, also those of open and of aborted transactions: their bytes are in the log. A
search covers what was in the log when it began; records that come later need another excision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from millstream.admin.cluster_state import cluster_state
from millstream.admin.offsets import end_offsets, start_offsets
from millstream.admin.settings import Resource, settings_of
from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches, log_end_offset
from millstream.config.excised import OffsetRanges
from millstream.connect.dead_letters import HEADER_PREFIX
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.excision.documents import KEY, PlacePlan, Selector, TopicPlan
from millstream.models import dataclass
from millstream.query.ranges import ScanRange
from millstream.query.search import Done, Hit, Progress, Search, SearchRequest
from millstream.records.batch import HEADER_SIZE_BYTES, iterate_headers, verify_crc
from millstream.records.compression import decompress
from millstream.records.record import Record, decode_records

HITS_MAX = 1_000_000
EMPTY_WAIT_MS = 500
EMPTY_ANSWERS_MAX = 10  # a leader may not know yet how far its log is replicated

TOPIC, DEAD_LETTERS = "topic", "dead letters"
OUTPUT, SNAPSHOTS = "output of a pipeline", "snapshots of events"

OnProgress = Callable[[int, int], None]  # records so far, and in all


class NothingFound(MillstreamError):
    """No record is selected: a selector with a mistake must not look like success."""


@dataclass(frozen=True)
class Access:
    """How a child process reaches the cluster too."""

    bootstrap_servers: str
    security: Mapping[str, str] | None = None


def find_topic(
    cluster: Cluster,
    topic: str,
    selector: Selector,
    *,
    access: Access,
    on_progress: OnProgress = lambda done, total: None,
) -> TopicPlan:
    """The selected records of a topic. Raises `ApiError`, and `SearchFailed` for bad SQL."""
    extent = _extent(cluster, topic)
    if selector.kind == KEY:
        found = _scan(
            cluster, topic, extent, lambda it: it.key == selector.text, on_progress, selector.text
        )
    else:
        found = _search(access, topic, extent, selector.text.decode(), on_progress)
    return _plan(cluster, topic, TOPIC, extent, found)


def find_letters(
    cluster: Cluster,
    topics: Sequence[str],
    plan: TopicPlan,
    *,
    selector: Selector | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> list[TopicPlan]:
    """The dead letters of the planned records, by their origin, in these topics; and, of a key,
    those of records that the topic no longer has."""
    origins = {
        (plan.topic, place.partition, offset) for place in plan.places for offset in place.ranges
    }
    key = selector.text if selector is not None and selector.kind == KEY else None

    def is_copy(record: Record) -> bool:
        origin = _origin(record)
        if origin is None or origin[0] != plan.topic:
            return False
        return origin in origins or (key is not None and key in _keys(record))

    found = []
    for topic in topics:
        extent = _extent(cluster, topic)
        letters = _plan(
            cluster,
            topic,
            DEAD_LETTERS,
            extent,
            _scan(cluster, topic, extent, is_copy, on_progress),
        )
        if letters.records:
            found.append(letters)
    return found


def _origin(record: Record) -> tuple[str, int, int] | None:
    """Where the record of a dead letter came from."""
    headers = {name: value or b"" for name, value in record.headers}
    try:
        return (
            headers[f"{HEADER_PREFIX}topic"].decode(),
            int(headers[f"{HEADER_PREFIX}partition"]),
            int(headers[f"{HEADER_PREFIX}offset"]),
        )
    except (KeyError, ValueError):
        return None


def _keys(record: Record) -> tuple[bytes | None, ...]:
    """Of the record that a dead letter is a copy of: letters of pipelines and of sinks have it in a
    header, those of share groups as their own."""
    return record.key, *(value for name, value in record.headers if name == f"{HEADER_PREFIX}key")


Extent = dict[int, tuple[int, int]]  # partition: start and end


def _extent(cluster: Cluster, topic: str) -> Extent:
    partitions = cluster.retrying(lambda: cluster.topic(topic)).partitions
    places = [(topic, index) for index in range(len(partitions))]
    starts, ends = start_offsets(cluster, places), end_offsets(cluster, places)
    return {index: (starts[topic, index], ends[topic, index]) for _, index in places}


def _plan(
    cluster: Cluster, topic: str, role: str, extent: Extent, found: Mapping[int, list[int]]
) -> TopicPlan:
    topic_id = str(cluster.retrying(lambda: cluster.topic(topic)).id)
    partitions = cluster_state(cluster).topics[topic].partitions
    epochs = {it.index: it.leader_epoch for it in partitions}
    return TopicPlan(
        topic,
        topic_id,
        role,
        tuple(
            PlacePlan(
                partition,
                str(OffsetRanges.of(found[partition])),
                len(found[partition]),
                *extent[partition],
                epochs[partition],
            )
            for partition in sorted(found)
        ),
    )


def _scan(
    cluster: Cluster,
    topic: str,
    extent: Extent,
    is_selected: Callable[[Record], bool],
    on_progress: OnProgress,
    needle: bytes = b"",
) -> dict[int, list[int]]:
    """`needle`: bytes that all selected records have."""
    total = sum(end - start for start, end in extent.values())
    passed = 0
    found: dict[int, list[int]] = {}
    for partition, (start, end) in extent.items():
        found[partition] = []
        for record, position in read_all(cluster, topic, partition, start, end, needle):
            if record is not None and is_selected(record):
                found[partition].append(record.offset)
            if position is not None:
                on_progress(passed + position - start, total)
        passed += end - start
    return found


def read_all(
    cluster: Cluster, topic: str, partition: int, start: int, end: int, needle: bytes = b""
) -> Iterator[tuple[Record | None, int | None]]:
    """Every record between two offsets, also of transactions that were aborted; and, after each
    answer, the offset up to which that was. Batches without `needle` are left out."""
    position, empty_answers = start, 0
    while position < end:
        try:
            wait_ms = EMPTY_WAIT_MS if empty_answers else 0
            fetched = fetch_batches(cluster, topic, partition, position, wait_ms=wait_ms)
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            oldest = start_offsets(cluster, [(topic, partition)])[topic, partition]
            if oldest <= position:
                raise
            position = oldest  # retention has deleted some meanwhile
            continue
        content = memoryview(fetched.records)
        before = position
        for at, header in iterate_headers(content):
            if not header.is_control and header.record_count:
                verify_crc(content, at, header)
                section = content[at + HEADER_SIZE_BYTES : at + header.size_bytes]
                opened = bytes(decompress(section, header.compression))
                if needle in opened:
                    for record in decode_records(header, opened):
                        if position <= record.offset < end:
                            yield record, None
            position = max(position, header.next_offset)
        empty_answers = empty_answers + 1 if position == before else 0
        if empty_answers == EMPTY_ANSWERS_MAX:
            _refuse_silence(cluster, topic, partition, position, end)
            position = end
        yield None, min(position, end)


def _refuse_silence(cluster: Cluster, topic: str, partition: int, position: int, end: int) -> None:
    """Raise for a leader that does not give the records that it has: what is not read would count
    as not there. Only compaction leaves nothing at all up to the end of a log."""
    settings = {it.name: it.value for it in settings_of(cluster, Resource.TOPIC, topic)}
    is_compacted = "compact" in (settings.get("cleanup.policy") or "")
    if not is_compacted or log_end_offset(cluster, topic, partition) < end:
        raise MillstreamError(
            f"{topic}-{partition} gives nothing from offset {position} on, although it had records "
            f"up to {end - 1}: not all of it was searched, so nothing was done. Try again"
        )


def _search(
    access: Access, topic: str, extent: Extent, where: str, on_progress: OnProgress
) -> dict[int, list[int]]:
    ranges = tuple(ScanRange(it, start, end) for it, (start, end) in extent.items())
    request = SearchRequest(topic, ranges, where=where, limit=HITS_MAX, committed=False)
    found: dict[int, list[int]] = {partition: [] for partition in extent}
    with Search(access.bootstrap_servers, access.security, request) as search:
        for event in search:
            match event:
                case Hit(partition, offset):
                    found[partition].append(offset)
                case Progress():
                    on_progress(event.scanned_records, event.total_records)
                case Done(reason) if reason != "end":
                    raise MillstreamError(
                        f"more than {HITS_MAX} records match: narrow the predicate down, for "
                        "example by _timestamp, and excise in parts"
                    )
    return found
