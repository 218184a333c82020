"""Deletes logs that were set aside at a start, after `millstream.stray.delay.ms`.

Not while this broker's metadata is older than what its directories have seen: see
`storage/strays.py`. The broker runs only if its directories belong to its cluster.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.storage.strays import (
    delete_strays,
    mark_strays,
    read_metadata_version,
    write_metadata_version,
)

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.clock import Clock
    from millstream.coordination.cluster import ClusterImage
    from millstream.storage.directories import LogDirectories
    from millstream.storage.directory import LogDirectory

logger = logging.getLogger(__name__)

NEVER = -1


class Strays:
    """See the module. `start` and `review` wait for the disk; `review` may run in a thread."""

    def __init__(
        self,
        metadata: MetadataStore,
        configs: ConfigManager,
        directories: LogDirectories,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._configs = configs
        self._directories = directories
        self._clock = clock
        self._is_older = False

    def start(self) -> None:
        """Mark the logs that were just set aside."""
        version = self._metadata.image.version
        working = self._working()
        seen = max(map(read_metadata_version, working), default=version)
        self._is_older = version < seen
        if self._is_older:
            logger.warning(
                "the cluster metadata is at version %d, but this broker has seen version %d: logs "
                "that are set aside now are kept; was the metadata restored from a backup?",
                *(version, seen),
            )
        for directory in working:
            try:
                mark_strays(
                    directory,
                    now_ms=self._clock.now_ms(),
                    metadata_version=version,
                    is_kept=self._is_older,
                )
            except OSError as error:  # a full disk, say: strays without a mark are kept
                logger.warning("cannot mark the stray logs in %s: %s", directory.path, error)

    def review(self) -> None:
        """Delete the strays whose time has come."""
        if self._is_older:
            return
        image, delay_ms = self._metadata.image, self._configs.current.millstream_stray_delay_ms
        for directory in self._working():
            if read_metadata_version(directory) < image.version:
                write_metadata_version(directory, image.version)
            if delay_ms != NEVER:
                delete_strays(
                    directory,
                    now_ms=self._clock.now_ms(),
                    metadata_version=image.version,
                    delay_ms=delay_ms,
                    is_assigned=lambda topic, index: self._is_assigned(image, topic, index),
                )

    def _working(self) -> list[LogDirectory]:
        return [it for it in self._directories.directories if it.failure is None]

    def _is_assigned(self, image: ClusterImage, topic_id: UUID, index: int | None) -> bool:
        if index is None:
            return topic_id in image.topics_by_id
        partition = image.partition(topic_id, index)
        return partition is not None and self._configs.broker_id in partition.replicas
