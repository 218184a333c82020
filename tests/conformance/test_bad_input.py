"""Bad input: a clear error or a closed connection, and nobody else notices.

Frames that are malformed, cut short, too large or full of lies; APIs and versions nobody knows;
batches that do not hold what they say. A neighbour talks to the broker all the while.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import crc32c
import pytest

from tests.conformance.brokers import SETTINGS, BrokerUnderTest
from tests.conformance.test_produce import read_all, wire_produce
from tests.peers.wire import (
    Wire,
    batch,
    entity_class,
    frame,
    produce_fields,
    request_frame,
    request_header,
)

ALSO_ON_A_WORKER = True

NO_ERROR, CORRUPT_MESSAGE, INVALID_RECORD = 0, 2, 87
FRAME_BYTES_MAX = int(SETTINGS["socket.request.max.bytes"])


@pytest.fixture
def neighbour(broker: BrokerUnderTest) -> Iterator[Wire]:
    """A well-behaved connection, open before the trouble and still served after it."""
    with Wire(broker.bootstrap) as wire:
        assert wire.call("api_versions", 0).error_code == NO_ERROR
        yield wire
        assert wire.call("api_versions", 0).error_code == NO_ERROR


def header(api: str, version: int) -> bytes:
    return request_header(entity_class(api, version, "request"))


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", FRAME_BYTES_MAX + 1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 0),
        frame(b"\x00"),
        frame(b"\x00" * 7),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300,
        frame(struct.pack(">hhih", 0, 9, 1, 30_000)),
        frame(struct.pack(">hhih", 0, 9, 1, -2)),
    ],
    ids=[
        "negative size",
        "most negative size",
        "just too large",
        "two gigabytes",
        "empty frame",
        "frame of one byte",
        "header cut short",
        "HTTP",
        "TLS",
        "client id longer than the frame",
        "negative client id",
    ],
)
def test_broken_frame_closes_the_connection(broker: BrokerUnderTest, data: bytes) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(data)
        assert wire.is_closed()


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("api_key", [-1, 4, 7, 999, 32767])
def test_unknown_api_closes_the_connection(broker: BrokerUnderTest, api_key: int) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(frame(struct.pack(">hhih4s", api_key, 0, 1, 4, b"wire")))
        assert wire.is_closed()


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize(
    ("api_key", "version"), [(0, 2), (0, 99), (1, 3), (3, 14), (3, -1), (11, 10)]
)
def test_unknown_version_closes_the_connection(
    broker: BrokerUnderTest, api_key: int, version: int
) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(frame(struct.pack(">hhih4s", api_key, version, 1, 4, b"wire") + b"\x00" * 40))
        assert wire.is_closed()


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        ("metadata", 1, struct.pack(">i", 2**31 - 1)),
        ("metadata", 12, b"\xff\xff\xff\xff\x07\x00\x00\x00"),
        ("metadata", 1, struct.pack(">ih", 1, 32_000) + b"x"),
        ("fetch", 4, struct.pack(">iiiibi", -1, 0, 0, 1000, 0, 2**31 - 1)),
        ("produce", 3, struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)),
        ("produce", 3, struct.pack(">hhiih1siii", -1, -1, 1000, 1, 1, b"t", 1, 0, 2**31 - 1)),
        ("produce", 9, b"\x00\xff\xff\x00\x00\x03\xe8\xff\xff\xff\xff\x0f"),
        ("join_group", 0, b"\x00\x05gr"),
        ("offset_commit", 2, b""),
        ("list_offsets", 1, struct.pack(">ii", -1, 1 << 30)),
        ("create_topics", 2, struct.pack(">i", 1 << 30)),
        ("describe_configs", 1, struct.pack(">i", 1 << 30)),
        ("consumer_group_heartbeat", 0, b"\xff" * 12),
    ],
)
def test_body_that_lies_about_its_sizes_closes_the_connection(
    broker: BrokerUnderTest, api: str, version: int, body: bytes
) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(frame(header(api, version) + body))
        assert wire.is_closed()


@pytest.mark.usefixtures("neighbour")
def test_bytes_after_a_request_are_ignored(broker: BrokerUnderTest) -> None:
    """librdkafka sends some, and Apache Kafka never looks at them."""
    topic = broker.create_topic()
    requests = {
        ("metadata", 12): {"topics": None},
        ("find_coordinator", 3): {"key": "group"},
        ("produce", 9): produce_fields(topic, batch([b"x"])),
        ("list_groups", 4): {},
    }
    with Wire(broker.bootstrap) as wire:
        for (api, version), fields in requests.items():
            wire.send(frame(request_frame(api, version, **fields)[4:] + b"\x00\x01\x02"))
            wire.receive(api, version)


def test_request_cut_off_by_a_closed_connection_is_not_carried_out(
    broker: BrokerUnderTest, neighbour: Wire
) -> None:
    topic = broker.create_topic()
    whole = request_frame("produce", 9, **produce_fields(topic, batch([b"never"])))
    with Wire(broker.bootstrap) as wire:
        wire.send(whole[:-3])
    assert wire_produce(neighbour, topic, batch([b"first"])).base_offset == 0


def test_half_open_connections_disturb_nobody(broker: BrokerUnderTest, neighbour: Wire) -> None:
    topic = broker.create_topic()
    whole = request_frame("produce", 9, **produce_fields(topic, batch([b"x"])))
    half_open = [Wire(broker.bootstrap) for _ in range(50)]
    for number, wire in enumerate(half_open):
        wire.send(whole[: number % len(whole)])
    assert wire_produce(neighbour, topic, batch([b"y"])).base_offset == 0
    for wire in half_open:
        linger = struct.pack("ii", 1, 0)  # reset instead of a farewell
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wire.socket.close()
    assert wire_produce(neighbour, topic, batch([b"z"])).base_offset == 1


def test_request_may_come_one_byte_at_a_time(broker: BrokerUnderTest) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_frame("metadata", 12, topics=()):
            wire.send(bytes([byte]))
        assert wire.receive("metadata", 12).brokers


def test_reader_who_never_reads_is_held_back(broker: BrokerUnderTest, neighbour: Wire) -> None:
    """A thousand answers of 100 KB wait for a client that does not fetch them."""
    topic = broker.create_topic()
    wire_produce(neighbour, topic, batch([b"x" * 100_000]))
    partition = {"partition": 0, "partition_max_bytes": 1 << 20}
    fields = {"replica_id": -1, "topics": ({"topic": topic, "partitions": (partition,)},)}
    with Wire(broker.bootstrap) as lazy:
        lazy.socket.settimeout(0.5)
        request = request_frame("fetch", 12, **fields, min_bytes=1, max_wait=100)
        try:
            for _ in range(1000):
                lazy.send(request)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass  # the broker has stopped reading, which is the point
        assert neighbour.call("api_versions", 0).error_code == NO_ERROR


def with_valid_crc(records: bytearray) -> bytes:
    struct.pack_into(">I", records, 17, crc32c.crc32c(bytes(records[21:])))
    return bytes(records)


def lying_batches() -> dict[str, tuple[bytes, set[int]]]:
    """Batches that are wrong in one way each, with the error codes that say so."""
    good = batch([b"hello", b"world"])

    def changed(position: int, packed: bytes) -> bytes:
        records = bytearray(good)
        records[position : position + len(packed)] = packed
        return with_valid_crc(records)

    return {
        "crc": (good[:-1] + bytes([good[-1] ^ 1]), {CORRUPT_MESSAGE}),
        "more records than there are": (changed(57, struct.pack(">i", 3)), {INVALID_RECORD}),
        "record count against offset delta": (changed(23, struct.pack(">i", 9)), {INVALID_RECORD}),
        "negative record count": (
            changed(57, struct.pack(">i", -1)),
            {CORRUPT_MESSAGE, INVALID_RECORD},
        ),
        "control batch": (changed(21, struct.pack(">h", 0x20)), {INVALID_RECORD}),
        "cut short": (good[:-4], {CORRUPT_MESSAGE, INVALID_RECORD}),
        "no records at all": (b"", {CORRUPT_MESSAGE, INVALID_RECORD}),
        "two batches": (good + good, {INVALID_RECORD}),
        "shorter than a header": (good[:20], {CORRUPT_MESSAGE, INVALID_RECORD}),
        "negative length": (changed(8, struct.pack(">i", -5)), {CORRUPT_MESSAGE, INVALID_RECORD}),
        "magic 1": (changed(16, b"\x01"), {CORRUPT_MESSAGE, INVALID_RECORD}),
        "magic 9": (changed(16, b"\x09"), {CORRUPT_MESSAGE, INVALID_RECORD}),
    }


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("lie", lying_batches())
def test_batch_that_lies_is_refused(broker: BrokerUnderTest, lie: str) -> None:
    topic = broker.create_topic()
    records, codes = lying_batches()[lie]
    with Wire(broker.bootstrap) as wire:
        assert wire_produce(wire, topic, records).error_code in codes
    with Wire(broker.bootstrap) as wire:
        assert wire_produce(wire, topic, batch([b"good"])).base_offset == 0
    assert [message.value() for message in read_all(broker, topic, 1)] == [b"good"]


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_garbage_said_to_be_compressed(broker: BrokerUnderTest, codec: int) -> None:
    topic = broker.create_topic()
    records = bytearray(batch([b"not compressed at all"]))
    struct.pack_into(">h", records, 21, codec)
    with Wire(broker.bootstrap) as wire:
        code = wire_produce(wire, topic, with_valid_crc(records)).error_code
    assert code in broker.expects("garbage said to be compressed")
