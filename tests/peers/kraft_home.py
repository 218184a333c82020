"""A home for a Millstream broker whose metadata is kept by Apache Kafka's own controllers (KRaft).

For tests alone: it lets a Millstream broker and an Apache broker share partitions, so that each is
the other's leader and follower. It can do what that needs: register, read the metadata log, send
heartbeats, and ask the controller for in-sync sets and producer ids. Topics are created elsewhere.

One thread asks the controller, over a blocking connection; images are published on the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millstream.broker.metadata.store import Decision, Subscriber
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    decode_record,
)
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.record import decode_batch
from millstream.storage.directories import LogDirectories
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import ConnectionEnded, Wire

METADATA_TOPIC_ID = uuid.UUID(int=1)
FENCED_LEADER_EPOCH = 74
FETCH_BYTES_MAX = 8 * 1024 * 1024
BEAT_SECONDS = 0.2
LIVE_SECONDS = 3.0  # less than the session time-out of the controller
# An Apache broker of the same version has these too, and refuses a cluster that has more.
MORE_FEATURES = ("streams.version", "eligible.leader.replicas.version", "kraft.version")


class Controller:
    """Requests to the active controller. Each is used by one thread."""

    def __init__(self, address: str, cluster_id: str, broker_id: int) -> None:
        self._wire = Wire(address, client_id=f"mixed-{broker_id}")
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._leader_epoch = 0
        self._next_offset = 0
        self._last_epoch = 0
        self._transaction: list[MetadataRecord] | None = None  # that has not ended
        self.broker_epoch = -1

    def register(self, broker: RegisterBrokerRecord) -> int:
        """Returns the epoch of the broker."""
        features = [feature._asdict() for feature in broker.features]
        features += [
            {"name": name, "min_supported_version": 0, "max_supported_version": 1}
            for name in MORE_FEATURES
        ]
        answer = self._wire.call(
            "broker_registration",
            4,
            broker_id=self._broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=broker.incarnation_id,
            listeners=[endpoint._asdict() for endpoint in broker.endpoints],
            features=features,
            rack=broker.rack,
            is_migrating_zk_broker=False,
            log_dirs=list(broker.log_dirs),
            previous_broker_epoch=-1,
        )
        _check(answer.error_code, "BrokerRegistration")
        self.broker_epoch = int(answer.broker_epoch)
        return self.broker_epoch

    def beat(self, *, shuts_down: bool = False) -> bool:
        """A sign of life. Returns whether this broker may stop, if it wants to."""
        answer = self._wire.call(
            "broker_heartbeat",
            1,
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._next_offset - 1,
            want_fence=False,
            want_shut_down=shuts_down,
            offline_log_dirs=(),
        )
        _check(answer.error_code, "BrokerHeartbeat")
        return bool(answer.should_shut_down)

    def alter_partition(self, image: ClusterImage, change: PartitionChangeRecord) -> None:
        before = image.topics_by_id[change.topic_id].partitions[change.partition_id]
        wanted = before.isr if change.isr is None else change.isr
        members = [{"broker_id": it, "broker_epoch": image.brokers[it].epoch} for it in wanted]
        partition = {
            "partition_index": change.partition_id,
            "leader_epoch": before.leader_epoch,
            "new_isr_with_epochs": members,
            "leader_recovery_state": 0,
            "partition_epoch": before.partition_epoch,
        }
        answer = self._wire.call(
            "alter_partition",
            3,
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            topics=({"topic_id": change.topic_id, "partitions": (partition,)},),
        )
        _check(answer.error_code, "AlterPartition")
        _check(answer.topics[0].partitions[0].error_code, "AlterPartition")

    def allocate_producer_ids(self) -> None:
        answer = self._wire.call(
            "allocate_producer_ids",
            0,
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
        )
        _check(answer.error_code, "AllocateProducerIds")

    def read_log(self) -> tuple[list[tuple[int, list[MetadataRecord]]], bool]:
        """The next records, by batch and with its last offset; and whether that was all."""
        partition = {
            "partition": 0,
            "current_leader_epoch": self._leader_epoch,
            "fetch_offset": self._next_offset,
            "last_fetched_epoch": self._last_epoch,
            "partition_max_bytes": FETCH_BYTES_MAX,
        }
        answer = self._wire.call(
            "fetch",
            17,
            replica_state={"replica_id": self._broker_id, "replica_epoch": -1},
            max_wait=0,
            max_bytes=FETCH_BYTES_MAX,
            session_epoch=-1,
            topics=({"topic_id": METADATA_TOPIC_ID, "partitions": (partition,)},),
            cluster_id=self._cluster_id,
        )
        _check(answer.error_code, "Fetch")
        found = answer.responses[0].partitions[0]
        self._leader_epoch = max(self._leader_epoch, int(found.current_leader.leader_epoch))
        if int(found.error_code) == FENCED_LEADER_EPOCH:
            return [], False
        _check(found.error_code, "Fetch")
        assert found.diverging_epoch.end_offset < 0, "the metadata log was truncated"
        assert found.snapshot_id.end_offset < 0, "the metadata log starts with a snapshot"
        batches: list[tuple[int, list[MetadataRecord]]] = []
        for position, header in iterate_headers(found.records or b""):
            if not header.is_control:
                decoded = decode_batch(found.records, position)
                read = [decode_record(record.value or b"") for record in decoded]
                complete = self._complete([record for record in read if record is not None])
                batches.append((header.last_offset, complete))
            self._next_offset, self._last_epoch = header.next_offset, header.leader_epoch
        return batches, self._next_offset >= found.high_watermark

    def _complete(self, records: Sequence[MetadataRecord]) -> list[MetadataRecord]:
        """What counts by now: records of a transaction that is open are kept until it ends."""
        complete: list[MetadataRecord] = []
        for record in records:
            if isinstance(record, BeginTransactionRecord):
                self._transaction = []
            elif isinstance(record, EndTransactionRecord):
                complete += self._transaction or ()
                self._transaction = None
            elif isinstance(record, AbortTransactionRecord):
                self._transaction = None
            elif self._transaction is not None:
                self._transaction.append(record)
            else:
                complete.append(record)
        return complete


def _check(code: Any, what: str) -> None:
    if int(code):
        raise ApiError(ErrorCode(int(code)), what)


class KraftHome:
    """See the module."""

    has_controller = True
    controller_epoch = 0
    deleted_topic_ids: frozenset[uuid.UUID] = frozenset()

    def __init__(self, controller: Controller, broker_id: int) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "kraft-home")
        self._subscribers: list[Subscriber] = []
        self._beaten_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stops = threading.Event()
        self.image = ClusterImage()

    @classmethod
    async def open(
        cls,
        address: str,
        cluster_id: str,
        directories: LogDirectories,
        config: BrokerConfig,
        clock: Clock,
    ) -> KraftHome:
        """With the metadata as far as it is committed now."""
        home = cls(Controller(address, cluster_id, config.id), config.id)
        await home.refresh()
        return home

    @property
    def controller_id(self) -> int | None:
        """Where clients send what is for the controller: a broker of Apache Kafka's forwards it."""
        others = [it.id for it in self.image.brokers.values() if it.is_active]
        return next((it for it in others if it != self._broker_id), None)

    @property
    def is_live(self) -> bool:
        return time.monotonic() < self._beaten_at + LIVE_SECONDS

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def refresh(self) -> ClusterImage:
        is_complete = False
        while not is_complete:
            batches, is_complete = await self._ask(self._controller.read_log)
            await self._publish(batches)
        return self.image

    async def _publish(self, batches: Sequence[tuple[int, list[MetadataRecord]]]) -> None:
        before = image = self.image
        for offset, records in batches:
            image = image.apply(records, offset)
        if image is before:
            return
        self.image = image
        works = [subscriber(before, image) for subscriber in self._subscribers]
        for work in works:
            if work is not None:
                await work

    async def change(self, decide: Decision) -> ClusterImage:
        """What the records want, asked of the controller."""
        await self.refresh()
        shuts_down = False
        for record in decide(self.image):
            if isinstance(record, BrokerRegistrationChangeRecord):
                shuts_down = True
            elif isinstance(record, ProducerIdsRecord):
                await self._ask(self._controller.allocate_producer_ids)
            elif isinstance(record, PartitionChangeRecord):
                if not shuts_down:  # else the controller moves leaders by itself
                    ask = functools.partial(self._controller.alter_partition, self.image, record)
                    await self._ask(ask)
            else:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"not of this home: {record!r}")
        while shuts_down and not await self._ask(self._last_beat):
            await self.refresh()
        return await self.refresh()

    def _last_beat(self) -> bool:
        return self._controller.beat(shuts_down=True)

    async def register(self, broker: RegisterBrokerRecord) -> None:
        """Returns when this broker is unfenced."""
        register = functools.partial(self._controller.register, broker)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                epoch = await self._ask(register)
                break
            except ApiError as error:  # a former incarnation was killed: until its session ends
                if error.code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    raise
                assert time.monotonic() < deadline
                await asyncio.sleep(BEAT_SECONDS)
        self._task = self._loop.create_task(self._live())
        while not self._is_active(epoch):
            await asyncio.sleep(BEAT_SECONDS / 10)

    def _is_active(self, epoch: int) -> bool:
        broker = self.image.brokers.get(self._broker_id)
        return broker is not None and broker.epoch == epoch and not broker.fenced

    async def _live(self) -> None:
        beaten_at = 0.0
        while True:
            await self.refresh()
            if time.monotonic() > beaten_at + BEAT_SECONDS:
                beaten_at = time.monotonic()
                await self._ask(self._controller.beat)
                self._beaten_at = beaten_at
            await asyncio.sleep(0.02)

    def _ask(self, request: Callable[[], Any]) -> Awaitable[Any]:
        """One request after the other."""

        def ask() -> Any:
            try:
                return request()
            except (ConnectionEnded, OSError) as error:
                raise ApiError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error

        return self._loop.run_in_executor(self._thread, ask)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()
