"""The transaction coordinator: what is durable when, who waits, and what a restart finds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinators import transactions as transaction_coordinator
from millstream.broker.coordinators.transactions import TransactionCoordinator
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.broker.server import BrokerServer
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.coordination.transactions.records import TransactionState
from millstream.coordination.transactions.shard import AddRequest, EndRequest, InitRequest
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import CoordinatorKind
from millstream.records.record import Record, encode_batch
from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS

ID = "tx"
T0, T1 = ("t", 0), ("t", 1)

Scenario = Callable[[BrokerServer, TransactionCoordinator], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def patient_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are held for as long as markers take: how long that is, only the disk knows."""
    monkeypatch.setattr(transaction_coordinator, "HOLD_SECONDS_MAX", PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def coordinating(
    directory: Path, **settings: object
) -> AsyncIterator[tuple[BrokerServer, TransactionCoordinator]]:
    settings = {"transaction_state_log_num_partitions": 2} | settings
    async with serving(directory, **settings) as server:
        if "t" not in server.metadata.image.topics:
            await server.topics.create([NewTopic("t", partition_count=2)])
        await server.coordinators.find(CoordinatorKind.TRANSACTION, ID)
        yield server, server.coordinators.transactions


def run(directory: Path, scenario: Scenario, **settings: object) -> None:
    async def main() -> None:
        async with coordinating(directory, **settings) as (server, transactions):
            await scenario(server, transactions)

    asyncio.run(main())


async def begun(
    transactions: TransactionCoordinator, timeout_ms: int = 60_000, *partitions: tuple[str, int]
) -> Producer:
    """A producer with a transaction open."""
    producer = await transactions.initialize(InitRequest(ID, timeout_ms))
    await transactions.add_partitions(AddRequest(ID, producer, frozenset(partitions or (T0, T1))))
    return producer


async def state(transactions: TransactionCoordinator) -> TransactionState:
    described = await transactions.describe(ID)
    assert described is not None
    return TransactionState(described.state)


async def becomes(transactions: TransactionCoordinator, wanted: TransactionState) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await state(transactions) is not wanted:
            await asyncio.sleep(0.001)


def end_offsets(server: BrokerServer) -> list[int]:
    return [server.partitions.find(*it).log.log_end_offset for it in (T0, T1)]


@contextlib.contextmanager
def offline(server: BrokerServer, partition: tuple[str, int]) -> Any:
    """A partition refuses everything meanwhile."""
    there = server.partitions.find(*partition)
    there.offline_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "its disk is away")
    yield
    there.offline_error = None


# --- the end


def test_end_is_answered_when_the_decision_is_durable_and_markers_follow(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions)
        await transactions.end(EndRequest(ID, producer, committed=True))
        assert end_offsets(server) == [0, 0]
        assert await state(transactions) is TransactionState.PREPARE_COMMIT
        await becomes(transactions, TransactionState.COMPLETE_COMMIT)
        assert end_offsets(server) == [1, 1]

    run(tmp_path, scenario)


def test_commit_is_seen_although_an_administrator_named_a_higher_coordinator_epoch(
    tmp_path: Path,
) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions, 60_000, T0)
        partition = server.partitions.find(*T0)
        marker = TransactionMarker(*producer, 100, committed=False, transaction_version=0)
        await server.coordinators.write_marker(*T0, marker)
        record = Record(0, server.clock.now_ms(), b"key", b"value")
        await partition.append(
            encode_batch(
                [record],
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=0,
                is_transactional=True,
            ),
            acks=ACKS_ALL,
            verified=True,
        )
        assert partition.last_stable_offset == 1
        await transactions.end(EndRequest(ID, producer, committed=True))
        await becomes(transactions, TransactionState.COMPLETE_COMMIT)
        assert partition.last_stable_offset == partition.high_watermark == 3

    run(tmp_path, scenario)


def test_next_transaction_waits_for_the_markers_of_the_one_before(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions)
        await transactions.end(EndRequest(ID, producer, committed=True))
        await transactions.add_partitions(AddRequest(ID, producer, frozenset((T0,))))
        assert await state(transactions) is TransactionState.ONGOING
        assert end_offsets(server) == [1, 1]

    run(tmp_path, scenario)


def test_transaction_needs_no_flush_for_its_completion_alone(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions)
        before = server.flusher.flush_count
        for _ in range(10):
            await transactions.end(EndRequest(ID, producer, committed=True))
            await transactions.add_partitions(AddRequest(ID, producer, frozenset((T0, T1))))
        assert server.flusher.flush_count - before == 3 * 10  # decision, markers, partitions

    run(tmp_path, scenario)


def test_client_is_turned_away_when_the_end_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_coordinator, "HOLD_SECONDS_MAX", 0.01)

    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions)
        with offline(server, T1):
            await transactions.end(EndRequest(ID, producer, committed=True))
            for request in (
                transactions.add_partitions(AddRequest(ID, producer, frozenset((T0,)))),
                transactions.end(EndRequest(ID, producer, committed=True)),
                transactions.initialize(InitRequest(ID, 1000)),
            ):
                with pytest.raises(ApiError) as refused:
                    await request
                assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
        await becomes(transactions, TransactionState.COMPLETE_COMMIT)
        assert end_offsets(server) == [1, 1], "what was away is told when it is back, once"

    run(tmp_path, scenario)


