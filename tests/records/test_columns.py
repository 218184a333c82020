"""The compiled codec between batches and columns, held against `record.py`, the reference."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records import columns as columns_module
from millstream.records.batch import compute_crc, parse_header
from millstream.records.columns import (
    AbortedRange,
    BinaryBuffers,
    BinaryColumn,
    Columns,
    HeaderColumn,
    ProducerIdentity,
    RowEncoder,
    decode_columns,
    encode_batches,
    partitions_of,
    rows_by_partition,
)
from millstream.records.compression import Compression
from millstream.records.record import (
    ControlType,
    Record,
    decode_batch,
    encode_batch,
    encode_end_transaction,
)

binary = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), binary), max_size=3).map(tuple)
rows = st.lists(st.tuples(st.integers(-1, 2**45), binary, binary, headers), min_size=1, max_size=30)


def records_of(columns: Columns) -> list[Record]:
    offsets = memoryview(columns.offsets).cast("q")
    timestamps = memoryview(columns.timestamps).cast("q")
    keys, values = values_of(columns.keys), values_of(columns.values)
    lists: list[tuple[tuple[str, bytes | None], ...]] = [()] * columns.row_count
    if columns.headers is not None:
        ends = memoryview(columns.headers.offsets).cast("i")
        names = [(name or b"").decode() for name in values_of(columns.headers.names)]
        pairs = list(zip(names, values_of(columns.headers.values), strict=True))
        lists = [tuple(pairs[ends[i] : ends[i + 1]]) for i in range(columns.row_count)]
    return [
        Record(offsets[i], timestamps[i], keys[i], values[i], lists[i])
        for i in range(columns.row_count)
    ]


def values_of(column: BinaryBuffers) -> list[bytes | None]:
    ends, data = memoryview(column.offsets).cast("i"), memoryview(column.data)
    bits = None if column.validity is None else memoryview(column.validity)
    values = [
        None if bits is not None and not bits[i >> 3] >> (i & 7) & 1 else data[a:b].tobytes()
        for i, (a, b) in enumerate(pairwise(ends))
    ]
    assert sum(value is None for value in values) == column.null_count
    return values


def as_records(drawn: Sequence[tuple[int, bytes | None, bytes | None, tuple[()]]]) -> list[Record]:
    return [Record(number, *row) for number, row in enumerate(drawn)]


def binary_column(values: Sequence[bytes | None], *, before: int = 0) -> BinaryColumn:
    """The values as an Arrow array would hold them, `before` others standing before them."""
    padded: list[bytes | None] = [b"padding"] * before + list(values)
    ends = array("i", [0])
    bits = bytearray((len(padded) + 7) // 8)
    for index, value in enumerate(padded):
        ends.append(ends[-1] + len(value or b""))
        if value is not None:
            bits[index >> 3] |= 1 << (index & 7)
    data = b"".join(value or b"" for value in padded)
    return BinaryColumn(len(values), before, bytes(bits), ends, data)


def header_column(lists: Sequence[Sequence[tuple[str, bytes | None]]]) -> HeaderColumn:
    ends = array("i", [0])
    for it in lists:
        ends.append(ends[-1] + len(it))
    pairs = [pair for it in lists for pair in it]
    names = binary_column([name.encode() for name, _ in pairs])
    return HeaderColumn(len(lists), 0, ends, names, binary_column([value for _, value in pairs]))


def encoder_of(records: Sequence[Record], *, before: int = 0) -> RowEncoder:
    return RowEncoder(
        array("q", [record.timestamp for record in records]),
        binary_column([record.key for record in records], before=before),
        binary_column([record.value for record in records], before=before),
        header_column([record.headers for record in records]),
    )


@given(rows, st.sampled_from(Compression), st.integers(1, 5))
def test_decode_columns_agrees_with_the_reference(
    drawn: list[tuple[int, bytes | None, bytes | None, tuple[()]]],
    compression: Compression,
    batches: int,
) -> None:
    records = as_records(drawn)
    size = -(-len(records) // batches)
    parts = [records[start : start + size] for start in range(0, len(records), size)]
    fetched = b"".join(encode_batch(part, compression=compression) for part in parts)
    columns = decode_columns(fetched, with_headers=True)
    assert records_of(columns) == records
    assert columns.next_offset == len(records)


@given(rows, st.integers(1, 400), st.integers(0, 9))
def test_encode_batches_is_read_back_by_the_reference(
    drawn: list[tuple[int, bytes | None, bytes | None, tuple[()]]], batch_bytes: int, before: int
) -> None:
    records = as_records(drawn)
    encoder = encoder_of(records, before=before)
    read, counts = [], []
    for batch, count in encode_batches(
        encoder, array("q", range(len(records))), batch_bytes_max=batch_bytes
    ):
        read += decode_batch(batch)
        counts.append(count)
    assert sum(counts) == len(records)
    assert [replace(record, offset=i) for i, record in enumerate(read)] == records


def test_encode_batches_takes_the_rows_it_is_given_and_counts_sequences_on() -> None:
    records = [Record(i, 1000 - i, b"k%d" % i, b"v" * 50) for i in range(10)]
    producer = ProducerIdentity(7, 3, 2**31 - 3, is_transactional=True)
    batches = list(
        encode_batches(
            encoder_of(records),
            array("q", [9, 1, 5, 0]),
            batch_bytes_max=250,
            compression=Compression.ZSTD,
            producer=producer,
        )
    )
    assert [count for _, count in batches] == [2, 2]
    keys = [record.key for batch, _ in batches for record in decode_batch(batch)]
    assert keys == [b"k9", b"k1", b"k5", b"k0"]
    headers = [parse_header(batch) for batch, _ in batches]
    assert [header.base_sequence for header in headers] == [2**31 - 3, 2**31 - 1]
    assert all(header.is_transactional and header.producer_id == 7 for header in headers)
    assert [header.max_timestamp for header in headers] == [999, 1000]


def test_decode_columns_returns_only_the_range_asked_for() -> None:
    fetched = encode_batch([Record(i, i, None, b"%d" % i) for i in range(10)])
    fetched += encode_batch([Record(10 + i, i, None, b"%d" % i) for i in range(10)])
    columns = decode_columns(fetched, first_offset=7, end_offset=13)
    assert list(memoryview(columns.offsets).cast("q")) == [7, 8, 9, 10, 11, 12]
    assert columns.next_offset == 13
    assert columns.keys.null_count == 6


def test_decode_columns_returns_as_many_batches_as_columns_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [Record(number, 0, None, b"x" * 40) for number in range(5)]
    batches = [encode_batch([it], compression=Compression.GZIP) for it in records]
    monkeypatch.setattr(columns_module, "COLUMN_BYTES_MAX", 100)
    found, offset = [], 0
    while offset < 5:
        columns = decode_columns(b"".join(batches), first_offset=offset)
        found.append(list(memoryview(columns.offsets).cast("q")))
        offset = columns.next_offset
    assert found == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr(columns_module, "COLUMN_BYTES_MAX", 10)
    assert decode_columns(b"".join(batches)).row_count == 1, "at least one"


def transactional(offset: int, producer_id: int, count: int) -> bytes:
    records = [Record(offset + i, 0, None, b"%d" % producer_id) for i in range(count)]
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    return encode_end_transaction(
        kind,
        offset=offset,
        timestamp=0,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
    )


def test_decode_columns_skips_aborted_transactions_and_markers() -> None:
    fetched = (
        transactional(0, 1, 2)  # aborted
        + transactional(2, 2, 2)  # committed
        + marker(4, 1, ControlType.ABORT)
        + transactional(5, 1, 1)  # a later transaction of producer 1, committed
        + marker(6, 2, ControlType.COMMIT)
        + marker(7, 1, ControlType.COMMIT)
    )
    columns = decode_columns(fetched, aborted=[AbortedRange(1, 0)])
    assert list(memoryview(columns.offsets).cast("q")) == [2, 3, 5]
    assert columns.next_offset == 8
    assert decode_columns(fetched).row_count == 5  # read uncommitted: all but the markers


def test_decode_columns_leaves_a_batch_whose_end_is_missing() -> None:
    whole = encode_batch([Record(0, 0, b"k", b"v")])
    cut = encode_batch([Record(1, 0, b"k", b"v")])[:-1]
    columns = decode_columns(whole + cut)
    assert (columns.row_count, columns.next_offset) == (1, 1)


@given(st.data())
def test_decode_columns_refuses_damage_and_never_crashes(data: st.DataObject) -> None:
    batch = bytearray(
        encode_batch([Record(i, i, b"key", b"value", (("h", b"x"),)) for i in range(5)])
    )
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    batch[17:21] = compute_crc(bytes(batch), 0, len(batch)).to_bytes(4, "big")
    try:
        columns = decode_columns(bytes(batch), with_headers=True)
    except CorruptBatch:
        return
    assert columns.row_count <= 5
    values_of(columns.keys), values_of(columns.values)


def test_decode_columns_refuses_a_wrong_crc() -> None:
    batch = bytearray(encode_batch([Record(0, 0, b"k", b"v")]))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_columns(bytes(batch))


def test_encoder_refuses_rows_and_columns_that_do_not_fit() -> None:
    encoder = encoder_of([Record(0, 0, b"k", b"v")])
    with pytest.raises(ValueError, match="row 1 lies outside"):
        encoder.encode(array("q", [1]), 0, 100)
    with pytest.raises(ValueError, match="no row at position 1"):
        encoder.encode(array("q", [0]), 1, 100)
    with pytest.raises(ValueError, match="outside the data"):
        BinaryColumn(1, 0, None, array("i", [0, 9]), b"short")
    with pytest.raises(ValueError, match="must not fall"):
        BinaryColumn(2, 0, None, array("i", [0, 3, 1]), b"abc")
    with pytest.raises(ValueError, match="same number of rows"):
        RowEncoder(array("q", [0]), None, binary_column([b"a", b"b"]))


def test_partitions_of_keys_are_those_of_the_java_client() -> None:
    # Utils.toPositive(Utils.murmur2(key)) % 10 of Kafka's Java client, whose own test has the
    # hashes of the first three: -973932308, -790332482, -985981536.
    keys = [b"21", b"foobar", b"a-little-bit-long-string", None]
    expected = [(h & 0x7FFFFFFF) % 10 for h in (-973932308, -790332482, -985981536)]
    chosen = memoryview(partitions_of(binary_column(keys), 10)).cast("i")
    assert list(chosen) == [*expected, -1]


def test_rows_by_partition_keep_their_order_and_leave_out_what_has_none() -> None:
    numbers = array("i", [2, 0, -1, 2, -2, 0])
    dealt = [list(memoryview(it).cast("B").cast("q")) for it in rows_by_partition(numbers, 3)]
    assert dealt == [[1, 2, 5], [], [0, 3]]
    with pytest.raises(ValueError, match="row 0 belongs to partition 2 of 2"):
        rows_by_partition(numbers, 2)
    with pytest.raises(ValueError, match="0 partitions"):
        rows_by_partition(numbers, 0)


def test_values_of_a_column_are_read_back() -> None:
    column = binary_column([b"a", None, b"", b"bc"])
    assert column.to_list() == [b"a", None, b"", b"bc"]
    assert column.to_list(1, 3) == [None, b""]
    with pytest.raises(ValueError, match="no values 3 to 9"):
        column.to_list(3, 9)
