"""A page as bytes: rows of one table of one bucket, as columns.

    bytes   what
    0..2    "MSP" for a page, "MSI" for a bucket's index
    3       version of the format: 1
    4..7    zero
    8..23   BLAKE2b of the body, 16 bytes
    24..    the body. Page: an Arrow IPC stream with one record batch. Index: JSON (see bucket.py)

A page's columns are those of its table, after `_hash` (uint64, see keys.py); its rows are sorted by
hash, then by time. Pages are written once and never changed: what changes is which pages the index
lists. Bytes that are not what they were when written raise `CorruptState`; a version that is not
known raises `StateMismatch`.

Crash rule: none of its own. Spark's state store takes pages and index of a batch together or not
at all.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from millstream.errors import MillstreamError

PAGE_MAGIC = b"MSP"
INDEX_MAGIC = b"MSI"
VERSION = 1
DIGEST_BYTES = 16
HEADER_BYTES = 24  # a multiple of 8: the columns lie aligned


class CorruptState(MillstreamError):
    """Bytes of state that are not those that were written."""


class StateMismatch(MillstreamError):
    """State that was kept by another operator, other settings or another version."""


def encode_page(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return seal(PAGE_MAGIC, sink.getvalue())


def decode_page(blob: bytes) -> pa.RecordBatch:
    """The rows, on the blob's own memory."""
    body = unseal(PAGE_MAGIC, blob)
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            return stream.read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise CorruptState(f"a page of state holds no rows: {error}") from error


def seal(magic: bytes, body: pa.Buffer | bytes) -> bytes:
    digest = hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
    return b"".join((magic, bytes([VERSION, 0, 0, 0, 0]), digest, body))


def unseal(magic: bytes, blob: bytes) -> memoryview:
    """The body of a blob; raises `CorruptState` or `StateMismatch`."""
    what = "page" if magic == PAGE_MAGIC else "index"
    if len(blob) < HEADER_BYTES or blob[:3] != magic:
        raise CorruptState(f"{len(blob)} bytes that should be a {what} of state do not begin so")
    if blob[3] != VERSION:
        raise StateMismatch(
            f"a {what} of state has version {blob[3]}, and this Millstream reads version "
            f"{VERSION}: run the version that wrote it, or begin with a new checkpoint"
        )
    body = memoryview(blob)[HEADER_BYTES:]
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest_of(blob):
        raise CorruptState(
            f"a {what} of state of {len(blob)} bytes is damaged: its checksum does not match. "
            "Restore the checkpoint from a copy, or begin with a new one"
        )
    return body


def digest_of(blob: bytes) -> bytes:
    """Of a sealed blob, the checksum in its header."""
    return blob[HEADER_BYTES - DIGEST_BYTES : HEADER_BYTES]
