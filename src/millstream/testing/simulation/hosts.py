"""A simulated host: a disk that outlives processes, and the logs of the process that runs.

The disk is a `MemoryFileSystem`, the logs are the broker's own. A flush takes time, and everything
that was appended meanwhile waits for the next one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from random import Random

from millstream.config.topic import TopicConfig
from millstream.records.batch import Buffer, iterate_headers
from millstream.storage.directories import LogDirectories
from millstream.storage.flush import GroupFlush
from millstream.storage.following import append_fetched, check_fetched
from millstream.storage.log import Log
from millstream.storage.steps import run_here
from millstream.storage.truncation import start_at, truncate
from millstream.testing.clock import ManualClock
from millstream.testing.filesystem import MemoryFileSystem
from millstream.testing.simulation.invariants import Invariants, Key

PATH = "/data"
CLUSTER_ID = "simulation-cluster-id0"
READ_MAX_BYTES = 1 << 20
FETCH_MAX_BYTES = 600  # so that followers need several fetches to catch up


class Disk:
    """The logs of a host, and what is reported about them."""

    def __init__(self, host_id: int, invariants: Invariants) -> None:
        self._host_id = host_id
        self._invariants = invariants
        self._clock = ManualClock(2_000)  # the records have timestamps of about this
        self._config = TopicConfig()
        self.fs = MemoryFileSystem()
        self.directories: LogDirectories | None = None
        self.delay_max_ms = 5

    def open(self) -> dict[Key, Log]:
        """Start: recover the logs."""
        self.fs.operations.clear()
        self.directories = LogDirectories.open(
            [PATH],
            node_id=self._host_id,
            cluster_id=CLUSTER_ID,
            config_for=lambda topic: self._config,
            fs=self.fs,
            clock=self._clock,
            recovery_threads=1,
        )
        logs: dict[Key, Log] = {}
        for log in self.directories.logs.values():
            if log.topic_id is not None:
                key = (log.topic_id, log.partition)
                logs[key] = log
                start = log.segments[0].base_offset
                self._invariants.recovered(self._host_id, key, stored(log), start=start)
        for key in self._invariants.logs_of(self._host_id):
            if key not in logs:  # it had no files yet
                self._invariants.recovered(self._host_id, key, b"")
        return logs

    def create(self, topic: str, key: Key) -> Log:
        assert self.directories is not None
        other = self.directories.logs.get((topic, key[1]))
        if other is not None:  # of the topic's predecessor: its id was never written
            self.directories.delete(topic, key[1])
        return self.directories.create(topic, key[1], key[0], self._config)

    def delete(self, log: Log) -> None:
        assert self.directories is not None
        self.directories.delete(log.topic, log.partition)
        self.directories.sweep()

    def append(self, key: Key, log: Log, records: Buffer, epoch: int) -> None:
        """As a leader: the log assigns offsets."""
        first = log.log_end_offset
        headers = [header for _, header in iterate_headers(records)]
        log.append(records, headers, leader_epoch=epoch, now_ms=0)
        self._invariants.appended(self._host_id, key, read(log, first))

    def append_fetched(
        self, key: Key, log: Log, records: Buffer, *, offset: int, epoch: int
    ) -> None:
        """As a follower: the batches of the leader, as they are."""
        fetched = check_fetched(records)
        append_fetched(log, fetched, fetch_offset=offset, leader_epoch=epoch, now_ms=0)
        self._invariants.appended(self._host_id, key, records)

    def truncate(self, key: Key, log: Log, offset: int, *, is_below_high_watermark: bool) -> None:
        run_here(truncate(log, offset))
        self._invariants.truncated(
            self._host_id,
            key,
            log.log_end_offset,
            is_below_high_watermark=is_below_high_watermark,
        )

    def wipe(self, key: Key, log: Log, start: int) -> None:
        run_here(start_at(log, start))
        self._invariants.wiped(self._host_id, key, start)

    def flush(self, logs: Iterable[tuple[Key, Log]]) -> Callable[[], None]:
        """A flush of what was appended so far; the result carries it out."""
        pairs = [(key, log) for key, log in logs if not log.is_deleted]
        ends = {key: log.log_end_offset for key, log in pairs}
        generations = {key: log.generation for key, log in pairs}
        flush = GroupFlush.prepare([log for _, log in pairs])

        def execute() -> None:
            flush.execute()
            flush.complete(0)
            for key, log in pairs:
                if not log.is_deleted and generations[key] == log.generation:
                    self._invariants.flushed(self._host_id, key, max(ends[key], 0))

        return execute

    def stop(self) -> None:
        """A clean stop."""
        assert self.directories is not None
        self.directories.close()
        self.directories = None

    def kill(self, *, cuts_power: bool, random: Random) -> None:
        """The process ends; a power cut also takes what was not synced, or some of it."""
        if cuts_power:
            self.fs.crash(random if random.random() < 0.7 else None)
        elif self.directories is not None:
            self.directories.abandon()
        self.directories = None


def read(log: Log, offset: int, max_bytes: int = READ_MAX_BYTES) -> bytes:
    end = log.log_end_offset
    if offset >= end:
        return b""
    return bytes(log.read(offset, max_bytes=max_bytes, end_offset=end, may_block=True))


def stored(log: Log) -> bytes:
    """All batches in the files, also those below the log's start."""
    return b"".join(
        bytes(segment.read_at(segment.size, 0, may_block=True))
        for segment in log.segments
        if segment.size
    )


def read_all(log: Log) -> bytes:
    parts = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = read(log, offset)
        parts.append(part)
        for _, header in iterate_headers(part):
            offset = header.next_offset
    return b"".join(parts)


def new_uuid(random: Random) -> uuid.UUID:
    return uuid.UUID(int=random.getrandbits(128))
