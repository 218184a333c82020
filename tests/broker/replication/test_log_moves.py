"""Logs move to another disk while real clients write, commit and read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from millstream.storage.moving import LogMove
from tests.broker.replication.cluster import Cluster, make_batch, run, until
from tests.broker.serving import serving


@asynccontextmanager
async def two_disks(tmp_path: Path, **settings: object) -> AsyncIterator[BrokerServer]:
    dirs = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    async with serving(tmp_path, log_dirs=dirs, log_segment_bytes=1_048_576, **settings) as server:
        yield server


def place(server: BrokerServer, topic: str, index: int = 0) -> str:
    return Path(server.directories.logs[topic, index].directory.path).name


def other(server: BrokerServer, topic: str, index: int = 0) -> str:
    """The path of the directory in which it is not."""
    here = server.directories.logs[topic, index].directory
    return next(it.path for it in server.directories.directories if it is not here)


async def move(server: BrokerServer, topic: str, index: int = 0) -> None:
    """There, and back again, and there."""
    for _ in range(3):
        path = other(server, topic, index)
        await server.log_moves.move(topic, index, path)
        await server.log_moves.idle()
        assert server.directories.logs[topic, index].directory.path == path


def produce(bootstrap: str, topic: str, values: range) -> list[str]:
    """Returns the errors."""
    errors: list[str] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1}
    )
    for value in values:
        producer.produce(
            topic,
            str(value).ljust(1000),
            partition=0,
            on_delivery=lambda error, message: errors.append(str(error)) if error else None,
        )
        producer.poll(0.0005)
    producer.flush(120)
    return errors


def consume(bootstrap: str, topic: str, count: int, **settings: object) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    while len(values) < count:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        values.append(int(message.value() or b""))
    consumer.close()
    return values


def test_nothing_is_lost_or_doubled_while_producers_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_disks(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            writing = asyncio.create_task(
                asyncio.to_thread(produce, server.bootstrap_servers, "t", range(5000))
            )
            reading = asyncio.create_task(
                asyncio.to_thread(consume, server.bootstrap_servers, "t", 5000)
            )
            moves = 0
            while not writing.done():
                await move(server, "t")
                moves += 1
                # Clients pause before they look for the leader again.
                end = server.directories.logs["t", 0].log_end_offset + 100
                await until(
                    lambda end=end: (
                        writing.done() or server.directories.logs["t", 0].log_end_offset >= end
                    )
                )
            assert moves
            assert await writing == []
            assert await reading == list(range(5000))

    run(main)


def test_commits_survive_moves_of_the_coordinators_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_disks(tmp_path, offsets_topic_num_partitions=1) as server:
            await server.topics.create([NewTopic("t", 1)])

            def commit(offset: int) -> None:
                consumer = Consumer(
                    {"bootstrap.servers": server.bootstrap_servers, "group.id": "g"}
                )
                consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
                (committed,) = consumer.committed([TopicPartition("t", 0)], timeout=60)
                assert committed.offset == offset
                consumer.close()

            await asyncio.to_thread(commit, 1)
            for offset in range(2, 6):
                await move(server, "__consumer_offsets")
                await asyncio.to_thread(commit, offset)

    run(main)


def test_transaction_goes_on_after_a_move(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_disks(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            producer = Producer(
                {"bootstrap.servers": server.bootstrap_servers, "transactional.id": "x"}
            )

            def send(value: int) -> None:
                producer.produce("t", str(value), partition=0)
                producer.flush(60)

            await asyncio.to_thread(producer.init_transactions, 60)
            producer.begin_transaction()
            await asyncio.to_thread(send, 1)
            await move(server, "t")
            partition = server.partitions.get("t", 0)
            assert partition is not None
            assert partition.last_stable_offset == 0
            await asyncio.to_thread(send, 2)
            await asyncio.to_thread(producer.commit_transaction, 60)
            await move(server, "t")
            assert await asyncio.to_thread(consume, server.bootstrap_servers, "t", 2) == [1, 2]

    run(main)


def test_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        slow = {"replica_alter_log_dirs_io_max_bytes_per_second": 1}
        async with two_disks(tmp_path, **slow) as server:
            await server.topics.create([NewTopic("t", 1)])
            values = range(2000)
            await asyncio.to_thread(produce, server.bootstrap_servers, "t", values)
            before = place(server, "t")
            await server.log_moves.move("t", 0, other(server, "t"))
            await until(lambda: any(it.copied_bytes for it in server.log_moves.under_way))
        async with two_disks(tmp_path) as server:
            await server.log_moves.idle()
            assert place(server, "t") != before
            assert await asyncio.to_thread(
                consume, server.bootstrap_servers, "t", len(values)
            ) == list(values)
            leftovers = [it.name for it in tmp_path.glob("*/*-future")]
            assert leftovers == []

    run(main)


@pytest.mark.parametrize("how", ["back", "deleted"])
def test_move_is_given_up(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        slow = {"replica_alter_log_dirs_io_max_bytes_per_second": 1}
        async with two_disks(tmp_path, **slow) as server:
            await server.topics.create([NewTopic("t", 1)])
            await asyncio.to_thread(produce, server.bootstrap_servers, "t", range(2000))
            here = server.directories.logs["t", 0].directory.path
            await server.log_moves.move("t", 0, other(server, "t"))
            await until(lambda: any(it.copied_bytes for it in server.log_moves.under_way))
            if how == "back":
                await server.log_moves.move("t", 0, here)
                assert list(server.log_moves.under_way) == []
                assert server.directories.logs["t", 0].directory.path == here
            else:
                await server.topics.delete([server.metadata.image.topics["t"].id])
                await server.topics.create([NewTopic("t", 1)])
                errors = await asyncio.to_thread(produce, server.bootstrap_servers, "t", range(3))
                assert errors == []
                assert server.directories.logs["t", 0].log_end_offset == 3
                await server.log_moves.idle()
        assert [it.name for it in tmp_path.glob("*/*-future")] == []

    run(main)


def test_appends_in_flight_are_not_sent_again(tmp_path: Path) -> None:
    """A producer without idempotence would double them."""

    async def main() -> None:
        async with two_disks(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            partition = server.partitions.get("t", 0)
            assert partition is not None
            finish, appends = server.log_moves._finish, []

            async def append_and_finish(log_move: LogMove) -> None:
                appends.append(partition.append(make_batch(b"x"), acks=-1))
                await finish(log_move)

            server.log_moves._finish = append_and_finish  # type: ignore[method-assign]
            await move(server, "t")
            assert [(it.is_done, it.error) for it in appends] == [(True, None)] * 3

    run(main)


def test_two_requests_for_one_log_leave_one_move(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_disks(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            await asyncio.to_thread(produce, server.bootstrap_servers, "t", range(10))
            path = other(server, "t")
            await asyncio.gather(*(server.log_moves.move("t", 0, path) for _ in range(5)))
            await server.log_moves.idle()
            assert server.directories.logs["t", 0].directory.path == path
        assert [it.name for it in tmp_path.glob("*/*-future")] == []

    run(main)


def test_broker_starts_although_a_move_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        slow = {"replica_alter_log_dirs_io_max_bytes_per_second": 1}
        async with two_disks(tmp_path, **slow) as server:
            await server.topics.create([NewTopic("t", 1)])
            await asyncio.to_thread(produce, server.bootstrap_servers, "t", range(2000))
            await server.log_moves.move("t", 0, other(server, "t"))
            await until(lambda: any(it.copied_bytes for it in server.log_moves.under_way))

        def full(move: LogMove) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(LogMove, "begin", full)
        async with two_disks(tmp_path) as server:
            assert list(server.log_moves.under_way) == []
            read = await asyncio.to_thread(consume, server.bootstrap_servers, "t", 2000)
            assert read == list(range(2000))
        monkeypatch.undo()
        async with two_disks(tmp_path) as server:
            await server.log_moves.idle()
            assert [it.name for it in tmp_path.glob("*/*-future")] == []

    run(main)


def test_leader_and_follower_move_in_a_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, disks=2) as cluster:
            await cluster.create_topic("t", 1, 2)
            for number in range(10):
                assert await cluster.produce(1, "t", b"%d" % number) == (ErrorCode.NONE, number)
            for node_id in (2, 1):
                await move(cluster.brokers[node_id], "t")
                assert await cluster.produce(1, "t", b"x", timeout_ms=50_000) == (
                    ErrorCode.NONE,
                    12 - node_id,
                )
            await until(lambda: set(cluster.partition_image("t").isr) == {1, 2})
            ends = [cluster.brokers[it].partitions.get("t", 0) for it in (1, 2)]
            assert [it and it.log.log_end_offset for it in ends] == [12, 12]

    run(main)
