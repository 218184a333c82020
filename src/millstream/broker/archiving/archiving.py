"""The archive of this broker: nothing, until a topic has remote.storage.enable.

The rest of the package is imported, and the archive process started, with the first such topic
(docs/decisions/0008-start-up.md), or if archives of deleted topics may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from millstream.coordination.cluster import ResourceType
from millstream.errors import ApiError, ErrorCode, MillstreamError

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.broker.archiving.archiver import Archiver
    from millstream.broker.archiving.deletions import Deletions
    from millstream.broker.archiving.process import ArchiveProcess
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.coordination.cluster import ClusterImage, TopicImage
    from millstream.storage.lookup import TimestampOffset

logger = logging.getLogger("millstream.archive")

ENABLED = "remote.storage.enable"
DELETED_IF_DISABLED = "remote.log.delete.on.disable"
# They wait for the archive process. Three are the archiver's; a bucket that does not answer must
# not hold up anything else.
THREADS = 7

LOADING_SECONDS_MAX = 5.0
LOADING_CHECK_SECONDS = 0.02

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Archiving:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._configs = configs
        self._partitions = partitions
        self._tasks = tasks
        self._clock = clock
        self._executor: ThreadPoolExecutor | None = None
        self._process: ArchiveProcess | None = None
        self.archiver: Archiver | None = None  # if a topic is or was archived
        self.deletions: Deletions | None = None  # likewise

    def start(self) -> None:
        """Call it on the event loop, when partitions have been opened and nothing is served yet."""
        self._metadata.subscribe(self._metadata_changed)
        self._look(self._metadata.image)
        path = self._configs.current.millstream_archive_path
        if self.archiver is None and path is not None and _may_have_marks(path):
            self._begin(path)

    async def stop(self) -> None:
        """The archiver is one of the broker's tasks, which end before."""
        process, executor = self._process, self._executor
        if process is not None and executor is not None:
            await self._tasks.run_blocking(process.stop)
            executor.shutdown(wait=False, cancel_futures=True)

    def run_blocking(
        self,
        function: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> asyncio.Future[Result]:
        """Call a function that may wait for the archive, in a thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, "millstream-archive")
        return self._tasks.loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    async def wait_until_loaded(self, partition: Partition) -> None:
        """Soon after a start or an election. Raises `ApiError` if it takes longer."""
        archiver = self.archiver
        archive = partition.archive
        if archiver is not None and archive is not None:
            if archive.leader_epoch != partition.leader_epoch:
                archiver.wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOADING_SECONDS_MAX):
                    while archive.leader_epoch != partition.leader_epoch:
                        await asyncio.sleep(LOADING_CHECK_SECONDS)
        partition.check_archive()

    async def offset_for_timestamp(
        self, partition: Partition, timestamp_ms: int
    ) -> TimestampOffset | None:
        """The first record at or after a time, in the archive or in the log. Raises `ApiError`."""
        await self.wait_until_loaded(partition)
        log_start = partition.log_start_offset
        if partition.archive is not None and partition.start_offset < log_start:
            found = await self.run_blocking(
                partition.archive.offset_for_timestamp, timestamp_ms, log_start
            )
            if found is not None:
                return found
        return await self._tasks.run_blocking(partition.offset_for_timestamp, timestamp_ms)

    async def save_start(self, partition: Partition) -> None:
        """The start of an archived partition was moved: have it saved. Raises `MillstreamError`."""
        if self.archiver is not None:
            await self.archiver.save_start(partition)

    def _metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        if now.configs is not before.configs or (
            self.archiver is not None and now.topics is not before.topics
        ):
            self._look(now)
        if self.deletions is not None and now.changed_topics(before).deleted:
            self.deletions.wake()

    async def prepare_deletion(self, topics: Iterable[TopicImage]) -> dict[UUID, ApiError]:
        """Call it before topics are deleted, so that their archives are deleted after them, or
        kept. Returns why some cannot be deleted now, by their id."""
        if self._process is None:
            return {}
        found: dict[UUID, ApiError] = {}

        async def prepare(topic: TopicImage) -> None:
            try:
                await self._prepare_deletion(topic)
            except MillstreamError as error:
                found[topic.id] = ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the archive of {topic.name} could not be deleted after it: {error}. Try "
                    "again, or set millstream.archive.keep.on.delete=true to keep the archive",
                )

        await asyncio.gather(*map(prepare, topics))
        return found

    async def _prepare_deletion(self, topic: TopicImage) -> None:
        from millstream.archive.deleting import Mark

        assert self._process is not None
        config = self._configs.topic(topic.name)
        if not config.remote_storage_enable and not config.remote_log_delete_on_disable:
            return
        if config.millstream_archive_keep_on_delete:
            # It may be marked: an earlier deletion may have been refused.
            await self.run_blocking(self._process.unmark, topic.id)
        else:
            mark = Mark(topic.name, topic.id, self._clock.now_ms())
            await self.run_blocking(self._process.mark, mark)

    def _look(self, image: ClusterImage) -> None:
        names = {
            it.name
            for it in image.configs
            if it.type is ResourceType.TOPIC
            and "true"
            in (
                image.topic_overrides(it.name).get(ENABLED),
                image.topic_overrides(it.name).get(DELETED_IF_DISABLED),
            )
        }
        if self.archiver is None:
            if not names:
                return
            path = self._configs.current.millstream_archive_path
            if path is None:
                logger.error(
                    "%s is set for %s, but millstream.archive.path is not: nothing is archived, "
                    "and archived records cannot be read",
                    *(ENABLED, ", ".join(sorted(names))),
                )
                return
            self._begin(path)
        assert self.archiver is not None
        self._attach()
        self.archiver.wake()

    def _begin(self, path: str) -> None:
        from millstream.broker.archiving.deletions import Deletions

        self.archiver = self._new_archiver(path)
        assert self._process is not None
        self.deletions = Deletions(
            process=self._process,
            metadata=self._metadata,
            clock=self._clock,
            run_blocking=self.run_blocking,
        )
        self._tasks.start(self.archiver.run())
        self._tasks.start(self.deletions.run())

    def _attach(self) -> None:
        """Give all archived partitions their archive; some are opened later than their topic."""
        from millstream.broker.archiving.partition import PartitionArchive

        assert self._process is not None
        for partition in self._partitions:
            is_archived = partition.log.config.remote_storage_enable and not partition.is_internal
            if is_archived and partition.archive is None:
                partition.archive = PartitionArchive(self._process, self._clock)
            elif not is_archived and partition.archive is not None:
                partition.archive = None

    def _new_archiver(self, path: str) -> Archiver:
        from millstream.broker.archiving.archiver import Archiver
        from millstream.broker.archiving.process import ArchiveProcess

        self._process = ArchiveProcess(path)
        return Archiver(
            process=self._process,
            configs=self._configs,
            partitions=self._partitions,
            clock=self._clock,
            run_blocking=self.run_blocking,
            attach=self._attach,
        )


def _may_have_marks(path: str) -> bool:
    """Of deleted topics. A bucket is asked later."""
    from millstream.archive.deleting import MARKS

    return "://" in path or Path(path, MARKS).is_dir()
