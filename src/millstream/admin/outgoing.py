"""Records that people write: typed, or many lines pasted or in a file.

A line is a value, KEY<separator>VALUE, or an object as `millstream consume --json` prints it. All
lines are parsed before the first is sent, so that a mistake in one sends nothing.

Keys go to partitions as the Java client sends them (murmur2). Records without a key take turns.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer, WrittenRange
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.records.columns import BinaryColumn, ProducerIdentity, partitions_of
from millstream.records.compression import Compression
from millstream.records.record import Record, encode_batch

BATCH_BYTES_MAX = 256 * 1024
RECORD_OVERHEAD_BYTES = 64
ANY_PARTITION = -1
SHOWN_CHARACTERS = 80
NOT_COMMITTED = ("aborted", "open")  # states of records in an export

Encoder = Callable[[str], bytes]


class BadRecord(MillstreamError):
    """Text that is no record, or not in its format."""


class Outgoing(NamedTuple):
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = ANY_PARTITION
    timestamp_ms: int = 0  # 0: now


def encode_json(text: str) -> bytes:
    """Checks that `text` is JSON and sends it in its shortest form."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{_short(text)} is not JSON: {error}") from None
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def _strict(convert: Encoder, name: str) -> Encoder:
    def encode(text: str) -> bytes:
        try:
            return convert(text)
        except ValueError as error:
            raise BadRecord(f"{_short(text)} is not {name}: {error}") from None

    return encode


ENCODERS: dict[str, Encoder] = {
    "text": lambda text: text.encode(),
    "json": encode_json,
    "hex": _strict(bytes.fromhex, "hex"),
    "base64": _strict(lambda text: base64.b64decode(text, validate=True), "base64"),
}


def parse_line(
    line: str, default: Outgoing, encode: Encoder, key_separator: str | None, envelope: bool
) -> Outgoing:
    """One input line as a record: an envelope, KEY<separator>VALUE, or a bare value."""
    if envelope:
        return parse_envelope(line, default, encode)
    key = default.key
    if key_separator is not None:
        key_text, separator, line = line.partition(key_separator)
        if not separator:
            raise BadRecord(
                f"no {key_separator!r} in {_short(key_text)}: each line is KEY{key_separator}VALUE"
            )
        key = key_text.encode()
    return default._replace(value=encode(line), key=key)


