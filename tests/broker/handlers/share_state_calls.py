"""What tests of the persister's APIs (83 to 87) share: a broker, a socket, one share partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from tests.broker.serving import WireClient, serving

INITIALIZE, READ, WRITE, DELETE, READ_SUMMARY = 83, 84, 85, 86, 87
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4

Batch = tuple[int, int, int, int]  # first and last offset, state, delivery count


class ShareState:
    """The state of group `g` in partition 0 of `orders`, over the wire."""

    def __init__(self, server: BrokerServer, client: WireClient, topic_id: UUID) -> None:
        self.server = server
        self.client = client
        self.topic_id = topic_id

    async def call(self, api: int, version: int, group_id: str = "g", **fields: Any) -> Any:
        """The answer for the one partition."""
        partition = {"partition": 0} | fields
        answer = await self.client.call(
            api,
            version,
            group_id=group_id,
            topics=[{"topic_id": self.topic_id, "partitions": [partition]}],
        )
        assert answer.results[0].topic_id == self.topic_id
        return answer.results[0].partitions[0]

    async def initialize(self, state_epoch: int = 1, start_offset: int = -1) -> int:
        answer = await self.call(INITIALIZE, 0, state_epoch=state_epoch, start_offset=start_offset)
        return int(answer.error_code.value)

    async def write(self, *batches: Batch, version: int = 1, **changes: Any) -> int:
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        fields = {
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": 0,
            "delivery_complete_count": 0,
            "state_batches": [dict(zip(names, batch, strict=True)) for batch in batches],
        }
        answer = await self.call(WRITE, version, **fields | changes)
        return int(answer.error_code.value)

    async def read(self, leader_epoch: int = 0) -> Any:
        return await self.call(READ, 0, leader_epoch=leader_epoch)

    async def batches(self, leader_epoch: int = 0) -> list[Batch]:
        return [
            (it.first_offset, it.last_offset, it.delivery_state, it.delivery_count)
            for it in (await self.read(leader_epoch)).state_batches
        ]


Scenario = Callable[[ShareState], Awaitable[None]]


def run(directory: Path, scenario: Scenario, **settings: object) -> None:
    """Run a scenario against a broker with the topic `orders` of three partitions."""

    async def main() -> None:
        async with serving(directory, **settings) as server, WireClient.connected(server) as client:
            made = await server.topics.create([NewTopic("orders", partition_count=3)])
            topic = made["orders"]
            assert not isinstance(topic, Exception)
            await scenario(ShareState(server, client, topic.id))

    asyncio.run(main())
