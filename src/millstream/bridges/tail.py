"""The end of a topic: a stream that is continued after a restart has its position there, and a
bridge that shares a topic with others sees there what they wrote."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from millstream.errors import MillstreamError

METADATA_SECONDS = 10.0
POLL_SECONDS = 0.5
RECORDS_PER_TURN = 500
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION)  # or none of this name


def last_headers(
    settings: Mapping[str, Any], topic: str, partition: int | None, count: int
) -> list[dict[str, bytes]]:
    """What the first `read` of a `Tail` returns."""
    tail = Tail(settings, topic, partition, count)
    try:
        return tail.read()
    finally:
        tail.close()


class Tail:
    """Reads the headers of the records at the last `count` offsets of a partition; of all
    partitions if it is None, each with its share. One thread at a time.

    Records of transactions that are open or were aborted are read, too: behind an open one are
    records of others, which are durable.
    """

    def __init__(
        self, settings: Mapping[str, Any], topic: str, partition: int | None, count: int
    ) -> None:
        self._topic, self._partition, self._count = topic, partition, count
        self._topic_id = ""
        self._next: dict[int, int] = {}
        self._found: list[dict[str, bytes]] = []
        # Over a connection of its own: the consumer's is busy while a fetch waits for records.
        self._admin = AdminClient({"log_level": 0, **settings})
        self._consumer = Consumer(
            {
                "group.id": "millstream-bridge",  # nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",
                "queued.max.messages.kbytes": 4096,
                "log_level": 0,
                **settings,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def read(self) -> list[dict[str, bytes]]:
        """The headers of what came since the last call, in the order of each partition, up to the
        ends at some time after this call began; of the last `count` offsets if there are more.
        Nothing without a topic. Raises `MillstreamError` if the topic has no such partition, or
        cannot be read; then the next call continues."""
        try:
            ends = self._ends()
            self._go_to(ends)
            self._read(ends)
        except KafkaException as error:
            reason = error.args[0].str()
            raise MillstreamError(f"topic {self._topic} cannot be read: {reason}") from error
        found, self._found = self._found, []
        return found

    def _ends(self) -> dict[int, int]:
        """The end of each partition that is read."""
        topic = self._topic
        described = self._admin.describe_topics(
            TopicCollection([topic]), request_timeout=METADATA_SECONDS
        )
        try:
            known = described[topic].result()
        except KafkaException as error:
            if error.args[0].code() in _NO_TOPIC:
                return {}
            raise
        if str(known.topic_id) != self._topic_id:  # it was made again
            self._topic_id, self._next = str(known.topic_id), {}
        partitions = [it.id for it in known.partitions]
        if self._partition is not None:
            if self._partition not in partitions:
                raise MillstreamError(f"topic {topic} has no partition {self._partition}")
            partitions = [self._partition]
        asked = {TopicPartition(topic, it): OffsetSpec.latest() for it in partitions}
        answers = self._admin.list_offsets(asked, request_timeout=METADATA_SECONDS)
        return {place.partition: it.result().offset for place, it in answers.items()}

    def _go_to(self, ends: Mapping[int, int]) -> None:
        """Continue where the last call ended, but not too far before the end."""
        if not ends:
            return
        share = -(-self._count // len(ends))
        starts = {it: max(self._next.get(it, 0), end - share) for it, end in ends.items()}
        if starts != self._next:
            places = [TopicPartition(self._topic, *it) for it in starts.items()]
            self._consumer.assign(places)
            self._next = starts

    def _read(self, ends: Mapping[int, int]) -> None:
        until = time.monotonic() + METADATA_SECONDS
        while any(self._next[it] < end for it, end in ends.items()):
            if time.monotonic() > until:
                raise MillstreamError(
                    f"the end of topic {self._topic} cannot be read; the stream cannot continue"
                )
            first = self._consumer.poll(POLL_SECONDS)
            if first is None:
                continue
            for each in (first, *self._consumer.consume(RECORDS_PER_TURN, 0)):
                if each.error() is None:
                    self._found.append(dict(each.headers() or []))
                    self._next[each.partition()] = each.offset() + 1
                elif each.error().code() == KafkaError._PARTITION_EOF:
                    # The last offsets may be of markers, or of records that are no longer there.
                    self._next[each.partition()] = each.offset()
                else:
                    continue
                until = time.monotonic() + METADATA_SECONDS
