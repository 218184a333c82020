"""Shortcuts for tests of quotas: a broker with a manual clock, and quotas set over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.quotas.clients import QuotaMetric
from millstream.broker.server import BrokerServer
from millstream.clock import SystemClock
from millstream.testing.clock import ManualClock
from tests.broker.serving import WireClient, serving
from tests.peers.wire import batch

PRODUCE, FETCH, DESCRIBE_QUOTAS, ALTER_QUOTAS = 0, 1, 48, 49
TOPIC = "t"


class Talk:
    """A broker whose time stands still, with one topic, and a client of it."""

    def __init__(self, server: BrokerServer, clock: ManualClock, client: WireClient) -> None:
        self.server = server
        self.clock = clock
        self.client = client

    async def set_quota(self, *parts: tuple[str, str | None], **values: float | None) -> None:
        """Set quotas of an entity, or (None) remove them, on a connection of its own."""
        async with WireClient.connected(self.server, "admin") as admin:
            answer = await alter(admin, parts, values)
        assert [entry.error_message for entry in answer.entries] == [None]

    async def produce(self, size_bytes: int, client: WireClient | None = None) -> int:
        """Append a record; the throttle time in ms."""
        caller = client or self.client
        answer = await caller.call(PRODUCE, 9, **produce_fields(size_bytes))
        assert answer.responses[0].partition_responses[0].error_code == 0
        return int(answer.throttle_time.total_seconds() * 1000)

    async def fetch(
        self, offset: int = 0, client: WireClient | None = None, **fields: Any
    ) -> tuple[int, int]:
        """The throttle time, and how many bytes of records there were."""
        answer = await (client or self.client).call(FETCH, 11, **fetch_fields(offset, **fields))
        assert answer.error_code == 0
        size = sum(
            len(partition.records or b"")
            for topic in answer.responses
            for partition in topic.partitions
        )
        return int(answer.throttle_time.total_seconds() * 1000), size

    def quota_metrics(self) -> list[QuotaMetric]:
        """Of the clients that have a quota."""
        quotas = self.server.services.throttling.quotas
        assert quotas is not None
        found = quotas.metrics(self.clock.monotonic_ms())
        return [metric for metric in found if metric is not None]

    def muted(self) -> int:
        """How many connections are muted."""
        return sum(connection.is_muted for connection in self.server.connections._open)

    def unmute(self) -> None:
        for connection in self.server.connections._open:
            connection.unmute()


def talk(directory: Path, scenario: Callable[[Talk], Awaitable[None]], **settings: object) -> None:
    """Run a scenario."""

    async def run() -> None:
        clock = ManualClock(SystemClock().now_ms())  # records have the timestamps of today
        async with serving(directory, clock=clock, **settings) as server:
            await server.topics.create([NewTopic(TOPIC, 1)])
            async with WireClient.connected(server, "app") as client:
                await scenario(Talk(server, clock, client))

    asyncio.run(run())


async def alter(
    client: WireClient,
    parts: tuple[tuple[str, str | None], ...],
    values: dict[str, float | None],
    **fields: Any,
) -> Any:
    entity = [{"entity_type": entity_type, "entity_name": name} for entity_type, name in parts]
    operations = [
        {"key": key, "value": float(value or 0), "remove": value is None}
        for key, value in values.items()
    ]
    entries = [{"entity": entity, "ops": operations}]
    return await client.call(ALTER_QUOTAS, 1, entries=entries, **fields)


def produce_fields(size_bytes: int, acks: int = 1) -> dict[str, Any]:
    partition = {"index": 0, "records": batch([bytes(size_bytes)])}
    return {
        "acks": acks,
        "timeout": 60_000,
        "topic_data": [{"name": TOPIC, "partition_data": [partition]}],
    }


def fetch_fields(offset: int, **fields: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**30}
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**30,
        "session_epoch": -1,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
    } | fields
