"""The metadata's nodes in ZooKeeper: an ordered log of commits, and snapshots that shorten it.

    /millstream/metadata/head              JSON: number of the newest entry ("entry"), of the oldest
                                           one that is kept ("first"), name of the snapshot
    /millstream/metadata/log/%010d         an entry, i.e. one commit: the writer's nonce (16 bytes),
                                           then a record batch in KRaft's form, compressed
    /millstream/metadata/snapshots/NAME    JSON: the entry and the version that it contains, and the
                                           number of its chunks; NAME is %010d of the entry, a dash,
                                           and the writer's nonce
    /millstream/metadata/snapshots/NAME/%d a chunk: one record batch

Rules:

- A commit sets `head`, whose version it expects, and creates the next entry, in one transaction. So
  entries have no gaps, and each was decided on the image of the one before.
- The version of an image is the last offset of the newest entry's batch, as in a metadata log.
- A snapshot counts once `head` names it; all its nodes exist before. Entries below "first", and
  snapshots older than the one that `head` names, are deleted afterwards; if the writer dies before,
  with the next snapshot.
- A transaction of ZooKeeper holds 1 MB. A node here has at most `NODE_BYTES_MAX`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from millstream.coordination.cluster_records import MetadataRecord, decode_record, encode_record
from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.batch import parse_header
from millstream.records.compression import Compression
from millstream.records.record import Record, decode_batch, encode_batch

METADATA = "/millstream/metadata"
HEAD = f"{METADATA}/head"
LOG = f"{METADATA}/log"
SNAPSHOTS = f"{METADATA}/snapshots"

NODE_BYTES_MAX = 512 * 1024
NONCE_BYTES = 16
RECORDS_PER_CHUNK_MAX = 2_000
EPOCH = 1  # of the batches; KRaft's quorum would count its leaders here


def entry_path(number: int) -> str:
    return f"{LOG}/{number:010d}"


def snapshot_path(name: str) -> str:
    return f"{SNAPSHOTS}/{name}"


class Head(NamedTuple):
    """What `head` contains."""

    entry: int = 0  # 0: none yet
    first: int = 1
    snapshot: str = ""  # empty: none yet

    def encode(self) -> bytes:
        return json.dumps({"format": 1, **self._asdict()}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Head:
        return cls(**_fields(HEAD, data))


class SnapshotHeader(NamedTuple):
    """What a snapshot's own node contains."""

    entry: int
    version: int
    chunks: int

    def encode(self) -> bytes:
        return json.dumps({"format": 1, **self._asdict()}).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> SnapshotHeader:
        return cls(**_fields(path, data))


def _fields(path: str, data: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields.pop("format") == 1:
            return fields
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise StorageError(
        f"ZooKeeper node {path} has content that this version of Millstream cannot read: {data!r}"
    )


class Entry(NamedTuple):
    """One commit."""

    nonce: bytes
    records: list[MetadataRecord]
    version: int  # of the image after it
    size_bytes: int


def encode_entry(
    nonce: bytes, records: Sequence[MetadataRecord], *, base_offset: int, now_ms: int
) -> bytes:
    """Raises `ApiError` if it is too large for a node."""
    data = nonce + _encode(records, base_offset, now_ms)
    if len(data) > NODE_BYTES_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"a change of {len(records)} metadata records takes {len(data)} bytes; ZooKeeper takes "
            f"{NODE_BYTES_MAX} at once: split the request",
        )
    return data


def decode_entry(data: bytes) -> Entry:
    header = parse_header(data, NONCE_BYTES)
    return Entry(data[:NONCE_BYTES], _decode(data, NONCE_BYTES), header.last_offset, len(data))


def encode_chunks(records: Iterable[MetadataRecord], now_ms: int) -> Iterator[bytes]:
    """The chunks of a snapshot, in order."""
    remaining = iter(records)
    offset = 0
    while batch := list(islice(remaining, RECORDS_PER_CHUNK_MAX)):
        yield from _halved(batch, offset, now_ms)
        offset += len(batch)


def _halved(records: Sequence[MetadataRecord], offset: int, now_ms: int) -> Iterator[bytes]:
    data = _encode(records, offset, now_ms)
    if len(data) <= NODE_BYTES_MAX or len(records) == 1:
        yield data
        return
    middle = len(records) // 2
    yield from _halved(records[:middle], offset, now_ms)
    yield from _halved(records[middle:], offset + middle, now_ms)


def decode_chunk(data: bytes) -> list[MetadataRecord]:
    return _decode(data, 0)


def _encode(records: Sequence[MetadataRecord], base_offset: int, now_ms: int) -> bytes:
    numbered = enumerate(records, base_offset)
    return encode_batch(
        [Record(offset, now_ms, None, encode_record(record)) for offset, record in numbered],
        compression=Compression.ZSTD,
        leader_epoch=EPOCH,
    )


def _decode(data: bytes, position: int) -> list[MetadataRecord]:
    return [decode_record(record.value or b"") for record in decode_batch(data, position)]
