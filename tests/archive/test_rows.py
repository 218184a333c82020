"""Batches come back from rows as consumers and brokers saw them."""

from __future__ import annotations

from random import Random

import pytest

from millstream.archive import rows as module
from millstream.archive.rows import rebuild, row_groups
from millstream.errors import CorruptBatch
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, encode_batch
from tests.archive.scenes import all_kinds, batches, decoded, record, transaction


def there_and_back(data: bytes, end: int = 2**62, *, recompress: bool = False) -> bytes:
    groups = row_groups([data], first_offset=0, end_offset=end, aborted=())
    return b"".join(batch for rows in groups for _, batch in rebuild(rows, recompress=recompress))


def test_all_kinds_of_batches_come_back() -> None:
    data, end, _ = all_kinds()
    assert decoded(there_and_back(data, end)) == decoded(data)


def test_uncompressed_batches_come_back_byte_for_byte() -> None:
    data = batches(0, 95) + transaction(95, 3, committed=True)
    assert there_and_back(data) == data


def test_batches_are_compressed_as_they_were() -> None:
    data, end, _ = all_kinds()
    back = there_and_back(data, end, recompress=True)
    assert [it.compression for _, it in iterate_headers(back)] == [
        it.compression for _, it in iterate_headers(data)
    ]
    assert decoded(back) == decoded(data)


def test_random_batches_come_back() -> None:
    random = Random(46)
    for _ in range(50):
        offset, parts = random.randrange(2**40), []
        for _ in range(random.randrange(1, 5)):
            records = []
            for _ in range(random.randrange(1, 6)):
                offset += random.choice([1, 1, 1, 50])
                moment = random.choice([-1, 0, random.randrange(2**44)])
                like = record(offset, random)
                value = random.randbytes(random.randrange(300))
                records.append(Record(offset, moment, like.key, value, like.headers))
            producer_id = random.randrange(-1, 5)
            is_transactional = random.random() < 0.5
            parts.append(
                encode_batch(records, producer_id=producer_id, is_transactional=is_transactional)
            )
        data = b"".join(parts)
        assert there_and_back(data) == data


def test_rows_say_what_is_committed() -> None:
    data, end, aborted = all_kinds()
    (rows,) = row_groups([data], first_offset=0, end_offset=end, aborted=aborted)
    table = rows.to_pydict()
    by_offset = dict(zip(table["offset"], range(rows.num_rows), strict=True))
    hidden = [offset for offset, n in by_offset.items() if table["is_aborted"][n]]
    assert hidden == list(range(aborted[0].first_offset, aborted[0].last_offset))
    markers = [offset for offset, n in by_offset.items() if table["is_control"][n]]
    assert markers == [aborted[0].first_offset - 1, aborted[0].last_offset]
    assert table["timestamp_type"][by_offset[end - 40]] == 1


def test_producer_is_aborted_only_within_its_transaction() -> None:
    data = transaction(0, 5, committed=True) + transaction(5, 5, committed=False)
    (rows,) = row_groups([data], first_offset=0, end_offset=10, aborted=(module.Aborted(5, 5, 9),))
    assert rows.column("is_aborted").to_pylist() == [*[False] * 5, *[True] * 4, False]


def test_rows_outside_the_range_are_left_out() -> None:
    groups = row_groups([batches(0, 100)], first_offset=13, end_offset=57, aborted=())
    assert [offset for rows in groups for offset in rows.column("offset").to_pylist()] == list(
        range(13, 57)
    )


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_ROWS_MAX", 30)
    sizes = [
        rows.num_rows
        for rows in row_groups([batches(0, 100)], first_offset=0, end_offset=100, aborted=())
    ]
    assert sizes == [30, 30, 30, 10]
    monkeypatch.setattr(module, "GROUP_BYTES_MAX", 1)
    assert (
        len(list(row_groups([batches(0, 100)], first_offset=0, end_offset=100, aborted=()))) == 10
    )


def test_damaged_batch_is_not_archived() -> None:
    data = bytearray(batches(0, 100))
    data[500] ^= 1
    with pytest.raises(CorruptBatch):
        list(row_groups([bytes(data)], first_offset=0, end_offset=100, aborted=()))
