"""File names in a log directory: Kafka's, and a few of our own.

    <log directory>/
        meta.properties  .lock  .kafka_cleanshutdown
        recovery-point-offset-checkpoint  log-start-offset-checkpoint
        replication-offset-checkpoint  cleaner-offset-checkpoint
        millstream-journal-0  millstream-journal-1         ours; Kafka ignores them
        <topic>-<partition>/
            partition.metadata  leader-epoch-checkpoint
            <base offset, 20 digits>.log .index .timeindex .txnindex
            <offset, 20 digits>.snapshot
            <offset, 20 digits>.versions               ours
            moved.json                                 ours: it was moved here from elsewhere
        <topic>-<partition>.<32 hex digits>-delete/        being deleted
        <topic>-<partition>.<32 hex digits>-future/        being moved here

See docs/formats/data-directory.md.
"""

from __future__ import annotations

import re

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
VERSIONS_SUFFIX = ".versions"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SEGMENT_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)
JOURNALS = ("millstream-journal-0", "millstream-journal-1")

# In the data directory of workers, which contains a log directory for each (broker/workers/layout).
CLUSTER_DIRECTORY = "cluster"
WORKERS_DIRECTORY = "workers"
RESCALING = f"{CLUSTER_DIRECTORY}/rescaling.json"

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"
MOVED = "moved.json"

DELETE_DIRECTORY_SUFFIX = "-delete"
FUTURE_DIRECTORY_SUFFIX = "-future"
STRAY_DIRECTORY_SUFFIX = "-stray"

NAME_CHARACTERS_MAX = 255  # of a file or directory, as file systems go

_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
_FUTURE_DIRECTORY = re.compile(r"(.+)\.[0-9a-f]{32}" + FUTURE_DIRECTORY_SUFFIX)
_OFFSET_FILE = re.compile(r"(\d{20})(\.[a-z]+)")


def offset_file(directory: str, offset: int, suffix: str) -> str:
    return f"{directory}/{offset:020d}{suffix}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """(offset, suffix) of a segment's or snapshot's file; None for any other file."""
    match = _OFFSET_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def partition_directory(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def deleted_directory(topic: str, partition: int, unique: str) -> str:
    """What a log's directory is renamed to when it is deleted. Like Kafka, cuts a long name."""
    return _renamed_directory(topic, partition, f".{unique}{DELETE_DIRECTORY_SUFFIX}")


def stray_directory(topic: str, partition: int, unique: str) -> str:
    """What a log's directory is renamed to when it is set aside. Kafka does the same."""
    return _renamed_directory(topic, partition, f".{unique}{STRAY_DIRECTORY_SUFFIX}")


def future_directory(topic: str, partition: int, unique: str) -> str:
    """Where a log is copied to that is moved from another directory. Kafka does the same."""
    return _renamed_directory(topic, partition, f".{unique}{FUTURE_DIRECTORY_SUFFIX}")


def parse_future_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) of such a copy; None if its name was cut, and for any other directory."""
    match = _FUTURE_DIRECTORY.fullmatch(name)
    return parse_partition_directory(match[1]) if match else None


def _renamed_directory(topic: str, partition: int, suffix: str) -> str:
    return partition_directory(topic, partition)[: NAME_CHARACTERS_MAX - len(suffix)] + suffix


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a live log's directory; None for any other directory."""
    if name.endswith((DELETE_DIRECTORY_SUFFIX, FUTURE_DIRECTORY_SUFFIX, STRAY_DIRECTORY_SUFFIX)):
        return None
    match = _PARTITION_DIRECTORY.fullmatch(name)
    return (match[1], int(match[2])) if match else None
