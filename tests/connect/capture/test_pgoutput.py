"""The framing of logical replication, from bytes as PostgreSQL sends them."""

from __future__ import annotations

import struct

import pytest

from millstream.connect.capture import pgoutput
from millstream.connect.capture.tables import CaptureError, Column


def message(kind: bytes, body: bytes, lsn: int = 7) -> bytes:
    return b"w" + struct.pack(">qqq", lsn, lsn, 0) + kind + body


def test_lsns_are_written_as_postgresql_writes_them() -> None:
    assert pgoutput.parse_lsn("16/B374D848") == 0x16_B374D848
    assert pgoutput.format_lsn(0x16_B374D848) == "16/B374D848"
    assert pgoutput.format_lsn(0) == "0/0"
    with pytest.raises(ValueError, match="not an LSN: '1'"):
        pgoutput.parse_lsn("1")


def test_keepalive_has_the_servers_position() -> None:
    payload = b"k" + struct.pack(">qqB", 99, 5, 1)
    assert pgoutput.parse_keepalive(payload) == (99, True)


def test_begin_and_commit_have_their_positions() -> None:
    begin = message(b"B", struct.pack(">qqI", 500, 1_000_000, 4_000_000_000))
    assert pgoutput.parse_begin(begin) == (500, pgoutput.EPOCH_US + 1_000_000, 4_000_000_000)
    commit = message(b"C", struct.pack(">Bqqq", 0, 500, 548, 0))
    assert pgoutput.parse_commit(commit) == (500, 548)
    assert pgoutput.start_lsn(commit) == 7


def test_relation_has_columns_and_identity() -> None:
    columns = b"\1id\0" + struct.pack(">Ii", 23, -1) + b"\0v\0" + struct.pack(">Ii", 1043, 24)
    body = struct.pack(">I", 16384) + b"public\0t\0d" + struct.pack(">h", 2) + columns
    relation = pgoutput.parse_relation(message(b"R", body))
    assert relation.columns == (Column("id", 23, -1), Column("v", 1043, 24))
    assert (relation.oid, relation.schema, relation.name) == (16384, "public", "t")
    assert (relation.replica_identity, relation.identity) == ("d", ("id",))


def test_truncate_names_all_its_tables() -> None:
    payload = message(b"T", struct.pack(">IB3I", 3, 1, 10, 11, 12))
    assert pgoutput.parse_truncate(payload).oids == (10, 11, 12)


def test_logical_message_has_its_content() -> None:
    body = struct.pack(">Bq", 1, 77) + b"audit\0" + struct.pack(">I", 3) + b"a\0b"
    assert pgoutput.parse_message(message(b"M", body)) == (77, True, "audit", b"a\0b")


def test_a_name_that_does_not_end_is_refused() -> None:
    with pytest.raises(CaptureError, match="ends within a name"):
        pgoutput.parse_relation(message(b"R", struct.pack(">I", 1) + b"public"))


def test_status_update_repeats_one_position() -> None:
    update = pgoutput.status_update(42, pgoutput.EPOCH_US + 9, reply_requested=True)
    assert update == b"r" + struct.pack(">qqqqB", 42, 42, 42, 9, 1)
