"""Dead letters: records whose headers contain their origin.

A dead-letter topic is an ordinary topic, so all of this works against any Kafka cluster whose share
groups write them (KIP-1191). Of a header that is there several times the last one counts: earlier
ones tell of earlier failures of a record that was replayed.

The letters of pipelines, written for records that do not decode, have a key of their own,
`topic/partition/offset`, and the record's key in a header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from millstream.admin.errors import InvalidArgument, NotFound
from millstream.admin.moments import parse_moment_ms
from millstream.admin.numbers import decimal
from millstream.admin.offsets import (
    end_offsets,
    known_topics,
    partitions_by_leader,
    start_offsets,
)
from millstream.admin.reading import Reader, ReadRecord, State
from millstream.admin.reset import partition_count
from millstream.admin.settings import settings_of_topics
from millstream.client.cluster import Cluster, check
from millstream.errors import ErrorCode
from millstream.models import dataclass
from millstream.partitions import DEAD_LETTER_PREFIX, TopicPartition

ERRORS_PREFIX = "__dlq.errors."
OWN_PREFIX = "__dlq."
REPLAY_COUNT = "__dlq.replay.count"
REPLAY_OF = "__dlq.replay.of"  # the letter that was replayed: topic/partition/offset
RECORD_KEY = "__dlq.errors.key"
ENABLE_SETTING = "errors.deadletterqueue.group.enable"
UNKNOWN = "unknown"
DELETE_TIMEOUT_MS = 30_000


class Origin(NamedTuple):
    """The failed record and its group; two letters with the same origin are one failure."""

    topic: str
    partition: int
    offset: int
    group: str


class Position(NamedTuple):
    """A letter's place in its topic."""

    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Of `PARTITION:OFFSET`; raises `InvalidArgument`."""
        partition, offset = map(decimal, (text.partition(":")[0], text.partition(":")[2]))
        if partition is None or offset is None:
            raise InvalidArgument(f"{text[:80]!r} is not a letter; write PARTITION:OFFSET")
        return cls(partition, offset)

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True)
class Letter:
    """One record of a dead-letter topic."""

    topic: str
    partition: int
    offset: int
    written_ms: int
    raw_key: bytes | None
    value: bytes | None
    raw_headers: tuple[tuple[str, bytes | None], ...] = field(default=())

    @classmethod
    def of_record(cls, topic: str, record: ReadRecord) -> Letter:
        return cls(
            topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.key,
            record.value,
            tuple((it.name, it.value) for it in record.headers),
        )

    @classmethod
    def of_message(cls, message: Any) -> Letter:
        """Of confluent-kafka's message."""
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            int(message.timestamp()[1]),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )

    @cached_property
    def headers(self) -> dict[str, str]:
        return {name: (value or b"").decode("utf-8", "replace") for name, value in self.raw_headers}

    def error(self, name: str) -> str | None:
        return self.headers.get(ERRORS_PREFIX + name)

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def position(self) -> Position:
        return Position(self.partition, self.offset)

    @property
    def failed_ms(self) -> int | None:
        """The timestamp of the failed record; not available from Apache Kafka."""
        return decimal(self.error("timestamp"))

    @cached_property
    def origin(self) -> Origin | None:
        """The origin of the record; None if it is not a dead letter."""
        topic, group = self.error("topic"), self.error("group")
        partition, offset = decimal(self.error("partition")), decimal(self.error("offset"))
        if topic is None or partition is None or offset is None:
            return None
        return Origin(topic, partition, offset, group or "")

    @property
    def source(self) -> str:
        return self.origin.topic if self.origin else UNKNOWN

    @property
    def group(self) -> str:
        return self.error("group") or UNKNOWN

    @property
    def message(self) -> str:
        return self.error("message") or ""

    @property
    def reason(self) -> str:
        """The reason; Apache Kafka provides it only as text."""
        message = self.message.lower()
        known = "rejected" if "rejected" in message else "limit" if "count" in message else UNKNOWN
        return self.error("reason") or known

    @property
    def delivery_count(self) -> int | None:
        return decimal(self.error("delivery.count"))

    @property
    def replay_count(self) -> int:
        return decimal(self.headers.get(REPLAY_COUNT)) or 0

    @property
    def replay_of(self) -> Position | None:
        """The letter of this topic by whose replay the record came here again."""
        topic, _, position = self.headers.get(REPLAY_OF, "").partition("/")
        if topic != self.topic:
            return None
        try:
            return Position.parse(position)
        except InvalidArgument:
            return None

    @cached_property
    def key(self) -> bytes | None:
        """The key of the failed record, if the letter contains it."""
        if self.origin is None or self.raw_key != "{}/{}/{}".format(*self.origin).encode():
            return self.raw_key
        keys = [value for name, value in self.raw_headers if name == RECORD_KEY]
        return keys[-1] if keys else None

    @property
    def has_copy(self) -> bool:
        """Whether it contains the record itself, not only headers."""
        foreign = any(not name.startswith(OWN_PREFIX) for name in self.headers)
        return self.key is not None or self.value is not None or foreign


