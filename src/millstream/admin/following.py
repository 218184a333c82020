"""Following a topic to which processes publish their status, and writing such records.

Pipelines and bridges publish what they are and how they are doing to a topic of their cluster
(docs/decisions/0042-status-of-pipelines.md). Each kind has its records and its board, which is
moved forward by them.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches, log_end_offset, log_start_offset
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch, encode_batch

PARTITION = 0


class Taking(Protocol):
    """A board."""

    def take(
        self, key: bytes | None, value: bytes | None, time_ms: int, came_ms: int | None = None
    ) -> None:
        """Apply a record of this time, which may be known to have come at another one."""


AnyBoard = TypeVar("AnyBoard", bound=Taking)


class TopicRecord(NamedTuple):
    """A record of one of the topics."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class TopicFollower:
    """Reads one of the topics, from its beginning or its end on."""

    def __init__(self, topic: str, *, from_end: bool = False) -> None:
        self._topic = topic
        self._from_end = from_end
        self._id: uuid.UUID | None = None
        self._position: int | None = None
        self.starts = 0  # how often it has begun at the beginning
        self.exists = False

    def read(self, cluster: Cluster, *, seconds_max: float = inf) -> Iterator[TopicRecord]:
        """What has come since; begins again if the topic is another one than before. What takes
        longer than `seconds_max` is left for the next time. Raises `ApiError` without the right to
        read it."""
        found = cluster.retrying(lambda: cluster.refresh([self._topic])).get(self._topic)
        self.exists = found is not None
        if found is None:
            self._position = None
            return
        end = log_end_offset(cluster, self._topic, PARTITION)
        if self._position is None or found.id != self._id or self._position > end:
            is_first = self._id is None
            self._id = found.id
            start = log_start_offset(cluster, self._topic, PARTITION)
            self._position = end if self._from_end and is_first else start
            self.starts += 1
        yield from self._read_to(cluster, end, time.monotonic() + seconds_max)

    def _read_to(self, cluster: Cluster, end: int, deadline: float) -> Iterator[TopicRecord]:
        assert self._position is not None
        while self._position < end and time.monotonic() < deadline:
            try:
                fetched = fetch_batches(cluster, self._topic, PARTITION, self._position)
            except ApiError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                self._position = log_start_offset(cluster, self._topic, PARTITION)
                continue
            before = self._position
            for at, header in iterate_headers(fetched.records):
                if header.next_offset <= self._position:
                    continue
                self._position = header.next_offset
                if not header.is_control:
                    for it in decode_batch(fetched.records, at):
                        yield TopicRecord(it.timestamp, it.key, it.value)
            if self._position == before:
                return  # compaction has left nothing of the rest, or it cannot be read yet


class BoardFollower(Generic[AnyBoard]):
    """The board of a cluster, kept up to date when it is asked. Any thread."""

    def __init__(
        self,
        topic: str,
        new_board: Callable[[], AnyBoard],
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._follower = TopicFollower(topic)
        self._starts = 0
        self._is_live = False
        self._read_at = 0.0
        self._new_board = new_board
        self.board = new_board()

    @property
    def exists(self) -> bool:
        """Whether anything was ever published."""
        return self._follower.exists

    def update(self, cluster: Cluster, *, seconds_old_max: float = 0.0) -> AnyBoard:
        """Read on, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._read_at < seconds_old_max:
                return self.board
            for record in self._follower.read(cluster):
                if self._follower.starts != self._starts:
                    self._start_over()
                now_ms = self._clock_ms()
                time_ms = min(record.timestamp_ms, now_ms)
                came_ms = now_ms if self._is_live else time_ms
                self.board.take(record.key, record.value, time_ms, came_ms)
            if self._follower.starts != self._starts or not self._follower.exists:
                self._start_over()
            self._is_live = True
            self._read_at = time.monotonic()
            return self.board

    def _start_over(self) -> None:
        self._starts = self._follower.starts
        self._is_live = False
        self.board = self._new_board()


def create_missing(cluster: Cluster, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Create those of these topics that are missing, with their settings; raises `ApiError`
    without the right to do so."""
    known = cluster.retrying(lambda: cluster.refresh(list(topics)))
    wanted = [NewTopic(name, 1, dict(settings)) for name, settings in topics.items()]
    create_topics(cluster, [it for it in wanted if it.name not in known])


def write_records(cluster: Cluster, topic: str, records: list[tuple[str, bytes | None]]) -> None:
    """Keys and values, in one batch; raises `ApiError` or `OSError`."""
    now_ms = time.time_ns() // 1_000_000
    batch = encode_batch(
        [Record(number, now_ms, key.encode(), it) for number, (key, it) in enumerate(records)]
    )
    producer = RawProducer(cluster)
    producer.send(topic, PARTITION, batch, len(records))
    producer.flush()
