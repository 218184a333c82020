"""The small text files of a log directory, in Kafka's formats.

Offset checkpoints (`recovery-point-`, `log-start-`, `replication-` and `cleaner-offset-checkpoint`,
one per log directory), and `leader-epoch-checkpoint` (one per log):

    0                    version
    2                    number of entries
    orders 0 1042        topic, partition, offset       (epochs: leader epoch, start offset)
    orders 1 977

`meta.properties`: version, node.id, cluster.id, directory.id. `partition.metadata`: version and
topic id. `.kafka_cleanshutdown`: JSON with the broker epoch; there only between a clean stop and
the next start.

All are replaced as a whole (write beside, sync, rename, sync the directory): a crash leaves the old
or the new. Invalid content raises `StorageError`; the caller handles it (lost recovery points:
everything is scanned).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

from millstream.errors import StorageError
from millstream.partitions import TopicPartition
from millstream.storage import names
from millstream.storage.filesystem import FileSystem, read_file, replace_file, write_fully

VERSION = 0
UUID_CHARACTERS = 22


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint; none if there is no such file."""
    offsets = {}
    for fields in _read_entries(fs, path, fields_per_entry=3):
        offsets[fields[0], int(fields[1])] = int(fields[2])
    return offsets


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _encode_entries(
        f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()
    )


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    replace_file(fs, path, encode_offsets(offsets))


def read_epochs(fs: FileSystem, path: str) -> list[tuple[int, int]]:
    """(leader epoch, start offset) pairs; none if there is no such file."""
    return [
        (int(epoch), int(offset)) for epoch, offset in _read_entries(fs, path, fields_per_entry=2)
    ]


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return _encode_entries(f"{epoch} {offset}" for epoch, offset in epochs)


def _encode_entries(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return ("\n".join([str(VERSION), str(len(lines)), *lines]) + "\n").encode()


def _read_entries(fs: FileSystem, path: str, *, fields_per_entry: int) -> list[list[str]]:
    try:
        text = read_file(fs, path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is not a checkpoint: {error}") from None
    if not text.strip():
        return []  # Kafka creates the file empty, and fills it later
    lines = text.splitlines()
    if lines[0].strip() != str(VERSION):
        raise StorageError(
            f"{path} has checkpoint version {lines[0]!r}; only {VERSION} is supported"
        )
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(lines) < 2 or lines[1].strip() != str(len(entries)):
        raise StorageError(f"{path} has a wrong number of entries")
    for fields in entries:
        if len(fields) != fields_per_entry or not all(
            field.removeprefix("-").isdigit() for field in fields[-2:]
        ):
            raise StorageError(f"{path} has a malformed entry: {' '.join(fields)!r}")
    return entries


def encode_uuid(value: UUID) -> str:
    """An id in Kafka's format: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError:
        raise StorageError(f"{text!r} is not an id in Kafka's base64 (22 characters)") from None


def random_uuid() -> UUID:
    """A random id that Kafka accepts: like Kafka's, it never starts with '-'."""
    while True:
        value = uuid4()
        if not encode_uuid(value).startswith("-"):
            return value


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The node and cluster of a directory."""

    node_id: int
    cluster_id: str
    directory_id: UUID


def read_meta_properties(fs: FileSystem, directory: str) -> MetaProperties | None:
    path = f"{directory}/{names.META_PROPERTIES}"
    try:
        text = read_file(fs, path).decode()
    except FileNotFoundError:
        return None
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")
    # Java escapes these two in properties files.
    properties = {
        key.strip(): value.strip().replace("\\=", "=").replace("\\:", ":") for key, value in pairs
    }
    try:
        return MetaProperties(
            node_id=int(properties["node.id"]),
            cluster_id=properties["cluster.id"],
            directory_id=decode_uuid(properties["directory.id"]),
        )
    except (KeyError, ValueError) as error:
        raise StorageError(
            f"{path} is not the meta.properties of a Kafka 4 log directory: {error!r}"
        ) from None


def write_meta_properties(fs: FileSystem, directory: str, meta: MetaProperties) -> None:
    text = (
        "#\n"
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={encode_uuid(meta.directory_id)}\n"
        f"node.id={meta.node_id}\n"
        "version=1\n"
    )
    replace_file(fs, f"{directory}/{names.META_PROPERTIES}", text.encode())


def read_partition_metadata(
    fs: FileSystem, directory: str, *, from_disk: bool = False
) -> UUID | None:
    """The topic id of a log; None if the file is missing or torn.

    `from_disk`: a sync of it may have failed, after which the page cache has more than the disk.
    """
    path = f"{directory}/{names.PARTITION_METADATA}"
    try:
        if from_disk:
            fd = fs.open(path)
            try:
                fs.drop_cache(fd)
            finally:
                fs.close(fd)
        text = read_file(fs, path).decode()
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    topic_id = fields.get("topic_id", "").strip()
    version = fields.get("version", "")
    if len(topic_id) < UUID_CHARACTERS and version in ("", "0"):
        return None  # torn: the log was created just before a crash, with nothing acknowledged
    if version != "0":
        raise StorageError(f"{path} is not a partition.metadata of version 0: {text!r}")
    return decode_uuid(topic_id)


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def write_partition_metadata(fs: FileSystem, directory: str, topic_id: UUID) -> None:
    """Not durable: the first flush of the log syncs it."""
    fd = fs.open(f"{directory}/{names.PARTITION_METADATA}", create=True)
    try:
        # Of the same length whatever the id, so that nothing of an older file is left.
        write_fully(fs, fd, (encode_partition_metadata(topic_id),), 0)
    finally:
        fs.close(fd)


def write_clean_shutdown(fs: FileSystem, directory: str, broker_epoch: int) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(fs, f"{directory}/{names.CLEAN_SHUTDOWN}", text.encode())


def take_clean_shutdown(fs: FileSystem, directory: str) -> bool:
    """Whether the last stop was clean. Durably removes the marker."""
    path = f"{directory}/{names.CLEAN_SHUTDOWN}"
    if not fs.exists(path):
        return False
    fs.unlink(path)
    fs.sync_directory(directory)
    return True
