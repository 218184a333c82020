"""Records in plain Python, held against two other implementations."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from millstream.errors import CorruptBatch
from millstream.records.batch import parse_header
from millstream.records.compression import Compression
from millstream.records.record import (
    ControlType,
    Record,
    assemble_batch,
    decode_batch,
    decode_end_transaction,
    encode_batch,
    encode_end_transaction,
    read_varint,
    write_varint,
)

NULLABLE = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), NULLABLE), max_size=3).map(tuple)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def records(draw: st.DrawFn, timestamps: st.SearchStrategy[int] = INT64) -> list[Record]:
    """Records with rising offsets, as compaction may leave them."""
    gaps = draw(st.lists(st.integers(1, 50), min_size=1, max_size=20))
    offset = draw(st.integers(0, 2**40))
    made = []
    for gap in gaps:
        record = Record(offset, draw(timestamps), draw(NULLABLE), draw(NULLABLE), draw(HEADERS))
        made.append(record)
        offset += gap
    return made


@given(records(), st.sampled_from(Compression))
def test_batch_survives_encoding(made: list[Record], codec: Compression) -> None:
    batch = encode_batch(made, compression=codec)
    assert decode_batch(batch) == made
    assert decode_batch(b"before" + batch, 6) == made


@given(INT64)
def test_varint_survives_encoding(value: int) -> None:
    encoded = write_varint(value)
    assert read_varint(encoded, 0, len(encoded)) == (value, len(encoded))
    with pytest.raises(CorruptBatch):
        read_varint(encoded[:-1], 0, len(encoded) - 1)


@pytest.mark.parametrize(("value", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (300, "d804")])
def test_varint_is_zig_zag(value: int, encoded: str) -> None:
    assert write_varint(value).hex() == encoded


def test_varint_refuses_more_than_ten_bytes() -> None:
    with pytest.raises(CorruptBatch):
        read_varint(b"\x80" * 10 + b"\x00", 0, 11)


@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_decode_reads_what_other_libraries_build(builder: Any, codec: Compression) -> None:
    built = builder(2, codec, 0, 7, 1, 30, 100_000)
    for i in range(50):
        key = None if i % 7 == 0 else b"key%d" % i
        value = None if i % 5 == 0 else b"value%d" % i * i
        headers = [("name", b"x" * i), ("none", None)] if i % 2 else []
        built.append(i, 1_600_000_000_000 - i, key, value, headers)
    batch = bytes(built.build())
    header = parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 30)
    decoded = decode_batch(batch)
    assert decoded[1] == Record(
        1, 1_599_999_999_999, b"key1", b"value1", (("name", b"x"), ("none", None))
    )
    assert decoded[0] == Record(0, 1_600_000_000_000, None, None)
    assert [record.offset for record in decoded] == list(range(50))


@pytest.mark.parametrize("reader", [AiokafkaBatch, KafkaPythonBatch])
@given(made=records(timestamps=st.integers(0, 2**42)))
def test_other_libraries_read_what_encode_writes(reader: Any, made: list[Record]) -> None:
    batch = reader(bytearray(encode_batch(made)))
    assert batch.validate_crc()
    read = [
        Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
        for each in batch
    ]
    assert read == made


def test_log_append_time_is_the_timestamp_of_every_record() -> None:
    made = [Record(0, 10, b"k", b"v"), Record(1, 20, b"k", b"v")]
    batch = encode_batch(made, is_log_append_time=True)
    assert [record.timestamp for record in decode_batch(batch)] == [20, 20]


def test_end_of_a_transaction_is_a_control_batch() -> None:
    batch = encode_end_transaction(
        ControlType.ABORT,
        offset=5,
        timestamp=9,
        producer_id=3,
        producer_epoch=2,
        coordinator_epoch=8,
    )
    header = parse_header(batch)
    assert header.is_control
    assert header.is_transactional
    (marker,) = decode_batch(batch)
    assert ControlType.from_key(marker.key) is ControlType.ABORT
    assert marker.value == b"\x00\x00\x00\x00\x00\x08"
    assert (marker.offset, marker.timestamp) == (5, 9)
    assert decode_end_transaction(batch) == (ControlType.ABORT, 8)
    assert decode_end_transaction(memoryview(batch + b"more")) == (ControlType.ABORT, 8)
    with pytest.raises(CorruptBatch):
        decode_end_transaction(batch[:-1] + b"?")


def test_other_control_batches_end_no_transaction() -> None:
    leader_change = Record(0, 1, b"\x00\x00\x00\x02", b"")
    assert decode_end_transaction(encode_batch([leader_change], is_control=True)) is None
    cut_short = Record(0, 1, b"\x00\x00\x00\x01", b"\x00\x00")
    with pytest.raises(CorruptBatch, match="coordinator epoch"):
        decode_end_transaction(encode_batch([cut_short], is_control=True))
    emptied = parse_header(encode_batch([leader_change], is_control=True))._replace(record_count=0)
    assert decode_end_transaction(assemble_batch(emptied, b"")) is None


def test_control_type_of_a_later_kafka_is_unknown() -> None:
    assert ControlType.from_key(b"\x00\x00\x00\x63") is ControlType.UNKNOWN
    with pytest.raises(CorruptBatch):
        ControlType.from_key(None)


def test_decode_refuses_a_count_that_does_not_fit() -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v"), Record(1, 0, b"k", b"v")])
    header = parse_header(batch)
    for count in (1, 3):
        wrong = assemble_batch(header._replace(record_count=count), batch[61:])
        with pytest.raises(CorruptBatch):
            decode_batch(wrong)


def test_encode_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])
