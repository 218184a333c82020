"""What a leader refuses of a producer's batch, and what it makes of the rest."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode
from millstream.records import validation
from millstream.records.batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    compute_crc,
    parse_header,
    verify_crc,
)
from millstream.records.compression import Compression, compress
from millstream.records.record import Record, assemble_batch, decode_batch, encode_batch
from millstream.records.validation import InvalidRecords, transform_produced, validate_produced

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
PLAIN = TopicConfig()
COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}))
VERIFIED = TopicConfig(millstream_verify_compressed=True)
STAMPED = TopicConfig(message_timestamp_type="LogAppendTime")
CODECS = [codec for codec in Compression if codec is not Compression.NONE]

MADE = [Record(i, NOW_MS - i, b"key%d" % i, b"value" * i) for i in range(5)]


def rewrite(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a right CRC."""
    return assemble_batch(parse_header(batch)._replace(**fields), batch[61:])


def produce(batch: bytes, config: TopicConfig, zstd_allowed: bool = True) -> bytes:
    """What would be stored."""
    headers = validate_produced(batch, config, NOW_MS, zstd_allowed=zstd_allowed)
    return bytes(transform_produced(batch, headers, config, NOW_MS)[0])


def refusal(batch: bytes, config: TopicConfig = PLAIN, *, zstd_allowed: bool = True) -> ApiError:
    with pytest.raises(ApiError) as caught:
        produce(batch, config, zstd_allowed)
    return caught.value


def store(batch: bytes, config: TopicConfig) -> tuple[bytes, BatchHeader]:
    headers = validate_produced(batch, config, NOW_MS)
    stored, (header,) = transform_produced(batch, headers, config, NOW_MS)
    verify_crc(stored, 0, header)
    assert parse_header(stored) == header
    return bytes(stored), header


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("config", [PLAIN, COMPACTED, VERIFIED])
def test_good_batch_passes_untouched(codec: Compression, config: TopicConfig) -> None:
    batch = encode_batch(MADE, compression=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    headers = validate_produced(batch, config, NOW_MS)
    assert headers == [parse_header(batch)]
    stored, stored_headers = transform_produced(batch, headers, config, NOW_MS)
    assert stored is batch
    assert stored_headers is headers


def test_memoryview_of_a_request_passes() -> None:
    batch = encode_batch(MADE)
    assert validate_produced(memoryview(bytearray(batch)), PLAIN, NOW_MS)[0].record_count == 5


# The header


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused(magic: int) -> None:
    message = struct.pack(">qiIbb", 0, 30, 0, magic, 0) + bytes(40)
    error = refusal(message)
    assert error.code is ErrorCode.INVALID_RECORD
    assert f"format {magic}" in str(error)


def test_unknown_format_is_corrupt() -> None:
    batch = bytearray(encode_batch(MADE))
    batch[16] = 7
    assert refusal(bytes(batch)).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 5, 17, 60, 80])
def test_part_of_a_batch_is_no_batch(size: int) -> None:
    assert refusal(encode_batch(MADE)[:size]).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_impossible_length_is_corrupt(length: int) -> None:
    batch = bytearray(encode_batch(MADE))
    struct.pack_into(">i", batch, 8, length)
    assert refusal(bytes(batch)).code is ErrorCode.CORRUPT_MESSAGE


def test_second_batch_is_refused() -> None:
    error = refusal(encode_batch(MADE) * 2)
    assert error.code is ErrorCode.INVALID_RECORD
    assert "exactly one" in str(error)


def test_bytes_after_the_batch_are_corrupt() -> None:
    assert refusal(encode_batch(MADE) + b"more").code is ErrorCode.CORRUPT_MESSAGE
    assert refusal(encode_batch(MADE) + bytes(100)).code is ErrorCode.CORRUPT_MESSAGE


def test_zstd_needs_a_recent_produce_version() -> None:
    batch = encode_batch(MADE, compression=Compression.ZSTD)
    error = refusal(batch, zstd_allowed=False)
    assert error.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert validate_produced(batch, PLAIN, NOW_MS, zstd_allowed=True)
    lz4 = encode_batch(MADE, compression=Compression.LZ4)
    assert validate_produced(lz4, PLAIN, NOW_MS, zstd_allowed=False)


def test_unknown_codec_is_refused() -> None:
    error = refusal(rewrite(encode_batch(MADE), attributes=5))
    assert error.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_changed_byte_is_corrupt() -> None:
    batch = bytearray(encode_batch(MADE))
    batch[-1] ^= 1
    assert refusal(bytes(batch)).code is ErrorCode.CORRUPT_MESSAGE


