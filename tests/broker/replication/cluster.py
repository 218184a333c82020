"""Several brokers in the test's event loop, with metadata in memory and real sockets between them.

The metadata are one image that all homes see. A broker can be cut off: it sees no changes, and is
not live, while the others elect another leader. The controller is called by the tests' actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from millstream.broker.metadata.store import Decision, Subscriber
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.partition import Partition
from millstream.broker.server import BrokerServer
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, PartitionImage
from millstream.coordination.cluster_features import missing_features
from millstream.coordination.cluster_records import RegisterBrokerRecord
from millstream.coordination.replication import controller
from millstream.errors import ApiError, ErrorCode
from millstream.records.record import Record, decode_batch, encode_batch
from millstream.storage.directories import LogDirectories
from tests.broker.serving import WireClient
from tests.peers.patience import PATIENCE_SECONDS

FETCH, PRODUCE, LIST_OFFSETS = 1, 0, 2
SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": 0,
    "replica.fetch.backoff.ms": 20,
    "replica.fetch.wait.max.ms": 200,
}


class MemoryHome:
    """The metadata as one broker sees and changes them."""

    has_controller = True
    controller_id: int | None = None
    controller_epoch = 1

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._subscribers: list[Subscriber] = []
        self.image = cluster.image
        self.is_live = True
        self.deleted_topic_ids: AbstractSet[uuid.UUID] = frozenset(cluster.deleted_topic_ids)

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def refresh(self) -> ClusterImage:
        return self.image

    async def change(self, decide: Decision) -> ClusterImage:
        if not self.is_live:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, "cut off")
        await asyncio.sleep(0)
        await self._cluster.commit(decide)
        return self.image

    def publish(self, image: ClusterImage) -> list[Awaitable[object]]:
        if not self.is_live:
            return []
        before, self.image = self.image, image
        works = [subscriber(before, image) for subscriber in self._subscribers]
        return [work for work in works if work is not None]

    async def register(self, broker: RegisterBrokerRecord) -> None:
        await self.change(lambda image: controller.register(image, broker))
        self._cluster.sessions[self._node_id] = broker.incarnation_id
        await self._cluster.reconcile()

    async def close(self) -> None:
        if self.is_live:
            self._cluster.sessions.pop(self._node_id, None)
            await self._cluster.reconcile()
        self.is_live = False


class Cluster:
    """See the module."""

    def __init__(self, directory: Path, *, disks: int = 1, **settings: object) -> None:
        self._directory = directory
        self._disks = disks  # of each broker
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.image = ClusterImage()
        self.image = self.image.apply(missing_features(self.image.features), 0)
        self.sessions: dict[int, uuid.UUID] = {}
        self.deleted_topic_ids: set[uuid.UUID] = set()
        self.homes: dict[int, MemoryHome] = {}
        self.brokers: dict[int, BrokerServer] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def of(
        cls, directory: Path, count: int = 3, *, disks: int = 1, **settings: object
    ) -> AsyncIterator[Cluster]:
        cluster = cls(directory, disks=disks, **settings)
        try:
            for node_id in range(1, count + 1):
                await cluster.start(node_id)
            yield cluster
        finally:
            for node_id in list(cluster.brokers):
                await cluster.stop(node_id)

    async def commit(self, decide: Decision) -> None:
        before = self.image
        records = decide(before)
        if not records:
            return
        self.image = before.apply(records, before.version + len(records))
        gone = before.topics_by_id.keys() - self.image.topics_by_id.keys()
        self.deleted_topic_ids.update(gone)
        works = [work for home in self.homes.values() for work in home.publish(self.image)]
        for work in works:
            await work

    async def reconcile(self, **options: Any) -> None:
        await self.commit(lambda image: controller.reconcile(image, self.sessions, **options))

    async def start(self, node_id: int, **settings: object) -> BrokerServer:
        values = SETTINGS | self._settings
        values |= {name.replace("_", "."): value for name, value in settings.items()}
        names = [f"{node_id}" if disk == 0 else f"{node_id}.{disk}" for disk in range(self._disks)]
        paths = ",".join(str(self._directory / name) for name in names)
        values |= {"node.id": node_id, "log.dirs": paths}

        async def open_metadata(
            directories: LogDirectories, config: BrokerConfig, clock: Clock
        ) -> MemoryHome:
            home = self.homes[node_id] = MemoryHome(self, node_id)
            return home

        server = BrokerServer(BrokerConfig.from_values(values), open_metadata=open_metadata)
        await server.start()
        self.brokers[node_id] = server
        return server

    async def stop(self, node_id: int) -> None:
        """Cleanly, unless it was cut off."""
        server = self.brokers.pop(node_id)
        await server.stop()
        self.homes.pop(node_id, None)

    async def cut_off(self, node_id: int, **options: Any) -> None:
        """The broker goes on without the others, which elect leaders instead of it."""
        self.homes[node_id].is_live = False
        self.sessions.pop(node_id, None)
        await self.reconcile(**options)

    async def create_topic(self, name: str, *replicas: int, **configs: str) -> None:
        """A topic with one partition on these brokers, the first of which leads."""
        broker = self.brokers[replicas[0]]
        topic = NewTopic(
            name,
            assignments=((0, tuple(replicas)),),
            settings={key.replace("_", "."): value for key, value in configs.items()},
        )
        (outcome,) = (await broker.actions.create_topics([topic])).values()
        assert not isinstance(outcome, ApiError), outcome

    def partition_image(self, topic: str) -> PartitionImage:
        return self.image.topics[topic].partitions[0]

    def replica(self, node_id: int, topic: str) -> Partition:
        partition = self.brokers[node_id].partitions.get(topic, 0)
        assert partition is not None
        return partition

    def leader(self, topic: str) -> int:
        return self.partition_image(topic).leader

    async def produce(
        self, node_id: int, topic: str, *values: bytes, acks: int = -1, timeout_ms: int = 60_000
    ) -> tuple[ErrorCode, int]:
        """The error and the base offset."""
        batch = make_batch(*values)
        async with WireClient.connected(self.brokers[node_id]) as client:
            answer = await client.call(
                PRODUCE,
                9,
                transactional_id=None,
                acks=acks,
                timeout=timeout_ms,
                topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
            )
        (partition,) = answer.responses[0].partition_responses
        return ErrorCode(partition.error_code.value), partition.base_offset

    def values(self, node_id: int, topic: str) -> list[bytes | None]:
        """What consumers of this replica may see."""
        partition = self.replica(node_id, topic)
        return read_values(partition, partition.high_watermark)


def make_batch(*values: bytes) -> bytes:
    now_ms = int(time.time() * 1000)
    return encode_batch([Record(i, now_ms, None, value, ()) for i, value in enumerate(values)])


def read_values(partition: Partition, end_offset: int) -> list[bytes | None]:
    log, found = partition.log, []
    offset = log.log_start_offset
    while offset < end_offset:
        data = log.read(offset, max_bytes=1, end_offset=end_offset, may_block=True)
        if not data:
            break
        for record in decode_batch(data):
            found.append(record.value)
            offset = record.offset + 1
    return found


def stored_bytes(partition: Partition) -> bytes:
    return b"".join(
        bytes(segment.read_at(segment.size, 0, may_block=True))
        for segment in partition.log.segments
        if segment.size
    )


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition; only a failing test waits long."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            await main()

    asyncio.run(limited())
