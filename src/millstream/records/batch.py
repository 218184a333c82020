"""The header of a record batch (Kafka's format v2), the unit of the log and of the wire.

A batch is a header of 61 bytes, big-endian, then the records, which stay opaque here (they may be
compressed):

    at  bytes  field
     0      8  base_offset          offset of the first record
     8      4  length               bytes that follow this field (whole batch = length + 12)
    12      4  leader_epoch         epoch of the leader that appended the batch
    16      1  magic                2; batches of magic 0 and 1 have the byte at the same place
    17      4  crc                  CRC-32C of everything from `attributes` to the end
    21      2  attributes           bits 0-2 compression, 3 LogAppendTime, 4 transactional,
                                    5 control, 6 `base_timestamp` is a delete horizon
    23      4  last_offset_delta    last offset = base_offset + last_offset_delta
    27      8  base_timestamp       timestamp to which the records' deltas are added
    35      8  max_timestamp        largest timestamp in the batch
    43      8  producer_id          -1 without idempotence
    51      2  producer_epoch
    53      4  base_sequence
    57      4  record_count         0 in a batch that compaction emptied

The CRC does not cover the first 21 bytes, so a leader can write `base_offset` and `leader_epoch`
without recomputing it. docs/formats/record-batch.md describes the whole format, including the
records.

All of this is on the path of every request: one `struct` call per header, no copies of the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from millstream.errors import CorruptBatch
from millstream.records.checksum import crc32c
from millstream.records.compression import Compression

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE_BYTES = HEADER.size
PREFIX = struct.Struct(">qii")
PREFIX_SIZE_BYTES = PREFIX.size
LENGTH_OVERHEAD_BYTES = 12
LEADER_EPOCH_OFFSET = 12
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
FLAGS_OFFSET = ATTRIBUTES_OFFSET + 1  # the low byte of the attributes
MAX_TIMESTAMP_OFFSET = 35
PRODUCER_ID_OFFSET = 43
PRODUCER = struct.Struct(">qhi")  # at that offset: the producer's id and epoch, first sequence

MAGIC_V2 = 2
MIN_LENGTH = HEADER_SIZE_BYTES - LENGTH_OVERHEAD_BYTES

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
PRODUCER_EPOCH_MAX = 32767

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

_LENGTH_OFFSET = 8

_unpack_header = HEADER.unpack_from
_length_at = struct.Struct(">i").unpack_from


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in their order on disk."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2**31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        return Compression.from_attributes(self.attributes)

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time after which compaction may drop this batch's tombstones and markers."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    def encode(self) -> bytes:
        return HEADER.pack(*self)


_new_header = tuple.__new__


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the records after it need not be in the buffer.

    Raises `CorruptBatch` if there is no v2 header. Does not check the CRC: see `verify_crc`.
    """
    try:
        fields = _unpack_header(buffer, position)
    except struct.error:
        raise CorruptBatch(
            f"{len(buffer) - position} bytes at position {position} are too few for a batch header"
        ) from None
    if fields[3] != MAGIC_V2 or fields[1] < MIN_LENGTH or fields[6] < 0 or fields[12] < 0:
        raise CorruptBatch(_what_is_wrong(fields, position))
    return _new_header(BatchHeader, fields)


def _what_is_wrong(fields: tuple[int, ...], position: int) -> str:
    header = BatchHeader(*fields)
    if header.magic != MAGIC_V2:
        return f"batch at position {position} has magic {header.magic}, not {MAGIC_V2}"
    if header.length < MIN_LENGTH:
        return f"batch at position {position} has length {header.length}, below {MIN_LENGTH}"
    return (
        f"batch at position {position} has last offset delta {header.last_offset_delta} "
        f"and record count {header.record_count}; neither may be negative"
    )


def iterate_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch from `position` on, as (position, header).

    Stops before an incomplete batch, as at the end of a fetched range.
    """
    size = len(buffer)
    while size - position >= HEADER_SIZE_BYTES:
        header = parse_header(buffer, position)
        end = position + header.length + LENGTH_OVERHEAD_BYTES
        if end > size:
            return
        yield position, header
        position = end


def end_offset_of(buffer: Buffer) -> int:
    """The offset after the last batch in the buffer, which contains only whole batches."""
    position = last = 0
    size = len(buffer)
    while position < size:
        last = position
        position += _length_at(buffer, position + _LENGTH_OFFSET)[0] + LENGTH_OVERHEAD_BYTES
    return parse_header(buffer, last).next_offset


def compute_crc(batch: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32C of the batch of `size_bytes` at `position`, as expected in its header."""
    crc: int = crc32c(memoryview(batch)[position + ATTRIBUTES_OFFSET : position + size_bytes])
    return crc


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise `CorruptBatch` unless the whole batch is in the buffer and its CRC is right."""
    end = position + header.length + LENGTH_OVERHEAD_BYTES
    if end > len(buffer):
        raise CorruptBatch(
            f"batch at position {position} (base offset {header.base_offset}) claims "
            f"{header.size_bytes} bytes, but only {len(buffer) - position} are there"
        )
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : end])
    if crc != header.crc:
        raise CorruptBatch(
            f"batch at position {position} (base offset {header.base_offset}) has CRC "
            f"{header.crc:#010x}, but its bytes give {crc:#010x}"
        )