def test_deleted_topic_does_not_keep_a_transaction_from_ending(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions)
        await server.topics.delete([server.metadata.image.topics["t"].id])
        await transactions.end(EndRequest(ID, producer, committed=True))
        await becomes(transactions, TransactionState.COMPLETE_COMMIT)

    run(tmp_path, scenario)


def test_new_producer_waits_until_what_was_open_is_aborted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        old = await begun(transactions)
        new = await transactions.initialize(InitRequest(ID, 1000))
        assert new == Producer(old.id, old.epoch + 2)
        assert end_offsets(server) == [1, 1]
        assert await state(transactions) is TransactionState.EMPTY

    run(tmp_path, scenario)


# --- partitions


def test_verification_and_addition_go_together(tmp_path: Path) -> None:
    async def scenario(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions, 60_000, T0)
        transactions.verify(ID, *producer, *T0)
        with pytest.raises(ApiError) as refused:
            transactions.verify(ID, *producer, *T1)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        await transactions.add_partition(ID, *producer, *T1)
        transactions.verify(ID, *producer, *T1)

    run(tmp_path, scenario)


def test_partition_is_not_verified_before_its_addition_is_durable(tmp_path: Path) -> None:
    async def scenario(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions, 60_000, T0)
        adding = asyncio.ensure_future(transactions.add_partition(ID, *producer, *T1))
        await asyncio.sleep(0)  # it is appended, and not flushed
        with pytest.raises(ApiError) as refused:
            transactions.verify(ID, *producer, *T1)
        assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
        transactions.verify(ID, *producer, *T0)
        await adding
        transactions.verify(ID, *producer, *T1)

    run(tmp_path, scenario)


def test_verification_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        transactions.verify("nobody", 7, 0, *T0)

    run(tmp_path, scenario, transaction_partition_verification_enable=False)


# --- time


def test_transaction_past_its_time_out_is_aborted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions, 50)
        await becomes(transactions, TransactionState.COMPLETE_ABORT)
        assert end_offsets(server) == [1, 1]
        with pytest.raises(ApiError) as refused:
            await transactions.add_partitions(AddRequest(ID, producer, frozenset((T0,))))
        assert refused.value.code is ErrorCode.PRODUCER_FENCED

    run(tmp_path, scenario, transaction_abort_timed_out_transaction_cleanup_interval_ms=10)


def test_unused_transactional_id_is_forgotten_for_good(tmp_path: Path) -> None:
    settings = {
        "transactional_id_expiration_ms": 50,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 10,
    }

    async def scenario(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        await transactions.initialize(InitRequest(ID, 1000))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await transactions.list_all():
                await asyncio.sleep(0.001)

    async def forgotten(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        await transactions.all_loaded()
        assert await transactions.list_all() == {}

    run(tmp_path, scenario, **settings)
    run(tmp_path, forgotten)


# --- restart


def test_restart_goes_on_with_what_was_decided(tmp_path: Path) -> None:
    async def decide(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        producer = await begun(transactions)
        server.partitions.find(*T1).offline_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "away")
        await transactions.end(EndRequest(ID, producer, committed=False))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while server.partitions.find(*T0).high_watermark < 1:
                await asyncio.sleep(0.001)
        assert await state(transactions) is TransactionState.PREPARE_ABORT

    async def find(server: BrokerServer, transactions: TransactionCoordinator) -> None:
        await transactions.all_loaded()
        await becomes(transactions, TransactionState.COMPLETE_ABORT)
        assert end_offsets(server) == [2, 1]  # the first has it twice, which harms nobody

    run(tmp_path, decide)
    run(tmp_path, find)


def test_restart_keeps_open_transactions_open(tmp_path: Path) -> None:
    producers: list[Producer] = []

    async def begin(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        producers.append(await begun(transactions))

    async def find(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        await transactions.all_loaded()
        transactions.verify(ID, *producers[0], *T0)
        await transactions.end(EndRequest(ID, producers[0], committed=True))

    run(tmp_path, begin)
    run(tmp_path, find)


# --- listing


def test_transactional_ids_of_all_shards_are_listed(tmp_path: Path) -> None:
    async def scenario(_: BrokerServer, transactions: TransactionCoordinator) -> None:
        names = {f"tx{number}" for number in range(10)}
        for name in names:
            await transactions.initialize(InitRequest(name, 1000))
        assert (await transactions.list_all()).keys() == names

    run(tmp_path, scenario)


def test_unknown_transactional_id_is_refused_where_there_is_no_topic_yet(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            transactions = server.coordinators.transactions
            with pytest.raises(ApiError) as refused:
                transactions.verify(ID, 1, 0, *T0)
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
            assert await transactions.list_all() == {}

    asyncio.run(main())
