"""The home of the metadata of several workers on one host: one log, opened by all of them.

The log is a `SharedLog` in KRaft's formats (docs/formats/metadata-log.md); a commit is one batch.
A worker decides on the image that it has, and then, under the log's lock, reads to the end: if
another worker has committed meanwhile, it decides again, otherwise it appends. The lock is waited
for in the metadata thread, never on the event loop. Workers get notices of each other's commits
from the file system (`notices`), coalesced.

The image and the position in the log change only while `_changing` is held, on the event loop; the
metadata thread works for one holder at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from millstream.broker.metadata.batches import (
    FIRST_EPOCH,
    decode_commit,
    encode_commit,
    needs_snapshot,
)
from millstream.broker.metadata.notices import Notices
from millstream.broker.metadata.seen import SeenVersions
from millstream.broker.metadata.snapshot import (
    newest_snapshot,
    remove_snapshots_before,
    write_snapshot,
)
from millstream.broker.metadata.store import Decision, OpenMetadata, Subscriber, run_to_its_end
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_features import missing_features
from millstream.coordination.cluster_records import (
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from millstream.coordination.cluster_replay import ClusterReplay
from millstream.errors import ApiError, ErrorCode, MillstreamError, StorageError
from millstream.storage import names
from millstream.storage.checkpoints import read_meta_properties
from millstream.storage.filesystem import FileSystem, OsFileSystem
from millstream.storage.shared_log import Outrun, SharedLog, StoredBatch

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig
    from millstream.storage.directories import LogDirectories

logger = logging.getLogger(__name__)

METADATA_DIRECTORY = "__cluster_metadata-0"
SEEN_DIRECTORY = "seen"
OTHERS_SECONDS_MAX = 0.5  # a worker that needs longer is not waited for
OTHERS_POLL_SECONDS = 0.0005


T = TypeVar("T")


class SharedMetadata:
    """The metadata as one worker sees and changes them. See the module."""

    has_controller = False
    has_workers = True
    controller_id: int | None = None
    is_live = True

    def __init__(
        self, fs: FileSystem, path: str, clock: Clock, *, node_id: int, snapshot_bytes: int
    ) -> None:
        """Open the log in the directory `path`, or create it. Blocks."""
        self._fs = fs
        self._clock = clock
        self._node_id = node_id
        self._snapshot_bytes = snapshot_bytes
        self._epoch = FIRST_EPOCH
        self._log = SharedLog(fs, path)
        self._subscribers: list[Subscriber] = []
        self._changing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "millstream-metadata")
        self._failure: OSError | None = None
        self._notices: Notices | None = None
        self._is_behind = False  # a notice has come, and nothing was read since
        self._tasks: set[asyncio.Future[object]] = set()
        self._image = ClusterImage()
        self.deleted_topic_ids: AbstractSet[UUID] = frozenset()  # since the last snapshot
        with self._log.locked():
            self._open()
        self._seen = SeenVersions(fs, f"{path}/{SEEN_DIRECTORY}", node_id)
        self._seen.publish(self._image.version)

    def _open(self) -> None:
        replay = self._reload()
        self._image = replay.finish()
        self.deleted_topic_ids = frozenset(replay.deleted_topic_ids)
        if replay.is_in_transaction:  # Kafka was killed in the middle of one, and would abort it
            self._image = self._append([AbortTransactionRecord("the controller has stopped")])
        missing = missing_features(self._image.features)
        if missing:
            self._image = self._append(missing)

    @property
    def image(self) -> ClusterImage:
        return self._image

    @property
    def controller_epoch(self) -> int:
        return self._epoch

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def follow(self) -> None:
        """Publish what other workers commit, from now on."""
        self._notices = Notices(self._log.path, self._on_notice)

    async def refresh(self) -> ClusterImage:
        if self._changing.locked() or not self._log.is_current:
            await run_to_its_end(self._follow())
        return self._image

    async def change(self, decide: Decision) -> ClusterImage:
        image, works = await run_to_its_end(self._change(decide))
        for work in works:
            await work
        await self._wait_for_others(image)
        return image

    async def register(self, broker: RegisterBrokerRecord) -> None:
        await self.change(lambda image: [broker])

    async def close(self) -> None:
        if self._notices is not None:
            self._notices.close()
        try:
            await self.change(self._fence)
            if needs_snapshot(self._image, self._log.stored_count):
                await self._in_thread(self._snapshot)
        except MillstreamError as error:
            logger.warning("this worker stops without leaving the cluster: %s", error)
        for task in list(self._tasks):
            await asyncio.wait([task])
        async with self._changing:
            self._thread.shutdown()
            self._log.close()
            self._seen.close()

    def abandon(self) -> None:
        """Close the files without leaving the cluster, as a kill would. For tests."""
        if self._notices is not None:
            self._notices.close()
        self._thread.shutdown()
        self._log.close()
        self._seen.close()

    def _fence(self, image: ClusterImage) -> Sequence[MetadataRecord]:
        broker = image.brokers.get(self._node_id)
        if broker is None or broker.fenced:
            return []
        return [BrokerRegistrationChangeRecord(broker.id, broker.epoch, fenced=1)]

    # On the event loop

    async def _change(self, decide: Decision) -> tuple[ClusterImage, list[Awaitable[object]]]:
        """One at a time: the next decision sees the outcome of this one."""
        async with self._changing:
            works = await self._catch_up()
            is_committed = False
            while not is_committed:
                try:
                    records = decide(self._image)
                    _refuse_replicas(records)
                except BaseException:
                    self._finish_later(works)
                    raise
                if not records:
                    break
                image, is_committed = await self._in_thread(partial(self._try_commit, records))
                works += self._publish(image)
            image = self._image
            if is_committed and self._log.size_bytes >= self._snapshot_bytes:
                await self._in_thread(self._snapshot)
        return image, works

    async def _wait_for_others(self, image: ClusterImage) -> None:
        """Let the other workers publish a commit, so that clients find it at all of them."""
        others = [it.id for it in image.brokers.values() if not it.fenced]
        if self._node_id in others:
            others.remove(self._node_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OTHERS_SECONDS_MAX
        while not self._seen.are_at(image.version, others) and loop.time() < deadline:
            await asyncio.sleep(OTHERS_POLL_SECONDS)

    async def _catch_up(self) -> list[Awaitable[object]]:
        """Publish what other workers have committed; returns the unfinished work of subscribers."""
        self._check()
        self._is_behind = False
        if self._log.is_current:
            return []
        return self._publish(await self._in_thread(self._read_new))

    def _publish(self, image: ClusterImage) -> list[Awaitable[object]]:
        before, self._image = self._image, image
        if image.version == before.version:
            return []
        works = [subscriber(before, image) for subscriber in self._subscribers]
        self._seen.publish(image.version)
        return [work for work in works if work is not None]

    def _on_notice(self) -> None:
        if not self._is_behind and self._failure is None:
            self._is_behind = True
            self._finish_later([self._follow()])

    async def _follow(self) -> None:
        async with self._changing:
            self._finish_later(await self._catch_up())

    def _finish_later(self, works: Iterable[Awaitable[object]]) -> None:
        for work in works:
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("failed to follow the metadata: %s", task.exception())

    def _check(self) -> None:
        if self._failure is not None:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the metadata log in {self._log.path} failed ({self._failure}): topics and "
                "settings cannot be changed until the disk is repaired and the broker restarted",
            )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Call it in the metadata thread. An error of the disk ends this store: what is in the
        page cache is not known to be on the disk."""
        self._check()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except OSError as error:
            self._failure = error
            self._check()
            raise

    # In the metadata thread

    def _try_commit(self, records: Sequence[MetadataRecord]) -> tuple[ClusterImage, bool]:
        """The image with the records; or, if others have committed meanwhile, the one with
        theirs, and False."""
        with self._log.locked():
            try:
                batches = self._log.read_to_end()
            except Outrun:
                return self._reload().finish(), False
            if batches:
                return self._replay(self._image, batches).finish(), False
            return self._append(records), True

    def _append(self, records: Sequence[MetadataRecord]) -> ClusterImage:
        """Under the lock."""
        image = self._image.apply(records, self._log.end_offset + len(records) - 1)
        batch = encode_commit(
            records,
            base_offset=self._log.end_offset,
            epoch=self._epoch,
            now_ms=self._clock.now_ms(),
        )
        self._log.append(batch)
        return image

    def _read_new(self) -> ClusterImage:
        try:
            return self._replay(self._image, self._log.read()).finish()
        except Outrun:
            with self._log.locked():
                return self._reload().finish()

    def _reload(self) -> ClusterReplay:
        """From the newest snapshot on. Under the lock."""
        image = newest_snapshot(self._fs, self._log.path)
        self._log.open_at(image.version + 1)
        return self._replay(image, self._log.read_to_end())

    def _replay(self, image: ClusterImage, batches: list[StoredBatch]) -> ClusterReplay:
        self._epoch = max(self._epoch, *(it.header.leader_epoch for it in batches), 0)
        return _replayed(image, batches)

    def _snapshot(self) -> None:
        try:
            with self._log.locked():
                if not self._log.is_current or self._log.end_offset != self._image.version + 1:
                    return  # the next to commit writes it
                fs, path = self._fs, self._log.path
                now_ms = self._clock.now_ms()
                end = write_snapshot(fs, path, self._image, epoch=self._epoch, now_ms=now_ms)
                self._log.roll()
                remove_snapshots_before(fs, path, end)
        except (OSError, MillstreamError) as error:
            # The log is complete without it: retry at the next commit.
            logger.warning("failed to write a metadata snapshot: %s", error)


