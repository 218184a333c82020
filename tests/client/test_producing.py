"""The producer of encoded batches, on a broker that is killed and comes back."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster, check
from millstream.client.fetching import fetch_batches, log_start_offset
from millstream.client.producing import RawProducer, WrittenRange
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch, encode_batch
from tests.peers.servers import Server, free_port, start_millstream


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    running = start_millstream(data, port=free_port())
    yield running
    running.stop()


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    with Cluster(server.bootstrap) as it:
        yield it


def create_topic(cluster: Cluster, partitions: int = 1, **settings: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {"name": key.replace("_", "."), "value": value} for key, value in settings.items()
        ],
    }
    answer = cluster.any_connection().call("create_topics", {"topics": [topic], "timeout": 5000})
    check(answer.topics[0].error_code, name)
    return name


def send(producer: RawProducer, topic: str, partition: int, values: list[str]) -> None:
    identity = producer.identity(topic, partition)
    now_ms = int(time.time() * 1000)  # retention deletes what is older than it allows
    batch = encode_batch(
        [Record(number, now_ms, None, value.encode()) for number, value in enumerate(values)],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
        is_transactional=identity.is_transactional,
    )
    producer.send(topic, partition, batch, len(values))


def values_in(cluster: Cluster, topic: str, partition: int) -> list[str]:
    values: list[str] = []
    position = log_start_offset(cluster, topic, partition)
    while True:
        fetched = fetch_batches(cluster, topic, partition, position)
        for at, header in iterate_headers(fetched.records):
            position = header.next_offset
            if not header.is_control:
                values += [(it.value or b"").decode() for it in decode_batch(fetched.records, at)]
        if position >= fetched.end_offset:
            return values


def test_flush_tells_where_records_of_several_partitions_lie(cluster: Cluster) -> None:
    topic = create_topic(cluster, 3)
    producer = RawProducer(cluster)
    producer.begin()
    for number in range(4):
        for partition in range(2):
            send(producer, topic, partition, [f"{number}a", f"{number}b"])
    assert producer.flush() == [
        WrittenRange(topic, 0, 0, 8, 8),
        WrittenRange(topic, 1, 0, 8, 8),
    ]
    expected = [f"{number}{letter}" for number in range(4) for letter in "ab"]
    assert values_in(cluster, topic, 0) == values_in(cluster, topic, 1) == expected


def test_send_keeps_order_and_doubles_nothing_when_the_broker_is_killed(
    server: Server, data: Path
) -> None:
    with Cluster(server.bootstrap) as cluster:
        topic = create_topic(cluster, 2)
        producer = RawProducer(cluster)
        producer.begin(f"id-{topic}", 60_000)
        restarted: list[Server] = []

        def restart() -> None:
            server.kill()
            restarted.append(start_millstream(data, port=server.port))

        killer = threading.Thread(target=restart)
        for number in range(400):
            if number == 100:
                killer.start()
            send(producer, topic, number % 2, [str(number)])
        producer.flush()
        killer.join()
        try:
            producer.end(commit=True)
            for partition in range(2):
                expected = [str(number) for number in range(400) if number % 2 == partition]
                assert values_in(cluster, topic, partition) == expected
        finally:
            restarted[0].stop()


def test_flush_sends_again_the_only_batch_under_way_when_its_connection_is_lost(
    server: Server, data: Path
) -> None:
    with Cluster(server.bootstrap) as cluster:
        topic = create_topic(cluster)
        producer = RawProducer(cluster)
        producer.begin()
        server.process.send_signal(signal.SIGSTOP)  # it takes the request, and answers nothing
        restarted: list[Server] = []

        def restart() -> None:
            server.kill()
            restarted.append(start_millstream(data, port=server.port))

        killer = threading.Timer(0.3, restart)
        killer.start()
        send(producer, topic, 0, ["only"])
        try:
            producer.flush()
            assert values_in(cluster, topic, 0) == ["only"]
        finally:
            killer.join()
            restarted[0].stop()


def test_flush_raises_what_no_repetition_cures(cluster: Cluster) -> None:
    topic = create_topic(cluster, max_message_bytes="200")
    producer = RawProducer(cluster)
    producer.begin()
    send(producer, topic, 0, ["x" * 1000])
    with pytest.raises(ApiError, match=r"max\.message\.bytes; make batches smaller") as caught:
        producer.flush()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_join_may_come_while_batches_are_in_flight(cluster: Cluster) -> None:
    topic = create_topic(cluster, 20)
    producer = RawProducer(cluster, request_bytes_max=100)
    producer.begin(f"id-{topic}", 60_000)
    for partition in range(20):
        send(producer, topic, partition, ["a"])
    assert len(producer.flush()) == 20
    producer.end(commit=True)


def test_end_without_commit_aborts_and_leaves_the_connections_clean(cluster: Cluster) -> None:
    topic = create_topic(cluster)
    first = RawProducer(cluster)
    first.begin(f"id-{topic}", 60_000)
    send(first, topic, 0, ["aborted"])
    first.join([(topic, 0)])
    first.end(commit=False)
    second = RawProducer(cluster)
    second.begin(f"id-{topic}", 60_000)
    send(second, topic, 0, ["kept"])
    second.end(commit=True)
    assert values_in(cluster, topic, 0) == ["kept"]


def test_second_batch_of_a_partition_waits_until_its_leader_knows_the_producer(
    cluster: Cluster,
) -> None:
    topic = create_topic(cluster)
    producer = RawProducer(cluster)
    producer.begin()
    for value in ("a", "b", "c"):  # each sends off the one before
        send(producer, topic, 0, [value])
    assert [it.record_count for it in producer._written.values()] == [1]
    producer.flush()
    assert values_in(cluster, topic, 0) == ["a", "b", "c"]
