"""The fast path of Fetch answers as the full path does, whatever happens to topic and client."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.handlers._repeated_fetch import RepeatedFetch
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.fetch_pacing import BULK_BYTES_MIN
from millstream.broker.server import BrokerServer
from millstream.broker.services import Client
from millstream.errors import ErrorCode, NotCached
from millstream.security.acls import Operation
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import append, create_topic, topic_id_of
from tests.broker.handlers.test_fetch import FETCH, PRODUCE, fetch, fields, offsets_in
from tests.broker.handlers.transaction_calls import new_producer
from tests.broker.rights import allow, authorizing, connected_as, revoke, topic
from tests.broker.serving import WireClient, serving
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.transactional import wait_for_markers
from tests.peers.wire import Wire, batch, produce_fields

FAST, FULL = 16, 14  # versions: the fast path begins with v15
MINUTES_MS = 600_000


class Consumer:
    """A client whose fetches of `t-0` take the fast path, in the loop of the broker."""

    def __init__(self, server: BrokerServer, wire: WireClient, client: Client) -> None:
        self._wire = wire
        self.client = client
        self.partition = server.partitions.find("t", 0)
        self.topic_id = server.metadata.image.topics["t"].id

    async def learn(self) -> None:
        await self.fetch(0)
        assert isinstance(self.client.repeated_fetch, RepeatedFetch)

    async def fetch(self, offset: int, **options: Any) -> Any:
        self.start(offset, **options)
        return await self.receive()

    def start(self, offset: int, **options: Any) -> None:
        options = {"max_wait": MINUTES_MS, **options}
        self._wire.send(FETCH, FAST, **fields(self.topic_id, {0: offset}, FAST, **options))

    async def receive(self) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            (answered,) = (await self._wire.receive(FETCH, FAST)).responses
        return answered.partitions[0]

    async def waits(self) -> None:
        """Wait until a fetch waits on the fast path."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(it is self.client.repeated_fetch for it in self.partition._watchers):
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def consuming(
    server: BrokerServer, user: str = "alice"
) -> AsyncIterator[tuple[Consumer, WireClient]]:
    """A consumer, and the producer that has appended two records."""
    await server.topics.create([NewTopic("t", 1)])
    async with connected_as(server, "admin") as producer:
        known = set(server.connections._open)
        async with connected_as(server, user) as wire:
            (connection,) = server.connections._open - known
            for _ in range(2):
                await append_to(producer)
            yield Consumer(server, wire, connection._client), producer


async def append_to(producer: WireClient, value: bytes = b"x") -> None:
    await producer.call(PRODUCE, 3, **produce_fields("t", batch([value])))


def test_repeated_fetches_read_and_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, producer):
            await consumer.learn()
            fast_path = consumer.client.repeated_fetch
            for offset in range(1, 6):
                consumer.start(offset)
                if offset >= 2:
                    await consumer.waits()
                    await append_to(producer)
                found = await consumer.receive()
                assert offsets_in(found.records) == [offset]
                assert not consumer.partition._watchers
            assert consumer.client.repeated_fetch is fast_path
            assert consumer.partition.fetches == 6
            empty = await consumer.fetch(6, max_wait=1)  # these other bytes have another fast path
            assert (empty.error_code, empty.high_watermark, empty.records) == (0, 6, b"")

    asyncio.run(scenario())


def test_fetch_that_times_out_is_answered_without_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, _):
            for _ in range(3):
                found = await consumer.fetch(2, max_wait=1)
                assert (found.error_code, found.high_watermark, found.records) == (0, 2, b"")
            assert not consumer.partition._watchers

    asyncio.run(scenario())


def test_waiting_fetch_is_answered_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, producer):
            await consumer.learn()
            consumer.start(2)
            await consumer.waits()
            await server.topics.delete([consumer.topic_id])
            assert (await consumer.receive()).error_code == ErrorCode.UNKNOWN_TOPIC_ID
            await server.topics.create([NewTopic("t", 1)])
            await append_to(producer)
            assert (await consumer.fetch(0)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert consumer.client.repeated_fetch is None

    asyncio.run(scenario())


def test_log_start_that_moves_does_not_wake_a_fetch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, producer):
            await consumer.learn()
            consumer.start(2)
            await consumer.waits()
            consumer.partition.delete_records_before(1)
            await asyncio.sleep(0)
            await consumer.waits()
            await append_to(producer)
            found = await consumer.receive()
            assert (found.log_start_offset, offsets_in(found.records)) == (1, [2])

    asyncio.run(scenario())


