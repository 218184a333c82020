"""The records of `__transaction_state`, in the formats of Apache Kafka 4.3.

A record's key leads with its type (int16, always 0), its value with the version it is written in
(int16). The last record of a transactional id is the truth, a null value removes it: the topic is
compacted.

    key    0, transactional id (string)

    value  producer id int64, producer epoch int16, timeout ms int32, state int8,
           partitions (null when empty), last update ms int64, start ms int64

    partitions is an array of: topic string, partition numbers as an array of int32

Version 0 is plain. Version 1, written from transaction.version 1 on, is flexible and adds tagged
fields, each left out when it has its default:

    tag 0  previous producer id int64 (-1)   that of the record before this
    tag 1  next producer id     int64 (-1)   already given to the client: the epoch is used up
    tag 2  client version       int16 (0)    2 when the client ends transactions by KIP-890
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from millstream.coordination.record_codec import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    ArrayOf,
    Field,
    NumberOf,
    RecordCodec,
    RecordType,
    Schema,
)
from millstream.records.batch import NO_TIMESTAMP

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1


class TransactionState(IntEnum):
    """What a transactional id is doing, with the numbers of the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # never written: a tombstone is
    PREPARE_EPOCH_FENCE = 7  # never written: PREPARE_ABORT with a higher epoch is

    @property
    def label(self) -> str:
        """Its name in Kafka's APIs: "PrepareCommit"."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class TransactionKey:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """All that is kept of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartitions, ...] | None  # those that take part; None when there are none
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    # What Kafka does not write, and so forgets with a restart: the epoch before this one, by which
    # a repeated request is known.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    format_version: int = 1  # the version it is written in


_TOPIC_PARTITIONS = Schema(
    TopicPartitions,
    (Field("topic", STRING), Field("partitions", ArrayOf(INT32))),
    flexible_since=1,
)
_TRANSACTION_VALUE = Schema(
    TransactionValue,
    (
        Field("producer_id", INT64),
        Field("previous_producer_id", INT64, since=1, tag=0, default=NO_PRODUCER_ID),
        Field("next_producer_id", INT64, since=1, tag=1, default=NO_PRODUCER_ID),
        Field("producer_epoch", INT16),
        Field("timeout_ms", INT32),
        Field("state", NumberOf(INT8, TransactionState)),
        Field("partitions", ArrayOf(_TOPIC_PARTITIONS, nullable=True)),
        Field("last_update_ms", INT64),
        Field("start_ms", INT64),
        Field("client_version", INT16, since=1, tag=2, default=0),
    ),
    flexible_since=1,
)


def _value_version(value: TransactionValue) -> int:
    return value.format_version


TRANSACTION_RECORDS: Final = RecordCodec(
    (
        RecordType(
            0,
            Schema(TransactionKey, (Field("transactional_id", STRING),)),
            _TRANSACTION_VALUE,
            newest_version=1,
        ),
    ),
    _value_version,
)
