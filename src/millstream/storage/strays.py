"""Logs that were set aside because the metadata did not assign them to this broker.

    <log directory>/orders-2.0f6a...-stray/millstream-stray       when it was found, as properties
    <log directory>/millstream-metadata-version                   the newest metadata seen here

A stray is marked when it is first found, and deleted some time later. If it is found while the
metadata is older than the one this directory has seen, as after a restore from a backup, its mark
says to keep it: the metadata may lack a topic that nobody has deleted.

Crash rule: a mark is replaced as a whole; a stray without a readable one is kept until the next
start marks it. To delete a stray is to rename it like a deleted log, which the next start removes
too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from millstream.errors import StorageError
from millstream.storage import names
from millstream.storage.checkpoints import read_partition_metadata
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import read_file, replace_file

logger = logging.getLogger(__name__)

MARK = "millstream-stray"
METADATA_VERSION = "millstream-metadata-version"
UNKNOWN_VERSION = -1
_PARTITION = re.compile(r".*-(\d+)\.[0-9a-f]+-stray")


class Mark(NamedTuple):
    """When a stray was found, at which version of the metadata, and whether to keep it."""

    since_ms: int
    metadata_version: int
    is_kept: bool

    def encode(self) -> bytes:
        return (
            f"since.ms={self.since_ms}\n"
            f"metadata.version={self.metadata_version}\n"
            f"keep={'true' if self.is_kept else 'false'}\n"
        ).encode()

    @classmethod
    def decode(cls, content: bytes) -> Mark:
        """Raises `ValueError`."""
        fields = dict(line.split("=", 1) for line in content.decode().splitlines())
        try:
            since_ms, version = int(fields["since.ms"]), int(fields["metadata.version"])
            return cls(since_ms, version, fields["keep"] == "true")
        except KeyError as error:
            raise ValueError(f"no {error}") from None


class Stray(NamedTuple):
    directory: LogDirectory
    name: str

    @property
    def path(self) -> str:
        return f"{self.directory.path}/{self.name}"

    @property
    def topic_id(self) -> UUID | None:
        try:
            return read_partition_metadata(self.directory.fs, self.path)
        except StorageError:
            return None

    @property
    def partition(self) -> int | None:
        """None if its name was cut, because it was too long."""
        match = _PARTITION.fullmatch(self.name)
        return int(match[1]) if match else None

    def mark(self) -> Mark | None:
        try:
            return Mark.decode(read_file(self.directory.fs, f"{self.path}/{MARK}"))
        except (FileNotFoundError, ValueError):
            return None

    def write_mark(self, mark: Mark) -> None:
        replace_file(self.directory.fs, f"{self.path}/{MARK}", mark.encode())

    def delete(self) -> None:
        """Rename it; the next sweep removes it."""
        directory = self.directory
        name = self.name.removesuffix(names.STRAY_DIRECTORY_SUFFIX) + names.DELETE_DIRECTORY_SUFFIX
        path = f"{directory.path}/{name}"
        directory.fs.rename(self.path, path)
        directory.add_garbage(path)


def strays_in(directory: LogDirectory) -> Iterator[Stray]:
    fs = directory.fs
    for name in sorted(fs.listdir(directory.path)):
        stray = Stray(directory, name)
        if name.endswith(names.STRAY_DIRECTORY_SUFFIX) and fs.is_directory(stray.path):
            yield stray


def mark_strays(
    directory: LogDirectory, *, now_ms: int, metadata_version: int, is_kept: bool
) -> None:
    """Mark those that are not yet."""
    for stray in strays_in(directory):
        if stray.mark() is None:
            stray.write_mark(Mark(now_ms, metadata_version, is_kept))


def delete_strays(
    directory: LogDirectory,
    *,
    now_ms: int,
    metadata_version: int,
    delay_ms: int,
    is_assigned: Callable[[UUID, int | None], bool],
) -> None:
    """Delete those that were marked long enough ago. `is_assigned` tells whether this broker has
    a replica of a partition: such a stray is left to the operator."""
    for stray in strays_in(directory):
        mark = stray.mark()
        if mark is None or mark.is_kept or mark.metadata_version > metadata_version:
            continue
        if now_ms - mark.since_ms < delay_ms:
            continue
        topic_id = stray.topic_id
        if topic_id is not None and is_assigned(topic_id, stray.partition):
            continue
        logger.warning("deleting %s: set aside %d s ago", stray.path, _age(mark, now_ms))
        stray.delete()


def _age(mark: Mark, now_ms: int) -> int:
    return (now_ms - mark.since_ms) // 1000


def read_metadata_version(directory: LogDirectory) -> int:
    """The newest version that was seen with this directory, as far as it was noted."""
    try:
        return int(read_file(directory.fs, f"{directory.path}/{METADATA_VERSION}"))
    except (OSError, ValueError):
        return UNKNOWN_VERSION


def write_metadata_version(directory: LogDirectory, version: int) -> None:
    replace_file(directory.fs, f"{directory.path}/{METADATA_VERSION}", b"%d\n" % version)