@dataclass(frozen=True)
class Filter:
    """A filter for letters; without conditions, all of them."""

    group: str | None = None
    source: str | None = None  # a topic, or topic:partition
    reason: str | None = None
    since: str | None = None
    until: str | None = None

    def matcher(self) -> Callable[[Letter], bool]:
        """A function that tests a letter. Raises `InvalidArgument` for invalid conditions."""
        now = datetime.now().astimezone()
        since_ms = 0 if self.since is None else parse_moment_ms(self.since, now)
        until_ms = 2**63 if self.until is None else parse_moment_ms(self.until, now)
        topic, colon, text = (self.source or "").partition(":")
        index = decimal(text)
        if colon and index is None:
            raise InvalidArgument(f"--source {self.source!r}: write TOPIC or TOPIC:PARTITION")

        def matches(letter: Letter) -> bool:
            return (
                self.group in (None, letter.group)
                and self.reason in (None, letter.reason)
                and topic in ("", letter.source)
                and (not colon or (letter.origin or (0, -1))[1] == index)
                and since_ms <= letter.written_ms < until_ms
            )

        return matches

    def options(self) -> list[str]:
        """As on the command line of `millstream dlq`."""
        named = {
            "--group": self.group,
            "--source": self.source,
            "--reason": self.reason,
            "--since": self.since,
            "--until": self.until,
        }
        return [part for name, it in named.items() if it is not None for part in (name, it)]


# Reading


def unlimited_reader(cluster: Cluster, topic: str) -> Reader:
    """Reads whole records, however many."""
    limits = {"bytes_max": 2**63, "seconds_max": math.inf}
    return Reader(cluster, topic, kept_bytes=None, **limits)  # type: ignore[arg-type]


def read_letters(cluster: Cluster, topic: str, reader: Reader | None = None) -> Iterator[Letter]:
    """All current letters of the topic, in order within each partition; with a reader of limited
    size, the first ones of each partition."""
    places = [(topic, index) for index in range(partition_count(cluster, topic))]
    starts, ends = start_offsets(cluster, places), end_offsets(cluster, places)
    reader = reader or unlimited_reader(cluster, topic)
    for place in places:
        for record in reader.forward(place[1], starts[place], ends[place]):
            if record.state is State.COMMITTED:
                yield Letter.of_record(topic, record)


def newest_letters(cluster: Cluster, topic: str, reader: Reader, count: int) -> list[Letter]:
    """At most so many of the newest letters of each partition, the newest first."""
    places = [(topic, index) for index in range(partition_count(cluster, topic))]
    starts, ends = start_offsets(cluster, places), end_offsets(cluster, places)
    found: list[Letter] = []
    for place in places:
        here = 0
        for record in reader.backward(place[1], starts[place], ends[place]):
            if record.state is State.COMMITTED:
                found.append(Letter.of_record(topic, record))
                here += 1
            if here >= count:
                break
    return sorted(found, key=lambda it: (-it.written_ms, it.partition, -it.offset))


def read_letter(cluster: Cluster, topic: str, position: Position) -> Letter:
    """One letter; raises `NotFound` if there is none."""
    count = partition_count(cluster, topic)
    gone = NotFound(f"{topic} has no letter at {position}; it may have been purged")
    if position.partition >= count:
        raise gone
    place = (topic, position.partition)
    starts, ends = start_offsets(cluster, [place]), end_offsets(cluster, [place])
    if not starts[place] <= position.offset < ends[place]:
        raise gone
    record = unlimited_reader(cluster, topic).one(position.partition, position.offset)
    if record is None:
        raise gone
    return Letter.of_record(topic, record)


def unique(letters: Iterable[Letter]) -> Iterator[Letter]:
    """The first letter of each failure; a crash can write one twice."""
    seen: set[Origin] = set()
    for letter in letters:
        if letter.origin is not None:
            if letter.origin in seen:
                continue
            seen.add(letter.origin)
        yield letter


def dead_letter_topics(cluster: Cluster, prefix: str = DEAD_LETTER_PREFIX) -> list[str]:
    """Topics that accept dead letters, by their setting or else by their name."""
    visible = cluster.retrying(lambda: cluster.refresh(None))
    names = [name for name in visible if not name.startswith("__")]
    settings = settings_of_topics(cluster, names, [ENABLE_SETTING])
    return sorted(
        name
        for name in names
        if name.startswith(prefix) or settings.get(name, {}).get(ENABLE_SETTING) == "true"
    )


# Purging


def purge(cluster: Cluster, topic: str, ends: dict[TopicPartition, int] | None = None) -> int:
    """Delete the letters before these offsets, or all that are there now; returns how many."""
    places = [(topic, index) for index in range(partition_count(cluster, topic))]
    starts = start_offsets(cluster, places)
    ends = end_offsets(cluster, places) if ends is None else ends
    doomed = {it: ends[it] for it in places if ends.get(it, 0) > starts[it]}
    if doomed:
        cluster.retrying(lambda: _delete_before(cluster, doomed))
    return sum(doomed[it] - starts[it] for it in doomed)


def _delete_before(cluster: Cluster, offsets: dict[TopicPartition, int]) -> None:
    by_leader, missing = partitions_by_leader(cluster, offsets)
    for (topic, index), code in missing.items():
        check(code, f"{topic}[{index}]", "delete_records")
    for leader, places in by_leader.items():
        topics: dict[str, list[dict[str, int]]] = {}
        for topic, index in places:
            asked = {"partition_index": index, "offset": offsets[topic, index]}
            topics.setdefault(topic, []).append(asked)
        fields = {
            "topics": [{"name": name, "partitions": it} for name, it in topics.items()],
            "timeout": DELETE_TIMEOUT_MS,
        }
        answer = cluster.ask_broker(leader, "delete_records", fields)
        for topic in answer.topics:
            for it in topic.partitions:
                if it.error_code is not ErrorCode.NONE:
                    what = f"{topic.name}[{it.partition_index}] cannot be purged"
                    check(it.error_code, what, "delete_records")


def letter_counts(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """How many records the topics have now, by their offsets, in a few requests."""
    known = known_topics(cluster, topics)
    places = [(name, it.number) for name, info in known.items() for it in info.partitions]
    starts, ends = start_offsets(cluster, places), end_offsets(cluster, places)
    counts = dict.fromkeys(known, 0)
    for place in places:
        counts[place[0]] += ends[place] - starts[place]
    return counts