def test_client_that_leaves_leaves_no_watcher(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            async with consuming(server) as (consumer, _):
                await consumer.learn()
                consumer.start(2)
                await consumer.waits()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while consumer.partition._watchers:
                    await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_right_that_is_revoked_ends_the_fast_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        may_read = topic("t", Operation.READ)
        async with authorizing(tmp_path) as server:
            await allow(server, may_read)
            async with consuming(server) as (consumer, producer):
                await consumer.learn()
                consumer.start(2)
                await consumer.waits()
                await revoke(server, may_read)
                await append_to(producer)
                refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                for _ in range(2):
                    assert (await consumer.receive()).error_code == refused
                    consumer.start(0)
                assert (await consumer.receive()).error_code == refused
                await allow(server, may_read)
                assert offsets_in((await consumer.fetch(0)).records) == [0, 1, 2]

    asyncio.run(scenario())


def test_cold_read_goes_on_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_cold(offset: int, *, max_bytes: int, committed: bool) -> bytes:
        raise NotCached("not in memory")

    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, producer):
            await consumer.learn()
            monkeypatch.setattr(consumer.partition, "read_to_send", is_cold)
            assert offsets_in((await consumer.fetch(1)).records) == [1]
            consumer.start(2)
            await consumer.waits()
            await append_to(producer)
            assert offsets_in((await consumer.receive()).records) == [2]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "options", [{"min_bytes": 2}, {"session_epoch": 0}, {"rack_id": "a"}, {"last_fetched_epoch": 0}]
)
def test_requests_of_another_form_have_no_fast_path(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, _):
            assert offsets_in((await consumer.fetch(1, **options)).records) == [1]
            assert consumer.client.repeated_fetch is None

    asyncio.run(scenario())


def test_bulk_reads_of_librdkafka_are_paced_from_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, consuming(server) as (consumer, producer):
            consumer.client.software = "librdkafka"
            await consumer.learn()
            await append_to(producer, b"x" * BULK_BYTES_MIN)
            assert consumer.client.fetch_pacer is None
            assert offsets_in((await consumer.fetch(2)).records) == [2]
            assert consumer.client.fetch_pacer is not None

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_fast_path_answers_as_the_full_path(millstream: SharedBroker, seed: int) -> None:
    """Random appends, transactions, deletions and fetches; each fetch is sent on both paths."""
    choices = random.Random(seed)
    name = millstream.unique_topic()
    bootstrap = millstream.bootstrap_servers
    with Wire(bootstrap) as fast, Wire(bootstrap) as full, new_producer(millstream) as producer:
        create_topic(full, name)
        topic_id = topic_id_of(full, name)
        options = {
            "isolation_level": choices.randrange(2),
            "max_wait": 0,
            "partition_max_bytes": choices.choice([100, 300, 2**20]),
        }
        end = start = 0
        for _ in range(60):
            move = choices.choice(["append", "append", "transaction", "delete", "fetch", "fetch"])
            if move == "append":
                values = [b"x" * choices.randrange(200)] * choices.randrange(1, 4)
                end = append(full, name, *values) + len(values)
            elif move == "transaction":
                producer.begin(name, 0)
                end = producer.produce(name, [b"y"]).base_offset + 2  # with its marker
                producer.end(committed=choices.random() < 0.5)
                wait_for_markers(bootstrap)
            elif move == "delete":
                start = choices.randint(start, end)
                delete_records(full, name, start)
            offset = choices.randint(-1, end + 1)
            expected = (
                fetch(full, topic_id, {0: offset}, FULL, **options).responses[0].partitions[0]
            )
            found = fetch(fast, topic_id, {0: offset}, FAST, **options).responses[0].partitions[0]
            assert plain(found) == plain(expected)


def plain(found: Any) -> tuple[Any, ...]:
    """What a client sees of a partition."""
    aborted = found.aborted_transactions
    return (
        found.error_code,
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        None if aborted is None else [(it.producer_id, it.first_offset) for it in aborted],
        found.preferred_read_replica,
        bytes(found.records or b""),
    )


def delete_records(wire: Wire, name: str, offset: int) -> None:
    partitions = [{"partition_index": 0, "offset": offset}]
    answer = wire.call(
        "delete_records", 2, topics=[{"name": name, "partitions": partitions}], timeout=10_000
    )
    assert answer.topics[0].partitions[0].error_code == 0
