"""A page as bytes: rows of one table of one bucket, as columns.

    bytes   content
    0..2    "MSP" for a page, "MSI" for a bucket's index
    3       version of the format: 6; version 5 had all columns of a page as they are
    4..7    CRC-32C of the body, little-endian
    8..     the body. Page: an Arrow IPC stream with one record batch, whose buffers may be
            compressed with zstd. Index: JSON (see bucket.py)

A page has the columns of its table (see page_columns.py); its rows are sorted by the hash of their
key. Pages are immutable; only the index, which lists them, changes. Bytes that differ from those
written raise `CorruptState`; an unknown version raises `StateMismatch`.

Crash rule: none of its own. Spark's state store commits the pages and the index of a batch together
or not at all.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.records.checksum import crc32c

PAGE_MAGIC = b"MSP"
INDEX_MAGIC = b"MSI"
VERSION = 6
VERSIONS_READ = (5, VERSION)
_HEADER = struct.Struct("<3sBI")  # 8 bytes, so the columns after it lie aligned
# Handing buffers of this size to threads takes longer than packing them.
_PACKED = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_UNPACKED = pa.ipc.IpcWriteOptions(use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)


class CorruptState(MillstreamError):
    """Bytes of state that differ from those that were written."""


class StateMismatch(MillstreamError):
    """State of another operator, other settings or another version."""


def encode_page(rows: pa.RecordBatch, *, compressed: bool = False) -> bytes:
    """Stored pages are compressed: passing a byte through Spark costs more than unpacking it."""
    sink = pa.BufferOutputStream()
    options = _PACKED if compressed else _UNPACKED
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    return seal(PAGE_MAGIC, sink.getvalue())


def decode_page(blob: bytes) -> pa.RecordBatch:
    """The rows, in the blob's own memory if they are not compressed."""
    body = unseal(PAGE_MAGIC, blob)
    try:
        with pa.ipc.open_stream(pa.py_buffer(body), options=_READ) as stream:
            return stream.read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise CorruptState(f"a page of state has no readable rows: {error}") from error


def seal(magic: bytes, body: pa.Buffer | bytes) -> bytes:
    return b"".join((_HEADER.pack(magic, VERSION, crc32c(body)), body))


def unseal(magic: bytes, blob: bytes) -> memoryview:
    """The body of a blob; raises `CorruptState` or `StateMismatch`."""
    what = "page" if magic == PAGE_MAGIC else "index"
    if len(blob) < _HEADER.size or blob[:3] != magic:
        raise CorruptState(f"not a {what} of state: {len(blob)} bytes with another header")
    _, version, crc = _HEADER.unpack_from(blob)
    if version not in VERSIONS_READ:
        raise StateMismatch(
            f"unsupported version of a {what} of state: {version}; this Millstream reads "
            f"{' and '.join(map(str, VERSIONS_READ))}. Run the version that wrote it, or use a new "
            "checkpoint"
        )
    body = memoryview(blob)[_HEADER.size :]
    if crc32c(body) != crc:
        raise CorruptState(
            f"a {what} of state of {len(blob)} bytes is damaged: its checksum does not match. "
            "Restore the checkpoint from a backup, or use a new one"
        )
    return body


def check_same(what: str, stored: object, given: object) -> None:
    """Raise `StateMismatch` if state was stored by an operator with something else."""
    if stored != given:
        raise StateMismatch(
            f"the stored state has other {what}: {stored}, the operator has {given}. Restore the "
            "old definition, or use a new checkpoint, which computes the state from the beginning"
        )


def crc_of(blob: bytes) -> int:
    """Of a sealed blob, the checksum in its header."""
    crc: int = _HEADER.unpack_from(blob)[2]
    return crc
