"""Validates and transforms a producer's batches before a leader appends them.

`validate_produced` refuses what Kafka refuses, with Kafka's error codes, in Kafka's order. Then
`transform_produced` applies the topic's settings; usually there is nothing to do, and the
producer's own bytes are stored.

An uncompressed batch is checked record by record (compiled, 12 ns per record). A compressed one
stays opaque: its CRC, count and timestamps are checked by the header. It is decompressed only for a
compacted topic (null keys are refused), if `compression.type` requires another codec, or if
`millstream.verify.compressed` is set (docs/decisions/0007-verify-compressed.md).
"""

from __future__ import annotations

import struct

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.records._walk import NULL_KEY, check_records, check_small_batch
from millstream.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME_FLAG,
    MAGIC_OFFSET,
    MAGIC_V2,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    parse_header,
    verify_crc,
)
from millstream.records.compression import Compression, compress, decompress
from millstream.records.record import assemble_batch

RecordError = tuple[int, str]

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_ZSTD = int(Compression.ZSTD)
_LENGTH = struct.Struct(">i")
_LENGTH_OFFSET = 8
_TIMESTAMP = struct.Struct(">q")
_RECORD_ERRORS_IN_MESSAGE = 3
_new_header = tuple.__new__


class InvalidRecords(ApiError):
    """Records that were refused: (index in the batch, reason); returned by Produce v8+."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def validate_produced(
    records: Buffer, config: TopicConfig, now_ms: int, *, zstd_allowed: bool = True
) -> list[BatchHeader]:
    """The headers of the batches that a client produced to one partition: exactly one.

    Raises `ApiError` where Kafka would; `zstd_allowed` is for Produce v7 and later. The header has
    the batch's actual largest timestamp, which `transform_produced` writes into a batch with a
    wrong one.
    """
    size = len(records)
    if (
        size <= config.max_message_bytes
        and size <= config.segment_bytes
        and config.message_timestamp_type == "CreateTime"
    ):
        fields = check_small_batch(
            records,
            now_ms,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.compact,
        )
        if fields is not None:
            return [_new_header(BatchHeader, fields)]
    # Larger, compressed, or something is wrong with it: the following says what.
    header = _single_header(records, zstd_allowed)
    _check_header(records, header, config)
    return [_check_contents(records, header, config, now_ms)]


def transform_produced(
    records: Buffer, headers: list[BatchHeader], config: TopicConfig, now_ms: int
) -> tuple[Buffer, list[BatchHeader]]:
    """The batch as the topic's settings require it, after `validate_produced`.

    Recompressed if `compression.type` differs from the producer's; timestamped with `now_ms` if the
    topic uses LogAppendTime. Otherwise the unchanged bytes.
    """
    (header,) = headers
    recompress = config.compression_type != "producer" and _needs_recompression(header, config)
    if not recompress and config.message_timestamp_type == "CreateTime":
        claimed = _TIMESTAMP.unpack_from(records, MAX_TIMESTAMP_OFFSET)[0]
        if claimed == header.max_timestamp:
            return records, headers
    section: Buffer = memoryview(records)[HEADER_SIZE_BYTES : header.size_bytes]
    if recompress:
        header, section = _recompress(header, section, config, now_ms)
    if config.message_timestamp_type == "LogAppendTime":
        attributes = header.attributes | LOG_APPEND_TIME_FLAG
        header = header._replace(attributes=attributes, max_timestamp=now_ms)
    stored = assemble_batch(header, section)
    if len(stored) > config.max_message_bytes:
        raise _too_large(len(stored), config)
    return stored, [parse_header(stored)]


# The header


def _single_header(records: Buffer, zstd_allowed: bool) -> BatchHeader:
    try:
        header = parse_header(records)
    except CorruptBatch as error:
        raise _refuse_header(records, error) from None
    size = len(records)
    end = header.length + LENGTH_OVERHEAD_BYTES
    if end > size:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"the record batch claims {end} bytes, but {size} were sent; "
            "a partition needs one whole batch",
        )
    codec = header.attributes & COMPRESSION_MASK
    if codec > _ZSTD or (codec == _ZSTD and not zstd_allowed):
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "zstd is allowed from Produce v7 on: upgrade the client or choose another compression"
            if codec == _ZSTD
            else f"unknown compression {codec} in the batch's attributes",
        )
    if end < size:
        raise _refuse_trailing(records, end)
    return header


def _refuse_header(records: Buffer, error: CorruptBatch) -> ApiError:
    """Kafka's error for bytes that do not start with a v2 batch header."""
    if len(records) > MAGIC_OFFSET and 0 <= records[MAGIC_OFFSET] < MAGIC_V2:
        return ApiError(
            ErrorCode.INVALID_RECORD,
            f"message format {records[MAGIC_OFFSET]} is no longer accepted: "
            "produce record batches of format 2 (clients since 0.11)",
        )
    if len(records) < HEADER_SIZE_BYTES:
        return ApiError(ErrorCode.INVALID_RECORD, f"no whole record batch was sent: {error}")
    return ApiError(ErrorCode.CORRUPT_MESSAGE, str(error))


