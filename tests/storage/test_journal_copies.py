"""Copies of small appends: complete, or not given."""

from __future__ import annotations

from millstream.records.batch import Buffer
from millstream.storage.journal_copies import COPIED_BYTES_MAX, COPIES_BYTES_MAX, JournalCopies


def add(copies: JournalCopies, *appended: bytes) -> None:
    for data in appended:
        buffers: list[Buffer] = [data[:1], memoryview(data)[1:]]
        copies.add(buffers, len(data))


def begun() -> JournalCopies:
    copies = JournalCopies()
    assert copies.take(0, 100) is None  # nothing is known of what was written before
    return copies


def test_copies_are_the_bytes_since_the_last_flush() -> None:
    copies = begun()
    add(copies, b"one", b"two")
    assert copies.take(100, 106) == b"onetwo"
    add(copies, b"three")
    assert copies.take(106, 111) == b"three"
    assert copies.take(111, 111) == b""


def test_copies_are_given_only_from_where_they_start() -> None:
    copies = begun()
    add(copies, b"one")
    assert copies.take(90, 103) is None
    add(copies, b"two")
    assert copies.take(103, 106) == b"two"


def test_a_large_append_leaves_none_until_the_next_flush() -> None:
    copies = begun()
    large = b"x" * (COPIED_BYTES_MAX + 1)
    add(copies, b"one", large, b"two")
    end = 106 + len(large)
    assert copies.take(100, end) is None
    add(copies, b"three")
    assert copies.take(end, end + 5) == b"three"


def test_copies_are_bounded() -> None:
    copies = begun()
    count = COPIES_BYTES_MAX // 1000
    add(copies, *[b"x" * 1000] * count)
    assert copies.take(100, 100 + count * 1000) == b"x" * 1000 * count
    start = 100 + count * 1000
    add(copies, *[b"x" * 1000] * (count + 1))
    assert copies.take(start, start + (count + 1) * 1000) is None


def test_copies_begin_again_where_the_segment_was_cut() -> None:
    copies = begun()
    add(copies, b"one", b"two")
    copies.restart(103)
    add(copies, b"new")
    assert copies.take(103, 106) == b"new"
