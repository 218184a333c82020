"""Records in plain Python: batches encoded and decoded record by record.

For tools, coordinators and tests. The hot path never decodes a batch, and bulk loops are in
`_walk.pyx`; this module is the readable reference that they are tested against.

A record, all numbers zig-zag varints but the attributes:

    length            of what follows
    attributes        1 byte, unused
    timestamp_delta   added to the batch's base timestamp
    offset_delta      added to the batch's base offset
    key_length, key   length -1: null
    value_length, value
    header_count, then per header: key_length, key (UTF-8), value_length, value (-1: null)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from millstream.errors import CorruptBatch
from millstream.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    compute_crc,
    parse_header,
    verify_crc,
)
from millstream.records.checksum import crc32c
from millstream.records.compression import DEFAULT_LIMIT_BYTES, Compression, compress, decompress

Header = tuple[str, bytes | None]

_CONTROL_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")
_CRC = struct.Struct(">I")
_VARINT_MAX_BYTES = 10


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class ControlType(IntEnum):
    """The type of a control record; its key is (version, type), two int16."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def from_key(cls, key: bytes | None) -> ControlType:
        if key is None or len(key) < _CONTROL_KEY.size:
            raise CorruptBatch("control record without a control key")
        code = _CONTROL_KEY.unpack_from(key)[1]
        return cls(code) if code in cls._value2member_map_ else cls.UNKNOWN


