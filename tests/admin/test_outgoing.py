"""Records that people write: parsed, and sent to a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from millstream.admin.outgoing import (
    BATCH_BYTES_MAX,
    ENCODERS,
    BadRecord,
    Outgoing,
    batches,
    parse_headers,
    parse_lines,
    partition_of,
    send,
)
from millstream.admin.reading import Reader
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode

DEFAULT = Outgoing(None, b"default", [("source", b"test")])


def parsed(*lines: str, form: str = "text", separator: str | None = None, envelope: bool = False):  # type: ignore[no-untyped-def]
    return parse_lines(
        lines,
        DEFAULT,
        ENCODERS[form],
        key_separator=separator,
        envelope=envelope,
        records_max=100,
    )


def test_lines_are_values_with_the_default_key_and_headers() -> None:
    assert parsed("a", "", "b") == [
        Outgoing(b"a", b"default", DEFAULT.headers),
        Outgoing(b"b", b"default", DEFAULT.headers),
    ]


def test_lines_have_keys_before_a_separator() -> None:
    assert [(it.key, it.value) for it in parsed("k:v:w", separator=":")] == [(b"k", b"v:w")]
    with pytest.raises(BadRecord, match=r"line 2: no ':' in 'x'.*nothing was sent"):
        parsed("a:b", "x", separator=":")


def test_lines_are_envelopes() -> None:
    line = '{"key": "k", "value": {"a": 1}, "headers": [["h", "v"]], "timestamp_ms": 5}'
    (record,) = parsed(line, form="json", envelope=True)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b'{"a":1}', 5)
    assert record.headers == [("source", b"test"), ("h", b"v")]
    (tombstone,) = parsed('{"key": "k", "value": null}', envelope=True)
    assert tombstone.value is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a record"),
        ('{"key": 1}', "not a record"),
        ('{"value": 1, "headers": [1]}', "not pairs"),
        ('{"value": 1, "timestamp_ms": "soon"}', "not a number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_lines_that_are_no_envelopes_are_refused(line: str, message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        parsed(line, envelope=True)


@pytest.mark.parametrize(
    ("form", "good", "sent", "bad"),
    [
        ("json", ' {"a": 1} ', b'{"a":1}', "{"),
        ("hex", "00 ff", b"\x00\xff", "0g"),
        ("base64", "AP8=", b"\x00\xff", "A"),
    ],
)
def test_values_are_checked_by_their_format(form: str, good: str, sent: bytes, bad: str) -> None:
    assert ENCODERS[form](good) == sent
    with pytest.raises(BadRecord, match=f"(?i)not {form}"):
        ENCODERS[form](bad)


def test_lines_are_limited() -> None:
    with pytest.raises(BadRecord, match="more than 100 records"):
        parsed(*["x"] * 101)


def test_headers_are_written_by_line() -> None:
    assert parse_headers("a: 1\n\nb=x:y\n c : d=e ") == [
        ("a", b"1"),
        ("b", b"x:y"),
        ("c", b"d=e"),
    ]
    with pytest.raises(BadRecord, match="not a header"):
        parse_headers("nothing")


def test_batches_are_limited_and_complete() -> None:
    records = [Outgoing(b"x" * size) for size in (10, BATCH_BYTES_MAX, 10, 100_000, 100_000, 9)]
    found = list(batches(records))
    assert [it for batch in found for it in batch] == records
    assert [len(batch) for batch in found] == [1, 1, 4]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Broker.start() as broker, Cluster(broker.bootstrap_servers) as cluster:
        yield cluster


def test_keys_go_to_the_partitions_of_the_java_client(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("keyed", 7)])
    host, port = cluster._bootstrap[0]
    producer = Producer({"bootstrap.servers": f"{host}:{port}", "partitioner": "murmur2_random"})
    chosen: dict[bytes, int] = {}
    keys = [b"", *(b"key-%d" % n for n in range(40))]
    for key in keys:
        producer.produce(
            "keyed",
            b"v",
            key,
            on_delivery=lambda _, it: chosen.__setitem__(it.key() or b"", it.partition()),
        )
    assert producer.flush(60) == 0
    assert {key: partition_of(key, 7) for key in keys if key} == {
        key: chosen[key] for key in keys if key
    }


def test_sent_records_are_where_it_says(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("sent", 3)])
    records = [Outgoing(b"%d" % n, partition=1) for n in range(5)]
    (written,) = send(cluster, "sent", records, now_ms=77)
    assert (written.partition, written.first_offset, written.end_offset) == (1, 0, 5)
    found = list(Reader(cluster, "sent").forward(1, 0, 5))
    assert [(it.value, it.timestamp_ms) for it in found] == [(b"%d" % n, 77) for n in range(5)]


def test_records_without_a_key_take_turns(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("turns", 3)])
    written = send(cluster, "turns", [Outgoing(b"x")] * 9, now_ms=1)
    assert [it.record_count for it in written] == [3, 3, 3]


def test_records_for_no_partition_are_refused(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("narrow", 1)])
    with pytest.raises(ApiError, match="narrow has no partition 4") as refused:
        send(cluster, "narrow", [Outgoing(b"x", partition=4)], now_ms=1)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
