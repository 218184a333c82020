"""Logs in a faulty filesystem, for the tests of storage: open, append, flush, crash, reopen."""

from __future__ import annotations

from random import Random
from uuid import UUID, uuid5

from millstream.config.topic import TopicConfig
from millstream.errors import DirectoryFailed
from millstream.records.batch import iterate_headers, parse_header
from millstream.records.record import Record, decode_batch, encode_batch
from millstream.storage import retention
from millstream.storage.directories import LogDirectories
from millstream.storage.flush import GroupFlush
from millstream.storage.log import Appended, Log
from millstream.storage.steps import run_here
from millstream.storage.truncation import truncate
from millstream.testing.clock import ManualClock
from millstream.testing.filesystem import MemoryFileSystem

DATA = "/data"
TOPIC = "orders"
NAMESPACE = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def topic_id(topic: str = TOPIC) -> UUID:
    return uuid5(NAMESPACE, topic)


def make_batch(
    *values: bytes,
    timestamp: int = 1_700_000_000_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch with one record per value, a millisecond apart."""
    records = [Record(i, timestamp + i, None, value, ()) for i, value in enumerate(values)]
    return encode_batch(
        records,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=transactional,
    )


class Store:
    """One broker's storage on a filesystem in memory."""

    def __init__(
        self,
        *,
        config: TopicConfig | None = None,
        paths: tuple[str, ...] = (DATA,),
        fs: MemoryFileSystem | None = None,
    ) -> None:
        self.fs = fs or MemoryFileSystem()
        self.clock = ManualClock()
        self.config = config or TopicConfig()
        self.paths = paths
        self.topic_ids: dict[tuple[str, int], UUID] = {}  # of logs that were deleted once
        self.directories = self._open()

    def _open(self) -> LogDirectories:
        directories = LogDirectories.open(
            self.paths,
            fs=self.fs,
            clock=self.clock,
            config_for=lambda topic: self.config,
            recovery_threads=1,
        )
        for name, wanted in self.topic_ids.items():
            if name in directories.logs and directories.logs[name].topic_id != wanted:
                directories.delete(*name)  # as the broker does at its start
        return directories

    def reopen(self) -> None:
        """Start again; once more if a fault that was waiting hits the start itself."""
        try:
            self.directories = self._open()
        except DirectoryFailed:
            self.fs.heal()
            self.directories = self._open()

    def log(self, partition: int = 0, topic: str = TOPIC) -> Log:
        found = self.directories.logs.get((topic, partition))
        if found is None:
            wanted = self.topic_ids.get((topic, partition), topic_id(topic))
            found = self.directories.create(topic, partition, wanted, self.config)
        return found

    def append(
        self, *values: bytes, partition: int = 0, epoch: int = 0, timestamp: int | None = None
    ) -> Appended:
        when = self.clock.now_ms() if timestamp is None else timestamp
        return self.append_batch(
            make_batch(*values, timestamp=when), partition=partition, epoch=epoch
        )

    def append_batch(self, batch: bytes, *, partition: int = 0, epoch: int = 0) -> Appended:
        """As a leader does: the compiled step, or the general path if that declines.

        But the sequences of idempotent producers are not checked.
        """
        if parse_header(batch).producer_id < 0:
            log = self.log(partition)
            first_offset = log.append_small(batch, epoch, self.clock.now_ms())
            if first_offset >= 0:
                return Appended(first_offset, log.log_end_offset)
        return self.append_general(batch, partition=partition, epoch=epoch)

    def append_general(self, batch: bytes, *, partition: int = 0, epoch: int = 0) -> Appended:
        headers = [header for _, header in iterate_headers(batch)]
        log = self.log(partition)
        return log.append(batch, headers, leader_epoch=epoch, now_ms=self.clock.now_ms())

    def flush(self, *partitions: int, to_segments: bool = False) -> list[Log]:
        """Returns the logs whose directory failed."""
        logs = [self.log(partition) for partition in partitions or (0,)]
        flush = GroupFlush.prepare(logs, to_segments=to_segments)
        flush.execute()
        return flush.complete(self.clock.now_ms())

    def crash(self, seed: int | None = None) -> None:
        """Cut the power and start again."""
        self.fs.crash(None if seed is None else Random(seed))
        self.directories = self._open()

    def kill(self) -> None:
        """End the process without a word and start again: what was written is still there."""
        self.directories.abandon()
        self.reopen()

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.directories.close()
        self.directories = self._open()

    def files(self, suffix: str = "") -> dict[str, bytes]:
        """Path and content of every file that ends so."""
        found: dict[str, bytes] = {}
        waiting = list(self.paths)
        while waiting:
            directory = waiting.pop()
            for name in self.fs.listdir(directory):
                path = f"{directory}/{name}"
                if self.fs.is_directory(path):
                    waiting.append(path)
                elif path.endswith(suffix):
                    fd = self.fs.open(path)
                    found[path] = self.fs.pread(fd, self.fs.size(fd), 0)
                    self.fs.close(fd)
        return found


def read_all(log: Log, offset: int | None = None, *, max_bytes: int = 1_000_000) -> list[Record]:
    """Every record from `offset`, or the log's start, on."""
    records: list[Record] = []
    position = log.log_start_offset if offset is None else offset
    while position < log.log_end_offset:
        data = log.read(
            position, max_bytes=max_bytes, end_offset=log.log_end_offset, may_block=True
        )
        if not data:
            break
        for at, header in iterate_headers(data):
            batch = data[at : at + header.size_bytes]
            records += [record for record in decode_batch(batch) if record.offset >= position]
            next_offset = header.next_offset
        position = next_offset
    return records


def truncate_to(log: Log, offset: int) -> None:
    """Cut the log's end; blocks."""
    run_here(truncate(log, offset))


def apply_retention(log: Log, now_ms: int) -> int:
    """Returns the number of bytes that were removed."""
    return run_here(retention.apply(log, now_ms))
