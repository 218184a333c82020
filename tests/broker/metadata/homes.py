"""Real metadata in real log directories, for the tests of administration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.broker.metadata.actions import LoggedActions
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.local import LocalMetadata
from millstream.broker.metadata.store import Decision, registration
from millstream.broker.metadata.topics import TopicManager
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import BrokerEndpoint, MetadataRecord
from millstream.storage.directories import LogDirectories
from millstream.testing.clock import ManualClock

ENDPOINT = BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092)


class DecidedTooLate(Exception):
    """The metadata changed before a decision could be committed."""


def decided_on(version: int, *records: MetadataRecord) -> Decision:
    """The decision to commit these records on the image of this version only."""

    def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
        if image.version != version:
            raise DecidedTooLate(f"decided on version {version}, but {image.version} is here")
        return records

    return decide


@dataclass
class Home:
    directories: LogDirectories
    metadata: LocalMetadata
    configs: ConfigManager
    topics: TopicManager
    actions: LoggedActions

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    async def register(self) -> None:
        ids = [it.directory_id for it in self.directories.directories]
        await self.metadata.register(
            registration(1, [ENDPOINT], epoch=self.image.version + 1, rack=None, directories=ids)
        )


@contextmanager
def home(
    *paths: Path, settings: dict[str, object] | None = None, snapshot_bytes: int = 1 << 20
) -> Iterator[Home]:
    """Opened on the directories, closed cleanly; an exception inside leaves it as a crash would."""
    directories = LogDirectories.open(paths, clock=ManualClock())
    try:
        metadata = LocalMetadata.open(directories, ManualClock(), snapshot_bytes=snapshot_bytes)
        configs = ConfigManager(metadata, BrokerConfig.from_values(settings or {}))
        topics = TopicManager(metadata, configs)
        yield Home(directories, metadata, configs, topics, LoggedActions(metadata, configs, topics))
    except BaseException:
        directories.abandon()
        raise
    directories.close()
