"""Transactions whose coordinator is another broker than the leaders of their partitions."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millstream.errors import ErrorCode
from millstream.records.record import decode_batch
from tests.broker.peers.cluster import Cluster, run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import batch

ID = "writer"


class Writer:
    """A transactional producer that talks to the brokers itself."""

    def __init__(self, cluster: Cluster, coordinator: int, protocol: int) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.protocol = protocol
        self.producer: dict[str, int] = {}
        self.sequences: dict[tuple[str, int], int] = {}

    async def call(self, api: int, version: int, **fields: Any) -> Any:
        return await self.cluster.clients[self.coordinator].call(api, version, **fields)

    async def begin(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.call(
                    22,
                    5 if self.protocol == 2 else 4,
                    transactional_id=ID,
                    transaction_timeout=60_000,
                    producer_id=-1,
                    producer_epoch=-1,
                )
                if answer.error_code not in (
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    ErrorCode.CONCURRENT_TRANSACTIONS,
                ):
                    break
                await asyncio.sleep(0.01)
        assert answer.error_code == 0
        self.producer = {
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }
        self.sequences.clear()

    async def add(self, topic: str, *indexes: int) -> int:
        answer = await self.call(
            24,
            3,
            v3_and_below_transactional_id=ID,
            v3_and_below_topics=[{"name": topic, "partitions": list(indexes)}],
            **{f"v3_and_below_{name}": value for name, value in self.producer.items()},
        )
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        return int(results[0].partition_error_code)

    async def produce(self, topic: str, index: int, value: bytes, leader: int) -> int:
        sequence = self.sequences.get((topic, index), 0)
        records = batch(
            [value],
            producer_id=self.producer["producer_id"],
            producer_epoch=self.producer["producer_epoch"],
            base_sequence=sequence,
            transactional=True,
        )
        data = [{"index": index, "records": records}]
        answer = await self.cluster.clients[leader].call(
            0,
            12 if self.protocol == 2 else 11,
            transactional_id=ID,
            acks=-1,
            timeout=60_000,
            topic_data=[{"name": topic, "partition_data": data}],
        )
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code == 0:
            self.sequences[topic, index] = sequence + 1
        return code

    async def end(self, *, commit: bool) -> int:
        answer = await self.call(
            26,
            5 if self.protocol == 2 else 4,
            transactional_id=ID,
            committed=commit,
            **self.producer,
        )
        if self.protocol == 2 and answer.error_code == 0:
            self.producer = {
                "producer_id": answer.producer_id,
                "producer_epoch": answer.producer_epoch,
            }
            self.sequences.clear()
        return int(answer.error_code)


async def committed(cluster: Cluster, leader: int, index: int, end: int) -> list[bytes | None]:
    """Waits until the transactions before `end` are decided; what a consumer may read of them."""
    partition = cluster.brokers[leader].partitions.find("t", index)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while partition.last_stable_offset < end:
            await asyncio.sleep(0.005)
    data, aborted = partition.read_committed(0, max_bytes=1 << 20)
    values, position = [], 0
    ids = {transaction.producer_id for transaction in aborted}
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12])
        attributes = int.from_bytes(data[position + 21 : position + 23])
        producer_id = int.from_bytes(data[position + 43 : position + 51], signed=True)
        if not attributes & 32 and producer_id not in ids:
            values += [record.value for record in decode_batch(bytes(data), position)]
        position += size
    return values


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_transaction_over_partitions_of_two_brokers(
    tmp_path: Path, protocol: int, commit: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 1, 2)
        writer = Writer(cluster, 1, protocol)
        await writer.begin()
        if protocol == 1:
            assert await writer.add("t", 0, 1) == 0
        for index, leader in ((0, 1), (1, 2)):
            assert await writer.produce("t", index, b"a", leader) == 0
            assert await writer.produce("t", index, b"b", leader) == 0
        assert await writer.end(commit=commit) == 0
        for index, leader in ((0, 1), (1, 2)):
            values = await committed(cluster, leader, index, 3)
            assert values == ([b"a", b"b"] if commit else [])

    run(tmp_path, scenario)


@pytest.mark.parametrize("protocol", [1, 2])
def test_many_transactions_follow_each_other(tmp_path: Path, protocol: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 2, 2)
        writer = Writer(cluster, 1, protocol)
        await writer.begin()
        for number in range(20):
            if protocol == 1:
                while (code := await writer.add("t", 0, 1)) != 0:
                    assert code == ErrorCode.CONCURRENT_TRANSACTIONS
            for index in (0, 1):
                while (code := await writer.produce("t", index, b"%d" % number, 2)) != 0:
                    assert code == ErrorCode.CONCURRENT_TRANSACTIONS, number
            assert await writer.end(commit=True) == 0
        for index in (0, 1):
            values = await committed(cluster, 2, index, 40)
            assert values == [b"%d" % number for number in range(20)]

    run(tmp_path, scenario)


def test_partition_that_was_not_added_is_refused(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 2)
        writer = Writer(cluster, 1, protocol=1)
        await writer.begin()
        code = await writer.produce("t", 0, b"a", 2)
        assert code == ErrorCode.TRANSACTION_ABORTABLE
        assert await writer.add("t", 0) == 0
        assert await writer.produce("t", 0, b"a", 2) == 0

    run(tmp_path, scenario)


def test_markers_are_written_when_the_partitions_leader_is_back(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 1, 2)
        writer = Writer(cluster, 1, protocol=2)
        await writer.begin()
        assert await writer.produce("t", 0, b"a", 1) == 0
        assert await writer.produce("t", 1, b"a", 2) == 0
        await cluster.stop(2)
        assert await writer.end(commit=True) == 0
        assert await committed(cluster, 1, 0, 2) == [b"a"]
        await cluster.start(2)
        assert await committed(cluster, 2, 1, 2) == [b"a"]

    run(tmp_path, scenario)


def test_markers_are_written_by_the_coordinator_that_was_restarted(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 2)
        writer = Writer(cluster, 1, protocol=2)
        await writer.begin()
        assert await writer.produce("t", 0, b"a", 2) == 0
        await cluster.stop(2)
        assert await writer.end(commit=True) == 0
        await cluster.stop(1)
        await cluster.start(2)
        await cluster.start(1)
        assert await committed(cluster, 2, 0, 2) == [b"a"]

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [3, 5])
def test_offsets_are_committed_in_a_transaction_of_another_broker(
    tmp_path: Path, version: int
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create(OFFSETS_TOPIC, 2, cleanup_policy="compact")
        await cluster.create("t", 1)
        writer = Writer(cluster, 1, protocol=2 if version == 5 else 1)
        await writer.begin()
        if version < 5:
            answer = await writer.call(25, 3, transactional_id=ID, group_id="g", **writer.producer)
            assert answer.error_code == 0
        for offset in (7, 8):
            partition = {"partition_index": 0, "committed_offset": offset}
            answer = await cluster.clients[2].call(
                28,
                version,
                transactional_id=ID,
                group_id="g",
                generation_id=-1,
                topics=[{"name": "t", "partitions": [partition]}],
                **writer.producer,
            )
            assert answer.topics[0].partitions[0].error_code == 0
        assert await writer.end(commit=True) == 0
        asked = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await cluster.clients[2].call(9, 8, groups=asked, require_stable=True)
                found = answer.groups[0].topics[0].partitions[0]
                if found.error_code == 0:
                    break
                await asyncio.sleep(0.005)
        assert found.committed_offset == 8
        elsewhere = await cluster.clients[1].call(9, 8, groups=asked)
        assert elsewhere.groups[0].error_code == ErrorCode.NOT_COORDINATOR

    run(tmp_path, scenario)


def test_topic_that_was_deleted_needs_no_marker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 1)
        gone: uuid.UUID = await cluster.create("gone", 2)
        writer = Writer(cluster, 1, protocol=2)
        await writer.begin()
        assert await writer.produce("gone", 0, b"a", 2) == 0
        await cluster.brokers[1].topics.delete([gone])
        assert await writer.end(commit=True) == 0
        while await writer.produce("t", 0, b"b", 1) != 0:
            await asyncio.sleep(0.005)
        assert await writer.end(commit=True) == 0
        assert await committed(cluster, 1, 0, 2) == [b"b"]

    run(tmp_path, scenario)
