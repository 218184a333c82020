"""How a partition is read: up to the offsets that are visible, from the log or the archive.

`Partition` sets the attributes, and changes them with its role.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker._core import PartitionCore
from millstream.errors import ApiError, ErrorCode, NotCached
from millstream.records.batch import NO_LEADER_EPOCH
from millstream.storage.lookup import end_of_damage

if TYPE_CHECKING:
    from millstream.broker.replicas.archived import Archived
    from millstream.broker.replicas.replica import Replica
    from millstream.coordination.replication.follower import FollowerReplica
    from millstream.storage.file_range import FileRange
    from millstream.storage.lookup import TimestampOffset
    from millstream.storage.transactions import AbortedTransaction


class ReadablePartition(PartitionCore):
    """See the module. All calls from the event loop's thread, unless they say otherwise."""

    replica: Replica
    archive: Archived | None  # if its closed segments are archived
    following: FollowerReplica | None  # if another broker leads

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    @property
    def leader_epoch(self) -> int:
        return self.leadership.epoch

    @property
    def high_watermark(self) -> int:
        return self.leadership.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.leadership.last_stable_offset

    @property
    def visible_bytes(self) -> int:
        """Appended since the start and below the high watermark: what fetch.min.bytes counts."""
        return self.leadership.visible_bytes

    @property
    def stable_bytes(self) -> int:
        """As `visible_bytes`, below the last stable offset."""
        return self.leadership.stable_bytes

    # Reading

    def read(self, offset: int, *, max_bytes: int, may_block: bool = False) -> bytes | bytearray:
        """Whole batches from that offset on, at least one if any is visible.

        Raises `ApiError(OFFSET_OUT_OF_RANGE)`, and `NotCached` unless it may block.
        """
        if self.offline_error is not None and self.following is None:
            raise self.offline_error
        end_offset = self.leadership.high_watermark
        try:
            return self.replica.read(
                offset, max_bytes=max_bytes, end_offset=end_offset, may_block=may_block
            )
        except ApiError as error:
            archive = self._archive_for(offset, error)
        return self._read_archived(archive, offset, max_bytes, may_block=may_block)[0]

    def read_to_send(
        self, offset: int, *, max_bytes: int, committed: bool
    ) -> tuple[bytes | bytearray | FileRange, list[AbortedTransaction]]:
        """As `read` or, if `committed`, `read_committed` without blocking; what can be sent from
        the file, at once, is not read."""
        if self.offline_error is not None and self.following is None:
            raise self.offline_error
        leadership, replica = self.leadership, self.replica
        try:
            if committed:
                return replica.read_committed_to_send(
                    offset, max_bytes=max_bytes, end_offset=leadership.last_stable_offset
                )
            end_offset = leadership.high_watermark
            return replica.read_to_send(offset, max_bytes=max_bytes, end_offset=end_offset), []
        except ApiError as error:
            archive = self._archive_for(offset, error)
        return self._read_archived(archive, offset, max_bytes, may_block=False)

    def check_readable(self, *, may_follow: bool) -> None:
        """Raise `ApiError` if consumers cannot read here. Followers can be read up to the high
        watermark that they know of, by consumers that know where to go otherwise (KIP-392)."""
        if self.offline_error is not None and not (may_follow and self.following is not None):
            raise self.offline_error

    def end_of_damage(self, offset: int) -> int:
        """The next readable offset if the log is damaged at `offset`; otherwise `offset`.

        Reads the disk; safe in any thread.
        """
        try:
            self.read(offset, max_bytes=1, may_block=True)
        except ApiError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            return min(end_of_damage(self.log, offset), self.high_watermark)
        return offset

    def read_committed(
        self, offset: int, *, max_bytes: int, may_block: bool = False
    ) -> tuple[bytes | bytearray, list[AbortedTransaction]]:
        """As `read`, up to the last stable offset, with the aborted transactions in what was read:
        the client has to skip their records."""
        if self.offline_error is not None and self.following is None:
            raise self.offline_error
        try:
            return self.replica.read_committed(
                offset,
                max_bytes=max_bytes,
                end_offset=self.leadership.last_stable_offset,
                may_block=may_block,
            )
        except ApiError as error:
            archive = self._archive_for(offset, error)
        return self._read_archived(archive, offset, max_bytes, may_block=may_block)

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a client with a stale or unknown leader epoch."""
        if epoch == NO_LEADER_EPOCH or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {epoch} is over; {self.topic}-{self.index} is at "
                f"{self.leader_epoch}: refresh the metadata",
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {epoch} is not known here; {self.topic}-{self.index} is at "
            f"{self.leader_epoch}",
        )

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, its end offset) of the latest epoch up to the one asked for; -1, -1 if none."""
        if epoch == self.leader_epoch:  # nothing need have been written in it yet
            return epoch, self.log.log_end_offset
        return self.log.end_offset_for_epoch(epoch)

    def diverging_epoch(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """(epoch, end offset) at which the client's log diverges from ours; None if it agrees."""
        if last_fetched_epoch == NO_LEADER_EPOCH:
            return None
        epoch, end_offset = self.end_of_epoch(last_fetched_epoch)
        if epoch == NO_LEADER_EPOCH:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"leader epoch {last_fetched_epoch}, from which the client has read, is not known "
                f"in {self.topic}-{self.index}",
            )
        if epoch < last_fetched_epoch or end_offset < offset:
            return epoch, end_offset
        return None

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after the timestamp; negative timestamps are special.

        May read the disk; safe in any thread.
        """
        if self.offline_error is not None:
            raise self.offline_error
        return self.replica.offset_for_timestamp(timestamp_ms)

    # Archived records

    @property
    def start_offset(self) -> int:
        """Where consumers can begin: in the archive, or in the log."""
        start = self.log.log_start_offset
        archived = None if self.archive is None else self.archive.start_offset
        return start if archived is None else min(start, archived)

    @property
    def known_start_offset(self) -> int | None:
        """`start_offset`; None while it is not known what is archived."""
        if self.log.config.remote_storage_enable:
            archive = self.archive
            if archive is None or archive.leader_epoch != self.leader_epoch:
                return None
        return self.start_offset

    @property
    def archived_offset(self) -> int | None:
        """What is below it may be deleted and compacted; None if nothing has to be archived."""
        if not self.log.config.is_archived:
            return None
        archive = self.archive
        is_loaded = archive is not None and archive.leader_epoch == self.leader_epoch
        return archive.deletable_offset if archive is not None and is_loaded else 0

    def is_below_log(self, offset: int) -> bool:
        """Whether the offset can only be in the archive."""
        return offset < self.log.log_start_offset and self.log.config.remote_storage_enable

    def check_archive(self) -> None:
        """Raise `ApiError` if it is not known what is archived: clients ask again."""
        if self.known_start_offset is None:
            raise ApiError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"the archive of {self!r} is not loaded yet"
            )

    def _archive_for(self, offset: int, error: ApiError) -> Archived:
        """The archive, if it starts at or before the offset, which the log does not have; else
        raises the error. Only leaders read it: a consumer that a follower refuses asks the leader
        (KIP-392)."""
        is_missing = error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self.is_below_log(offset)
        if not is_missing or self.following is not None:
            raise error
        self.check_archive()
        archive = self.archive
        assert archive is not None
        start = archive.start_offset
        if start is None or offset < start:
            raise error
        return archive

    def _read_archived(
        self, archive: Archived, offset: int, max_bytes: int, *, may_block: bool
    ) -> tuple[bytes | bytearray, list[AbortedTransaction]]:
        if not may_block:
            raise NotCached(f"offset {offset} of {self!r} is archived")
        records, aborted = archive.read(offset, max_bytes)
        if records:
            return records, aborted
        # Nothing is left up to the end of the archive, or of what was deleted while copying was
        # disabled: continue with the log.
        return self.replica.read_committed(
            self.log.log_start_offset,
            max_bytes=max_bytes,
            end_offset=self.leadership.last_stable_offset,
            may_block=may_block,
        )