def parse_envelope(line: str, default: Outgoing, encode: Encoder) -> Outgoing:
    """A JSON object with `value` and optionally `key`, `headers`, `timestamp_ms`, as in an export:
    `value_base64`, `key_base64` and `headers_base64` have bytes that are no text, and records that
    were not committed are refused."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{_short(line)} is not JSON: {error}") from None
    if not isinstance(record, dict) or "value" not in record:
        raise BadRecord(f'{_short(line)} is not a record; write {{"key": ..., "value": ...}}')
    if record.get("state") in NOT_COMMITTED and "offset" in record:
        raise BadRecord(
            f"{_short(line)} was not committed, its state is {record['state']}; leave the line "
            "out, or export committed records only"
        )
    value, key = record["value"], record.get("key")
    text = value if isinstance(value, str) else json.dumps(value)
    packed, packed_key = (_unpacked(record.get(f"{it}_base64"), line) for it in ("value", "key"))
    return Outgoing(
        value=packed if packed is not None else None if value is None else encode(text),
        key=packed_key or envelope_bytes(key) if key is not None else default.key,
        headers=[*default.headers, *_envelope_headers(record, line)],
        # A partition of the topic it was read from means nothing here: only the default counts.
        partition=default.partition,
        timestamp_ms=_timestamp(record.get("timestamp_ms"), line),
    )


def _unpacked(given: Any, line: str) -> bytes | None:
    try:
        return None if given is None else base64.b64decode(given, validate=True)
    except (TypeError, ValueError):
        raise BadRecord(f"{_short(line)} has bytes that are not base64") from None


def _envelope_headers(record: dict[str, Any], line: str) -> list[tuple[str, bytes | None]]:
    try:
        if (packed := record.get("headers_base64")) is not None:
            pairs = [(_unpacked(name, line), _unpacked(it, line)) for name, it in packed]
            return [((name or b"").decode("utf-8", "surrogateescape"), it) for name, it in pairs]
        return [(str(name), envelope_bytes(text)) for name, text in record.get("headers") or []]
    except (TypeError, ValueError):
        raise BadRecord(f'headers of {_short(line)} are not pairs: [["name", "value"]]') from None


def _timestamp(given: Any, line: str) -> int:
    try:
        return int(given or 0)
    except (TypeError, ValueError):
        raise BadRecord(f"timestamp_ms of {_short(line)} is not a number") from None


def envelope_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def parse_headers(text: str) -> list[tuple[str, bytes | None]]:
    """Headers as people write them: `name: value` or `name=value`, one per line."""
    headers: list[tuple[str, bytes | None]] = []
    for line in filter(str.strip, text.splitlines()):
        ends = [end for separator in ":=" if (end := line.find(separator)) > 0]
        if not ends:
            raise BadRecord(f"{_short(line)} is not a header; write NAME: VALUE")
        name, value = line[: min(ends)].strip(), line[min(ends) + 1 :].strip()
        headers.append((name, value.encode()))
    return headers


def parse_lines(
    lines: Iterable[str],
    default: Outgoing,
    encode: Encoder,
    *,
    key_separator: str | None,
    envelope: bool,
    records_max: int,
) -> list[Outgoing]:
    """Empty lines are skipped. Raises `BadRecord` with the number of the line."""
    parsed: list[Outgoing] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(parsed) == records_max:
            raise BadRecord(f"more than {records_max} records; use `millstream produce --file`")
        try:
            parsed.append(parse_line(line, default, encode, key_separator, envelope))
        except BadRecord as error:
            raise BadRecord(f"line {number}: {error}; nothing was sent") from None
    return parsed


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…")


def send(
    cluster: Cluster,
    topic: str,
    records: Sequence[Outgoing],
    *,
    now_ms: int,
    compression: Compression = Compression.NONE,
) -> list[WrittenRange]:
    """Send all, and wait until they are acknowledged; returns where they are.

    Raises `ApiError` for what the brokers refuse; records before it may have been written.
    """
    partitions = len(cluster.retrying(lambda: cluster.topic(topic, seconds_old_max=1.0)).partitions)
    by_partition = choose_partitions(records, partitions, topic)
    producer = RawProducer(cluster)
    producer.begin()
    for partition, them in sorted(by_partition.items()):
        for batch in batches(them):
            identity = producer.identity(topic, partition)
            content = encode_outgoing(batch, identity, now_ms=now_ms, compression=compression)
            producer.send(topic, partition, content, len(batch))
    return producer.flush()


def encode_outgoing(
    records: Sequence[Outgoing],
    identity: ProducerIdentity,
    *,
    now_ms: int,
    compression: Compression = Compression.NONE,
) -> bytes:
    """A batch of records, of a producer."""
    return encode_batch(
        [
            Record(at, it.timestamp_ms or now_ms, it.key, it.value, tuple(it.headers))
            for at, it in enumerate(records)
        ],
        compression=compression,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
        is_transactional=identity.is_transactional,
    )


def choose_partitions(
    records: Iterable[Outgoing], partitions: int, topic: str
) -> dict[int, list[Outgoing]]:
    """Records by partition, in order."""
    turn = count(random.randrange(partitions))
    chosen: dict[int, list[Outgoing]] = {}
    for record in records:
        partition = record.partition
        if partition >= partitions:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has no partition {partition}, only 0 to {partitions - 1}",
            )
        if partition < 0:
            key = record.key
            partition = next(turn) % partitions if key is None else partition_of(key, partitions)
        chosen.setdefault(partition, []).append(record)
    return chosen


def partition_of(key: bytes, partitions: int) -> int:
    """The partition to which the Java client sends a key."""
    column = BinaryColumn(1, 0, None, struct.pack("ii", 0, len(key)), key)
    (partition,) = struct.unpack("i", partitions_of(column, partitions))
    return int(partition)


def batches(records: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Records in batches of limited size; a larger record is alone in its batch."""
    batch: list[Outgoing] = []
    size = 0
    for record in records:
        its_size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        its_size += sum(len(name) + len(value or b"") + 8 for name, value in record.headers)
        if batch and size + its_size > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += its_size
    if batch:
        yield batch
