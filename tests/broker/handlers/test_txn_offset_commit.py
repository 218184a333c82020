"""TxnOffsetCommit in every version: refusals, and what is pending through a restart.

How offsets come to count is in tests/conformance/test_transactions_offsets.py, on Kafka too.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import OFFSETS_TOPIC
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import (
    DELETE_GROUPS,
    FIND_COORDINATOR,
    OFFSET_FETCH,
    run,
)
from tests.broker.serving import WireClient, serving

INIT_PRODUCER_ID, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 25, 26, 28
CONSUMER_GROUP_HEARTBEAT = 68
TRANSACTIONAL_ID = "my-transactions"


class Producer:
    """A transactional producer that commits offsets of group `g`."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.producer_id = self.producer_epoch = -1

    @property
    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": TRANSACTIONAL_ID,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    async def init(self) -> None:
        await self.client.call(FIND_COORDINATOR, 3, key=TRANSACTIONAL_ID, key_type=1)
        answer = await self.client.call(
            INIT_PRODUCER_ID,
            4,
            transactional_id=TRANSACTIONAL_ID,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code.value == ErrorCode.NONE
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    async def add_offsets(self) -> None:
        answer = await self.client.call(ADD_OFFSETS, 3, **self.who, group_id="g")
        assert answer.error_code.value == ErrorCode.NONE

    async def commit(self, offset: int, version: int, *, partition: int = 0, **more: Any) -> int:
        position = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_metadata": more.pop("metadata", ""),
        }
        topics = [{"name": more.pop("topic", "orders"), "partitions": [position]}]
        fields = {**self.who, "group_id": "g", "topics": topics, **more}
        answer = await self.client.call(TXN_OFFSET_COMMIT, version, **fields)
        assert answer.topics[0].partitions[0].partition_index == partition
        return int(answer.topics[0].partitions[0].error_code.value)

    async def end(self, version: int, committed: bool = True) -> None:
        answer = await self.client.call(END_TXN, version, **self.who, committed=committed)
        assert answer.error_code.value == ErrorCode.NONE


async def fetch(client: WireClient, *, stable: bool) -> tuple[int, int]:
    """Offset and error for partition 0 of orders."""
    group = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
    answer = await client.call(OFFSET_FETCH, 8, groups=[group], require_stable=stable)
    partition = answer.groups[0].topics[0].partitions[0]
    return partition.committed_offset, partition.error_code.value


async def until_stable(client: WireClient) -> int:
    """The offset, once no transaction is open on it."""
    while True:
        offset, error = await fetch(client, stable=True)
        if error != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            assert error == ErrorCode.NONE
            return offset
        await asyncio.sleep(0)


