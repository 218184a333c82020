"""Makes the logs follow the metadata: at the start, and after every commit.

The metadata say which partitions there are. A partition without a log gets one; a log without a
partition, or with another topic's id (the topic was deleted and made anew while this broker was
away), is deleted. A log that cannot be made does not undo the commit: its partition stays offline,
which its clients are told, and the next start tries again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.broker.configs import ConfigManager
from millstream.broker.metadata import METADATA_TOPIC, MetadataStore
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType, TopicImage
from millstream.errors import ApiError, StorageError

if TYPE_CHECKING:
    from millstream.broker.partitions import PartitionTable
    from millstream.storage.directories import LogDirectories

logger = logging.getLogger(__name__)


class TopicFollower:
    def __init__(
        self,
        store: MetadataStore,
        configs: ConfigManager,
        directories: LogDirectories,
        partitions: PartitionTable,
    ) -> None:
        self._store = store
        self._configs = configs
        self._directories = directories
        self._partitions = partitions

    def start(self) -> None:
        """Bring the logs in line with the metadata, and keep them so."""
        image = self._store.image
        self._delete_strays(image)
        for topic in image.topics.values():
            self._open_topic(topic)
        self._store.subscribe(self._on_commit)
        self._configs.subscribe(self._on_broker_config)

    def _on_commit(self, before: ClusterImage, now: ClusterImage) -> None:
        changes = now.changed_topics(before)
        for topic in changes.deleted:
            self._delete_topic(topic)
        for topic in changes.created:
            self._open_topic(topic)
        for _, topic in changes.changed:
            self._open_topic(topic)
        for resource in now.changed_configs(before):
            if resource.type is ResourceType.TOPIC and resource.name in now.topics:
                self._update_config(now.topics[resource.name])

    def _on_broker_config(self, before: BrokerConfig, now: BrokerConfig) -> None:
        """Topics inherit from the broker's settings, so each may have changed."""
        for topic in self._store.image.topics.values():
            self._update_config(topic)

    def _open_topic(self, topic: TopicImage) -> None:
        config = self._configs.topic(topic.name)
        broker_id = self._configs.broker_id
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            try:
                log = self._directories.logs.get((topic.name, index))
                if log is None:
                    log = self._directories.create(topic.name, index, topic.id, config)
                else:
                    log.update_config(config)
            except (OSError, StorageError, ApiError) as error:
                logger.error("partition %s-%d is offline: %s", topic.name, index, error)
                continue
            self._partitions.add(topic.name, index, log, leader_epoch=partition.leader_epoch)

    def _update_config(self, topic: TopicImage) -> None:
        config = self._configs.topic(topic.name)
        for index in range(len(topic.partitions)):
            log = self._directories.logs.get((topic.name, index))
            if log is not None:
                log.update_config(config)

    def _delete_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            self._partitions.remove(topic.name, index)
            self._delete_log(topic.name, index)

    def _delete_strays(self, image: ClusterImage) -> None:
        for (name, index), log in list(self._directories.logs.items()):
            if name == METADATA_TOPIC:
                continue
            topic = image.topics.get(name)
            is_known = topic is not None and index < len(topic.partitions)
            if is_known and topic is not None and log.topic_id in (None, topic.id):
                continue
            logger.warning("deleting %s-%d: the metadata do not know it", name, index)
            self._delete_log(name, index)

    def _delete_log(self, name: str, index: int) -> None:
        try:
            self._directories.delete(name, index)
        except (OSError, StorageError, ApiError) as error:
            logger.error("cannot delete the log of %s-%d: %s", name, index, error)
