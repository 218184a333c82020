"""The headers of requests and replies. Pure.

Spring's, in both directions:

    kafka_correlationId     16 bytes, those of a UUID; a reply has that of its request
    kafka_replyTopic        UTF-8
    kafka_replyPartition    int32, big-endian; absent: any partition

Ours, which others ignore:

    millstream-deadline     of a request: milliseconds since 1970, as decimal digits; afterwards
                            nobody waits for the reply
    millstream-error        of a reply: {"type": ..., "message": ...}; the call failed
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CORRELATION_ID = "kafka_correlationId"
REPLY_TOPIC = "kafka_replyTopic"
REPLY_PARTITION = "kafka_replyPartition"
DEADLINE = "millstream-deadline"
ERROR = "millstream-error"
OWN = (CORRELATION_ID, REPLY_TOPIC, REPLY_PARTITION, DEADLINE, ERROR)

_INT32 = struct.Struct(">i")
MESSAGE_CHARACTERS_MAX = 2000

Headers = Sequence[tuple[str, bytes | None]]


class Failure(NamedTuple):
    """Why a call failed: the type and the message of an exception."""

    type: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        return cls(type(error).__name__, str(error)[:MESSAGE_CHARACTERS_MAX])

    def encode(self) -> bytes:
        return json.dumps({"type": self.type, "message": self.message}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Failure:
        """Anything can be decoded: others may have written it."""
        try:
            given = json.loads(content)
            return cls(str(given["type"]), str(given["message"]))
        except (ValueError, KeyError, TypeError):
            return cls("Error", content.decode("utf-8", errors="replace"))


@dataclass(frozen=True)
class Request:
    """A request as a handler gets it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()  # those of the caller
    correlation_id: bytes | None = None  # the same if the request is sent again
    deadline_ms: int | None = None
    reply_topic: str | None = field(default=None, repr=False)
    reply_partition: int | None = field(default=None, repr=False)

    @property
    def wants_reply(self) -> bool:
        return self.reply_topic is not None and self.correlation_id is not None


def new_correlation_id() -> bytes:
    return uuid.uuid4().bytes


def request_headers(
    correlation_id: bytes,
    reply_topic: str,
    reply_partition: int,
    deadline_ms: int,
    others: Headers = (),
) -> list[tuple[str, bytes | None]]:
    return [
        *((name, value) for name, value in others if name not in OWN),
        (CORRELATION_ID, correlation_id),
        (REPLY_TOPIC, reply_topic.encode()),
        (REPLY_PARTITION, _INT32.pack(reply_partition)),
        (DEADLINE, b"%d" % deadline_ms),
    ]


def parse_request(value: bytes | None, key: bytes | None, headers: Headers) -> Request:
    """The request in a record. Headers that are wrong count as absent: the record may be
    anyone's."""
    last = dict(headers)  # of several with one name, Kafka's clients take the last
    partition = last.get(REPLY_PARTITION)
    topic = last.get(REPLY_TOPIC)
    correlation_id = last.get(CORRELATION_ID)
    return Request(
        value,
        None if key == correlation_id else key,  # which our callers set for want of another
        tuple((name, it) for name, it in headers if name not in OWN),
        correlation_id,
        _deadline(last.get(DEADLINE)),
        None if not topic else topic.decode("utf-8", errors="replace"),
        _INT32.unpack(partition)[0] if partition and len(partition) == _INT32.size else None,
    )


def _deadline(text: bytes | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) < 20 else None


def reply_headers(correlation_id: bytes, failure: Failure | None = None) -> Headers:
    headers: list[tuple[str, bytes | None]] = [(CORRELATION_ID, correlation_id)]
    if failure is not None:
        headers.append((ERROR, failure.encode()))
    return headers


def parse_reply(headers: Headers) -> tuple[bytes | None, Failure | None]:
    """The correlation id, and why the call failed, if it did."""
    last = dict(headers)
    content = last.get(ERROR)
    return last.get(CORRELATION_ID), None if content is None else Failure.decode(content)