def _refuse_trailing(records: Buffer, position: int) -> ApiError:
    left = len(records) - position
    if left >= HEADER_SIZE_BYTES:
        length = _LENGTH.unpack_from(records, position + _LENGTH_OFFSET)[0]
        if HEADER_SIZE_BYTES <= length + LENGTH_OVERHEAD_BYTES <= left:
            return ApiError(
                ErrorCode.INVALID_RECORD,
                "a produce request may have exactly one record batch per partition; this has more",
            )
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{left} bytes follow the record batch")


def _check_header(records: Buffer, header: BatchHeader, config: TopicConfig) -> None:
    if header.base_offset != 0:
        raise _invalid(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    size = header.length + LENGTH_OVERHEAD_BYTES
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if size > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size} bytes, more than segment.bytes = {config.segment_bytes}",
        )
    try:
        verify_crc(records, 0, header)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(
            f"the batch says that it has {count} records, but its offsets are 0 to "
            f"{header.last_offset_delta}"
        )
    if header.attributes & CONTROL_FLAG:
        raise _invalid("clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(
            f"producer {header.producer_id} sent a batch with sequence {header.base_sequence}"
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, message)


def _too_large(size: int, config: TopicConfig) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes, more than max.message.bytes = {config.max_message_bytes}",
    )


# The records


def _check_contents(
    records: Buffer, header: BatchHeader, config: TopicConfig, now_ms: int
) -> BatchHeader:
    """The header with the actual largest timestamp, if the records were checked."""
    if header.attributes & LOG_APPEND_TIME_FLAG:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            "a producer may not set the timestamp type to LogAppendTime; the broker does",
        )
    if header.attributes & COMPRESSION_MASK == 0:
        return _check_section(records, HEADER_SIZE_BYTES, len(records), header, config, now_ms)
    if _needs_recompression(header, config):
        return header  # transform_produced decompresses and checks it
    if config.compact or config.millstream_verify_compressed:
        section = _open(header, memoryview(records)[HEADER_SIZE_BYTES:])
        return _check_section(section, 0, len(section), header, config, now_ms)
    _check_timestamps_of_header(header, config, now_ms)
    return header


def _check_section(
    section: Buffer, start: int, end: int, header: BatchHeader, config: TopicConfig, now_ms: int
) -> BatchHeader:
    """Check uncompressed records."""
    earliest, latest = _timestamp_range(config, now_ms)
    try:
        max_timestamp, problems = check_records(
            section, start, end, header, earliest, latest, config.compact
        )
    except CorruptBatch as error:
        raise _invalid(str(error)) from None
    if problems:
        raise _refuse_records(problems, earliest, latest)
    if max_timestamp != header.max_timestamp:
        return header._replace(max_timestamp=max_timestamp)
    return header


def _timestamp_range(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    if config.message_timestamp_type != "CreateTime":
        return _INT64_MIN, _INT64_MAX
    return (
        max(now_ms - config.message_timestamp_before_max_ms, _INT64_MIN),
        min(now_ms + config.message_timestamp_after_max_ms, _INT64_MAX),
    )


def _check_timestamps_of_header(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """For a batch that is not decompressed: check its first and largest timestamp."""
    earliest, latest = _timestamp_range(config, now_ms)
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            raise ApiError(
                ErrorCode.INVALID_TIMESTAMP,
                f"the batch has a timestamp of {timestamp}; {_accepted(earliest, latest)}",
            )


def _refuse_records(problems: list[tuple[int, int]], earliest: int, latest: int) -> InvalidRecords:
    errors = [
        (
            index,
            "a compacted topic does not accept records without a key"
            if kind == NULL_KEY
            else f"the timestamp is out of range; {_accepted(earliest, latest)}",
        )
        for index, kind in problems
    ]
    code = ErrorCode.INVALID_RECORD if problems[0][1] == NULL_KEY else ErrorCode.INVALID_TIMESTAMP
    shown = "; ".join(f"record {index}: {why}" for index, why in errors[:_RECORD_ERRORS_IN_MESSAGE])
    return InvalidRecords(code, f"{len(errors)} or more records were refused: {shown}", errors)


def _accepted(earliest: int, latest: int) -> str:
    return (
        f"accepted are {earliest} to {latest} "
        "(message.timestamp.before.max.ms and message.timestamp.after.max.ms)"
    )


# Recompression


def _needs_recompression(header: BatchHeader, config: TopicConfig) -> bool:
    wanted = config.compression_type
    return wanted != "producer" and Compression.from_name(wanted) != header.compression


def _recompress(
    header: BatchHeader, section: Buffer, config: TopicConfig, now_ms: int
) -> tuple[BatchHeader, Buffer]:
    """Recompress the records with the topic's codec, without re-encoding them."""
    wanted = Compression.from_name(config.compression_type)
    opened = section
    if header.compression != Compression.NONE:
        opened = _open(header, section)
        header = _check_section(opened, 0, len(opened), header, config, now_ms)
    attributes = header.attributes & ~COMPRESSION_MASK | wanted
    return header._replace(attributes=attributes), compress(opened, wanted, _level(wanted, config))


def _level(compression: Compression, config: TopicConfig) -> int | None:
    return {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }.get(compression)


def _open(header: BatchHeader, section: Buffer) -> Buffer:
    try:
        return decompress(section, header.compression)
    except CorruptBatch as error:
        raise _invalid(str(error)) from None
