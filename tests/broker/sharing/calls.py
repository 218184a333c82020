"""Members of a share group, as tests of share partitions need them: raw requests over a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.broker.sharing.leader import ShareLeader
from millstream.coordination.cluster import ResourceType
from millstream.coordination.cluster_records import ConfigRecord
from millstream.coordination.share_state import SharePartitionKey
from tests.broker.metadata.homes import decided_on
from tests.broker.serving import WireClient, serving
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import batch

SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
NEWEST = 2
ENDLESS_MS = 600_000  # a wait that does not end within a test


Scenario: TypeAlias = Callable[[BrokerServer, UUID], Awaitable[None]]


def run(
    directory: Path, scenario: Scenario, *, records: int = 10, partitions: int = 1, **settings: Any
) -> None:
    """Run a scenario with a broker and topic `t`, which group `g` consumes from the beginning."""

    async def running() -> None:
        async with serving(
            directory, share_coordinator_state_topic_num_partitions=2, **settings
        ) as server:
            topic_id = await make_topic(server, partitions=partitions)
            for index in range(partitions):
                await produce(server, records, index=index)
            await asyncio.wait_for(scenario(server, topic_id), PATIENCE_SECONDS)

    asyncio.run(running())


async def produce(server: BrokerServer, count: int, *, topic: str = "t", index: int = 0) -> None:
    """One batch of so many records."""
    if count:
        values = [b"record"] * count
        await server.partitions.find(topic, index).append(batch(values), acks=-1)


async def make_topic(
    server: BrokerServer, name: str = "t", *, group: str = "g", partitions: int = 1
) -> UUID:
    """A topic whose partitions a share group consumes from the beginning."""
    await server.topics.create([NewTopic(name, partitions)])
    topic_id = server.metadata.image.topics[name].id
    for index in range(partitions):
        await begin(server, topic_id, group=group, index=index)
    return topic_id


async def begin(
    server: BrokerServer, topic_id: UUID, *, group: str = "g", index: int = 0, offset: int = 0
) -> None:
    """Initialize the group's state, as its coordinator does when it first assigns partitions."""
    key = SharePartitionKey(group, topic_id, index)
    await server.coordinators.share_state.initialize(key, 0, offset)


async def configure(
    server: BrokerServer,
    name: str,
    settings: Mapping[str, str | None],
    resource: ResourceType = ResourceType.GROUP,
) -> None:
    """Settings of a group, or of another resource."""
    records = [ConfigRecord(resource, name, setting, value) for setting, value in settings.items()]
    await server.metadata.change(decided_on(server.metadata.image.version, *records))


class Member:
    """One member with one connection; keeps its session's epoch."""

    def __init__(self, client: WireClient, topic_id: UUID, member_id: str, group: str) -> None:
        self.client = client
        self.topic_id = topic_id
        self.member_id = member_id
        self.group = group
        self.epoch = 0

    async def fetch(
        self,
        *,
        partitions: Sequence[int] = (0,),
        acks: Sequence[tuple[int, int, Sequence[int]]] = (),
        forgotten: Sequence[int] = (),
        version: int = NEWEST,
        epoch: int | None = None,
        **fields: Any,
    ) -> Any:
        """One ShareFetch; the acknowledgements are for partition 0."""
        self.send_fetch(
            partitions=partitions,
            acks=acks,
            forgotten=forgotten,
            version=version,
            epoch=epoch,
            **fields,
        )
        return await self.client.receive(SHARE_FETCH, version)

    def send_fetch(
        self,
        *,
        partitions: Sequence[int] = (0,),
        acks: Sequence[tuple[int, int, Sequence[int]]] = (),
        forgotten: Sequence[int] = (),
        version: int = NEWEST,
        epoch: int | None = None,
        **fields: Any,
    ) -> None:
        values: dict[str, Any] = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
        } | fields
        topics = (_topic(self.topic_id, partitions, acks),) if partitions else ()
        dropped = ({"topic_id": self.topic_id, "partitions": forgotten},) if forgotten else ()
        self.client.send(
            SHARE_FETCH,
            version,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._next_epoch(epoch),
            topics=topics,
            forgotten_topics_data=dropped,
            **values,
        )

    async def acknowledge(
        self,
        *acks: tuple[int, int, Sequence[int]],
        partition: int = 0,
        version: int = NEWEST,
        epoch: int | None = None,
        **fields: Any,
    ) -> Any:
        return await self.client.call(
            SHARE_ACKNOWLEDGE,
            version,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._next_epoch(epoch),
            topics=(_topic(self.topic_id, (partition,), acks),),
            **fields,
        )

    def _next_epoch(self, epoch: int | None) -> int:
        if epoch is None:
            epoch = self.epoch
            self.epoch += 1
        return epoch


def _topic(
    topic_id: UUID, partitions: Sequence[int], acks: Sequence[tuple[int, int, Sequence[int]]]
) -> dict[str, Any]:
    batches = tuple(
        {"first_offset": first, "last_offset": last, "acknowledge_types": tuple(types)}
        for first, last, types in acks
    )
    return {
        "topic_id": topic_id,
        "partitions": tuple(
            {"partition_index": index, "acknowledgement_batches": batches if not number else ()}
            for number, index in enumerate(partitions)
        ),
    }


@contextlib.asynccontextmanager
async def joined(
    server: BrokerServer, topic_id: UUID, member_id: str = "a", *, group: str = "g"
) -> AsyncIterator[Member]:
    async with WireClient.connected(server) as client:
        yield Member(client, topic_id, member_id, group)


async def loaded(server: BrokerServer, topic_id: UUID, *, group: str = "g") -> ShareLeader:
    """The leader of partition 0, once its state is loaded: the fetch that opened it has looked."""
    while True:
        leader = server.services.share_partitions.get(group, topic_id, 0)
        if leader is not None and leader.window is not None:
            return leader
        await asyncio.sleep(0.001)


async def until_sessions(server: BrokerServer, count: int) -> None:
    """So many members have sent their first fetch: it was answered, or waits."""
    while len(server.services.share_partitions.sessions) < count:
        await asyncio.sleep(0.001)


def acquired(response: Any, index: int = 0) -> list[tuple[int, int, int]]:
    """What a fetch brought of a partition, as (first offset, last offset, delivery count)."""
    assert response.error_code == 0, response
    return [
        (it.first_offset, it.last_offset, it.delivery_count)
        for topic in response.responses
        for partition in topic.partitions
        if partition.partition_index == index
        for it in partition.acquired_records
    ]


def partition_of(response: Any) -> Any:
    """The one partition that an answer speaks of."""
    ((topic,),) = (response.responses,)
    (partition,) = topic.partitions
    return partition
