"""Messages of logical replication: the framing of pgoutput, protocol version 1. No I/O.

A server sends CopyData payloads of two kinds:

    k  wal_end int64, clock int64, reply_requested int8         keepalive
    w  start int64, end int64, clock int64, then a message      one message of pgoutput

and a client answers with status updates (`status_update`). The messages of pgoutput:

    B  final_lsn int64, commit time int64, xid int32            begin; final_lsn is the commit's LSN
    C  flags int8, commit_lsn int64, end_lsn int64, time int64  commit
    R  oid int32, schema, name, identity char, columns          layout of a table, before its rows
    T  count int32, flags int8, oids int32[]                    truncate
    M  flags int8, lsn int64, prefix, length int32, content     pg_logical_emit_message
    I U D                                                       rows: see the compiled encoder
    Y O                                                         types and origins: ignored

Times are microseconds since 2000-01-01; `parse_*` returns them since 1970.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from millstream.connect.capture.tables import CaptureError, Column

EPOCH_US = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970
HEADER_BYTES = 25  # w, three int64
KIND = HEADER_BYTES  # the position of the message's own type

DATA = ord("w")
KEEPALIVE = ord("k")
BEGIN = ord("B")
COMMIT = ord("C")
RELATION = ord("R")
TRUNCATE = ord("T")
MESSAGE = ord("M")
TYPE = ord("Y")
ORIGIN = ord("O")

_KEEPALIVE = struct.Struct(">qqB")
_BEGIN = struct.Struct(">qqI")
_COMMIT = struct.Struct(">Bqqq")
_STATUS = struct.Struct(">cqqqqB")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_MESSAGE = struct.Struct(">Bq")
_COLUMN_TYPE = struct.Struct(">Ii")


class Keepalive(NamedTuple):
    wal_end: int
    reply_requested: bool


class Begin(NamedTuple):
    commit_lsn: int
    commit_time_us: int
    xid: int


class Commit(NamedTuple):
    commit_lsn: int
    end_lsn: int


class Relation(NamedTuple):
    """A table's layout; the primary key is not in it."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]


class Truncate(NamedTuple):
    oids: tuple[int, ...]


class Message(NamedTuple):
    lsn: int
    is_transactional: bool
    prefix: str
    content: bytes


def start_lsn(payload: bytes) -> int:
    """The LSN of the change that the payload's message describes."""
    lsn: int = _INT64.unpack_from(payload, 1)[0]
    return lsn


def parse_keepalive(payload: bytes) -> Keepalive:
    wal_end, _, requested = _KEEPALIVE.unpack_from(payload, 1)
    return Keepalive(wal_end, bool(requested))


def parse_begin(payload: bytes) -> Begin:
    commit_lsn, time_us, xid = _BEGIN.unpack_from(payload, KIND + 1)
    return Begin(commit_lsn, time_us + EPOCH_US, xid)


def parse_commit(payload: bytes) -> Commit:
    _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(payload, KIND + 1)
    return Commit(commit_lsn, end_lsn)


def parse_relation(payload: bytes) -> Relation:
    (oid,) = _INT32.unpack_from(payload, KIND + 1)
    schema, at = _string(payload, KIND + 5)
    name, at = _string(payload, at)
    replica_identity = chr(payload[at])
    (count,) = _INT16.unpack_from(payload, at + 1)
    at += 3
    columns, identity = [], []
    for _ in range(count):
        is_identity = payload[at] & 1
        column, at = _string(payload, at + 1)
        type_oid, modifier = _COLUMN_TYPE.unpack_from(payload, at)
        at += _COLUMN_TYPE.size
        columns.append(Column(column, type_oid, modifier))
        if is_identity:
            identity.append(column)
    # An empty schema is pg_catalog's.
    return Relation(
        oid, schema or "pg_catalog", name, replica_identity, tuple(columns), tuple(identity)
    )


def parse_truncate(payload: bytes) -> Truncate:
    (count,) = _INT32.unpack_from(payload, KIND + 1)
    return Truncate(struct.unpack_from(f">{count}I", payload, KIND + 6))


def parse_message(payload: bytes) -> Message:
    flags, lsn = _MESSAGE.unpack_from(payload, KIND + 1)
    prefix, at = _string(payload, KIND + 1 + _MESSAGE.size)
    (length,) = _INT32.unpack_from(payload, at)
    return Message(lsn, bool(flags & 1), prefix, bytes(payload[at + 4 : at + 4 + length]))


def status_update(flushed_lsn: int, now_us: int, *, reply_requested: bool = False) -> bytes:
    """A client's status. The server forgets everything below `flushed_lsn` and never sends it
    again: pass only what is durable. 0 is only a sign of life."""
    return _STATUS.pack(
        b"r", flushed_lsn, flushed_lsn, flushed_lsn, now_us - EPOCH_US, reply_requested
    )


def parse_lsn(text: str) -> int:
    """`16/B374D848` as a number; raises `ValueError`."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"not an LSN: {text!r}")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _string(payload: bytes, start: int) -> tuple[str, int]:
    end = payload.find(b"\0", start)
    if end < 0:
        raise CaptureError("a replication message ends within a name")
    return payload[start:end].decode(), end + 1
