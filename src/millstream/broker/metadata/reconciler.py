"""Creates and deletes logs to match the metadata, and takes the roles of replicas: at start, and
after every commit.

This broker leads a partition, follows another broker, or waits for a leader, as the image has it;
any number of versions can be skipped. A partition whose only replica is here is simply led.

A partition without a log gets one; a log without a partition, or with another topic's id (the topic
was deleted and recreated while this broker was down), is deleted, or set aside if the metadata does
not show that its topic was deleted. A log without a topic id, because a crash tore the file that
holds it, gets that of its topic. If a log cannot be created, the commit stands: its partition is
offline, and the next start retries.

New partitions are opened a few per turn of the event loop, and a partition that a request needs
before its turn is opened then (`Unopened` of `replicas/table.py`). So the commit does not wait for
its partitions, unless a log of the same name is still being deleted. Logs are deleted in a thread,
all those of a commit together; a log of the same name is created after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.store import METADATA_TOPIC, MetadataStore
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType, TopicImage
from millstream.coordination.cluster_records import NO_LEADER
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.storage.creation import NewLog
from millstream.storage.names import STRAY_DIRECTORY_SUFFIX
from millstream.storage.steps import Steps, let_others_work, run_here, run_in_thread
from millstream.storage.version_replay import build_versions

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.broker.replicas.in_sync import ReplicaSettings
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.partitions import TopicPartition
    from millstream.storage.deletion import Deletion
    from millstream.storage.directories import LogDirectories
    from millstream.storage.log import Log

logger = logging.getLogger(__name__)

PARTITIONS_PER_TURN = 32  # opened or closed: each takes a few hundredths of a millisecond


class Roles(Protocol):
    """The replicas of this broker that are not alone: who fetches for followers, what leaders have
    to know."""

    def settings(self, image: ClusterImage) -> ReplicaSettings: ...

    def follow(self, partition: Partition, leader: int) -> None:
        """Fetch from this leader; the partition follows it."""
        ...

    def unfollow(self, partition: Partition) -> None:
        """Fetch no more, if it was fetched for."""
        ...

    def brokers_changed(self, image: ClusterImage) -> None: ...


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
        roles: Roles,
    ) -> None:
        self._store = store
        self._configs = configs
        self._directories = directories
        self._partitions = partitions
        self._run_blocking = run_blocking
        self._roles = roles
        self._unopened: dict[TopicPartition, None] = {}  # of topics that exist; in order
        self._opening: asyncio.Task[None] | None = None
        self._deleting: set[asyncio.Task[None]] = set()
        self._building: set[asyncio.Task[None]] = set()  # versions of keys
        self._is_stopped = False

    def start(self, deleted_ids: Collection[UUID] = ()) -> None:
        """Create and delete logs to match the metadata, and keep them in sync. Blocks.

        `deleted_ids` are topics that were deleted recently.
        """
        image = self._store.image
        self._remove_strays(image, deleted_ids)
        self._adopt_logs(image)
        for topic in image.topics.values():
            self._open_topic(topic)
        while self._unopened:
            run_here(self._open_some())
        for log in self._directories.logs.values():
            run_here(build_versions(log))
        self._partitions.unopened = self
        self._store.subscribe(self._on_commit)
        self._configs.subscribe(self._on_broker_config)

    async def stop(self) -> None:
        """Open no more partitions; the next start does. Deletions in progress are finished when
        the directories are closed."""
        self._is_stopped = True
        self._unopened.clear()
        if self._opening is not None:
            await self._opening
        for task in (*self._deleting, *self._building):
            task.cancel()

    def _on_commit(self, before: ClusterImage, now: ClusterImage) -> Awaitable[object] | None:
        if self._is_stopped:
            return None
        changes = now.changed_topics(before)
        if now.brokers is not before.brokers:
            self._roles.brokers_changed(now)
        deletion = self._delete_topics(changes.deleted)
        dropped = self._drop_replicas(changes.changed)
        must_wait = False
        for topic in changes.created:
            must_wait |= self._open_topic(topic)
        for old, topic in changes.changed:
            must_wait |= self._open_topic(topic, old)
        for resource in now.changed_configs(before):
            if resource.type is ResourceType.TOPIC and resource.name in now.topics:
                self._update_config(now.topics[resource.name])
        opening = self._open_in_background()
        work = (deletion, dropped, opening if must_wait else None)
        unfinished = [each for each in work if each is not None]
        return asyncio.gather(*unfinished) if unfinished else None

    # Opening

    def _open_topic(self, topic: TopicImage, old: TopicImage | None = None) -> bool:
        """Take the roles of the topic's partitions whose logs exist, except of those that are as
        in the `old` image; the others are opened later.

        Returns whether one of these has to wait until a deleted log of its name is gone.
        """
        must_wait = False
        broker_id = self._configs.broker_id
        config = self._configs.topic(topic.name)
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            if old is not None and old.partitions[index : index + 1] == (partition,):
                continue
            log = self._directories.logs.get((topic.name, index))
            if log is None:
                self._unopened[topic.name, index] = None
                must_wait = must_wait or not self._directories.is_free(topic.name, index)
            else:
                if log.config != config:
                    log.update_config(config)
                self._take_role(topic, index, log)
        return must_wait

    def _take_role(self, topic: TopicImage, index: int, log: Log) -> Partition:
        """Lead, follow or wait for a leader, as the image has it."""
        image = topic.partitions[index]
        broker_id, partitions = self._configs.broker_id, self._partitions
        if image.replicas == (broker_id,) and image.leader == broker_id:
            known = partitions.peek(topic.name, index)
            if known is None or known.is_only_replica:
                return partitions.add(topic.name, index, log, leader_epoch=image.leader_epoch)
        high_watermark = self._directories.high_watermarks.get((topic.name, index), 0)
        partition = partitions.add_replica(topic.name, index, log, image, high_watermark)
        if log.is_truncating:  # as a follower; `retake_role` is called when that is done
            self._roles.unfollow(partition)
            partition.stop(image.leader_epoch)
        elif image.leader == broker_id:
            self._roles.unfollow(partition)
            partition.lead(image, self._roles.settings(self._store.image))
            if log.needs_versions:
                self._build_versions(log)
        elif image.leader == NO_LEADER:
            self._roles.unfollow(partition)
            partition.stop(image.leader_epoch)
        elif partition.following is None or partition.leader_epoch != image.leader_epoch:
            self._roles.unfollow(partition)
            partition.follow(image.leader, image.leader_epoch)
            self._roles.follow(partition, image.leader)
        return partition

    def retake_role(self, partition: Partition) -> None:
        """Take the role that the image has, if the partition is still that of its topic."""
        topic = self._store.image.topics.get(partition.topic)
        known = self._partitions.peek(partition.topic, partition.index)
        if topic is not None and known is partition and not self._is_stopped:
            self._take_role(topic, partition.index, partition.log)

    def _open_in_background(self) -> Awaitable[None] | None:
        """Open the first ones now, and the others in later turns."""
        for key in list(islice(self._unopened, PARTITIONS_PER_TURN)):
            self.open(*key)
        if self._unopened and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_all())
        # A disconnecting client must not cancel the task.
        return None if self._opening is None else asyncio.shield(self._opening)

    async def _open_all(self) -> None:
        try:
            while self._unopened:
                await run_in_thread(self._open_some(), self._run_blocking)
        finally:
            self._opening = None

    def _open_some(self) -> Steps[None]:
        """Open the next partitions. Topics may be changed or deleted while it waits."""
        for key in list(islice(self._unopened, PARTITIONS_PER_TURN)):
            # Just before it is opened: while this waits for one name, others may be used and
            # deleted again.
            yield from self._directories.free_names([key])
            if key in self._unopened:
                self._open(*key)
        yield let_others_work

    def contains(self, topic: str, index: int) -> bool:
        return (topic, index) in self._unopened

    def contains_topic(self, topic_id: UUID) -> bool:
        return topic_id in self._store.image.topics_by_id

    def is_elsewhere(self, topic: str | UUID, index: int) -> bool:
        partition = self._store.image.partition(topic, index)
        return partition is not None and partition.leader != self._configs.broker_id

    def open(self, topic: str | UUID, index: int) -> Partition | None:
        if not self._unopened:
            return None
        if not isinstance(topic, str):
            image = self._store.image.topics_by_id.get(topic)
            if image is None:
                return None
            topic = image.name
        if (topic, index) in self._unopened and self._directories.is_free(topic, index):
            return self._open(topic, index)
        return None

    def _open(self, name: str, index: int) -> Partition | None:
        """Create the log, which waits for no disk, and lead the partition."""
        del self._unopened[name, index]
        topic = self._store.image.topics.get(name)
        if topic is None:
            return None  # deleted by the commit that this reconciler is about to be notified of
        try:
            log = self._directories.add(
                NewLog(name, index, topic.id, self._configs.topic(name)),
            )
        except MillstreamError as error:
            logger.error("partition %s-%d is offline: %s", name, index, error)
            return None
        return self._take_role(topic, index, log)

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
                if log.needs_versions:
                    self._build_versions(log)

    def _build_versions(self, log: Log) -> None:
        """Read them in a thread. The partition refuses appends until then."""
        steps = run_in_thread(build_versions(log), self._run_blocking)
        task = asyncio.get_running_loop().create_task(steps)
        self._building.add(task)
        task.add_done_callback(self._building.discard)

    # Deleting

    def _delete_topics(self, topics: Iterable[TopicImage]) -> Awaitable[None] | None:
        """Forget the partitions and their logs at once. Everything that takes time comes later:
        waiting requests get an error, and the files are removed in a thread."""
        gone = []
        for topic in topics:
            error = ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} was deleted"
            )
            gone += [((topic.name, index), error) for index in range(len(topic.partitions))]
        return self._delete_replicas(gone)

    def _drop_replicas(
        self, changed: Iterable[tuple[TopicImage, TopicImage]]
    ) -> Awaitable[None] | None:
        """Delete the logs of partitions of which this broker has no replica any more."""
        gone = []
        broker_id = self._configs.broker_id
        for old, topic in changed:
            for index, (was, now) in enumerate(zip(old.partitions, topic.partitions, strict=False)):
                if broker_id in was.replicas and broker_id not in now.replicas:
                    why = f"{topic.name}-{index} was moved to other brokers"
                    error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)
                    gone.append(((topic.name, index), error))
        return self._delete_replicas(gone)

    def _delete_replicas(
        self, gone: Iterable[tuple[TopicPartition, ApiError]]
    ) -> Awaitable[None] | None:
        partitions: list[Partition] = []
        logs: list[Log] = []
        for key, error in gone:
            self._unopened.pop(key, None)
            partition = self._partitions.remove(*key)
            if partition is not None:
                self._roles.unfollow(partition)
                partition.offline_error = error
                partitions.append(partition)
            log = self._directories.logs.get(key)
            if log is not None:
                logs.append(log)
        if not logs:
            return None
        deletions = self._directories.prepare_deletions(logs)
        task = asyncio.get_running_loop().create_task(self._delete(partitions, deletions))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        # A disconnecting client must not cancel the task.
        return asyncio.shield(task)

    async def _delete(self, partitions: list[Partition], deletions: list[Deletion]) -> None:
        await run_in_thread(_take_offline(partitions), self._run_blocking)
        for deletion in deletions:
            try:
                await run_in_thread(deletion.steps(), self._run_blocking)
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
                    "and deleted after millstream.stray.delay.ms",
                    *(log.topic, log.partition, reason, STRAY_DIRECTORY_SUFFIX),
                )
                set_aside.append(log)
        for deletion in (
            *directories.prepare_deletions(deleted),
            *directories.prepare_deletions(set_aside, keeps_files=True),
        ):
            run_here(deletion.steps())

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
        if self._configs.broker_id not in topic.partitions[log.partition].replicas:
            return "this broker has no replica of it"
        if log.log_end_offset and self._directories.has_torn_id(log):
            return "a crash tore its topic id, and its records were never flushed"
        return None


def _take_offline(partitions: Iterable[Partition]) -> Steps[None]:
    for number, partition in enumerate(partitions, 1):
        if partition.offline_error is not None:
            partition.go_offline(partition.offline_error)
        # Nothing refers back to it, so that it is freed at once and not by the garbage collector,
        # which ignores what the process began with.
        partition.leadership.notify(None)
        if number % PARTITIONS_PER_TURN == 0:
            yield let_others_work
