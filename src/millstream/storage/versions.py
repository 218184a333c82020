"""Conditional appends (`millstream.conditional.append`): conditions, and the versions of keys.

`offset`: each record has the header `millstream-offset`, and is appended only at that offset.

`version`: each record has a key and the header `millstream-version`. The version of a key is that
of its last record in the log, or 0. A record is appended only if its version is the next one. So
the state is a function of the log that compaction does not change; `VersionTable` has it in memory.
Several records of a key in one batch have consecutive versions. One record that does not fit
refuses its batch.

- A record before the log's start does not count: retention and DeleteRecords reset a key to 0.
- A tombstone is a record like any other, and compaction keeps it.
- A record without the header, from before the setting, resets its key to 0.
- An open transaction holds the keys that it has written: records of other producers are refused
  until it ends. An abort gives the old version back.
- A batch that was appended already is answered with its offsets, if the last record of each of its
  keys is still the last one and has the same header `millstream-event-id`. This is for a client
  that was restarted; retries of an idempotent producer are detected before.

`<offset, 20 digits>.versions` is a snapshot of the table, big-endian:

     2  version            2
     4  CRC-32C            of everything after this field
     8  start offset       replay the log from here (also the name)
     8  end offset         of the last record that may be in the table, + 1
    16  secret             of the hash (SipHash-1-3, 128 bits)
     8  number of entries
     4  number of held keys
    then for each entry
    12  hash of the key: 32 bits of its first half, and the second
     8  version
     8  offset
     8  hash of the event id, 0 if there is none
    and for each key that an open transaction holds, its producer id (8) and the same, with all 16
    bytes of the hash.

Entries may be newer than the start offset: the table is copied in several turns. Replaying the log
from the start offset gives the same state, since later records replace earlier ones.

Crash rule: the file is replaced atomically, and only after the log is durable up to its end offset.
One that is damaged, has another format, or ends after the log, is deleted, and the whole log is
replayed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from millstream.config.topic import OFFSET_OF_RECORD
from millstream.errors import ApiError, CorruptBatch, ErrorCode, StorageError
from millstream.records.batch import COMPRESSION_MASK, HEADER_SIZE_BYTES, BatchHeader, Buffer
from millstream.records.checksum import crc32c
from millstream.records.compression import decompress
from millstream.records.validation import InvalidRecords
from millstream.storage._core import (
    BAD_HEADER_VALUE,
    CONFLICT,
    HELD,
    NO_HEADER,
    NO_KEY,
    OFFSET_DIGITS_MAX,
    TABLE_FULL,
    VERSION_DIGITS_MAX,
    VersionTable,
    check_offsets,
)
from millstream.storage.log import Appended, Log

VERSION_HEADER = "millstream-version"
OFFSET_HEADER = "millstream-offset"
EVENT_ID_HEADER = "millstream-event-id"

ENTRY_BYTES = 36
HeldKey = tuple[int, int, int, int, int, int]

_SNAPSHOT_VERSION = 2
_SNAPSHOT_HEADER = struct.Struct(">hIqq16sqi")
_HELD_KEY = struct.Struct(">qQQqqQ")
_CRC_END = 6


class ConditionFailed(InvalidRecords):
    """A batch whose condition does not hold. The refusal is true once the log is durable up to
    `end_offset`: a crash before that could make the condition hold again."""

    def __init__(self, index: int, reason: str, end_offset: int) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, reason, [(index, reason)])
        self.end_offset = end_offset


def check_condition(log: Log, produced: Buffer, header: BatchHeader) -> Appended | None:
    """Check the batch that is about to be appended, and enter it in the log's versions; then the
    caller appends it, and calls `keep` or `roll_back` of these.

    Returns the earlier append, if it is repeated: then nothing is entered. Raises
    `ConditionFailed`; `ApiError` with a retriable code if the versions are not known yet.
    """
    try:
        if header.attributes & COMPRESSION_MASK:
            section: Buffer = decompress(
                memoryview(produced)[HEADER_SIZE_BYTES:], header.compression
            )
            start, end = 0, len(section)
        else:
            section, start, end = produced, HEADER_SIZE_BYTES, len(produced)
        if log.config.millstream_conditional_append == OFFSET_OF_RECORD:
            _check_offsets(log, section, start, end, header)
            return None
        return _check_versions(log, section, start, end, header)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None


def _check_offsets(log: Log, section: Buffer, start: int, end: int, header: BatchHeader) -> None:
    refusal = check_offsets(section, start, end, header, log.log_end_offset)
    if refusal is None:
        return
    reason, index, offset = refusal
    why = _invalid_header(reason, OFFSET_HEADER)
    if why is None:
        why = (
            f"offset conflict: the record has offset {offset}, the log ends at offset "
            f"{log.log_end_offset}"
        )
        raise ConditionFailed(index, why, log.log_end_offset)
    raise ConditionFailed(index, why, 0)


def _check_versions(
    log: Log, section: Buffer, start: int, end: int, header: BatchHeader
) -> Appended | None:
    table = log.versions
    if table is None:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the versions of the keys of {log.topic}-{log.partition} are being read from its log",
        )
    producer_id = header.producer_id if header.is_transactional else -1
    refusal = table.check(
        section, start, end, header, log.log_end_offset, log.log_start_offset, producer_id
    )
    if refusal is None:
        return None
    reason, index, wanted, version, offset = refusal
    why = _invalid_header(reason, VERSION_HEADER)
    if why is not None:
        raise ConditionFailed(index, why, 0)
    if reason == CONFLICT and producer_id < 0:
        base_offset = table.find_repeat(section, start, end, header, log.log_start_offset)
        if base_offset >= 0:
            return Appended(base_offset, base_offset + header.last_offset_delta + 1)
    why = (
        f"version conflict: the record has version {wanted}, its key is at version {version} "
        f"(offset {offset})"
    )
    if reason == HELD:
        # Not the transaction's: nobody may know its records before it ends.
        why += " and held by an open transaction"
    raise ConditionFailed(index, why, offset + 1)


def _invalid_header(reason: int, name: str) -> str | None:
    """Why a record is refused whatever the log contains."""
    digits = VERSION_DIGITS_MAX if name == VERSION_HEADER else OFFSET_DIGITS_MAX
    return {
        NO_KEY: "a record without a key cannot have a version",
        NO_HEADER: f"the record has no header {name}, which millstream.conditional.append requires",
        BAD_HEADER_VALUE: f"the header {name} must be a decimal number of at most {digits} digits",
        TABLE_FULL: "the partition has too many keys: use a topic with more partitions",
    }.get(reason)


# Snapshots


def encode_snapshot(
    table: VersionTable,
    entries: Sequence[bytes],
    held: Sequence[HeldKey],
    *,
    start_offset: int,
    end_offset: int,
) -> bytes:
    """`entries` are all of the table, in parts; `held` are as of `start_offset`."""
    count = sum(map(len, entries)) // ENTRY_BYTES
    head = _SNAPSHOT_HEADER.pack(
        _SNAPSHOT_VERSION, 0, start_offset, end_offset, table.secret, count, len(held)
    )
    content = bytearray().join((head, *entries, *(_HELD_KEY.pack(*key) for key in held)))
    struct.pack_into(">I", content, 2, crc32c(memoryview(content)[_CRC_END:]))
    return bytes(content)


def load_snapshot(content: bytes) -> tuple[VersionTable, int, int]:
    """The table, and the start and end offset. Raises `StorageError` if it is damaged."""
    if len(content) < _SNAPSHOT_HEADER.size:
        raise StorageError(f"snapshot of versions of {len(content)} bytes: wrong size")
    version, crc, start_offset, end_offset, secret, count, held_count = (
        _SNAPSHOT_HEADER.unpack_from(content)
    )
    if crc != crc32c(memoryview(content)[_CRC_END:]):
        raise StorageError("snapshot of versions has a wrong CRC")
    if version != _SNAPSHOT_VERSION:
        raise StorageError(f"snapshot of versions has format {version}, not {_SNAPSHOT_VERSION}")
    held_at = _SNAPSHOT_HEADER.size + count * ENTRY_BYTES
    if len(content) != held_at + held_count * _HELD_KEY.size:
        raise StorageError(f"snapshot of versions does not contain its {count} entries")
    table = VersionTable(secret)
    table.load(memoryview(content)[_SNAPSHOT_HEADER.size : held_at])
    for key in _HELD_KEY.iter_unpack(memoryview(content)[held_at:]):
        table.load_held(*key)
    return table, start_offset, end_offset