def test_batch_above_the_message_size_is_too_large() -> None:
    batch = encode_batch(MADE)
    config = replace(PLAIN, max_message_bytes=len(batch))
    assert validate_produced(batch, config, NOW_MS)
    error = refusal(batch, replace(PLAIN, max_message_bytes=len(batch) - 1))
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_batch_above_the_segment_size_is_too_large() -> None:
    batch = encode_batch(MADE)
    error = refusal(batch, replace(PLAIN, segment_bytes=len(batch) - 1))
    assert error.code is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"base_offset": 3}, "base offset"),
        ({"record_count": 4}, "4 records"),
        ({"record_count": 6, "last_offset_delta": 4}, "6 records"),
        ({"record_count": 0, "last_offset_delta": 0}, "0 records"),
        ({"attributes": CONTROL_FLAG}, "control"),
        ({"producer_id": 9, "producer_epoch": 0, "base_sequence": -1}, "sequence -1"),
    ],
)
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_header_that_makes_no_sense_is_an_invalid_record(
    fields: dict[str, int], why: str, codec: Compression
) -> None:
    error = refusal(rewrite(encode_batch(MADE, compression=codec), **fields))
    assert error.code is ErrorCode.INVALID_RECORD
    assert why in str(error)


def test_producer_may_not_claim_log_append_time() -> None:
    batch = rewrite(encode_batch(MADE), attributes=LOG_APPEND_TIME_FLAG)
    assert refusal(batch).code is ErrorCode.INVALID_TIMESTAMP
    assert refusal(batch, STAMPED).code is ErrorCode.INVALID_TIMESTAMP


# The records


def test_records_that_are_not_there_are_invalid() -> None:
    batch = encode_batch(MADE)
    header = parse_header(batch)
    for section in (batch[61:-1], batch[61:] + b"\x00", b"\x80" * 40, b""):
        assert refusal(assemble_batch(header, section)).code is ErrorCode.INVALID_RECORD


def test_records_out_of_order_are_invalid() -> None:
    made = [Record(0, NOW_MS, b"k", b"v"), Record(2, NOW_MS, b"k", b"v")]
    batch = rewrite(encode_batch(made), last_offset_delta=2, record_count=3)
    assert refusal(batch).code is ErrorCode.INVALID_RECORD
    batch = rewrite(encode_batch(made), last_offset_delta=1)
    assert refusal(batch).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batch_stays_closed_unless_asked(codec: Compression) -> None:
    header = parse_header(encode_batch(MADE, compression=codec))
    nonsense = assemble_batch(header, compress(b"these are no records", codec))
    garbage = assemble_batch(header, b"not compressed at all")
    for batch in (nonsense, garbage):
        assert validate_produced(batch, PLAIN, NOW_MS)
        assert refusal(batch, VERIFIED).code is ErrorCode.INVALID_RECORD
        assert refusal(batch, COMPACTED).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", Compression)
def test_compacted_topic_names_the_records_without_a_key(codec: Compression) -> None:
    keys = [b"a", None, b"", None]
    made = [Record(i, NOW_MS, key, b"v") for i, key in enumerate(keys)]
    batch = encode_batch(made, compression=codec)
    error = refusal(batch, COMPACTED)
    assert isinstance(error, InvalidRecords)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert all("without a key" in message for _, message in error.record_errors)
    assert validate_produced(batch, PLAIN, NOW_MS)


def test_list_of_refused_records_is_bounded() -> None:
    batch = encode_batch([Record(i, NOW_MS, None, None) for i in range(10_000)])
    error = refusal(batch, COMPACTED)
    assert isinstance(error, InvalidRecords)
    assert len(error.record_errors) == 64


BOUNDED = TopicConfig(
    message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS
)


@pytest.mark.parametrize("shift_ms", [-HOUR_MS, 0, HOUR_MS])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_timestamp_within_the_bounds_passes(shift_ms: int, codec: Compression) -> None:
    batch = encode_batch([Record(0, NOW_MS + shift_ms, b"k", b"v")], compression=codec)
    assert validate_produced(batch, BOUNDED, NOW_MS)


@pytest.mark.parametrize("shift_ms", [-HOUR_MS - 1, HOUR_MS + 1])
@pytest.mark.parametrize("config", [BOUNDED, replace(BOUNDED, millstream_verify_compressed=True)])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_timestamp_outside_the_bounds_is_refused(
    shift_ms: int, codec: Compression, config: TopicConfig
) -> None:
    batch = encode_batch([Record(0, NOW_MS + shift_ms, b"k", b"v")], compression=codec)
    assert refusal(batch, config).code is ErrorCode.INVALID_TIMESTAMP


def test_timestamp_error_names_the_record() -> None:
    made = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS + 2 * HOUR_MS, b"k", b"v")]
    error = refusal(encode_batch(made), BOUNDED)
    assert isinstance(error, InvalidRecords)
    assert [index for index, _ in error.record_errors] == [1]
    assert "message.timestamp.after.max.ms" in str(error)


def test_missing_timestamp_is_within_any_bounds() -> None:
    batch = encode_batch([Record(0, -1, b"k", b"v")])
    assert validate_produced(batch, BOUNDED, NOW_MS)


