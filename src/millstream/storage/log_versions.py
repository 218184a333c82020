"""Whether a log has the versions of its keys, and the snapshot of them. See `versions.py`."""

from __future__ import annotations

from contextlib import suppress

from millstream.config.topic import VERSION_OF_KEY, TopicConfig
from millstream.records.batch import BatchHeader
from millstream.records.record import ControlType, decode_end_transaction
from millstream.storage import names
from millstream.storage._core import VersionTable
from millstream.storage.directory import LogDirectory
from millstream.storage.lifetime import LogLifetime


class LogVersions(LogLifetime):
    """The versions of a log's keys, if its topic wants them and they are known."""

    __slots__ = ("config", "path", "version_snapshot")

    def __init__(
        self, directory: LogDirectory, topic: str, partition: int, config: TopicConfig
    ) -> None:
        super().__init__(directory, topic, partition)
        self.config = config
        self.path = directory.log_path(topic, partition)
        self.versions = None
        self.version_snapshot: int | None = None  # the offset of the newest one

    @property
    def needs_versions(self) -> bool:
        """Whether the versions of its keys are to be read before anything can be appended."""
        return (
            self.versions is None
            and self.config.millstream_conditional_append == VERSION_OF_KEY
            and not self.is_deleted
        )

    def match_versions(self) -> None:
        """Begin with the versions of no keys if the log is empty; forget all, also on the disk, if
        its topic does not want them: the log may change unnoticed."""
        if self.config.millstream_conditional_append == VERSION_OF_KEY:
            if self.versions is None and self.log_start_offset == self.log_end_offset:
                self.versions = VersionTable()
            return
        self.versions = None
        if self.version_snapshot is not None:
            try:
                self.drop_version_snapshot()
            except OSError as error:
                raise self.storage_error("forget the versions of", error) from error

    def drop_version_snapshot(self) -> None:
        """Remove the snapshot of the versions."""
        if self.version_snapshot is not None:
            path = names.offset_file(self.path, self.version_snapshot, names.VERSIONS_SUFFIX)
            with suppress(FileNotFoundError):
                self.directory.fs.unlink(path)
            self.version_snapshot = None

    def end_transaction_of_versions(self, header: BatchHeader, batch: memoryview) -> None:
        """Release the keys that a transaction holds, when its marker is appended."""
        if self.versions is not None:
            marker = decode_end_transaction(batch)
            if marker is not None:
                self.versions.end_transaction(header.producer_id, marker[0] is ControlType.COMMIT)
