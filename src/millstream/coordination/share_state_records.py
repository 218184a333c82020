"""The records of `__share_group_state`, in the formats of Apache Kafka 4.3.

A record's key leads with its type (int16), its value with version 0 (int16). The key of both types
is group, topic id, partition.

    type  what its value says
    0     a snapshot: everything that is remembered; a null value: nothing any more
    1     an update: what changed since the last snapshot or update of that key

The topic is not compacted: updates count together with the snapshot before them. What stands before
the oldest last snapshot of any key counts for nothing and is deleted.

A state batch has a tagged field of ours, number 1000 (int64): when it may be delivered again, for
delayed retry. Kafka's readers skip tags that they do not know. docs/formats/share-group-state.md
lays out the bytes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from millstream.coordination.record_codec import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    ArrayOf,
    Field,
    NumberOf,
    RecordCodec,
    RecordType,
    Schema,
)
from millstream.coordination.share_state import NO_COUNT, DeliveryState, StateBatch

DUE_TAG: Final = 1000


@dataclass(frozen=True, slots=True)
class ShareSnapshotKey:
    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ShareSnapshotValue:
    snapshot_epoch: int  # rises with every snapshot of the key
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_timestamp_ms: int
    write_timestamp_ms: int  # differs from the other where nothing but time asked for a snapshot
    state_batches: tuple[StateBatch, ...]
    delivery_complete_count: int = NO_COUNT


@dataclass(frozen=True, slots=True)
class ShareUpdateKey:
    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ShareUpdateValue:
    snapshot_epoch: int  # of the snapshot that it changes
    leader_epoch: int
    start_offset: int
    state_batches: tuple[StateBatch, ...]
    delivery_complete_count: int = NO_COUNT


_KEY = (Field("group_id", STRING), Field("topic_id", UUID), Field("partition", INT32))
_STATE_BATCH = Schema(
    StateBatch,
    (
        Field("first_offset", INT64),
        Field("last_offset", INT64),
        Field("delivery_state", NumberOf(INT8, DeliveryState)),
        Field("delivery_count", INT16),
        Field("due_ms", INT64, tag=DUE_TAG, default=0),
    ),
    flexible_since=0,
)
_COMPLETE_COUNT = Field("delivery_complete_count", INT32, tag=0, default=NO_COUNT)
_SNAPSHOT = Schema(
    ShareSnapshotValue,
    (
        Field("snapshot_epoch", INT32),
        Field("state_epoch", INT32),
        Field("leader_epoch", INT32),
        Field("start_offset", INT64),
        _COMPLETE_COUNT,
        Field("create_timestamp_ms", INT64),
        Field("write_timestamp_ms", INT64),
        Field("state_batches", ArrayOf(_STATE_BATCH)),
    ),
    flexible_since=0,
)
_UPDATE = Schema(
    ShareUpdateValue,
    (
        Field("snapshot_epoch", INT32),
        Field("leader_epoch", INT32),
        Field("start_offset", INT64),
        _COMPLETE_COUNT,
        Field("state_batches", ArrayOf(_STATE_BATCH)),
    ),
    flexible_since=0,
)

SHARE_STATE_RECORDS: Final = RecordCodec(
    (
        RecordType(0, Schema(ShareSnapshotKey, _KEY), _SNAPSHOT),
        RecordType(1, Schema(ShareUpdateKey, _KEY), _UPDATE, is_update=True),
    ),
    lambda value: 0,
)