@pytest.mark.parametrize("version", range(6))
def test_offset_is_pending_until_the_transaction_is_committed(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        producer = Producer(client)
        await producer.init()
        if version < 5:
            await producer.add_offsets()
        assert await producer.commit(42, version) == ErrorCode.NONE
        assert await fetch(client, stable=False) == (-1, ErrorCode.NONE)
        assert await fetch(client, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await producer.end(5 if version == 5 else 3)
        assert await until_stable(client) == 42

    run(tmp_path, scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_pending_offset_survives_a_restart(tmp_path: Path, committed: bool) -> None:
    producers: list[Producer] = []

    async def before(server: BrokerServer, client: WireClient) -> None:
        producer = Producer(client)
        await producer.init()
        assert await producer.commit(7, 5) == ErrorCode.NONE
        await producer.end(5)
        assert await until_stable(client) == 7
        await producer.init()
        assert await producer.commit(42, 5) == ErrorCode.NONE
        producers.append(producer)

    async def after() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.coordinators.groups.all_loaded()
            assert await fetch(client, stable=False) == (7, ErrorCode.NONE)
            assert await fetch(client, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            producers[0].client = client
            await client.call(FIND_COORDINATOR, 3, key=TRANSACTIONAL_ID, key_type=1)
            await producers[0].end(5, committed)
            assert await until_stable(client) == (42 if committed else 7)

    run(tmp_path, before)
    asyncio.run(after())


@pytest.mark.parametrize(
    ("version", "expected"),
    [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_offset_of_a_group_that_was_not_added_is_refused(
    tmp_path: Path, version: int, expected: ErrorCode
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        producer = Producer(client)
        await producer.init()
        assert await producer.commit(42, version) == expected
        assert await fetch(client, stable=True) == (-1, ErrorCode.NONE)

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_replaced_producer_is_refused(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        old, new = Producer(client), Producer(client)
        await old.init()
        await new.init()
        await new.add_offsets()
        assert await old.commit(42, version) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await fetch(client, stable=True) == (-1, ErrorCode.NONE)

    run(tmp_path, scenario)


def test_replaced_producer_is_refused_by_the_log_too(tmp_path: Path) -> None:
    """Without verification nobody but the partition's own memory of epochs is in the way."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        old, new = Producer(client), Producer(client)
        await old.init()
        await new.init()
        await new.add_offsets()
        assert await new.commit(1, 3) == ErrorCode.NONE
        assert await old.commit(42, 3) == ErrorCode.INVALID_PRODUCER_EPOCH
        await new.end(3)
        assert await until_stable(client) == 1

    run(tmp_path, scenario, transaction_partition_verification_enable="false")


@pytest.mark.parametrize("version", [0, 4, 5])
def test_unknown_transactional_id_is_refused(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await client.call(FIND_COORDINATOR, 3, key=TRANSACTIONAL_ID, key_type=1)
        producer = Producer(client)
        producer.producer_id, producer.producer_epoch = 99, 0
        assert await producer.commit(42, version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING

    run(tmp_path, scenario)


def test_each_partition_is_answered_for_itself(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        producer = Producer(client)
        await producer.init()
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.commit(1, 5, topic="nowhere") == unknown
        assert await producer.commit(1, 5, partition=3) == unknown
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await producer.commit(1, 5, metadata="x" * 5_000) == too_large
        assert await producer.commit(1, 5, group_id="") == ErrorCode.INVALID_GROUP_ID

    run(tmp_path, scenario)


def test_member_of_a_consumer_group_needs_its_epoch(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        member_id = str(uuid.uuid4())
        joined = await client.call(
            CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id="g",
            member_id=member_id,
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=60_000,
            subscribed_topic_names=["orders"],
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[],
        )
        epoch = joined.member_epoch
        producer = Producer(client)
        await producer.init()
        await producer.add_offsets()
        for version in (3, 4):
            stale = {"member_id": member_id, "generation_id": epoch + 1}
            assert await producer.commit(1, version, **stale) == ErrorCode.ILLEGAL_GENERATION
            stranger = {"member_id": "nobody", "generation_id": epoch}
            assert await producer.commit(1, version, **stranger) == ErrorCode.UNKNOWN_MEMBER_ID
            member = {"member_id": member_id, "generation_id": epoch}
            assert await producer.commit(1, version, **member) == ErrorCode.NONE
        await producer.end(3)
        assert await until_stable(client) == 1

    run(tmp_path, scenario)


def test_deleted_group_forgets_what_is_pending(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        producer = Producer(client)
        await producer.init()
        assert await producer.commit(42, 5) == ErrorCode.NONE
        answer = await client.call(DELETE_GROUPS, 2, groups_names=["g"])
        assert answer.results[0].error_code.value == ErrorCode.NONE
        await producer.end(5)
        index = server.coordinators.groups.index_of("g")
        partition = server.partitions.get(OFFSETS_TOPIC, index)
        assert partition is not None
        while partition.is_in_transaction(producer.producer_id, producer.producer_epoch):
            await asyncio.sleep(0)
        assert await fetch(client, stable=True) == (-1, ErrorCode.NONE)

    run(tmp_path, scenario)
