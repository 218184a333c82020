"""Creates and deletes logs to match the metadata, at start and after every commit.

A partition without a log gets one; a log without a partition, or with another topic's id (the topic
was deleted and recreated while this broker was down), is deleted, or set aside if the metadata does
not tell that its topic was deleted. A log that does not know its
topic's id, because a crash tore the file that holds it, gets it from the metadata. If a log cannot
be created, the commit stands: its partition is offline, and the next start retries.

The files of new logs are made in a thread, a few logs at a time, so that ten thousand partitions do
not hold the event loop. The commit waits until its logs exist. Logs are deleted in a thread, all
those of a commit together; a log of the same name is created after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.local import METADATA_TOPIC, MetadataStore
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType, TopicImage
from millstream.errors import ApiError, StorageError
from millstream.storage.creation import NewLog
from millstream.storage.names import STRAY_DIRECTORY_SUFFIX
from millstream.storage.steps import Steps, run_here, run_in_thread

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.broker.replicas.table import PartitionTable
    from millstream.storage.deletion import Deletion
    from millstream.storage.directories import LogDirectories
    from millstream.storage.log import Log

logger = logging.getLogger(__name__)

LOGS_AT_ONCE = 64

RunBlocking: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in another thread."""


class Reconciler:
    def __init__(
        self,
        store: MetadataStore,
        configs: ConfigManager,
        directories: LogDirectories,
        partitions: PartitionTable,
        run_blocking: RunBlocking,
    ) -> None:
        self._store = store
        self._configs = configs
        self._directories = directories
        self._partitions = partitions
        self._run_blocking = run_blocking
        self._missing: dict[tuple[UUID, int], None] = {}  # topic id, partition; in order
        self._creating: asyncio.Task[None] | None = None
        self._deleting: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def start(self, deleted_ids: Collection[UUID] = ()) -> None:
        """Create and delete logs to match the metadata, and keep them in sync. Blocks.

        `deleted_ids` are topics that were deleted recently.
        """
        image = self._store.image
        self._remove_strays(image, deleted_ids)
        self._adopt_logs(image)
        for topic in image.topics.values():
            self._open(topic)
        while self._missing:
            run_here(self._create_some())
        self._store.subscribe(self._on_commit)
        self._configs.subscribe(self._on_broker_config)

    async def stop(self) -> None:
        """Create no more logs; the next start creates the missing ones. Deletions in progress are
        finished when the directories are closed."""
        self._is_stopped = True
        self._missing.clear()
        if self._creating is not None:
            await self._creating
        for task in self._deleting:
            task.cancel()

    def _on_commit(self, before: ClusterImage, now: ClusterImage) -> Awaitable[object] | None:
        if self._is_stopped:
            return None
        changes = now.changed_topics(before)
        deletion = self._delete_topics(changes.deleted)
        is_complete = True
        for topic in (*changes.created, *(topic for _, topic in changes.changed)):
            is_complete &= self._open(topic)
        for resource in now.changed_configs(before):
            if resource.type is ResourceType.TOPIC and resource.name in now.topics:
                self._update_config(now.topics[resource.name])
        work = (deletion, None if is_complete else self._create_in_background())
        unfinished = [each for each in work if each is not None]
        return asyncio.gather(*unfinished) if unfinished else None

    def _create_in_background(self) -> Awaitable[None]:
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._create_missing())
        # A disconnecting client must not cancel the task.
        return asyncio.shield(self._creating)

    def _open(self, topic: TopicImage) -> bool:
        """Lead the topic's partitions whose logs exist; the others' have to be created.

        Returns whether all exist.
        """
        is_complete = True
        broker_id = self._configs.broker_id
        config = self._configs.topic(topic.name)
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            log = self._directories.logs.get((topic.name, index))
            if log is None:
                self._missing[topic.id, index] = None
                is_complete = False
            else:
                log.update_config(config)
                self._lead(topic, index, log)
        return is_complete

    def _lead(self, topic: TopicImage, index: int, log: Log) -> None:
        leader_epoch = topic.partitions[index].leader_epoch
        self._partitions.add(topic.name, index, log, leader_epoch=leader_epoch)

    async def _create_missing(self) -> None:
        try:
            while self._missing:
                await run_in_thread(self._create_some(), self._run_blocking)
        finally:
            self._creating = None

    def _create_some(self) -> Steps[None]:
        """Create the next missing logs. Topics may be changed or deleted while it waits."""
        wanted: list[NewLog] = []
        while self._missing and len(wanted) < LOGS_AT_ONCE:
            topic_id, index = next(iter(self._missing))
            del self._missing[topic_id, index]
            topic = self._store.image.topics_by_id.get(topic_id)
            if topic is None:
                continue  # deleted before its turn came
            log = self._directories.logs.get((topic.name, index))
            if log is not None:  # the topic was changed while this log was being created
                self._lead(topic, index, log)
            else:
                config = self._configs.topic(topic.name)
                wanted.append(NewLog(topic.name, index, topic_id, config))
        try:
            outcomes = yield from self._directories.create_steps(wanted)
        except StorageError as error:
            logger.error("%d partitions are offline: %s", len(wanted), error)
            return
        obsolete = []  # deleted while their logs were created
        for new, outcome in zip(wanted, outcomes, strict=True):
            topic = self._store.image.topics_by_id.get(new.topic_id)
            if isinstance(outcome, ApiError):
                logger.error("partition %s-%d is offline: %s", *new[:2], outcome)
            elif topic is None:
                obsolete.append(outcome)
            else:
                outcome.update_config(self._configs.topic(new.topic))
                self._lead(topic, new.partition, outcome)
        if obsolete:
            self._delete_logs(obsolete)

    def _adopt_logs(self, image: ClusterImage) -> None:
        """Give logs without a topic id, as a crash right after their creation leaves them, that
        of their topic."""
        topic_ids = {
            log: image.topics[name].id
            for (name, _), log in self._directories.logs.items()
            if log.topic_id is None and name in image.topics
        }
        for log in topic_ids:
            logger.warning("%s has no topic id: taking it from the metadata", log.path)
        self._directories.adopt(topic_ids)

    def _on_broker_config(self, before: BrokerConfig, now: BrokerConfig) -> None:
        """Topics inherit from the broker's settings, so each may have changed."""
        for topic in self._store.image.topics.values():
            self._update_config(topic)

    def _update_config(self, topic: TopicImage) -> None:
        config = self._configs.topic(topic.name)
        for index in range(len(topic.partitions)):
            log = self._directories.logs.get((topic.name, index))
            if log is not None:
                log.update_config(config)

    def _delete_topics(self, topics: Iterable[TopicImage]) -> Awaitable[None] | None:
        """Forget the partitions at once, and remove their logs in a thread."""
        logs = []
        for topic in topics:
            for index in range(len(topic.partitions)):
                self._partitions.remove(topic.name, index)
                log = self._directories.logs.get((topic.name, index))
                if log is not None:
                    logs.append(log)
        return self._delete_logs(logs) if logs else None

    def _delete_logs(self, logs: Iterable[Log]) -> Awaitable[None]:
        deletions = self._directories.prepare_deletions(logs)
        task = asyncio.get_running_loop().create_task(self._carry_out(deletions))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        # A disconnecting client must not cancel the task.
        return asyncio.shield(task)

    async def _carry_out(self, deletions: list[Deletion]) -> None:
        for deletion in deletions:
            try:
                await self._run_blocking(deletion.execute)
                deletion.complete()
            except Exception:
                logger.exception("logs in %s could not be deleted", deletion.directory.path)

    def _remove_strays(self, image: ClusterImage, deleted_ids: Collection[UUID]) -> None:
        """Delete the logs of deleted topics. Other logs that the metadata does not know may hold
        records that nobody meant to delete, if the metadata is that of an older copy: like Kafka,
        set them aside. Likewise records that were never flushed, in a log whose topic id is torn:
        they may be those of a deleted topic of that name."""
        directories = self._directories
        directories.serve_topics({name: topic.id for name, topic in image.topics.items()})
        deleted: list[Log] = []
        set_aside: list[Log] = []
        for log in (*directories.logs.values(), *directories.namesakes):
            reason = self._why_stray(image, log)
            if reason is None:
                continue
            if log.topic_id in deleted_ids or log.log_end_offset == 0:
                logger.warning("deleting stray log %s-%d: %s", log.topic, log.partition, reason)
                deleted.append(log)
            else:
                logger.warning(
                    "setting aside stray log %s-%d: %s; its directory is renamed to end in %s, "
                    "delete it if its records are not needed",
                    *(log.topic, log.partition, reason, STRAY_DIRECTORY_SUFFIX),
                )
                set_aside.append(log)
        for deletion in (
            *directories.prepare_deletions(deleted),
            *directories.prepare_deletions(set_aside, keeps_files=True),
        ):
            deletion.execute()
            deletion.complete()

    def _why_stray(self, image: ClusterImage, log: Log) -> str | None:
        topic = image.topics.get(log.topic)
        if log.topic == METADATA_TOPIC:
            return None
        if (
            topic is None
            or log.partition >= len(topic.partitions)
            or log.topic_id not in (None, topic.id)
        ):
            return "not in the cluster metadata"
        if log.log_end_offset and self._directories.has_torn_id(log):
            return "a crash tore its topic id, and its records were never flushed"
        return None
