"""The position of a record in its topic, as bytes: the reader's column `_position`.

    bytes    what, little-endian
    0..7     the record's timestamp in milliseconds
    8..15    the log: 31 bits of a hash of the topic's name and id, then the partition in 32 bits
    16..23   the record's offset

Offsets order the records of one log, and only those. A key has records in several logs after its
topic got more partitions, which moves keys, or was deleted and recreated. The newest record of a
key is the last one of the log in which the key was written last, by timestamp:

    of each log     the record with the greatest offset counts, and the greatest timestamp of the
                    key's records in that log: clocks that go back do not matter within a log
    of several      the one whose timestamp is greater; of equal ones, that of the greater partition

This depends on nothing but the records. So a replay, a batch over history and a stream that reads
a backlog partition by partition find the same record. Brokers without topic ids (before Kafka 2.8)
give a recreated topic the same log.

A null position is before all others.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

POSITION_BYTES = 24
_FIELDS = 3
_BEFORE_ALL = np.iinfo(np.int64).min


class Positions(NamedTuple):
    """Positions of rows, as columns."""

    times_ms: npt.NDArray[np.int64]
    logs: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


def log_number(topic: str, topic_id: UUID | None, partition: int) -> int:
    """The number that stands for one partition of one topic, and for no other."""
    name = topic.encode() + (b"" if topic_id is None else topic_id.bytes)
    digest = hashlib.blake2b(name, digest_size=4).digest()
    return (int.from_bytes(digest, "little") >> 1) << 32 | partition


def encode_positions(positions: Positions) -> pa.Array:
    """The positions as a binary column."""
    count = len(positions.offsets)
    fields = np.empty((count, _FIELDS), "<i8")
    for place, column in enumerate(positions):
        fields[:, place] = column
    ends = np.arange(count + 1, dtype=np.int32) * POSITION_BYTES
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(fields)], 0
    )


def decode_positions(column: pa.Array) -> Positions:
    """The columns of positions. Raises `ValueError` for bytes that are not positions."""
    try:
        fixed = column.cast(pa.binary(POSITION_BYTES))
    except pa.ArrowInvalid as error:
        raise ValueError(f"a column of positions has other bytes: {error}") from error
    if not len(fixed):
        return Positions(*(np.empty(0, np.int64) for _ in range(_FIELDS)))
    numbers = np.frombuffer(fixed.buffers()[1], "<i8").reshape(-1, _FIELDS)
    numbers = numbers[fixed.offset : fixed.offset + len(fixed)]
    if fixed.null_count:
        is_null = fixed.is_null().to_numpy(zero_copy_only=False)
        numbers = np.where(is_null[:, None], _BEFORE_ALL, numbers)
    return Positions(*(np.ascontiguousarray(numbers[:, at]) for at in range(_FIELDS)))


def is_position(kind: Any) -> bool:
    """Whether a column of this Arrow type has positions."""
    return bool(pa.types.is_binary(kind))


def group_times(positions: Positions, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of each row, the greatest timestamp of the rows of its group and its log."""
    if not len(groups):
        return positions.times_ms
    order = np.lexsort((positions.logs, groups))
    ordered_groups, ordered_logs = groups[order], positions.logs[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (ordered_groups[1:] != ordered_groups[:-1]) | (
        ordered_logs[1:] != ordered_logs[:-1]
    )
    greatest = np.maximum.reduceat(positions.times_ms[order], np.flatnonzero(is_first))
    times = np.empty(len(order), np.int64)
    times[order] = greatest[np.cumsum(is_first) - 1]
    return times
