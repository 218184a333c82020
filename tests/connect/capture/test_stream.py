"""Cutting the stream into slices. The stream itself runs in test_session.py, with a database."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from millstream.connect.capture.stream import Slicer

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