def test_default_bounds_accept_any_past() -> None:
    assert validate_produced(encode_batch([Record(0, 0, b"k", b"v")]), PLAIN, NOW_MS)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_wrong_largest_timestamp_is_put_right_where_records_are_seen(codec: Compression) -> None:
    batch = rewrite(encode_batch(MADE, compression=codec), max_timestamp=NOW_MS - 100)
    stored, header = store(batch, VERIFIED)
    assert header.max_timestamp == NOW_MS
    assert decode_batch(stored) == MADE


# What the topic's settings make of it


@pytest.mark.parametrize("source", Compression)
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batch_is_recompressed_as_the_topic_wants(source: Compression, wanted: str) -> None:
    batch = encode_batch(
        MADE, compression=source, producer_id=4, producer_epoch=1, base_sequence=77
    )
    stored, header = store(batch, TopicConfig(compression_type=wanted))
    assert header.compression is Compression.from_name(wanted)
    assert decode_batch(stored) == MADE
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 77)
    assert (stored == batch) == (source is Compression.from_name(wanted))


@pytest.mark.parametrize("wanted", ["gzip", "uncompressed"])
def test_batch_to_be_recompressed_is_checked(wanted: str) -> None:
    header = parse_header(encode_batch(MADE, compression=Compression.LZ4))
    for section in (b"garbage", compress(b"these are no records", Compression.LZ4)):
        error = refusal(assemble_batch(header, section), TopicConfig(compression_type=wanted))
        assert error.code is ErrorCode.INVALID_RECORD


def test_null_key_is_found_before_recompression() -> None:
    batch = encode_batch([Record(0, NOW_MS, None, b"v")], compression=Compression.LZ4)
    error = refusal(batch, replace(COMPACTED, compression_type="gzip"))
    assert isinstance(error, InvalidRecords)


def test_batch_that_grows_past_the_message_size_is_too_large() -> None:
    batch = encode_batch([Record(0, NOW_MS, b"k", b"a" * 10_000)], compression=Compression.ZSTD)
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=5_000)
    assert refusal(batch, config).code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.SNAPPY])
def test_log_append_time_stamps_the_batch(codec: Compression) -> None:
    batch = encode_batch(MADE, compression=codec)
    stored, header = store(batch, STAMPED)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW_MS
    assert header.compression is codec
    assert {record.timestamp for record in decode_batch(stored)} == {NOW_MS}


def test_log_append_time_accepts_any_timestamp() -> None:
    batch = encode_batch([Record(0, NOW_MS * 2, b"k", b"v")])
    assert store(batch, STAMPED)[1].max_timestamp == NOW_MS


# Anything at all


@given(st.binary(max_size=300))
def test_any_bytes_are_accepted_or_refused_with_a_code(data: bytes) -> None:
    assert refusal(data).code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


@given(
    codec=st.sampled_from(Compression),
    config=st.sampled_from([PLAIN, COMPACTED, VERIFIED, STAMPED]),
    changes=st.lists(st.tuples(st.integers(61, 400), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_mutated_records_are_accepted_or_refused_with_a_code(
    codec: Compression, config: TopicConfig, changes: list[tuple[int, int]]
) -> None:
    batch = bytearray(encode_batch(MADE, compression=codec))
    for place, change in changes:
        batch[61 + (place - 61) % (len(batch) - 61)] ^= change
    mutated = assemble_batch(parse_header(batch), bytes(batch[61:]))
    try:
        stored = produce(mutated, config)
    except ApiError as refused:
        code = refused.code
    else:
        code = ErrorCode.NONE
        if codec is Compression.NONE or config in (COMPACTED, VERIFIED):
            assert len(decode_batch(stored)) == 5
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)


def outcome(batch: bytes, config: TopicConfig) -> object:
    try:
        return validate_produced(batch, config, NOW_MS)
    except ApiError as refused:
        return refused.code, str(refused)


@given(
    codec=st.sampled_from(Compression),
    config=st.sampled_from(
        [PLAIN, COMPACTED, STAMPED, TopicConfig(message_timestamp_after_max_ms=2**63 - 1)]
    ),
    idempotent=st.booleans(),
    has_crc=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.integers(-2, 1),
)
def test_small_batch_is_judged_in_one_step_as_it_is_in_many(
    codec: Compression,
    config: TopicConfig,
    idempotent: bool,
    has_crc: bool,
    changes: list[tuple[int, int]],
    cut: int,
) -> None:
    options = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 3} if idempotent else {}
    batch = bytearray(encode_batch(MADE, compression=codec, **options))
    for place, change in changes:
        batch[place % len(batch)] ^= change
    if has_crc:
        batch[17:21] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
    batch = batch[:cut] if cut < 0 else batch + bytes(cut)
    in_one_step = outcome(bytes(batch), config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "check_small_batch", lambda *_: None)
        assert outcome(bytes(batch), config) == in_one_step


def test_ordinary_small_batch_needs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_single_header", None)
    batch = encode_batch(MADE, producer_id=7, producer_epoch=1, base_sequence=3)
    assert validate_produced(batch, PLAIN, NOW_MS) == [parse_header(batch)]
    assert isinstance(validate_produced(batch, COMPACTED, NOW_MS)[0], BatchHeader)
