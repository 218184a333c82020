"""Several brokers in one event loop, with real sockets between them and one image of the metadata
in memory."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from millstream.broker.metadata.store import Decision, Subscriber
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_features import missing_features
from millstream.coordination.cluster_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tests.broker.serving import WireClient
from tests.peers.patience import PATIENCE_SECONDS


class OneImage:
    """The metadata of all brokers."""

    def __init__(self) -> None:
        empty = ClusterImage()
        self.image = empty.apply(missing_features(empty.features), 0)
        self.members: list[Member] = []
        self.changing = asyncio.Lock()


class Member:
    """The home of one broker's metadata: the image that all share."""

    has_controller = False
    controller_id: int | None = None
    controller_epoch = 1
    is_live = True
    deleted_topic_ids: frozenset[uuid.UUID] = frozenset()

    def __init__(self, shared: OneImage, broker_id: int) -> None:
        self._shared = shared
        self._broker_id = broker_id
        self._subscribers: list[Subscriber] = []
        shared.members.append(self)

    @property
    def image(self) -> ClusterImage:
        return self._shared.image

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def refresh(self) -> ClusterImage:
        return self.image

    async def change(self, decide: Decision) -> ClusterImage:
        shared = self._shared
        async with shared.changing:
            before = shared.image
            records = decide(before)
            if not records:
                return before
            shared.image = now = before.apply(records, before.version + len(records))
            works = [work for member in shared.members for work in member.publish(before, now)]
        for work in works:
            await work
        return now

    def publish(self, before: ClusterImage, now: ClusterImage) -> list[Awaitable[object]]:
        works = [subscriber(before, now) for subscriber in self._subscribers]
        return [work for work in works if work is not None]

    async def register(self, broker: RegisterBrokerRecord) -> None:
        await self.change(lambda _: [broker])

    async def close(self) -> None:
        broker = self.image.brokers.get(self._broker_id)
        if broker is not None and not broker.fenced:
            record = BrokerRegistrationChangeRecord(self._broker_id, broker.epoch, fenced=1)
            await self.change(lambda _: [record])
        self._shared.members.remove(self)


class Cluster:
    """Brokers 1 to N, which can be stopped and started."""

    def __init__(self, directory: Path, settings: dict[str, object]) -> None:
        self._directory = directory
        self._settings = settings
        self._shared = OneImage()
        self._stack = contextlib.AsyncExitStack()
        self.brokers: dict[int, BrokerServer] = {}
        self.clients: dict[int, WireClient] = {}
        self._clients: dict[int, contextlib.AsyncExitStack] = {}

    async def start(self, broker_id: int) -> BrokerServer:
        values: dict[str, object] = {
            "node.id": broker_id,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._directory / str(broker_id)),
            "group.initial.rebalance.delay.ms": 0,
        } | self._settings

        async def open_metadata(*_: object) -> Member:
            return Member(self._shared, broker_id)

        config = BrokerConfig.from_values(values)
        server = BrokerServer(config, open_metadata=open_metadata)  # type: ignore[arg-type]
        await server.start()
        self.brokers[broker_id] = server
        stack = self._clients[broker_id] = contextlib.AsyncExitStack()
        client = await stack.enter_async_context(WireClient.connected(server))
        self.clients[broker_id] = client
        return server

    async def stop(self, broker_id: int) -> None:
        await self._clients.pop(broker_id).aclose()
        del self.clients[broker_id]
        await self.brokers.pop(broker_id).stop()

    async def stop_all(self) -> None:
        for broker_id in list(self.brokers):
            await self.stop(broker_id)

    async def create(self, topic: str, *leaders: int, **settings: str) -> uuid.UUID:
        """A topic with one replica of each partition, on these brokers."""
        server = next(iter(self.brokers.values()))
        assignments = tuple((index, (leader,)) for index, leader in enumerate(leaders))
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        new = NewTopic(topic, assignments=assignments, settings=dotted)
        outcome = (await server.topics.create([new]))[topic]
        assert not isinstance(outcome, Exception), outcome
        return outcome.id

    async def elect(self, topic: str, index: int, leader: int) -> None:
        """Another leader, as a controller would choose it."""
        server = next(iter(self.brokers.values()))
        await server.metadata.change(
            lambda image: [
                PartitionChangeRecord(
                    index,
                    image.topics[topic].id,
                    leader=leader,
                    isr=(leader,),
                    replicas=(leader,),
                )
            ]
        )


@contextlib.asynccontextmanager
async def running(directory: Path, count: int = 2, **settings: object) -> AsyncIterator[Cluster]:
    """A cluster; settings are Kafka's names with underscores for dots."""
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = Cluster(directory, dotted)
    try:
        for broker_id in range(1, count + 1):
            await cluster.start(broker_id)
        yield cluster
    finally:
        await cluster.stop_all()


Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]


def run(directory: Path, scenario: Scenario, **settings: object) -> None:
    async def main() -> None:
        async with running(directory, **settings) as cluster:
            await scenario(cluster)

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_SECONDS))
