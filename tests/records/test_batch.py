"""Batch headers: layout, iteration, CRC."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    NO_PRODUCER_ID,
    PREFIX,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    iterate_headers,
    parse_header,
    verify_crc,
)
from millstream.records.compression import Compression
from millstream.records.record import Record, encode_batch

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
COUNT = st.integers(0, 2**31 - 1)

HEADERS = st.builds(
    BatchHeader,
    base_offset=INT64,
    length=st.integers(49, 2**31 - 1),
    leader_epoch=INT32,
    magic=st.just(2),
    crc=st.integers(0, 2**32 - 1),
    attributes=st.integers(-(2**15), 2**15 - 1),
    last_offset_delta=COUNT,
    base_timestamp=INT64,
    max_timestamp=INT64,
    producer_id=INT64,
    producer_epoch=st.integers(-(2**15), 2**15 - 1),
    base_sequence=INT32,
    record_count=COUNT,
)


def batch_of(count: int, first_offset: int = 0) -> bytes:
    return encode_batch(
        [Record(first_offset + i, 1_000 + i, b"key", b"value") for i in range(count)]
    )


def test_header_has_the_size_and_places_of_format_v2() -> None:
    batch = encode_batch(
        [Record(7, 1_000, b"k", b"v"), Record(9, 1_250, b"k", b"v")],
        leader_epoch=3,
        producer_id=11,
        producer_epoch=5,
        base_sequence=21,
        is_transactional=True,
    )
    assert struct.unpack_from(">qii", batch, 0) == (7, len(batch) - 12, 3)
    assert batch[16] == 2
    assert struct.unpack_from(">hiqqqhii", batch, 21) == (
        TRANSACTIONAL_FLAG, 2, 1_000, 1_250, 11, 5, 21, 2,
    )  # fmt: skip
    assert HEADER_SIZE_BYTES == 61


@given(HEADERS)
def test_header_survives_encoding(header: BatchHeader) -> None:
    encoded = header.encode()
    assert parse_header(encoded) == header
    assert parse_header(b"abc" + encoded, 3) == header
    assert parse_header(memoryview(bytearray(encoded))) == header


def test_header_derives_what_follows_from_its_fields() -> None:
    header = parse_header(batch_of(3, first_offset=40))
    assert (header.last_offset, header.next_offset) == (42, 43)
    assert header.size_bytes == len(batch_of(3, first_offset=40))
    assert header.compression is Compression.NONE
    assert header.producer_id == NO_PRODUCER_ID


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (LOG_APPEND_TIME_FLAG, "is_log_append_time"),
        (TRANSACTIONAL_FLAG, "is_transactional"),
        (CONTROL_FLAG, "is_control"),
    ],
)
def test_header_reads_a_flag(flag: int, name: str) -> None:
    header = parse_header(batch_of(1))
    assert not getattr(header, name)
    assert getattr(header._replace(attributes=flag), name)


def test_delete_horizon_is_the_base_timestamp_when_flagged() -> None:
    header = parse_header(batch_of(1))
    assert header.delete_horizon_ms is None
    assert header._replace(attributes=DELETE_HORIZON_FLAG).delete_horizon_ms == 1_000


def test_last_sequence_wraps_to_zero() -> None:
    header = parse_header(batch_of(3))
    assert header.last_sequence == -1
    assert header._replace(base_sequence=5).last_sequence == 7
    assert header._replace(base_sequence=2**31 - 2).last_sequence == 0


@pytest.mark.parametrize("size", [0, 1, 60])
def test_parse_refuses_too_few_bytes(size: int) -> None:
    with pytest.raises(CorruptBatch, match="too few"):
        parse_header(batch_of(1)[:size])


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (16, b"\x01", "magic 1"),
        (8, struct.pack(">i", 48), "length 48"),
        (8, struct.pack(">i", -1), "length -1"),
        (23, struct.pack(">i", -1), "last offset delta -1"),
        (57, struct.pack(">i", -5), "record count -5"),
    ],
)
def test_parse_names_the_field_that_is_wrong(place: int, value: bytes, why: str) -> None:
    batch = bytearray(batch_of(1))
    batch[place : place + len(value)] = value
    with pytest.raises(CorruptBatch, match=why):
        parse_header(batch)


def test_iterate_yields_every_whole_batch_and_stops_before_a_torn_one() -> None:
    batches = [batch_of(2), batch_of(1, 2), batch_of(4, 3)]
    data = b"".join(batches)
    found = list(iterate_headers(data))
    assert [position for position, _ in found] == [0, len(batches[0]), len(data) - len(batches[2])]
    assert [header.base_offset for _, header in found] == [0, 2, 3]
    for cut in (1, len(batches[2]) - 61, len(batches[2]) - 1):
        assert len(list(iterate_headers(data[:-cut]))) == 2
    assert [header.base_offset for _, header in iterate_headers(data, len(batches[0]))] == [2, 3]


def test_iterate_raises_at_bytes_that_are_no_header() -> None:
    with pytest.raises(CorruptBatch):
        list(iterate_headers(batch_of(1) + bytes(100)))


@given(st.integers(21, len(batch_of(2)) - 1), st.integers(1, 255))
def test_crc_notices_any_changed_byte_from_the_attributes_on(place: int, change: int) -> None:
    batch = bytearray(batch_of(2))
    header = parse_header(batch)
    verify_crc(batch, 0, header)
    batch[place] ^= change
    with pytest.raises(CorruptBatch, match="CRC"):
        verify_crc(batch, 0, header)


def test_crc_leaves_out_what_the_leader_writes() -> None:
    batch = batch_of(2)
    header = parse_header(batch)
    stored = PREFIX.pack(1_234, header.length, 9) + batch[16:]
    verify_crc(stored, 0, parse_header(stored))
    assert parse_header(stored) == header._replace(base_offset=1_234, leader_epoch=9)


def test_crc_check_refuses_a_batch_whose_end_is_missing() -> None:
    batch = batch_of(2)
    with pytest.raises(CorruptBatch, match="only"):
        verify_crc(batch[:-1], 0, parse_header(batch))
