"""What patterns and standing queries find at this moment: the newest records of an output.

A match is a record of a topic that the pipeline writes. One of a standing query has the id of the
query in `_query`; the queries themselves are records of their own topic, by id.

Which topics these are, is what somebody has published who may write the status topic. So reading
has limits: those topics may be any, of any size.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from heapq import nlargest
from math import inf
from typing import Any

from millstream.admin.following import TopicFollower
from millstream.admin.pipeline_board import Shown
from millstream.admin.pipeline_records import About, shortened
from millstream.admin.reading import Reader, ReadRecord, State
from millstream.client.cluster import Cluster
from millstream.client.fetching import log_end_offset, log_start_offset
from millstream.errors import ApiError
from millstream.models import dataclass

LOOKED_AT = 200  # the newest records of each partition
TOPICS_MAX = 10
PARTITIONS_MAX = 50
READ_SECONDS_MAX = 2.0  # of a topic of queries, at once; the rest comes the next time
READ_RECORDS_MAX = 1_000_000  # of a topic of queries
KEPT_MAX = 20_000  # queries of a topic
READERS_MAX = 20  # pipelines and topics that a session looks at
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


class MatchReader:
    """What a session has read: queries are followed, matches are kept for some seconds. Any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, QueryFollower] = OrderedDict()
        self._found: OrderedDict[str, tuple[float, About, Matches]] = OrderedDict()

    def of(self, cluster: Cluster, shown: Shown, *, seconds_old_max: float = 0.0) -> Matches | None:
        """None for a pipeline without patterns and queries."""
        about = shown.about
        if not about.patterns and not about.queries:
            return None
        with self._lock:
            read_at, of, found = self._found.get(about.identity, (-inf, None, None))
            if found is None or of != about or time.monotonic() - read_at >= seconds_old_max:
                found = self._read(cluster, about)
                _keep(self._found, about.identity, (time.monotonic(), about, found))
            return found

    def _read(self, cluster: Cluster, about: About) -> Matches:
        def follower(topic: str) -> QueryFollower:
            kept = self._queries.pop(topic, None) or QueryFollower(topic)
            _keep(self._queries, topic, kept)
            return kept

        return read_matches(cluster, about, follower)


def _keep(kept: OrderedDict[str, Any], name: str, it: Any) -> None:
    """The one that was used last is the last."""
    kept.pop(name, None)
    kept[name] = it
    if len(kept) > READERS_MAX:
        kept.popitem(last=False)


def read_matches(
    cluster: Cluster, about: About, follower: Callable[[str], QueryFollower]
) -> Matches:
    topics = tuple(
        it.title.removeprefix("topic ")
        for it in about.nodes
        if it.kind == "sink" and it.title.startswith("topic ")
    )[:TOPICS_MAX]
    try:
        found = [it for topic in topics for it in newest_matches(cluster, topic)]
        counts = Counter(it.query for it in found if it.query)
        queries = [
            StandingQuery(shortened(name, VALUE_MAX), where, counts[name])
            for topic in about.queries[:TOPICS_MAX]
            for name, where in follower(topic).read(cluster).items()
        ]
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
    for partition in range(min(len(known.partitions), PARTITIONS_MAX)):
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


class QueryFollower:
    """The queries of a topic that are in force: read on, within limits, whenever it is asked."""

    def __init__(self, topic: str) -> None:
        self._follower = TopicFollower(topic)
        self._starts = 0
        self._records = 0
        self._queries: dict[str, str] = {}

    def read(self, cluster: Cluster) -> dict[str, str]:
        """Conditions by the names of their queries. Raises `ApiError` without the right to read."""
        if self._records < READ_RECORDS_MAX:
            for record in self._follower.read(cluster, seconds_max=READ_SECONDS_MAX):
                self._start_over_if_needed()
                self._records += 1
                self._take(text_of(record.key), record.value)
            self._start_over_if_needed()
        return self._queries

    def _start_over_if_needed(self) -> None:
        """The topic is another one than before, or gone."""
        if self._follower.starts != self._starts or not self._follower.exists:
            self._starts = self._follower.starts
            self._records = 0
            self._queries = {}

    def _take(self, name: str, value: bytes | None) -> None:
        if name.startswith("_"):
            return
        self._queries.pop(name, None)
        try:
            where = json.loads(value or b"").get("where")
        except (ValueError, AttributeError, RecursionError):
            return
        if isinstance(where, str) and len(self._queries) < KEPT_MAX:
            self._queries[name] = shortened(where, VALUE_MAX)
