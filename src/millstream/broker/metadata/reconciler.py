"""Creates and deletes logs to match the metadata, at start and after every commit.

A partition without a log gets one; a log without a partition, or with another topic's id (the topic
was deleted and recreated while this broker was down), is deleted. If a log cannot be created, the
commit stands: its partition is offline, and the next start retries.

Logs are created a few at a time, so that other tasks can run in between: ten thousand partitions
take seconds. The commit waits until they exist. Logs are deleted in a thread, all those of a commit
together; a log of the same name is created after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.local import METADATA_TOPIC, MetadataStore
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType, TopicImage
from millstream.errors import ApiError, StorageError

if TYPE_CHECKING:
    from millstream.broker.replicas.table import PartitionTable
    from millstream.storage.deletion import Deletion
    from millstream.storage.directories import LogDirectories

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE = 32


class Reconciler:
    def __init__(
        self,
        store: MetadataStore,
        configs: ConfigManager,
        directories: LogDirectories,
        partitions: PartitionTable,
        run_blocking: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._configs = configs
        self._directories = directories
        self._partitions = partitions
        self._unopened: deque[tuple[TopicImage, int]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._run_blocking = run_blocking
        self._deleting: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Create and delete logs to match the metadata, and keep them in sync."""
        image = self._store.image
        self._delete_strays(image)
        for topic in image.topics.values():
            self._want(topic)
        while self._unopened:
            self._open_next()
        self._store.subscribe(self._on_commit)
        self._configs.subscribe(self._on_broker_config)

    def stop(self) -> None:
        """Create no more logs; the next start creates the missing ones. Deletions in progress are
        finished when the directories are closed."""
        if self._opening is not None:
            self._opening.cancel()
        for task in self._deleting:
            task.cancel()
        self._unopened.clear()

    def _on_commit(self, before: ClusterImage, now: ClusterImage) -> Awaitable[object] | None:
        changes = now.changed_topics(before)
        deletion = self._delete_topics(changes.deleted)
        wanted = [*changes.created, *(topic for _, topic in changes.changed)]
        for topic in wanted:
            self._want(topic)
        for resource in now.changed_configs(before):
            if resource.type is ResourceType.TOPIC and resource.name in now.topics:
                self._update_config(now.topics[resource.name])
        work = (deletion, self._open_wanted() if wanted else None)
        unfinished = [each for each in work if each is not None]
        return asyncio.gather(*unfinished) if unfinished else None

    def _want(self, topic: TopicImage) -> None:
        broker_id = self._configs.broker_id
        for index, partition in enumerate(topic.partitions):
            if broker_id in partition.replicas:
                self._unopened.append((topic, index))

    def _open_wanted(self) -> Awaitable[None] | None:
        """Open a few partitions at once, and any others in a separate task."""
        if self._opening is None:
            self._open_some()
            if not self._unopened:
                return None
            self._opening = asyncio.get_running_loop().create_task(self._open_rest())
        # A disconnecting client must not cancel the task.
        return asyncio.shield(self._opening)

    async def _open_rest(self) -> None:
        try:
            while self._unopened:
                if self._must_wait():
                    await asyncio.wait(self._deleting, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(0)
                self._open_some()
        finally:
            self._opening = None

    def _open_some(self) -> None:
        for _ in range(min(PARTITIONS_AT_ONCE, len(self._unopened))):
            if self._must_wait():
                return
            self._open_next()

    def _must_wait(self) -> bool:
        """Whether the next log's name is still that of a log which a thread is deleting."""
        topic, index = self._unopened[0]
        return bool(self._deleting) and not self._directories.is_free(topic.name, index)

    def _on_broker_config(self, before: BrokerConfig, now: BrokerConfig) -> None:
        """Topics inherit from the broker's settings, so each may have changed."""
        for topic in self._store.image.topics.values():
            self._update_config(topic)

    def _open_next(self) -> None:
        topic, index = self._unopened.popleft()
        current = self._store.image.topics_by_id.get(topic.id)
        if current is None:
            return  # deleted before its turn came
        config = self._configs.topic(topic.name)
        try:
            log = self._directories.logs.get((topic.name, index))
            if log is None:
                log = self._directories.create(topic.name, index, topic.id, config)
            else:
                log.update_config(config)
        except (OSError, StorageError, ApiError) as error:
            logger.error("partition %s-%d is offline: %s", topic.name, index, error)
            return
        leader_epoch = current.partitions[index].leader_epoch
        self._partitions.add(topic.name, index, log, leader_epoch=leader_epoch)

    def _update_config(self, topic: TopicImage) -> None:
        config = self._configs.topic(topic.name)
        for index in range(len(topic.partitions)):
            log = self._directories.logs.get((topic.name, index))
            if log is not None:
                log.update_config(config)

    def _delete_topics(self, topics: Iterable[TopicImage]) -> Awaitable[None] | None:
        """Forget the partitions at once, and remove their logs in a thread."""
        names = []
        for topic in topics:
            for index in range(len(topic.partitions)):
                self._partitions.remove(topic.name, index)
                if (topic.name, index) in self._directories.logs:
                    names.append((topic.name, index))
        if not names:
            return None
        deletions = self._directories.prepare_deletions(names)
        task = asyncio.get_running_loop().create_task(self._carry_out(deletions))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        # A client that goes away must not take the task along.
        return asyncio.shield(task)

    async def _carry_out(self, deletions: list[Deletion]) -> None:
        for deletion in deletions:
            try:
                await self._run_blocking(deletion.execute)
                deletion.complete()
            except Exception:
                logger.exception("logs in %s could not be deleted", deletion.directory.path)

    def _delete_strays(self, image: ClusterImage) -> None:
        strays = []
        for (name, index), log in self._directories.logs.items():
            if name == METADATA_TOPIC:
                continue
            topic = image.topics.get(name)
            is_known = topic is not None and index < len(topic.partitions)
            if is_known and topic is not None and log.topic_id in (None, topic.id):
                continue
            logger.warning("deleting stray log %s-%d: not in the cluster metadata", name, index)
            strays.append((name, index))
        for deletion in self._directories.prepare_deletions(strays):
            deletion.execute()
            deletion.complete()
