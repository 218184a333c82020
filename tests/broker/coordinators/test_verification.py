"""A transaction that ends while another broker's coordinator verifies it opens nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinators.verification import TransactionVerifier
from millstream.broker.replicas.partition import Partition
from millstream.coordination.cluster import TRANSACTIONS_TOPIC
from millstream.errors import ErrorCode
from tests.broker.peers.cluster import Cluster, run
from tests.broker.peers.test_markers import Writer
from tests.peers.patience import PATIENCE_SECONDS


async def begun(cluster: Cluster, protocol: int = 1) -> tuple[Writer, Partition]:
    """A transaction of broker 1, to which partition 0 of broker 2 was added."""
    await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
    await cluster.create("t", 2)
    writer = Writer(cluster, 1, protocol)
    await writer.begin()
    if protocol == 1:
        assert await writer.add("t", 0) == 0
    return writer, cluster.brokers[2].partitions.find("t", 0)


def end_before_the_answer(
    verifier: TransactionVerifier, writer: Writer, partition: Partition
) -> None:
    """The first answer of the coordinator is late: the transaction's end comes before it."""
    ask = verifier._remote.ask

    async def slow_ask(*args: Any, **fields: Any) -> Any:
        answer = await ask(*args, **fields)
        verifier._remote.ask = ask  # type: ignore[method-assign]
        assert await writer.end(commit=False) == 0
        while partition.last_stable_offset == 0:  # until the marker is here
            await asyncio.sleep(0.001)
        return answer

    verifier._remote.ask = slow_ask  # type: ignore[method-assign]


@pytest.mark.parametrize("protocol", [1, 2])
def test_batch_that_comes_after_its_marker_is_refused(tmp_path: Path, protocol: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        writer, partition = await begun(cluster, protocol)
        verifier = cluster.brokers[2].coordinators.verifier
        end_before_the_answer(verifier, writer, partition)
        code = await writer.produce("t", 0, b"late", 2)
        assert code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_EPOCH)
        assert partition.log.log_end_offset == 1  # the marker
        assert partition.last_stable_offset == 1
        assert partition.guards.is_empty

    run(tmp_path, scenario)


def test_batch_that_comes_before_the_marker_of_the_last_transaction_is_sent_again(
    tmp_path: Path,
) -> None:
    """Also if the marker comes before the coordinator's answer does."""

    async def scenario(cluster: Cluster) -> None:
        writer, partition = await begun(cluster, 2)
        assert await writer.produce("t", 0, b"a", 2) == 0
        transactions = cluster.brokers[1].coordinators.transactions
        write_markers, held = transactions._prepared, list[str]()
        transactions._prepared = held.append  # type: ignore[method-assign]
        assert await writer.end(commit=True) == 0
        remote = cluster.brokers[2].coordinators.verifier._remote
        ask = remote.ask

        async def slow_ask(*args: Any, **fields: Any) -> Any:
            answer = await ask(*args, **fields)
            if held:
                write_markers(held.pop())
                while partition.last_stable_offset < 2:
                    await asyncio.sleep(0.001)
            return answer

        remote.ask = slow_ask  # type: ignore[method-assign]
        assert await writer.produce("t", 0, b"b", 2) == ErrorCode.CONCURRENT_TRANSACTIONS
        transactions._prepared = write_markers  # type: ignore[method-assign]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await writer.produce("t", 0, b"b", 2) != 0:
                await asyncio.sleep(0.01)
        assert await writer.end(commit=True) == 0

    run(tmp_path, scenario)


def test_coordinator_that_cannot_be_reached_is_asked_again_later(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        writer, partition = await begun(cluster)
        await cluster.stop(1)
        code = await writer.produce("t", 0, b"a", 2)
        assert code == ErrorCode.NOT_ENOUGH_REPLICAS  # producers try again
        assert partition.guards.is_empty
        await cluster.start(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await writer.produce("t", 0, b"a", 2) != 0:
                await asyncio.sleep(0.01)
        assert await writer.end(commit=True) == 0

    run(tmp_path, scenario)


def test_verification_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        writer, _ = await begun(cluster)
        await cluster.stop(1)
        assert await writer.produce("t", 0, b"a", 2) == 0

    run(tmp_path, scenario, transaction_partition_verification_enable="false")
