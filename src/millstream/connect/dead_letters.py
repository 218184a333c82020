"""Dead letters: records that cannot be applied or decoded, copied to a topic of their own.

A letter has the record's value and headers, and these headers, all text, as a share group's letters
have them (KIP-1191):

    __dlq.errors.topic, .partition, .offset   where the record is
    __dlq.errors.timestamp                    the record's own time (ms); the letter has the time
                                              at which it was written
    __dlq.errors.group                        the reader: a pipeline, a sink, or a group
    __dlq.errors.reason                       malformed, wrong type, missing field, ...
    __dlq.errors.message                      the same for people
    __dlq.errors.key                          the record's key, unchanged; absent if it has none

and further ones of the reader. The letter's own key is `topic/partition/offset`. A reader that
repeats its work writes its letters again: at least once, and the key identifies duplicates.
`millstream dlq` shows, counts and replays them like all others, the record with its own key.

The topic is created when it is first needed, as the broker creates those of share groups: kept for
its retention time, not compacted, since the letter of a record without a value would be a
tombstone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode
from millstream.records.record import Header, Record, encode_batch

if TYPE_CHECKING:
    from millstream.records.columns import BinaryBuffers, Columns

HEADER_PREFIX = "__dlq.errors."
KEY_HEADER = f"{HEADER_PREFIX}key"
ENABLE_SETTING = "errors.deadletterqueue.group.enable"  # by which `millstream dlq` finds the topic
SETTINGS = {"message.timestamp.type": "CreateTime"}
_producers: dict[Cluster, RawProducer] = {}  # this process's, reused
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


# The topic


def partition_count(cluster: Cluster, topic: str) -> int:
    """How many partitions the dead-letter topic has; it is created if it does not exist."""
    try:
        found = cluster.topic(topic)
    except (OSError, ApiError):
        if topic not in cluster.retrying(lambda: cluster.refresh([topic])):
            create_dead_letter_topic(cluster, topic)
        found = cluster.retrying(lambda: cluster.topic(topic))
    return len(found.partitions)


def create_dead_letter_topic(cluster: Cluster, topic: str) -> None:
    """Create it, unless it exists."""
    try:
        try:
            create_topics(cluster, [NewTopic(topic, settings=SETTINGS | {ENABLE_SETTING: "true"})])
        except ApiError as error:
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise
            # Apache Kafka before 4.4 does not know the setting.
            create_topics(cluster, [NewTopic(topic, settings=SETTINGS)])
    except ApiError as error:
        raise ApiError(
            error.code,
            f"{error}; create dead-letter topic {topic}, or name another one with the option "
            "deadLetterTopic",
        ) from error


# The letters


def compose(
    topic: str,
    partition: int,
    columns: Columns,
    failures: Sequence[tuple[int, str, str]],
    group: str,
    about: Mapping[str, object] | None = None,
) -> Iterator[Record]:
    """A letter for each failure: a row of the columns, the reason and a message.

    `group` is the reader; `about` has further headers, by their names after the prefix.
    """
    offsets = memoryview(columns.offsets).cast("q")
    timestamps = memoryview(columns.timestamps).cast("q")
    now_ms = time.time_ns() // 1_000_000
    for row, reason, message in failures:
        described: dict[str, object] = {
            "topic": topic,
            "partition": partition,
            "offset": offsets[row],
            "timestamp": timestamps[row],
            "group": group,
            "reason": reason,
            "message": message,
            **(about or {}),
        }
        headers = [(HEADER_PREFIX + name, str(it).encode()) for name, it in described.items()]
        record_key = bytes_at(columns.keys, row)
        if record_key is not None:
            headers.append((KEY_HEADER, record_key))
        yield Record(
            0,
            now_ms,
            f"{topic}/{partition}/{offsets[row]}".encode(),
            bytes_at(columns.values, row),
            (*headers_at(columns, row), *headers),
        )


def bytes_at(buffers: BinaryBuffers, row: int) -> bytes | None:
    """One value of a column."""
    validity = buffers.validity
    if validity is not None and not memoryview(validity)[row >> 3] >> (row & 7) & 1:
        return None
    ends = memoryview(buffers.offsets).cast("i")
    return bytes(memoryview(buffers.data)[ends[row] : ends[row + 1]])


def headers_at(columns: Columns, row: int) -> tuple[Header, ...]:
    """The headers of one record, if they were fetched."""
    headers = columns.headers
    if headers is None:
        return ()
    ends = memoryview(headers.offsets).cast("i")
    found = []
    for index in range(ends[row], ends[row + 1]):
        name = bytes_at(headers.names, index) or b""
        found.append((name.decode("utf-8", "replace"), bytes_at(headers.values, index)))
    return tuple(found)


def _numbered(letters: list[Record]) -> list[Record]:
    """As records of one batch."""
    return [replace(letter, offset=index) for index, letter in enumerate(letters)]


def send_letters(cluster: Cluster, topic: str, partition: int, letters: list[Record]) -> None:
    """Write one batch, or several if it is too large for the topic; durable when this returns."""
    letters = _numbered(letters)
    producer = _producers.get(cluster)
    if producer is None:
        producer = RawProducer(cluster)
        producer.begin()
    identity = producer.identity(topic, partition)
    batch = encode_batch(
        letters,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
    )
    _producers.pop(cluster, None)  # one that has failed cannot be used again
    try:
        producer.send(topic, partition, batch, len(letters))
        producer.flush()
        _producers[cluster] = producer
    except ApiError as error:
        if error.code not in _TOO_LARGE:
            raise
        if len(letters) > 1:
            middle = len(letters) // 2
            send_letters(cluster, topic, partition, letters[:middle])
            send_letters(cluster, topic, partition, letters[middle:])
        elif _has_copy(letters[0]):
            send_letters(cluster, topic, partition, [_without_copy(letters[0])])
        else:
            raise


def _has_copy(letter: Record) -> bool:
    """Whether anything of the record itself is in the letter: value, key or headers."""
    names = {name for name, _ in letter.headers}
    is_own = all(name.startswith(HEADER_PREFIX) for name in names)
    return letter.value is not None or KEY_HEADER in names or not is_own


def _without_copy(letter: Record) -> Record:
    """The letter with its own headers alone, since the topic does not take it with the record."""
    own = [(name, it) for name, it in letter.headers if name.startswith(HEADER_PREFIX)]
    headers = dict(own)
    headers.pop(KEY_HEADER, None)
    message = headers[f"{HEADER_PREFIX}message"] or b""
    headers[f"{HEADER_PREFIX}message"] = message + b" The record is too large to be copied."
    return replace(letter, value=None, headers=tuple(headers.items()))
