"""This broker's copy of a partition, independent of its leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.records.batch import end_offset_of
from millstream.storage import lookup
from millstream.storage.file_range import FileRange

if TYPE_CHECKING:
    from millstream.storage.log import Log
    from millstream.storage.lookup import TimestampOffset
    from millstream.storage.transactions import AbortedTransaction


class Replica:
    """A log, its ends, and reading from it."""

    __slots__ = ("log",)

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def end_offset(self) -> int:
        """Where the next record goes."""
        return self.log.log_end_offset

    @property
    def flushed_end(self) -> int:
        """All below it is durable here: what a follower's fetch reports to its leader."""
        return self.log.flushed_offset

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, may_block: bool = False
    ) -> bytes | bytearray:
        """Whole batches from that offset on and below `end_offset`, at least one if there is any.

        Raises `ApiError(OFFSET_OUT_OF_RANGE)`, and `NotCached` unless it may block.
        """
        try:
            return self.log.read(
                offset, max_bytes=max_bytes, end_offset=end_offset, may_block=may_block
            )
        except CorruptBatch as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def read_to_send(
        self, offset: int, *, max_bytes: int, end_offset: int
    ) -> bytes | bytearray | FileRange:
        """As `read` without blocking; what can be sent from the file, at once, is not read."""
        try:
            return self.log.read_to_send(
                offset, max_bytes=max_bytes, end_offset=end_offset, may_send_file=True
            )
        except CorruptBatch as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def read_committed_to_send(
        self, offset: int, *, max_bytes: int, end_offset: int
    ) -> tuple[bytes | bytearray | FileRange, list[AbortedTransaction]]:
        """As `read_to_send`, with the aborted transactions in what was found."""
        log = self.log
        records = self.read_to_send(offset, max_bytes=max_bytes, end_offset=end_offset)
        if not records or not log.aborted_segments:
            return records, []
        end = records.end_offset if isinstance(records, FileRange) else end_offset_of(records)
        return records, lookup.aborted_transactions(log, offset, end, may_block=False)

    def read_committed(
        self, offset: int, *, max_bytes: int, end_offset: int, may_block: bool = False
    ) -> tuple[bytes | bytearray, list[AbortedTransaction]]:
        """As `read`, with the aborted transactions in what was read."""
        log = self.log
        while True:
            segments = log.segments
            records = self.read(
                offset, max_bytes=max_bytes, end_offset=end_offset, may_block=may_block
            )
            if not records or not log.aborted_segments:
                return records, []
            aborted = lookup.aborted_transactions(
                log, offset, end_offset_of(records), may_block=may_block
            )
            # In another thread, compaction or retention may have come between the two.
            if log.segments is segments:
                return records, aborted

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record as new or newer, or what a negative timestamp stands for.

        May read the disk; safe in any thread.
        """
        try:
            return lookup.offset_for_timestamp(self.log, timestamp_ms)
        except CorruptBatch as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
