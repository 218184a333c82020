"""Cutting the stream into slices, and positions. The stream itself runs in test_session.py, with a
database."""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connect.capture.encoding import ChangeBuffer, StreamContext, TableEncoder
from millstream.connect.capture.position import Position
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.stream import ChangeStream, Slicer
from millstream.connect.capture.tables import CaptureError, Table
from millstream.connect.capture.visibility import ChangedKeys, DatabaseSnapshot

KEEPALIVE = b"k" + struct.pack(">qqB", 1, 0, 0)


def payload(kind: bytes, size: int = 40) -> bytes:
    return b"w" + bytes(24) + kind + bytes(size - 26)


def transaction(rows: int) -> list[bytes]:
    return [payload(b"B"), *(payload(b"I") for _ in range(rows)), payload(b"C")]


def cut(slicer: Slicer, *received: list[bytes]) -> list[list[bytes]]:
    """The slices of what was received, part by part."""
    slices: list[list[bytes]] = []
    for part in received:
        in_transaction = bool(slices) and not is_complete([it for s in slices for it in s])
        slices += slicer.add(part, in_transaction)
    return slices


def is_complete(payloads: list[bytes]) -> bool:
    ends = [it[25:26] for it in payloads if it[:1] == b"w" and it[25:26] in (b"B", b"C")]
    return not ends or ends[-1] == b"C"


def stream_at(
    position: Position, changed: ChangedKeys | None = None, signals: list[Any] | None = None
) -> ChangeStream:
    settings = CaptureSettings(name="shop", database="", tables=["public.*"])
    return ChangeStream(
        settings,
        settings.envelope("shop"),
        position,
        describe=lambda relation: pytest.fail("no table is expected"),
        make_encoder=lambda *_: pytest.fail("no table is expected"),
        reload_types=lambda: None,
        context=StreamContext(),
        changed=changed or ChangedKeys(),
        on_signal=(signals if signals is not None else []).append,
        on_relation=lambda *_: pytest.fail("no table is expected"),
        is_captured=lambda table: settings.captures(table.schema, table.name),
    )


def begin(commit_lsn: int) -> bytes:
    return b"w" + bytes(24) + b"B" + struct.pack(">qqI", commit_lsn, 0, 7)


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return b"w" + bytes(24) + b"C" + struct.pack(">Bqqq", 0, commit_lsn, end_lsn, 0)


def keepalive(wal_end: int) -> bytes:
    return b"k" + struct.pack(">qqB", wal_end, 0, 0)


def test_position_is_the_end_of_the_last_transaction() -> None:
    stream = stream_at(Position(5))
    stream.process([begin(10), commit(10, 12)])
    assert stream.position == Position(12)
    stream.process([keepalive(20), keepalive(15)])
    assert stream.position == Position(20)


def test_keepalives_within_a_transaction_do_not_move_the_position() -> None:
    """Its rows are not written yet."""
    stream = stream_at(Position(5))
    stream.process([begin(10), keepalive(20)])
    assert stream.position.lsn == 5
    stream.process([commit(10, 12)])
    assert stream.position == Position(12)


def test_keepalives_before_a_cut_transaction_do_not_move_the_position() -> None:
    cut = Position(5, commit_lsn=10, ordinal=3)
    stream = stream_at(cut)
    stream.process([keepalive(20)])
    assert stream.position == cut
    with pytest.raises(CaptureError, match="was not sent again"):
        stream.process([begin(30)])


def test_message_before_a_cut_is_not_processed_again() -> None:
    content = b'{"resnapshot": []}'
    signal = b"w" + bytes(24) + b"M" + struct.pack(">Bq", 1, 9) + b"millstream.capture.shop\0"
    signal += struct.pack(">I", len(content)) + content
    signals: list[Any] = []
    stream = stream_at(Position(5, commit_lsn=10, messages=1), signals=signals)
    stream.process([begin(10), signal])
    assert signals == []
    stream.process([signal])
    assert signals == [{"resnapshot": []}]


def test_changes_before_a_cut_may_supersede_any_row_of_a_chunk() -> None:
    """Their keys are not known: they were written by an earlier process."""
    changed = ChangedKeys()
    changed.track("public.t")
    stream_at(Position(5, commit_lsn=10, ordinal=3), changed).process([begin(10)])
    assert changed.stale_keys("public.t", DatabaseSnapshot(5, 6, frozenset())) is None


def test_truncate_supersedes_any_row_of_a_chunk() -> None:
    changed = ChangedKeys()
    changed.track("public.t")
    stream = stream_at(Position(5), changed)
    encoder = Mock(spec=TableEncoder, table=Table(1, "public", "t", ()))
    stream._encoders[1] = (encoder, ChangeBuffer())
    truncate = b"w" + bytes(24) + b"T" + struct.pack(">IBI", 1, 0, 1)
    stream.process([begin(10), truncate])
    encoder.truncate.assert_called_once()
    assert changed.stale_keys("public.t", DatabaseSnapshot(5, 6, frozenset())) is None


def test_slice_ends_with_the_last_whole_transaction() -> None:
    slicer = Slicer(10_000)
    whole, more = transaction(2), transaction(3)
    assert cut(slicer, whole + more[:2], more[2:]) == [whole, more]


def test_keepalives_between_transactions_are_processed_at_once() -> None:
    assert cut(Slicer(10_000), [KEEPALIVE]) == [[KEEPALIVE]]


def test_keepalives_within_a_transaction_wait_for_it() -> None:
    whole = transaction(2)
    received = [whole[0], KEEPALIVE], whole[1:]
    assert cut(Slicer(10_000), *received) == [[whole[0], KEEPALIVE, *whole[1:]]]


def test_large_transaction_is_cut() -> None:
    whole = transaction(100)
    slices = cut(Slicer(400), *([it] for it in whole))
    assert [it for part in slices for it in part] == whole
    assert len(slices) > 5
    assert max(len(part) for part in slices) <= 20


def test_backlog_is_cut_at_commits() -> None:
    received = [it for _ in range(50) for it in transaction(3)]
    slices = cut(Slicer(400), received)
    assert len(slices) > 5
    assert all(is_complete(part) for part in slices)


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(50, 2000), st.randoms())
def test_nothing_is_lost_or_reordered(sizes: list[int], slice_bytes: int, random: object) -> None:
    received = [it for rows in sizes for it in transaction(rows)]
    parts, at = [], 0
    while at < len(received):
        count = random.randint(1, 10)  # type: ignore[attr-defined]
        parts.append(received[at : at + count])
        at += count
    slices = cut(Slicer(slice_bytes), *parts)
    assert [it for part in slices for it in part] == received
