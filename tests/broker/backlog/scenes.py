"""A broker with a topic under a backlog policy, and groups that commit, for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.broker.backlog import monitor, positions
from millstream.broker.backlog.backlog import PartitionBacklog
from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.replicas.partition import Partition
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import Resource, ResourceType
from millstream.records.record import Record, encode_batch
from tests.broker.serving import WireClient
from tests.peers.patience import PATIENCE_SECONDS

PRODUCE = 0
RECORD_BYTES = 1000
PREFIX = "millstream.backlog."


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure so often that tests need not wait."""
    monkeypatch.setattr(monitor, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "STOPPED_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(positions, "ASK_MS", 20)
    monkeypatch.setattr(positions, "LIST_MS", 100)


async def set_policy(server: BrokerServer, topic: str = "orders", **values: object) -> None:
    """Set these of the policy's settings; None removes one."""
    changes = [
        Change(
            PREFIX + name.replace("_", "."),
            Operation.DELETE if value is None else Operation.SET,
            None if value is None else str(value),
        )
        for name, value in values.items()
    ]
    resource = Resource(ResourceType.TOPIC, topic)
    outcomes = await server.actions.alter_configs({resource: changes}, validate_only=False)
    if outcomes[resource] is not None:
        raise outcomes[resource]


async def remove_policy(server: BrokerServer, topic: str = "orders") -> None:
    await set_policy(server, topic, policy=None, bytes=None, ms=None, groups=None)


def records(count: int = 1, *, timestamp_ms: int = 1_700_000_000_000, size: int = 0) -> bytes:
    value = b"x" * (size or RECORD_BYTES)
    return encode_batch([Record(i, timestamp_ms, None, value) for i in range(count)])


def send(
    client: WireClient,
    data: bytes,
    *,
    topic: str = "orders",
    partitions: tuple[int, ...] = (0,),
    acks: int = -1,
    timeout_ms: int = 30_000,
) -> None:
    client.send(
        PRODUCE,
        9,
        transactional_id=None,
        acks=acks,
        timeout=timeout_ms,
        topic_data=[
            {"name": topic, "partition_data": [{"index": it, "records": data} for it in partitions]}
        ],
    )


async def receive(client: WireClient) -> Any:
    """The next response to a Produce."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await client.receive(PRODUCE, 9)


async def answer(client: WireClient) -> list[Any]:
    """The next answer to a Produce, by partition."""
    response = await receive(client)
    return list(response.responses[0].partition_responses)


async def produce(client: WireClient, data: bytes, **options: Any) -> Any:
    send(client, data, **options)
    return (await answer(client))[0]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def partition(server: BrokerServer, index: int = 0, topic: str = "orders") -> Partition:
    found = server.partitions.get(topic, index)
    assert found is not None
    return found


def backlog(server: BrokerServer, index: int = 0) -> PartitionBacklog:
    (found,) = [it for it in server.backlog.partitions() if it.partition == index]
    return found


def is_over(server: BrokerServer, index: int = 0) -> bool:
    return any(it.partition == index and it.is_over for it in server.backlog.partitions())
