"""A topic as server-sent events.

    id: 0:18,1:7                     the offsets from which a reader continues (Last-Event-ID)
    data: {"partition": 0, "offset": 17, "timestamp": ..., "key": ..., "value": ...}

Keys and values that are UTF-8 are strings; others are {"base64": ...}. A reader that is slow slows
only its own stream down: records stay in the log. If records were deleted before they were sent,
an event `gap` has the offsets.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from millstream.bridges.http.shapes import BadRequest

RECORDS_PER_PIECE = 100
METADATA_SECONDS = 10.0
_POSITIONS = re.compile(r"\d{1,9}:\d{1,18}(?:,\d{1,9}:\d{1,18})*")
STARTS = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}


def parse_positions(text: str) -> dict[int, int]:
    """The offsets by partition of a Last-Event-ID. Raises `BadRequest`."""
    if not _POSITIONS.fullmatch(text):
        raise BadRequest(f"Last-Event-ID {text[:80]!r}: expected PARTITION:OFFSET,...", 400)
    return {int(it.partition(":")[0]): int(it.partition(":")[2]) for it in text.split(",")}


def event_of(positions: Mapping[int, int], message: Any) -> bytes:
    """One record as an event."""
    data = {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": readable(message.key()),
        "value": readable(message.value()),
        "headers": [[name, readable(value)] for name, value in message.headers() or []],
    }
    return event("record", data, positions)


def event(name: str, data: Any, positions: Mapping[int, int]) -> bytes:
    place = ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))
    return f"id: {place}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


def readable(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class TopicStream:
    """Records of all partitions of a topic, from given offsets. Used by one thread at a time."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, start: str, resumed: Mapping[int, int]
    ) -> None:
        self._consumer = Consumer(
            {
                "group.id": "millstream-bridge",  # nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 1024,
                "log_level": 0,
                **settings,
            }
        )
        self._next = dict(resumed)
        found = self._consumer.list_topics(topic, METADATA_SECONDS).topics[topic]
        if found.error is not None:
            self._consumer.close()
            raise BadRequest(f"topic {topic}: {found.error.str()}", 404)
        self._consumer.assign(
            [
                TopicPartition(topic, number, self._next.get(number, STARTS[start]))
                for number in found.partitions
            ]
        )

    def read(self, seconds_max: float) -> list[bytes]:
        """The next events, at most a piece; empty if none came in time."""
        found = []
        for message in self._consumer.consume(RECORDS_PER_PIECE, seconds_max):
            if message.error() is not None:
                continue
            number, offset = message.partition(), message.offset()
            expected = self._next.get(number)
            if expected is not None and offset > expected and self._is_deleted(message, expected):
                lost = {"partition": number, "first": expected, "last": offset - 1}
                found.append(event("gap", lost, self._next))
            self._next[number] = offset + 1
            found.append(event_of(self._next, message))
        return found

    def _is_deleted(self, message: Any, expected: int) -> bool:
        """Whether the log begins after the expected offset; gaps of compaction, transactions and
        excision are ordinary."""
        place = TopicPartition(message.topic(), message.partition())
        low, _ = self._consumer.get_watermark_offsets(place, METADATA_SECONDS)
        return int(low) > expected

    def close(self) -> None:
        self._consumer.close()
