"""Offsets of many partitions, and what a batch reads of them. Pure: no broker, no Spark.

Offsets travel as the JSON that Spark's Kafka connector writes, {"topic": {"0": 5, "1": 7}}, so that
its checkpoints can be taken over. A range of offsets becomes one task, or several where
`minPartitions` asks for more tasks than there are partitions.

The offsets of a source that has been idle also have the time, in milliseconds, up to which it sent
nothing: {"topic": {"0": 5}, "#idle": {"until_ms": 1767225600000}}. Names of topics have no "#".

The offsets of a pipeline also have the ids of its topics, because a recreated topic starts over:
{"topic": {"0": 5}, "#ids": {"topic": "<uuid>"}}.

The offsets of a source whose events are matched with standing queries also have the end and the id
of the queries' topic when the batch was planned:
{"topic": {"0": 5}, "#queries": {"end": 12, "id": "<uuid>"}}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from millstream.errors import ConfigError
from millstream.partitions import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]

LATEST = -1  # Kafka's and Spark's numbers for "the end" and "the beginning"
EARLIEST = -2
_MARK = "#"  # of entries that are no topics
_IDLE = "#idle"
_UNTIL = "until_ms"
_IDS = "#ids"
_QUERIES = "#queries"
_END = "end"
_ID = "id"
# Where writers keep what is decided (writing/decisions.py); readers of a pattern pass over it.
DECISIONS_TOPIC = "__millstream_decisions"


class OffsetRange(NamedTuple):
    """Records of one partition, from `start` up to, not with, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


class QueriesEnd(NamedTuple):
    """The end of the topic of standing queries, and the topic's id if it is known."""

    end: int
    topic_id: UUID | None = None


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark keeps them: topics by name, partitions in order."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def from_json(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        if not topic.startswith(_MARK)
        for partition, offset in partitions.items()
    }


def idle_until_ms(nested: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The time up to which a source was idle; None if it has not been."""
    return nested[_IDLE][_UNTIL] if _IDLE in nested else None


def with_idle_until(
    nested: Mapping[str, Mapping[str, Any]], time_ms: int | None
) -> dict[str, dict[str, Any]]:
    """The offsets with the time up to which the source was idle."""
    offsets = {topic: dict(partitions) for topic, partitions in nested.items()}
    return offsets if time_ms is None else {**offsets, _IDLE: {_UNTIL: time_ms}}


def queries_end(nested: Mapping[str, Mapping[str, Any]]) -> QueriesEnd | None:
    """The end of the queries' topic in a stream's offsets; None if there is none."""
    if _QUERIES not in nested:
        return None
    text = nested[_QUERIES].get(_ID)
    return QueriesEnd(nested[_QUERIES][_END], None if text is None else UUID(text))


def with_queries_end(
    nested: Mapping[str, Mapping[str, Any]], queries: QueriesEnd | None
) -> dict[str, dict[str, Any]]:
    """The offsets with the end of the queries' topic."""
    offsets = {topic: dict(partitions) for topic, partitions in nested.items()}
    if queries is None:
        return offsets
    known = {} if queries.topic_id is None else {_ID: str(queries.topic_id)}
    return {**offsets, _QUERIES: {_END: queries.end, **known}}


def with_topic_ids(
    nested: Mapping[str, Mapping[str, Any]], ids: Mapping[str, UUID | None]
) -> dict[str, Any]:
    """The offsets of a stream, with the ids of their topics, as far as these are known."""
    known = {name: str(ids[name]) for name in sorted(nested) if ids.get(name) is not None}
    return {**nested, _IDS: known} if known else dict(nested)


def topic_ids_in(nested: Mapping[str, Mapping[str, Any]]) -> dict[str, UUID]:
    """The ids of topics in a stream's offsets; none in those of Spark's connector."""
    return {name: UUID(text) for name, text in nested.get(_IDS, {}).items()}


def offsets_if_ours(nested: Any) -> Offsets:
    """What a query has as the offsets of one of its sources; none where it is of another kind,
    whose offsets have another shape: Spark's `rate` counts seconds."""
    try:
        return from_json(nested)
    except (ValueError, AttributeError, TypeError):
        return {}


def merge_lowest(several: Iterable[Offsets]) -> Offsets:
    """Of a partition that is read by two sources the lower offset counts: what both have done."""
    merged: Offsets = {}
    for offsets in several:
        for key, offset in offsets.items():
            merged[key] = min(offset, merged.get(key, offset))
    return merged


def parse_offsets(option: str, text: str) -> Offsets:
    """An option's JSON, {"topic": {"0": 23, "1": -2}}; raises `ConfigError` that names it."""
    try:
        nested: Any = json.loads(text)
        return from_json(nested)
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(
            f'{option} is {text!r}; write earliest, latest or JSON like {{"topic": {{"0": 23}}}}'
        ) from None


def limit_total(start: Offsets, latest: Offsets, records_max: int) -> Offsets:
    """How far a batch of at most `records_max` records reads: each partition its share.

    A partition with anything to read gets at least one record, so that none starves.
    """
    sizes = {key: max(latest[key] - start.get(key, 0), 0) for key in latest}
    total = sum(sizes.values())
    if total <= records_max:
        return dict(latest)
    limited = {}
    for key, size in sizes.items():
        share = records_max * size // total
        limited[key] = start.get(key, 0) + min(size, max(share, 1 if size else 0))
    return limited


def count_between(start: Offsets, end: Offsets) -> int:
    return sum(max(offset - start.get(key, 0), 0) for key, offset in end.items())


def plan_tasks(
    ranges: Iterable[OffsetRange], tasks_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """The ranges that are not empty; large ones in pieces of at most `records_max`, and split
    further until there are `tasks_min` of them."""
    wanted = [it for it in ranges if it.size > 0]
    if records_max is not None:
        wanted = [piece for it in wanted for piece in split(it, -(-it.size // records_max))]
    if tasks_min is None or len(wanted) >= tasks_min:
        return wanted
    total = sum(it.size for it in wanted)
    planned = []
    for it in wanted:
        planned += split(it, max(round(tasks_min * it.size / total), 1))
    return planned


def split(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    """The range in pieces of nearly the same size."""
    pieces = max(min(pieces, whole.size), 1)
    bounds = [whole.start + whole.size * number // pieces for number in range(pieces + 1)]
    return [
        whole._replace(start=bounds[number], end=bounds[number + 1]) for number in range(pieces)
    ]