def _refuse_replicas(records: Iterable[MetadataRecord]) -> None:
    """Workers do not replicate: a second replica would never be in sync, and might be elected."""
    for record in records:
        if not isinstance(record, PartitionRecord | PartitionChangeRecord):
            continue
        if len(record.replicas or ()) > 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be 1: the workers of one host do not replicate.",
            )


def read_image(fs: FileSystem, path: str) -> ClusterImage:
    """The image in the directory of a metadata log that no process uses, not even a shared one."""
    image = newest_snapshot(fs, path)
    log = SharedLog(fs, path)
    log.open_at(image.version + 1)
    try:
        return _replayed(image, log.read()).finish()
    finally:
        log.close()


def _replayed(image: ClusterImage, batches: Iterable[StoredBatch]) -> ClusterReplay:
    replay = ClusterReplay(image)
    for header, data in batches:
        if not header.is_control and header.last_offset > image.version:
            replay.add(decode_commit(data), header.last_offset)
    return replay


def open_shared(cluster_directory: str) -> OpenMetadata:
    """Opens the metadata that the workers share, for one of them."""

    async def open_metadata(
        directories: LogDirectories, config: BrokerConfig, clock: Clock
    ) -> SharedMetadata:
        fs = OsFileSystem()
        check_cluster(fs, cluster_directory, directories.cluster_id)
        home = SharedMetadata(
            fs,
            f"{cluster_directory}/{METADATA_DIRECTORY}",
            clock,
            node_id=directories.node_id,
            snapshot_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        )
        home.follow()
        return home

    return open_metadata


def check_cluster(fs: FileSystem, cluster_directory: str, cluster_id: str) -> None:
    """Raise `StorageError` if a worker's log directories belong to another cluster: its logs would
    be taken for strays."""
    meta = read_meta_properties(fs, cluster_directory)
    if meta is None:
        raise StorageError(
            f"{cluster_directory}/{names.META_PROPERTIES} is missing: this is not the directory of "
            "a cluster of workers; restore it, or choose another directory"
        )
    if meta.cluster_id != cluster_id:
        raise StorageError(
            f"the worker's log directories belong to cluster {cluster_id}, but "
            f"{cluster_directory} to {meta.cluster_id}; use the directories of one cluster"
        )
