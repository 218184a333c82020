"""Markers: on their way to all partitions of a transaction, whatever these are up to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinators.markers import Markers
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.pending import PendingAppend
from millstream.broker.server import BrokerServer
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.errors import ApiError, ErrorCode
from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS

MARKER = TransactionMarker(
    producer_id=1, producer_epoch=0, coordinator_epoch=0, committed=True, transaction_version=0
)
T0, T1 = ("t", 0), ("t", 1)


def run(directory: Path, scenario: Callable[[BrokerServer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with serving(directory) as server:
            await server.topics.create([NewTopic("t", partition_count=2)])
            await scenario(server)

    asyncio.run(main())


def end_offsets(server: BrokerServer) -> list[int]:
    return [server.partitions.find("t", index).log.log_end_offset for index in (0, 1)]


def markers(server: BrokerServer, written: asyncio.Event, **changes: Any) -> Markers:
    def exists(topic: str, index: int) -> bool:
        return topic in server.metadata.image.topics

    def write(topic: str, index: int, marker: TransactionMarker) -> PendingAppend:
        return server.coordinators.write_marker(topic, index, marker)

    options = {"write": write, "exists": exists} | changes
    made = Markers(MARKER, changes.pop("partitions", [T0, T1]), **options)
    made.when_done(lambda _: written.set())
    return made


async def within_a_while(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE_SECONDS)


def test_all_partitions_share_one_flush(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        written = asyncio.Event()
        flushes = server.flusher.flush_count
        markers(server, written).start()
        assert not written.is_set(), "nothing is durable yet"
        await within_a_while(written)
        assert end_offsets(server) == [1, 1]
        assert server.flusher.flush_count == flushes + 1

    run(tmp_path, scenario)


def test_transaction_without_partitions_needs_no_markers(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        none = Markers(MARKER, [], write=_never, exists=lambda *_: True)
        none.start()
        assert none.is_done

    run(tmp_path, scenario)


def _never(*_: object) -> PendingAppend:
    raise AssertionError


def test_partition_that_is_not_ready_is_tried_again_and_only_that(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        written, refusals = asyncio.Event(), iter(range(3))

        def write(topic: str, index: int, marker: TransactionMarker) -> PendingAppend:
            if index == 1 and next(refusals, None) is not None:
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "not yet")
            return server.coordinators.write_marker(topic, index, marker)

        markers(server, written, write=write).start()
        await within_a_while(written)
        assert end_offsets(server) == [1, 1]
        assert next(refusals, None) is None

    run(tmp_path, scenario)


def test_deleted_topic_needs_no_marker(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        await server.topics.delete([server.metadata.image.topics["t"].id])
        written = asyncio.Event()
        markers(server, written).start()
        await within_a_while(written)

    run(tmp_path, scenario)


def test_partition_that_has_seen_a_newer_producer_is_done(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        def refuse(*_: object) -> PendingAppend:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "superseded")

        written = asyncio.Event()
        markers(server, written, write=refuse).start()
        await within_a_while(written)

    run(tmp_path, scenario)


def test_own_coordinator_is_not_fenced_by_the_epoch_of_an_administrator(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        too_high = MARKER._replace(coordinator_epoch=100)
        await server.coordinators.write_marker(*T0, too_high)
        with pytest.raises(ApiError) as refused:
            server.coordinators.write_marker(*T0, MARKER)
        assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        for partition in (T0, T1):
            await server.coordinators.write_own_marker(*partition, MARKER)
        seen = [server.partitions.find(*it).coordinator_epoch_of(1) for it in (T0, T1)]
        assert seen == [100, 0]

    run(tmp_path, scenario)


def test_append_that_fails_on_its_way_is_tried_again(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        written, failing = asyncio.Event(), [PendingAppend(0, 1)]

        def write(topic: str, index: int, marker: TransactionMarker) -> PendingAppend:
            if index == 0 and failing:
                pending = failing.pop()
                asyncio.get_running_loop().call_soon(
                    pending.fail, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "a bad disk")
                )
                return pending
            return server.coordinators.write_marker(topic, index, marker)

        markers(server, written, write=write).start()
        await within_a_while(written)
        assert end_offsets(server) == [1, 1]

    run(tmp_path, scenario)


def test_cancelled_markers_call_nobody_back(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer) -> None:
        written = asyncio.Event()
        cancelled = markers(server, written)
        cancelled.start()
        cancelled.cancel()
        while end_offsets(server) != [1, 1] or server.partitions.find(*T1).high_watermark < 1:
            await asyncio.sleep(0)
        assert not written.is_set()

    run(tmp_path, scenario)
