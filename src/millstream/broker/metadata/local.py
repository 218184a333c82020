"""The home of a single broker's metadata: a log, `__cluster_metadata-0`, in KRaft's formats.

See docs/formats/metadata-log.md. One commit is one batch: it is on the disk as a whole or not at
all. It is flushed before anybody sees it. A snapshot now and then keeps the log short.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from millstream.broker.metadata.batches import (
    FIRST_EPOCH,
    decode_commit,
    encode_commit,
    needs_snapshot,
)
from millstream.broker.metadata.snapshot import (
    newest_snapshot,
    remove_snapshots_before,
    write_snapshot,
)
from millstream.broker.metadata.store import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    Decision,
    Subscriber,
    run_to_its_end,
)
from millstream.clock import Clock
from millstream.config.topic import TopicConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_features import missing_features
from millstream.coordination.cluster_records import (
    DIRECTORY_UNASSIGNED,
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from millstream.coordination.cluster_replay import ClusterReplay
from millstream.errors import ApiError, ErrorCode, MillstreamError, StorageError
from millstream.records.batch import iterate_headers, parse_header
from millstream.storage import retention
from millstream.storage.directories import LogDirectories
from millstream.storage.flush import GroupFlush
from millstream.storage.log import Log
from millstream.storage.steps import Steps, run_here, run_in_thread

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig

logger = logging.getLogger(__name__)

# Nothing is ever deleted but what a snapshot covers.
METADATA_LOG_CONFIG = TopicConfig(retention_ms=-1)
READ_BYTES = 1 << 20


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
            return cls(log, clock, node_id=directories.node_id, snapshot_bytes=snapshot_bytes)
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
        store = cls(log, clock, node_id=directories.node_id, snapshot_bytes=snapshot_bytes)
        if orphans:
            logger.warning(
                "the metadata log is missing: rebuilding topics and partitions from %d logs; set "
                "topic settings again",
                len(orphans),
            )
            store._commit(adopted_topics(orphans, directories.node_id))
        return store

    has_controller = False
    has_workers = False
    controller_id: int | None = None
    is_live = True

    def __init__(self, log: Log, clock: Clock, *, node_id: int, snapshot_bytes: int) -> None:
        self._log = log
        self._node_id = node_id
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

    @property
    def controller_epoch(self) -> int:
        return self._epoch

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def refresh(self) -> ClusterImage:
        return self._image

    async def change(self, decide: Decision) -> ClusterImage:
        image, unfinished = await run_to_its_end(self._change(decide))
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

    async def register(self, broker: RegisterBrokerRecord) -> None:
        await self.change(lambda image: [broker])

    async def close(self) -> None:
        async with self._changing:
            self._fence()

    def _fence(self) -> None:
        """Kafka, started on the same directory, would otherwise wait for the broker's session to
        end."""
        broker = self._image.brokers.get(self._node_id)
        if broker is None or broker.fenced or self._log.directory.failure is not None:
            return
        self._commit([BrokerRegistrationChangeRecord(broker.id, broker.epoch, fenced=1)])
        stored = self._log.log_end_offset - self._log.log_start_offset
        if needs_snapshot(self._image, stored):
            self._snapshot()

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        """For start and stop, when no requests are served: blocks."""
        run_here(self._commit_steps(records))

    def _commit_steps(self, records: Sequence[MetadataRecord]) -> Steps[None]:
        """Append and flush. Nothing has happened if it raises, except that a failed flush takes
        the directory down, and with it this store, until the next start."""
        image = self._image.apply(records, self._image.version + len(records))
        now_ms = self._clock.now_ms()
        batch = encode_commit(records, base_offset=0, epoch=self._epoch, now_ms=now_ms)
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
                    yield decode_commit(data, position), header.last_offset
                offset = header.next_offset


async def open_local(
    directories: LogDirectories, config: BrokerConfig, clock: Clock
) -> LocalMetadata:
    return LocalMetadata.open(
        directories,
        clock,
        snapshot_bytes=config.metadata_log_max_record_bytes_between_snapshots,
    )


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
