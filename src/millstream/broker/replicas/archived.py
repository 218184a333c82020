"""The archive of a partition, as the partition uses it; `broker/archiving` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.config.excised import OffsetRanges
    from millstream.storage.lookup import TimestampOffset
    from millstream.storage.transactions import AbortedTransaction


class Archived(Protocol):
    """What is archived of a partition. Methods that read block, and are safe in any thread."""

    @property
    def leader_epoch(self) -> int:
        """The epoch for which the manifest was loaded; -1: not yet."""

    @property
    def start_offset(self) -> int | None:
        """The first archived offset; None if nothing is archived."""

    @property
    def end_offset(self) -> int:
        """All below it that the log had is archived."""

    @property
    def deletable_offset(self) -> int:
        """What the log has below it may be deleted: the archive has it too."""

    @property
    def problem(self) -> str | None:
        """Why nothing is archived at the moment."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last archived record; -1 if there is none."""

    def read(
        self, offset: int, max_bytes: int
    ) -> tuple[bytes | bytearray, list[AbortedTransaction]]:
        """Whole batches from that offset on, and the aborted transactions in them; nothing if
        there are no more. Raises `ApiError`."""

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> TimestampOffset | None:
        """The first record at or after the time, if it is below `end_offset`. Raises `ApiError`."""

    def max_timestamp(self, end_offset: int) -> int:
        """The largest timestamp in files that begin below `end_offset`; -1 if there is none."""

    def move_start(self, offset: int) -> None:
        """Records before the offset were deleted. The caller has it saved."""

    def is_excised(self, setting: tuple[str, ...], offsets: OffsetRanges) -> bool:
        """Whether no file has records at these offsets, which the topic's setting names."""
