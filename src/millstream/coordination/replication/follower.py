"""A follower of a replicated partition: what to fetch, and what to do with the answer.

    follower = FollowerReplica(leader_epoch, epochs, start=..., end=..., flushed_end=..., ...)

    follower.next_fetch()              -> FetchPosition, or None while it has to wait
    follower.answered(asked, answer)   -> one effect, which the caller carries out:
        Append(records)       append the batches as they are; then `appended(end)`, flush all
                              partitions of the answer at once, and `flushed(end)`
        Truncate(offset)      cut the log there; then `truncated(end)`
        AskOffsets()          ask the leader for its start and end; then `offsets(...)`, which
                              returns Truncate, Wipe or Retry
        Wipe(start_offset)    delete all records and start there; then `wiped(start_offset)`
        Retry(error)          ask again after a pause, or when the metadata has changed
        Continue()            nothing to do; fetch again
        Ignore()              the answer is not for what this follower is now

The fetch offset is the flushed end, so the leader may count all below it as durable here; while
something is not flushed, or an effect is under way, there is nothing to fetch. An answer counts
only if this follower is still in the epoch and at the offset that was asked for.

A follower truncates where its log leaves the leader's by leader epochs, never to its high
watermark (KIP-101, KIP-279): that lags behind, and a record above it may be committed.
A new leader epoch is a new `FollowerReplica`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from millstream.errors import ErrorCode
from millstream.records.batch import Buffer

NO_EPOCH = -1


class FetchPosition(NamedTuple):
    """The fields of a fetch."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int  # of the last record before the offset; -1: none
    log_start_offset: int


class FetchAnswer(NamedTuple):
    """What a leader answers for one partition."""

    error: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: tuple[int, int] | None = None  # (epoch, end of that epoch)
    records: Buffer = b""


class Append(NamedTuple):
    records: Buffer


class Truncate(NamedTuple):
    offset: int
    is_below_high_watermark: bool  # committed records are lost: after an unclean election only


class Wipe(NamedTuple):
    start_offset: int


class AskOffsets(NamedTuple):
    pass


class Retry(NamedTuple):
    error: int


class Continue(NamedTuple):
    pass


class Ignore(NamedTuple):
    pass


Effect: TypeAlias = Append | Truncate | Wipe | AskOffsets | Retry | Continue | Ignore

_CONTINUE, _IGNORE, _ASK_OFFSETS = Continue(), Ignore(), AskOffsets()


class EpochHistory(Protocol):
    """The leader epochs of this replica's log."""

    def epoch_of(self, offset: int) -> int: ...

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch that is at most `epoch`, its end), or (-1, -1)."""


class FollowerReplica:
    """A follower in one leader epoch. See the module."""

    __slots__ = (
        "_epochs",
        "_is_busy",
        "_leader_high_watermark",
        "end",
        "flushed_end",
        "high_watermark",
        "leader_epoch",
        "leader_start",
        "start",
    )

    def __init__(
        self,
        leader_epoch: int,
        epochs: EpochHistory,
        *,
        start: int,
        end: int,
        flushed_end: int,
        high_watermark: int,
    ) -> None:
        self.leader_epoch = leader_epoch
        self._epochs = epochs
        self.start = start  # of the log
        self.leader_start = start  # of the leader's: older records may be deleted here too
        self.end = end
        self.flushed_end = flushed_end
        self.high_watermark = min(high_watermark, end)
        self._leader_high_watermark = self.high_watermark
        self._is_busy = False  # an effect is being carried out

    @property
    def is_behind(self) -> bool:
        """Whether its leader has committed records that it does not have, as far as it knows."""
        return self.end < self._leader_high_watermark

    def next_fetch(self) -> FetchPosition | None:
        """What to ask the leader for; None while something is to be flushed or carried out."""
        end = self.end
        if self._is_busy or self.flushed_end < end:
            return None
        last_epoch = self._epochs.epoch_of(end - 1) if end > self.start else NO_EPOCH
        return FetchPosition(end, self.leader_epoch, last_epoch, self.start)

    def answered(self, asked: FetchPosition, answer: FetchAnswer) -> Effect:
        """The leader's answer to what was asked for."""
        if self._is_busy or asked.leader_epoch != self.leader_epoch or asked.offset != self.end:
            return _IGNORE
        if answer.error:
            return self._failed(answer.error)
        if answer.diverging is not None:
            return self._diverged(*answer.diverging)
        # Its offsets count only together with records that agree.
        self._leader_high_watermark = max(self._leader_high_watermark, answer.high_watermark)
        self.leader_start = max(self.leader_start, answer.log_start_offset)
        if answer.records:
            self._is_busy = True
            return Append(answer.records)
        self._raise_high_watermark()
        return _CONTINUE

    def offsets(self, asked: FetchPosition, start: int, end: int) -> Effect:
        """The leader's log has these ends; the fetch offset was outside."""
        if self._is_busy or asked.leader_epoch != self.leader_epoch or asked.offset != self.end:
            return _IGNORE
        if end < self.end:
            return self._truncate(end)
        if start > self.end:
            self._is_busy = True
            return Wipe(start)
        return Retry(int(ErrorCode.OFFSET_OUT_OF_RANGE))  # it has moved meanwhile

    # Outcomes of effects

    def appended(self, end: int) -> None:
        """What was fetched is in the log, which ends at `end` now."""
        self.end = end
        self._is_busy = False
        self._raise_high_watermark()

    def append_failed(self) -> None:
        """Nothing was appended: the records were damaged or did not fit. They are fetched again."""
        self._is_busy = False

    def flushed(self, end: int) -> None:
        """All below `end` is durable."""
        self.flushed_end = end

    def truncated(self, end: int) -> None:
        """The log ends at `end` now, all of it durable."""
        self.end = self.flushed_end = end
        self.start = min(self.start, end)
        self.high_watermark = min(self.high_watermark, end)
        self._leader_high_watermark = self.high_watermark
        self._is_busy = False

    def wiped(self, start_offset: int) -> None:
        """The log is empty and starts at `start_offset`, durably."""
        self.start = self.end = self.flushed_end = start_offset
        self.high_watermark = self._leader_high_watermark = start_offset
        self._is_busy = False

    def start_moved(self, start_offset: int) -> None:
        """Records were deleted from the front."""
        self.start = start_offset

    # Inside

    def _failed(self, error: int) -> Effect:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return _ASK_OFFSETS
        return Retry(error)

    def _diverged(self, epoch: int, end: int) -> Effect:
        """The leader's last epoch up to ours is `epoch`, and ends at `end`."""
        if end < 0:
            return _ASK_OFFSETS
        own_epoch, own_end = self._epochs.end_offset_for(epoch, self.end)
        if own_epoch < 0:
            return self._truncate(end)  # all of our log is newer than that epoch
        if own_epoch != epoch:
            # We never had that epoch: what we have of later ones goes, and we ask again.
            return self._truncate(own_end)
        return self._truncate(min(own_end, end))

    def _truncate(self, offset: int) -> Effect:
        offset = min(offset, self.end)
        self._is_busy = True
        if offset < self.start:  # nothing of this log is left
            return Wipe(offset)
        return Truncate(offset, offset < self.high_watermark)

    def _raise_high_watermark(self) -> None:
        self.high_watermark = max(self.high_watermark, min(self._leader_high_watermark, self.end))
