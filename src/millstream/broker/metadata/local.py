"""Where the cluster's metadata live: one interface, and its home for a single broker, a log.

`MetadataStore` is what the broker knows: an image at a version, commits that only succeed on the
version they were decided on, and notices of change, which may be coalesced. A cluster will put
another home behind the same interface.

`LocalMetadata` keeps the records in an ordinary log, `__cluster_metadata-0`, in KRaft's formats
(docs/formats/metadata-log.md). One commit is one batch: it is on the disk as a whole or not at all.
It is flushed before anybody sees it. A snapshot now and then keeps the log short.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from millstream.broker.metadata.snapshot import (
    newest_snapshot,
    remove_snapshots_before,
    write_snapshot,
)
from millstream.clock import Clock
from millstream.config.topic import TopicConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_features import SUPPORTED_FEATURES, missing_features
from millstream.coordination.cluster_records import (
    DIRECTORY_UNASSIGNED,
    AbortTransactionRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from millstream.coordination.cluster_replay import ClusterReplay
from millstream.errors import ApiError, ErrorCode, MillstreamError, StorageError
from millstream.records.batch import iterate_headers, parse_header
from millstream.records.record import Record, decode_batch, encode_batch
from millstream.storage import retention
from millstream.storage.directories import LogDirectories
from millstream.storage.flush import GroupFlush
from millstream.storage.log import Log
from millstream.storage.steps import Steps, run_here, run_in_thread

logger = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = uuid.UUID(int=1)  # Kafka's reserved id
# Nothing is ever deleted but what a snapshot covers.
METADATA_LOG_CONFIG = TopicConfig(retention_ms=-1)
FIRST_EPOCH = 1  # of the quorum; a single broker never elects another, but Kafka may have
PRODUCER_ID_BLOCK = 1_000
READ_BYTES = 1 << 20
REPLAYED_RECORDS_MIN = 1_000  # fewer than this are read faster than they are replaced

Subscriber: TypeAlias = Callable[[ClusterImage, ClusterImage], Awaitable[object] | None]
"""Called with the image before and the image now. Several commits may come as one call. One that
needs longer returns what the commit has to wait for."""

Decision: TypeAlias = Callable[[ClusterImage], Sequence[MetadataRecord]]
"""From an image, the records to commit on top of it; raises to refuse. May be called again."""


class MetadataConflict(MillstreamError):
    """The metadata changed since the version that a commit was decided on: decide again."""


class MetadataStore(Protocol):
    @property
    def image(self) -> ClusterImage:
        """The newest image known here."""
        ...

    async def commit(
        self, records: Sequence[MetadataRecord], expected_version: int
    ) -> ClusterImage:
        """Make the records durable, then visible; all of them or none.

        Returns the image that has them. Raises `MetadataConflict` if the image's version is not
        `expected_version`. Subscribers on this broker have done their work when it returns; only
        new partitions may still have to be opened, which happens when they are needed.
        """
        ...

    async def change(self, decide: Decision) -> ClusterImage:
        """Commit what `decide` makes of the newest image; nothing if it returns no records."""
        ...

    def subscribe(self, subscriber: Subscriber) -> None: ...

    async def register_broker(self, broker: RegisterBrokerRecord) -> None:
        """Make this broker, at the addresses it now listens on, known to clients."""
        ...

    async def allocate_producer_ids(self, broker_id: int) -> range:
        """A block of unused producer ids."""
        ...


class LocalMetadata:
    """The metadata of a single broker, in a log of its own. See the module."""

    @classmethod
    def open(
        cls, directories: LogDirectories, clock: Clock, *, snapshot_bytes: int
    ) -> LocalMetadata:
        """The metadata in the broker's log directories, new if these are.

        Raises `StorageError` when they may be in a directory that has failed: starting from scratch
        would be to forget all topics.
        """
        log = directories.logs.get((METADATA_TOPIC, 0))
        if log is not None:
            return cls(log, clock, snapshot_bytes=snapshot_bytes)
        failed = [
            directory.path for directory in directories.directories if directory.failure is not None
        ]
        if failed:
            raise StorageError(
                f"no working log directory contains the metadata log; {', '.join(failed)} "
                "failed: repair it, or remove it from log.dirs to start without its topics"
            )
        orphans = list(directories.logs.values())
        log = directories.create(METADATA_TOPIC, 0, METADATA_TOPIC_ID, METADATA_LOG_CONFIG)
        log.create_files(clock.now_ms())  # snapshots are looked for in its directory
        store = cls(log, clock, snapshot_bytes=snapshot_bytes)
        if orphans:
            logger.warning(
                "the metadata log is missing: rebuilding topics and partitions from %d logs; set "
                "topic settings again",
                len(orphans),
            )
            store._commit(adopted_topics(orphans, directories.node_id))
        return store

    def __init__(self, log: Log, clock: Clock, *, snapshot_bytes: int) -> None:
        self._log = log
        log.update_config(METADATA_LOG_CONFIG)
        self._clock = clock
        self._snapshot_bytes = snapshot_bytes
        self._epoch = max(log.latest_epoch, FIRST_EPOCH)
        self._subscribers: list[Subscriber] = []
        self._changing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "millstream-metadata")
        self._image = newest_snapshot(log.directory.fs, log.path)
        replay = ClusterReplay(self._image)
        for records, last_offset in self._stored_batches():
            replay.add(records, last_offset)
        self._image = replay.finish()
        self.deleted_topic_ids = frozenset(replay.deleted_topic_ids)  # since the last snapshot
        if replay.is_in_transaction:  # Kafka was killed in the middle of one, and would abort it
            self._commit([AbortTransactionRecord("the controller has stopped")])
        missing = missing_features(self._image.features)
        if missing:
            self._commit(missing)

    @property
    def image(self) -> ClusterImage:
        return self._image

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def commit(
        self, records: Sequence[MetadataRecord], expected_version: int
    ) -> ClusterImage:
        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            if image.version != expected_version:
                raise MetadataConflict(
                    f"decided on version {expected_version}, but {image.version} is here"
                )
            return records

        return await self.change(decide)

    async def change(self, decide: Decision) -> ClusterImage:
        # A caller that is cancelled must not leave a commit that is on the disk but not visible.
        task = asyncio.get_running_loop().create_task(self._change(decide))
        image, unfinished = await asyncio.shield(task)
        for work in unfinished:
            await work
        return image

    async def _change(self, decide: Decision) -> tuple[ClusterImage, list[Awaitable[object]]]:
        """One at a time: the next decision sees the outcome of this one."""
        async with self._changing:
            before = self._image
            records = decide(before)
            if not records:
                return before, []
            await run_in_thread(self._commit_steps(records), self._run_blocking)
            image = self._image
            works = [subscriber(before, image) for subscriber in self._subscribers]
            if self._log.size_bytes >= self._snapshot_bytes:
                await run_in_thread(self._snapshot_steps(), self._run_blocking)
        return image, [work for work in works if work is not None]

    async def finish(self) -> None:
        """Wait until no commit is in progress."""
        async with self._changing:
            pass

    async def register_broker(self, broker: RegisterBrokerRecord) -> None:
        await self.change(lambda image: [broker])

    def fence_broker(self, broker_id: int) -> None:
        """The last step of a clean stop: this broker leads nothing until it registers again.

        Kafka, started on the same directory, would otherwise wait for the broker's session to end.
        """
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker.fenced or self._log.directory.failure is not None:
            return
        self._commit([BrokerRegistrationChangeRecord(broker_id, broker.epoch, fenced=1)])
        stored = self._log.log_end_offset - self._log.log_start_offset
        if stored > 2 * self._image.record_count + REPLAYED_RECORDS_MIN:
            self._snapshot()  # so that the next start does not read deleted records

    async def allocate_producer_ids(self, broker_id: int) -> range:
        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            return [ProducerIdsRecord(broker_id, -1, image.next_producer_id + PRODUCER_ID_BLOCK)]

        after = (await self.change(decide)).next_producer_id
        return range(after - PRODUCER_ID_BLOCK, after)

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        """For start and stop, when no requests are served: blocks."""
        run_here(self._commit_steps(records))

    def _commit_steps(self, records: Sequence[MetadataRecord]) -> Steps[None]:
        """Append and flush. Nothing has happened if it raises, except that a failed flush takes
        the directory down, and with it this store, until the next start."""
        image = self._image.apply(records, self._image.version + len(records))
        now_ms = self._clock.now_ms()
        encoded = [
            Record(i, now_ms, None, encode_record(record)) for i, record in enumerate(records)
        ]
        batch = encode_batch(encoded)
        header = parse_header(batch)
        self._log.append(batch, [header], leader_epoch=self._epoch, now_ms=now_ms)
        flush = GroupFlush.prepare([self._log], to_segments=True)
        yield flush.execute
        if flush.complete(self._clock.now_ms()):
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the metadata log in {self._log.path} cannot be flushed: topics and settings "
                "cannot be changed until the disk is repaired and the broker restarted",
            )
        self._image = image

    def _snapshot(self) -> None:
        run_here(self._snapshot_steps())

    def _snapshot_steps(self) -> Steps[None]:
        """Write the image, and move the log start after it."""
        fs, path, image, epoch = self._log.directory.fs, self._log.path, self._image, self._epoch
        now_ms = self._clock.now_ms()
        try:
            end_offset = yield lambda: write_snapshot(fs, path, image, epoch=epoch, now_ms=now_ms)
            self._log.roll(now_ms)
            self._log.delete_records_before(end_offset)
            yield from retention.apply(self._log, now_ms)
            yield lambda: remove_snapshots_before(fs, path, end_offset)
        except (OSError, MillstreamError) as error:
            # The log is complete without it: retry at the next commit.
            logger.warning("failed to write a metadata snapshot: %s", error)

    async def _run_blocking(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _stored_batches(self) -> Iterator[tuple[list[MetadataRecord], int]]:
        """Batches of the log after the image."""
        log = self._log
        offset = max(self._image.version + 1, log.log_start_offset)
        while offset < log.log_end_offset:
            data = log.read(
                offset, max_bytes=READ_BYTES, end_offset=log.log_end_offset, may_block=True
            )
            for position, header in iterate_headers(data):
                if not header.is_control and header.last_offset > self._image.version:
                    records = decode_batch(data, position)
                    yield (
                        [decode_record(record.value or b"") for record in records],
                        header.last_offset,
                    )
                offset = header.next_offset


def adopted_topics(logs: Iterable[Log], broker_id: int) -> list[MetadataRecord]:
    """Topics rebuilt from the logs. Leader epochs are bumped, because the old ones are unknown."""
    topics: dict[str, dict[int, Log]] = {}
    for log in logs:
        topics.setdefault(log.topic, {})[log.partition] = log
    records: list[MetadataRecord] = []
    for name, partitions in topics.items():
        known_ids = (log.topic_id for log in partitions.values() if log.topic_id is not None)
        topic_id = next(known_ids, None) or uuid.uuid4()
        records.append(TopicRecord(name, topic_id))
        for index in range(max(partitions) + 1):
            epoch = partitions[index].latest_epoch + 1 if index in partitions else 0
            records.append(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=(broker_id,),
                    isr=(broker_id,),
                    leader=broker_id,
                    leader_epoch=max(epoch, 0),
                    directories=(DIRECTORY_UNASSIGNED,),
                )
            )
    return records


def registration(
    broker_id: int,
    endpoints: Sequence[BrokerEndpoint],
    *,
    epoch: int,
    rack: str | None,
    directories: Sequence[uuid.UUID],
) -> RegisterBrokerRecord:
    """The registration record of a broker that has just started."""
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=uuid.uuid4(),
        broker_epoch=epoch,
        endpoints=tuple(endpoints),
        features=SUPPORTED_FEATURES,
        rack=rack,
        log_dirs=tuple(directories),
    )
