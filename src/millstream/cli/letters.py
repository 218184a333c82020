"""Dead letters on the command line: records whose headers contain their origin.

A dead-letter topic is an ordinary topic, so all of this works against any Kafka cluster whose share
groups write them (KIP-1191). Of a header that is there several times the last one counts: earlier
ones tell of earlier failures of a record that was replayed.

The letters of pipelines, written for records that do not decode, have a key of their own,
`topic/partition/offset`, and the record's key in a header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import ConfigResource

from millstream.admin.moments import parse_moment_ms
from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Partition, is_refused
from millstream.cli.consume import read_to
from millstream.cli.failures import usage_error

ERRORS_PREFIX = "__dlq.errors."
OWN_PREFIX = "__dlq."
REPLAY_COUNT = "__dlq.replay.count"
RECORD_KEY = "__dlq.errors.key"
NAME_PREFIX = "dlq."
ENABLE_SETTING = "errors.deadletterqueue.group.enable"
UNKNOWN = "unknown"


class Origin(NamedTuple):
    """The failed record and its group; two letters with the same origin are one failure."""

    topic: str
    partition: int
    offset: int
    group: str


@dataclass(frozen=True)
class Letter:
    """One record of a dead-letter topic."""

    record: Message

    @cached_property
    def headers(self) -> dict[str, str]:
        pairs = self.record.headers() or []
        return {name: (value or b"").decode("utf-8", "replace") for name, value in pairs}

    def error(self, name: str) -> str | None:
        return self.headers.get(ERRORS_PREFIX + name)

    @property
    def place(self) -> Partition:
        return self.record.topic(), self.record.partition()

    @property
    def written_ms(self) -> int:
        return int(self.record.timestamp()[1])

    @property
    def failed_ms(self) -> int | None:
        """The timestamp of the failed record; not available from Apache Kafka."""
        time_ms = self.error("timestamp") or ""
        return int(time_ms) if time_ms.isdigit() else None

    @cached_property
    def origin(self) -> Origin | None:
        """The origin of the record; None if it is not a dead letter."""
        topic, group = self.error("topic"), self.error("group")
        partition, offset = self.error("partition") or "", self.error("offset") or ""
        if topic is None or not partition.isdigit() or not offset.isdigit():
            return None
        return Origin(topic, int(partition), int(offset), group or "")

    @property
    def source(self) -> str:
        return self.origin.topic if self.origin else UNKNOWN

    @property
    def group(self) -> str:
        return self.error("group") or UNKNOWN

    @property
    def reason(self) -> str:
        """The reason; Apache Kafka provides it only as text."""
        message = (self.error("message") or "").lower()
        known = "rejected" if "rejected" in message else "limit" if "count" in message else UNKNOWN
        return self.error("reason") or known

    @property
    def delivery_count(self) -> int | None:
        count = self.error("delivery.count") or ""
        return int(count) if count.isdigit() else None

    @property
    def replay_count(self) -> int:
        count = self.headers.get(REPLAY_COUNT, "")
        return int(count) if count.isdigit() else 0

    @cached_property
    def key(self) -> bytes | None:
        """The key of the failed record, if the letter contains it."""
        key: bytes | None = self.record.key()
        if self.origin is None or key != "{}/{}/{}".format(*self.origin).encode():
            return key
        keys = [value for name, value in self.record.headers() or [] if name == RECORD_KEY]
        return keys[-1] if keys else None

    @property
    def has_copy(self) -> bool:
        """Whether it contains the record itself, not only headers."""
        foreign = any(not name.startswith(OWN_PREFIX) for name in self.headers)
        return self.key is not None or self.record.value() is not None or foreign


@dataclass(frozen=True)
class Filter:
    """A filter for letters; without conditions, all of them."""

    group: str | None = None
    source: str | None = None  # a topic, or topic:partition
    reason: str | None = None
    since: str | None = None
    until: str | None = None

    def matcher(self) -> Callable[[Letter], bool]:
        """A function that tests a letter. Raises `CommandFailed` for invalid conditions."""
        now = datetime.now().astimezone()
        since_ms = 0 if self.since is None else parse_moment_ms(self.since, now)
        until_ms = 2**63 if self.until is None else parse_moment_ms(self.until, now)
        topic, colon, index = (self.source or "").partition(":")
        if colon and not index.isdigit():
            raise usage_error(f"--source {self.source!r}: write TOPIC or TOPIC:PARTITION")

        def matches(letter: Letter) -> bool:
            return (
                self.group in (None, letter.group)
                and self.reason in (None, letter.reason)
                and topic in ("", letter.source)
                and (not colon or (letter.origin or (0, -1))[1] == int(index))
                and since_ms <= letter.written_ms < until_ms
            )

        return matches


def read_letters(cluster: Cluster, topic: str) -> Iterator[Letter]:
    """All current letters of the topic, in order within each partition."""
    places = [(topic, index) for index in cluster.partitions_of(topic)]
    starts, ends = cluster.start_offsets(places), cluster.end_offsets(places)
    settings = {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = cluster.consumer(**settings)
    try:
        consumer.assign([TopicPartition(t, p, starts[t, p]) for t, p in places])
        unread = {place for place in places if starts[place] < ends[place]}
        for message in read_to(consumer, unread, ends):
            if (
                message is not None
                and message.offset() < ends[message.topic(), message.partition()]
            ):
                yield Letter(message)
    finally:
        consumer.close()


def unique(letters: Iterator[Letter]) -> Iterator[Letter]:
    """The first letter of each failure; a crash can write one twice."""
    seen: set[Origin] = set()
    for letter in letters:
        if letter.origin is not None:
            if letter.origin in seen:
                continue
            seen.add(letter.origin)
        yield letter


def dead_letter_topics(cluster: Cluster, prefix: str = NAME_PREFIX) -> list[str]:
    """Topics that accept dead letters, by their setting or else by their name."""
    names = [name for name in cluster.metadata().topics if not name.startswith("__")]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    if not resources:
        return []
    futures = cluster.admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    settings: dict[str, Any] = {}
    for it, future in futures.items():
        try:
            settings[it.name] = future.result()
        except KafkaException as error:
            if not is_refused(error):
                raise
            settings[it.name] = {}  # only its name tells
    return sorted(
        name
        for name in names
        if name.startswith(prefix)
        or getattr(settings[name].get(ENABLE_SETTING), "value", "") == "true"
    )
