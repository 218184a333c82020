"""Archives the closed segments of the partitions that this broker leads, one after the other.

A round visits all of them: it drops files that retention no longer covers, and archives what is
closed, stable and flushed, one file each, so that a backlog of one partition does not hold up the
others. Beside the rounds, manifests are loaded after a change of leaders: consumers wait for them.
The archive process does the work; the event loop only decides. After an error, the next round tries
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from millstream.archive.manifest import ArchiveError, Manifest
from millstream.broker.archiving.partition import PartitionArchive
from millstream.broker.archiving.planning import Upload, expired, find_divergence, next_upload
from millstream.config.excised import ExcisedOffsets, parse_excised
from millstream.errors import FileGone, MillstreamError
from millstream.storage.lookup import aborted_transactions

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.broker.archiving.process import ArchiveProcess
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.clock import Clock
    from millstream.storage.segment import Segment

logger = logging.getLogger("millstream.archive")

LOADED_AT_ONCE = 2  # manifests; each takes a thread


class Archiver:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        process: ArchiveProcess,
        configs: ConfigManager,
        partitions: PartitionTable,
        clock: Clock,
        run_blocking: Callable[..., Awaitable[Any]],
        attach: Callable[[], None],
    ) -> None:
        """`attach` gives partitions their archives."""
        self._process = process
        self._configs = configs
        self._partitions = partitions
        self._clock = clock
        self._run_blocking = run_blocking
        self._attach = attach
        self._awake = asyncio.Event()
        self._loading_awake = asyncio.Event()
        self._emptied: set[tuple[UUID | None, int, int]] = set()  # topic, partition, leader epoch
        self._empty_problem: str | None = None
        self.rounds = 0

    def wake(self) -> None:
        """Begin a round at once: leaders or settings have changed."""
        self._awake.set()
        self._loading_awake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_loading())
            group.create_task(self._run_rounds())

    async def _run_rounds(self) -> None:
        while True:
            if not await self.run_round():
                await self._sleep(self._awake)

    async def _run_loading(self) -> None:
        while True:
            await self.load_all()
            await self._sleep(self._loading_awake)

    async def _sleep(self, awake: asyncio.Event) -> None:
        seconds = self._configs.current.remote_log_manager_task_interval_ms / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await awake.wait()
        awake.clear()

    def _led(self) -> Iterator[tuple[Partition, PartitionArchive]]:
        self._attach()
        for partition in self._partitions:
            archive = partition.archive
            if isinstance(archive, PartitionArchive) and partition.offline_error is None:
                yield partition, archive

    async def run_round(self) -> bool:
        """Visit all partitions. Returns whether something was archived: there may be more."""
        is_busy = False
        for partition, archive in self._led():
            is_busy |= await self._visit(partition, archive)
        await self._empty_disabled()
        self.rounds += 1
        return is_busy

    async def _empty_disabled(self) -> None:
        """Delete what is archived of topics that are archived no longer, where
        remote.log.delete.on.disable says so. Their settings stay, so that a crash ends nothing."""
        for partition in tuple(self._partitions):
            key = (partition.topic_id, partition.index, partition.leader_epoch)
            config = partition.log.config
            if config.remote_storage_enable:
                self._emptied.discard(key)
            elif (
                config.remote_log_delete_on_disable
                and key not in self._emptied
                and not partition.is_internal
                and partition.is_led_here
            ):
                await self._empty(partition, key)

    async def _empty(self, partition: Partition, key: tuple[UUID | None, int, int]) -> None:
        topic_id, index, epoch = key
        try:
            left = await self._run_blocking(
                self._process.empty, partition.topic, topic_id, index, epoch
            )
        except MillstreamError as error:
            if str(error) != self._empty_problem:
                self._empty_problem = str(error)
                logger.warning("the archive of %r is not deleted yet: %s", partition, error)
            return
        self._emptied.add(key)
        if left is not None:
            logger.info("%r: deleted what was archived, as remote storage is disabled", partition)

    async def load_all(self) -> None:
        """Load the manifests of new leaders, a few at once. A round loads those of partitions that
        it is busy with."""
        slots = asyncio.Semaphore(LOADED_AT_ONCE)

        async def load(partition: Partition, archive: PartitionArchive) -> None:
            async with slots:
                if not archive.lock.locked():
                    await self._attempt(partition, archive, self._load_if_needed)

        await asyncio.gather(
            *(load(*it) for it in self._led() if it[1].leader_epoch != it[0].leader_epoch)
        )

    async def _visit(self, partition: Partition, archive: PartitionArchive) -> bool:
        is_busy = await self._attempt(partition, archive, self._tend)
        if is_busy is not None and archive.problem is not None:
            archive.problem = None
            logger.info("%r is archived again", partition)
        return bool(is_busy)

    async def _attempt(
        self,
        partition: Partition,
        archive: PartitionArchive,
        work: Callable[[Partition, PartitionArchive], Awaitable[bool]],
    ) -> bool | None:
        """The result of the work; None if it failed."""
        try:
            async with archive.lock:
                return await work(partition, archive)
        except (FileGone, FileNotFoundError):
            return None  # deleted or replaced while it was read: the next round looks again
        except MillstreamError as error:
            problem = str(error)
        except Exception as error:
            logger.exception("archiving %r failed", partition)
            problem = repr(error)
        if problem != archive.problem:
            archive.problem = problem
            logger.warning("%r is not archived at the moment: %s", partition, problem)
        return None

    async def _load_if_needed(self, partition: Partition, archive: PartitionArchive) -> bool:
        is_needed = archive.leader_epoch != partition.leader_epoch or archive.is_outdated
        if is_needed and partition.offline_error is None:
            await self._load(partition, archive)
        return False

    async def _tend(self, partition: Partition, archive: PartitionArchive) -> bool:
        """Returns whether something was archived."""
        await self._load_if_needed(partition, archive)
        if archive.divergence is not None:
            # Whatever is appended in this epoch: the records below are others than the archive's.
            raise ArchiveError(archive.divergence)
        await self._retain(partition, archive)
        is_busy = await self._upload(partition, archive)
        await self._excise(partition, archive)
        return is_busy

    async def _upload(self, partition: Partition, archive: PartitionArchive) -> bool:
        manifest, log = archive.manifest, partition.log
        if not log.config.is_archived or not self._may_write(partition, archive):
            return False
        assert manifest is not None
        upload = next_upload(
            log.segments,
            log.config,
            archived=manifest.end_offset if manifest.files else 0,
            log_start=log.log_start_offset,
            limit=min(log.flushed_offset, partition.last_stable_offset),
        )
        if upload is None:
            return False
        try:
            await self._write(partition, archive, manifest, upload)
        except BaseException:
            archive.is_clean = False  # half a file may be left
            raise
        return True

    async def _excise(self, partition: Partition, archive: PartitionArchive) -> None:
        """Remove records that the topic must not have from the files. A segment may be archived
        before they are removed from it, so this comes after; and while nothing is archived any
        more."""
        setting = partition.log.config.millstream_excised_offsets
        if not setting or archive.manifest is None or not self._may_write(partition, archive):
            return
        if not archive.is_clean and archive.manifest.files:
            # A crash may have left files with these records, which no manifest lists any more.
            await self._run_blocking(self._process.save, archive.manifest, ())
            await self._clean_up(partition, archive, archive.manifest)
        offsets = parse_excised(setting).get(partition.index, ExcisedOffsets())
        names = archive.to_excise(setting, offsets.ranges)
        if names:
            archive.is_outdated = True  # until it is known how far it came
            manifest = await self._run_blocking(
                self._process.excise, archive.manifest, names, offsets
            )
            archive.is_outdated = False
            changed = len(set(manifest.files) - set(archive.manifest.files))
            archive.adopt(manifest)
            logger.info("%r: excised records from %d files of the archive", partition, changed)
        archive.excised(setting)

    def _may_write(self, partition: Partition, archive: PartitionArchive) -> bool:
        return (
            partition.offline_error is None
            and partition.archive is archive
            and partition.leader_epoch == archive.leader_epoch
            and archive.is_continued
        )

    async def _load(self, partition: Partition, archive: PartitionArchive) -> None:
        epoch, log = partition.leader_epoch, partition.log
        topic_id = partition.topic_id
        assert topic_id is not None, "only internal topics have none"
        manifest = await self._run_blocking(
            self._process.load, partition.topic, topic_id, partition.index
        )
        if manifest is None:
            manifest = Manifest(partition.topic, topic_id, partition.index, epoch, 0)
        if (manifest.topic_id, manifest.partition) != (topic_id, partition.index):
            raise ArchiveError(f"the archive of {partition!r} has the manifest of another one")
        manifest = manifest.led_in(epoch)
        if partition.leader_epoch == epoch:
            archive.loaded(manifest)  # it can be read, even if it cannot be continued
            archive.divergence = find_divergence(
                manifest, log.epochs, log_start=log.log_start_offset, log_end=log.log_end_offset
            )
            archive.is_continued = archive.divergence is None

    async def _retain(self, partition: Partition, archive: PartitionArchive) -> None:
        manifest, log = archive.manifest, partition.log
        if manifest is None or not self._may_write(partition, archive):
            return
        end = manifest.end_offset
        unarchived = sum(it.size for it in log.segments if it.base_offset >= end)
        files = expired(
            manifest, log.config, unarchived_bytes=unarchived, now_ms=self._clock.now_ms()
        )
        if files:
            start = files[-1].end_offset
            after = manifest.starting_at(start)
            archive.adopt(after)
            archive.is_clean = False
            partition.move_log_start(start)
            names = [file.name for file in files]
            await self._run_blocking(self._process.save, after, names)
            logger.info(
                "%r: retention removed %d files of the archive, which starts at %d",
                *(partition, len(files), start),
            )

    async def save_start(self, partition: Partition) -> None:
        """Make it durable that the archive's start was moved. Raises `ArchiveError`."""
        archive = partition.archive
        if not isinstance(archive, PartitionArchive):
            return
        async with archive.lock:
            await self._load_if_needed(partition, archive)
            manifest = archive.manifest
            if (
                manifest is not None
                and archive.leader_epoch == partition.leader_epoch
                and partition.archive is archive
            ):
                await self._run_blocking(self._process.save, manifest, ())
                archive.is_clean = False  # the files before the start are still there

    async def _write(
        self, partition: Partition, archive: PartitionArchive, manifest: Manifest, upload: Upload
    ) -> None:
        log = partition.log
        segments = [log.segments[number] for number in upload.segments]
        started_ms = self._clock.monotonic_ms()
        written: Manifest = await self._run_blocking(
            self._write_segments, partition, manifest, upload, segments
        )
        archive.adopt(written)
        file = written.files[-1]
        logger.info(
            "%r: archived the offsets %d to %d, %d records, %d bytes as %d, in %d ms",
            *(partition, file.base_offset, file.end_offset, file.records),
            *(file.segment_bytes, file.size_bytes, self._clock.monotonic_ms() - started_ms),
        )
        if not archive.is_clean:
            await self._clean_up(partition, archive, written)

    async def _clean_up(
        self, partition: Partition, archive: PartitionArchive, saved: Manifest
    ) -> None:
        """Remove what the saved manifest does not list."""
        left = await self._run_blocking(self._process.clean_up, saved)
        archive.is_clean = True
        if left:
            logger.info("%r: removed %d files of earlier leaders and crashes", partition, len(left))

    def _write_segments(
        self, partition: Partition, manifest: Manifest, upload: Upload, segments: list[Segment]
    ) -> Manifest:
        """In a thread."""
        log = partition.log
        aborted = aborted_transactions(log, upload.first_offset, upload.end_offset)
        # The last batch may be gone, or empty: compaction and excision do that.
        last_epoch = log.epochs.epoch_of(upload.end_offset - 1)
        handles = log.directory.handles
        with ExitStack() as stack:
            files = [
                (stack.enter_context(handles.borrowed(segment.handle)), segment.size)
                for segment in segments
            ]
            return self._process.write(
                manifest,
                upload.first_offset,
                upload.end_offset,
                [(it.producer_id, it.first_offset, it.last_offset) for it in aborted],
                files,
                archived_ms=self._clock.now_ms(),
                last_epoch=last_epoch,
                schema=log.config.millstream_archive_schema,
                key_schema=log.config.millstream_archive_key_schema,
                registry=self._configs.current.archive_registry,
            )
