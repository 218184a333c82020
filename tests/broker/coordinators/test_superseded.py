"""Chunks of batches, compacted in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.coordinators.superseded import without_superseded
from millstream.records.batch import iterate_headers
from millstream.records.compression import Compression
from millstream.records.record import Record, decode_batch, encode_batch

Key = bytes
Batches = list[list[tuple[Key, bytes | None]]]


def encoded(batches: Batches, compression: Compression = Compression.NONE) -> bytes:
    out, offset = b"", 0
    for batch in batches:
        records = [Record(offset + i, 1_000 + i, *pair) for i, pair in enumerate(batch)]
        out += encode_batch(records, compression=compression)
        offset += len(batch)
    return out


def decoded(batches: bytes | bytearray) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for position, _ in iterate_headers(batches)
        for record in decode_batch(batches, position)
    ]


def last_of_each_key(batches: Batches) -> list[tuple[int, bytes | None, bytes | None]]:
    everything = decoded(encoded(batches))
    last = {key: offset for offset, key, _ in everything}
    return [record for record in everything if last[record[1]] == record[0]]


KEYS = st.sampled_from([b"", b"a", b"b", b"long key"])
VALUES = st.none() | st.binary(max_size=4)
BATCHES = st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5), max_size=8)


@given(BATCHES)
def test_last_record_of_each_key_stays(batches: Batches) -> None:
    kept, next_offset = without_superseded(encoded(batches))
    assert decoded(kept) == last_of_each_key(batches)
    assert next_offset == sum(len(batch) for batch in batches)


def test_tombstones_stay() -> None:
    batches: Batches = [[(b"a", b"1")], [(b"a", None)]]
    assert decoded(without_superseded(encoded(batches))[0]) == [(1, b"a", None)]


def test_compressed_chunk_comes_back_as_it_is() -> None:
    chunk = encoded([[(b"a", b"1"), (b"a", b"2")]], Compression.GZIP)
    assert without_superseded(chunk) == (chunk, 2)


def test_unfinished_batch_at_the_end_is_left_out() -> None:
    whole = encoded([[(b"a", b"1")]])
    kept, next_offset = without_superseded(whole + whole[:30])
    assert (decoded(kept), next_offset) == ([(0, b"a", b"1")], 1)


def test_many_commits_to_few_keys_become_few_records() -> None:
    chunk = encoded([[(b"key", b"value")] for _ in range(2_000)])
    kept, next_offset = without_superseded(chunk)
    assert (len(decoded(kept)), next_offset) == (1, 2_000)
