"""What patterns and standing queries find at this moment: the newest records of an output.

A match is a record of a topic that the pipeline writes. One of a standing query has the id of the
query in `_query`; the queries themselves are records of their own topic, by id.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from millstream.admin.pipeline_board import Shown
from millstream.admin.pipeline_records import shortened
from millstream.admin.pipelines import TopicFollower
from millstream.admin.reading import Reader, ReadRecord, State
from millstream.client.cluster import Cluster
from millstream.client.fetching import log_end_offset, log_start_offset
from millstream.errors import ApiError

LOOKED_AT = 200  # the newest records of each partition
SHOWN = 12
QUERIES_MAX = 100
VALUE_MAX = 300


@dataclass(frozen=True)
class Match:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    query: str
    key: str
    value: str


@dataclass(frozen=True)
class StandingQuery:
    id: str
    where: str
    matches: int  # among the newest records


@dataclass(frozen=True)
class Matches:
    patterns: tuple[str, ...]
    queries: tuple[StandingQuery, ...]
    query_count: int
    newest: tuple[Match, ...]
    looked_at: int
    topics: tuple[str, ...]
    problem: str = ""


def matches_of(cluster: Cluster, shown: Shown) -> Matches | None:
    """None for a pipeline without patterns and queries."""
    about = shown.about
    if not about.patterns and not about.queries:
        return None
    topics = tuple(
        it.title.removeprefix("topic ")
        for it in about.nodes
        if it.kind == "sink" and it.title.startswith("topic ")
    )
    try:
        found = [it for topic in topics for it in newest_matches(cluster, topic)]
        counts = Counter(it.query for it in found if it.query)
        queries = [it for topic in about.queries for it in read_queries(cluster, topic, counts)]
    except ApiError as error:  # a topic that is gone, or that the user may not read
        return Matches(about.patterns, (), 0, (), 0, topics, str(error))
    queries.sort(key=lambda it: (-it.matches, it.id))
    newest = nlargest(SHOWN, found, key=lambda it: (it.timestamp_ms, it.offset))
    return Matches(
        about.patterns,
        tuple(queries[:QUERIES_MAX]),
        len(queries),
        tuple(newest),
        len(found),
        topics,
    )


def newest_matches(cluster: Cluster, topic: str) -> list[Match]:
    found: list[Match] = []
    known = cluster.retrying(lambda: cluster.refresh([topic])).get(topic)
    if known is None:
        return found
    reader = Reader(cluster, topic)
    for partition in range(len(known.partitions)):
        end = log_end_offset(cluster, topic, partition)
        start = max(log_start_offset(cluster, topic, partition), end - LOOKED_AT)
        found += [
            match_of(topic, it)
            for it in reader.backward(partition, start, end)
            if it.state is State.COMMITTED
        ]
    return found


def match_of(topic: str, record: ReadRecord) -> Match:
    value = text_of(record.value)
    query = ""
    try:
        fields: Any = json.loads(value)
        if isinstance(fields, dict) and isinstance(fields.get("_query"), str):
            query = fields["_query"]
    except (ValueError, RecursionError):
        pass  # no JSON, or cut: it is shown as it is
    return Match(
        topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        query,
        shortened(text_of(record.key), VALUE_MAX),
        shortened(value, VALUE_MAX),
    )


def text_of(content: bytes | None) -> str:
    return "" if content is None else content.decode(errors="replace")


def read_queries(cluster: Cluster, topic: str, counts: Counter[str]) -> list[StandingQuery]:
    """The queries of a topic that are in force, with how often each has matched."""
    queries: dict[str, str] = {}
    for record in TopicFollower(topic).read(cluster):
        name = text_of(record.key)
        if name.startswith("_"):
            continue
        queries.pop(name, None)
        try:
            where = json.loads(record.value or b"").get("where")
        except (ValueError, AttributeError, RecursionError):
            continue
        if isinstance(where, str):
            queries[name] = where
    return [
        StandingQuery(shortened(name, VALUE_MAX), shortened(where, VALUE_MAX), counts[name])
        for name, where in queries.items()
    ]