def encode_batch(
    records: Iterable[Record],
    *,
    compression: Compression = Compression.NONE,
    base_offset: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    is_log_append_time: bool = False,
) -> bytes:
    """One batch of `records` with ascending offsets; the base offset defaults to the first."""
    records = list(records)
    if not records:
        raise ValueError("a batch needs at least one record")
    base_offset = records[0].offset if base_offset is None else base_offset
    base_timestamp = records[0].timestamp
    encoded = b"".join(_encode_record(record, base_offset, base_timestamp) for record in records)
    attributes = (
        compression
        | (LOG_APPEND_TIME_FLAG if is_log_append_time else 0)
        | (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assemble_batch(header, compress(encoded, compression))


def assemble_batch(header: BatchHeader, records: Buffer) -> bytes:
    """The whole batch: `header` with its length and CRC set, then the encoded records."""
    length = HEADER_SIZE_BYTES + len(records) - LENGTH_OVERHEAD_BYTES
    head = bytearray(header._replace(length=length, crc=0).encode())
    crc = crc32c(records, compute_crc(head, 0, HEADER_SIZE_BYTES))
    _CRC.pack_into(head, CRC_OFFSET, crc)
    return b"".join((head, records))


def keep_records(header: BatchHeader, kept: Sequence[Record]) -> bytes:
    """The batch of `header` with only these of its records, or with none: its offsets, its
    producer and its sequence stay as they are."""
    if not kept:
        attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_FLAG)
        empty = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
        return assemble_batch(empty, b"")
    encoded = [_encode_record(it, header.base_offset, header.base_timestamp) for it in kept]
    if not header.is_log_append_time:
        header = header._replace(max_timestamp=max(record.timestamp for record in kept))
    header = header._replace(record_count=len(kept))
    return assemble_batch(header, compress(b"".join(encoded), header.compression))


def encode_end_transaction(
    control_type: ControlType,
    *,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> bytes:
    """The marker that ends a transaction: a control batch with one record."""
    header = BatchHeader(
        base_offset=offset,
        length=0,
        leader_epoch=NO_LEADER_EPOCH,
        magic=MAGIC_V2,
        crc=0,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    return assemble_batch(header, _end_transaction_record(control_type, coordinator_epoch))


@lru_cache(maxsize=64)
def _end_transaction_record(control_type: ControlType, coordinator_epoch: int) -> bytes:
    """A marker's one record: its deltas are 0, so it is the same for every producer and time."""
    value = _END_TRANSACTION_VALUE.pack(0, coordinator_epoch)
    return _encode_record(Record(0, 0, _CONTROL_KEY.pack(0, control_type), value), 0, 0)


def decode_end_transaction(batch: Buffer) -> tuple[ControlType, int] | None:
    """(type, coordinator epoch) of a control batch whose CRC is verified; None if it ends no
    transaction, or if compaction has emptied it."""
    header = parse_header(batch)
    verify_crc(batch, 0, header)
    if not header.record_count:
        return None
    return _read_end_transaction(bytes(batch[HEADER_SIZE_BYTES : header.size_bytes]))


@lru_cache(maxsize=64)
def _read_end_transaction(section: bytes) -> tuple[ControlType, int] | None:
    header = BatchHeader(0, 0, 0, MAGIC_V2, 0, 0, 0, 0, 0, 0, 0, 0, record_count=1)
    (record,) = decode_records(header, section)
    control_type = ControlType.from_key(record.key)
    if control_type not in (ControlType.COMMIT, ControlType.ABORT):
        return None
    value = record.value or b""
    if len(value) < _END_TRANSACTION_VALUE.size:
        raise CorruptBatch("a transaction's end marker without a coordinator epoch")
    return control_type, _END_TRANSACTION_VALUE.unpack_from(value)[1]


def decode_batch(
    buffer: Buffer, position: int = 0, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> list[Record]:
    """The records of the batch at `position`, whose CRC is verified first."""
    header = parse_header(buffer, position)
    verify_crc(buffer, position, header)
    section = memoryview(buffer)[position + HEADER_SIZE_BYTES : position + header.size_bytes]
    return decode_records(header, decompress(section, header.compression, limit_bytes))


def decode_records(header: BatchHeader, section: Buffer) -> list[Record]:
    """The records in a batch's decompressed section."""
    data = bytes(section)
    records = []
    position = 0
    for _ in range(header.record_count):
        record, position = _decode_record(data, position, header)
        records.append(record)
    if position != len(data):
        raise CorruptBatch(
            f"{len(data) - position} bytes follow the {header.record_count} records of the batch"
        )
    return records


@lru_cache(maxsize=4096)  # the lengths and offsets of records are few and small
def write_varint(value: int) -> bytes:
    """A zig-zag varint, as in a record."""
    encoded = bytearray()
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The varint at `position` and the position after it."""
    value = shift = 0
    for index in range(position, min(end, position + _VARINT_MAX_BYTES)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFF_FFFF_FFFF_FFFF
            return (value >> 1) ^ -(value & 1), index + 1
        shift += 7
    raise CorruptBatch(f"record ends, or runs on, inside a number at position {position}")


def wrap_int64(value: int) -> int:
    """Wrap as int64 does in other languages; only invalid timestamps get that large."""
    return (value + 2**63) % 2**64 - 2**63


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"".join(
        (
            b"\x00",
            write_varint(wrap_int64(record.timestamp - base_timestamp)),
            write_varint(record.offset - base_offset),
            _encode_nullable(record.key),
            _encode_nullable(record.value),
            write_varint(len(record.headers)),
            *(_encode_header(name, value) for name, value in record.headers),
        )
    )
    return write_varint(len(body)) + body


def _encode_header(name: str, value: bytes | None) -> bytes:
    return _encode_nullable(name.encode("utf-8", "surrogateescape")) + _encode_nullable(value)


def _encode_nullable(value: bytes | None) -> bytes:
    return _NULL if value is None else write_varint(len(value)) + value


_NULL = write_varint(-1)


def _decode_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    length, position = read_varint(data, position, len(data))
    end = position + length
    if length < 1 or end > len(data):
        raise CorruptBatch(
            f"record claims {length} bytes, but {len(data) - position} are left in the batch"
        )
    timestamp_delta, position = read_varint(data, position + 1, end)
    offset_delta, position = read_varint(data, position, end)
    key, position = _decode_nullable(data, position, end)
    value, position = _decode_nullable(data, position, end)
    headers, position = _decode_headers(data, position, end)
    if position != end:
        raise CorruptBatch(f"record has {end - position} bytes too many")
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptBatch(f"record has offset delta {offset_delta}, outside its batch")
    timestamp = wrap_int64(header.base_timestamp + timestamp_delta)
    if header.is_log_append_time:
        timestamp = header.max_timestamp
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), end


def _decode_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position, end)
    if count < 0 or count > end - position:
        raise CorruptBatch(f"record claims {count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _decode_nullable(data, position, end)
        if name is None:
            raise CorruptBatch("record header without a name")
        value, position = _decode_nullable(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _decode_nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, end)
    if length == -1:
        return None, position
    if length < 0 or length > end - position:
        raise CorruptBatch(f"record field claims {length} bytes, but {end - position} are left")
    return data[position : position + length], position + length
