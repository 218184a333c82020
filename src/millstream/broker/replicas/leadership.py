"""The state of a partition's leader: high watermark, last stable offset, waiting appends.

    log start ...... last stable offset ...... high watermark ......... log end
    |  visible to consumers that read committed   |
    |  visible to all consumers                         |  written, not visible yet  |

The high watermark counts flushed replicas. It is the smallest of

    the leader's own end  where the first append begins that waits for a flush, or else the log end.
                          acks=all appends wait for one, and those for which `flush.messages` asks;
                          other appends do not, unless they stand behind one that does
    the followers' ends   of the in-sync set, as their fetches report them. A follower flushes
                          before it fetches on, so its fetch offset is its flushed end

and it never moves back. So whatever a consumer has seen of an acks=all producer survives a power
cut of all in-sync replicas, and a member of the in-sync set that takes over has all of it. A lone
broker is an in-sync set of one.

While a change of the in-sync set is proposed and not decided, the members of both sets count. With
fewer in-sync replicas than `min.insync.replicas` (or than there are replicas, if that is less) the
high watermark stands still, and acks=all appends are refused.

The last stable offset is where the first transaction begins that is open, or whose end marker is
not below the high watermark yet: else a power cut could take back an end that a consumer has seen.
Without any, it is the high watermark.

There is no I/O here, no clock and no event loop: the caller says what happened, and a method that
returns true asks for a flush. What every append and flush does (`appended`, `flushed`) is compiled
and is in the base class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from millstream.broker._core import LeadershipCore
from millstream.broker.replicas.pending import ACKS_ALL, PendingAppend
from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode


class OpenTransactions(Protocol):
    @property
    def first_open_offset(self) -> int | None:
        """Start of the oldest open transaction."""


class LedLog(Protocol):
    """The leader's own log, as needed here."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def config(self) -> TopicConfig: ...
    @property
    def producers(self) -> OpenTransactions: ...


class EndedTransaction(NamedTuple):
    first_offset: int
    marker_offset: int


class Leadership(LeadershipCore):
    """One leader's state, from its election until it resigns. Calls `changed`, if it is set, when
    the high watermark or the last stable offset has moved."""

    __slots__ = (
        "_bytes_before",
        "_ended",
        "_follower_ends",
        "_holding_back",
        "_replica_count",
        "_uncommitted",
        "epoch_start_offset",
        "in_sync_followers",
    )

    def __init__(
        self,
        log: LedLog,
        *,
        epoch: int,
        high_watermark: int,
        changed: Callable[[], None] | None = None,
        in_sync_followers: frozenset[int] = frozenset(),
        replica_count: int = 1,
        ended: Iterable[EndedTransaction] = (),
    ) -> None:
        """`high_watermark` is the last one known to this replica; `ended` are the transactions
        whose end markers are not below it."""
        self._log = log
        self._changed = changed
        self.epoch = epoch
        self.epoch_start_offset = log.log_end_offset
        self.high_watermark = high_watermark
        self.last_stable_offset = high_watermark
        self.in_sync_followers = in_sync_followers
        self._replica_count = replica_count
        self.is_alone = replica_count == 1  # fast path for the common case
        self._follower_ends: dict[int, int] = {}  # those that have fetched in this epoch
        # The followers whose ends hold the high watermark back: of both sets during a change.
        self._holding_back = in_sync_followers
        # Appended since the start and below the one or the other: what fetch.min.bytes counts. Of
        # what was there before, every record counts as a byte.
        self._appended_bytes = log.log_end_offset - high_watermark
        self.visible_bytes = 0
        self.stable_bytes = 0
        self._unflushed = []  # these hold back the high watermark
        self._uncommitted: deque[PendingAppend] = deque()  # flushed here, wait for followers
        # They wait for what they duplicate: (the append, the flushed offset that it needs).
        self._duplicates = []
        self._is_held_back = False  # whether there are transactions, open or not durably ended
        # Those that ended in markers from the high watermark on, in their order.
        self._ended: deque[EndedTransaction] = deque(ended)
        # What had been appended when a transaction, open or among those, began at an offset.
        self._bytes_before: dict[int, int] = {}
        if log.flushed_offset < log.log_end_offset:
            # The acks of these appends are unknown, so all of them wait for a flush.
            self._unflushed.append(PendingAppend(log.flushed_offset, log.log_end_offset))
        self._find_stable()
        self._advance_to_committed_end()

    def continue_counting(self, before: Leadership) -> None:
        """Counters for metrics cover all leaderships of a partition."""
        self.records_in = before.records_in
        self.bytes_in = before.bytes_in
        self.appends = before.appends

    @property
    def in_sync_count(self) -> int:
        return 1 + len(self.in_sync_followers)

    @property
    def needs_flush(self) -> bool:
        """Whether something waits for a flush of the leader's log."""
        return bool(self._unflushed or self._duplicates)

    @property
    def waiting_count(self) -> int:
        """How many appends are not answered yet."""
        return len(self._unflushed) + len(self._uncommitted) + len(self._duplicates)

    @property
    def min_in_sync(self) -> int:
        """Effective `min.insync.replicas`: at most the number of replicas, as in Kafka."""
        return min(self._log.config.min_insync_replicas, self._replica_count)

    # Appending

    def _wait_for_followers(self, pending: PendingAppend, acks: int) -> None:
        if acks == ACKS_ALL:
            self._uncommitted.append(pending)
        else:
            pending.is_done = True
        self._advance_to_committed_end()

    def duplicated(self, duplicate: PendingAppend, *, acks: int, must_flush: bool) -> bool:
        """An earlier append was sent again: it is answered once it is as durable as asked."""
        end, waits_for_all = duplicate.next_offset, acks == ACKS_ALL
        must_flush = must_flush and end > self._log.flushed_offset
        if must_flush or (waits_for_all and end > self.high_watermark):
            duplicate.waits_for_all = waits_for_all
            self._duplicates.append((duplicate, end if must_flush else 0))
        else:
            duplicate.is_done = True
        return must_flush

    def check_in_sync(self) -> None:
        """Refuse an acks=all append if there are too few in-sync replicas."""
        if self.in_sync_count < self.min_in_sync:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.in_sync_count} of {self._replica_count} replicas are in sync, fewer than "
                f"the {self.min_in_sync} that min.insync.replicas asks for",
            )

    def _wait_for_commit(self, flushed: list[PendingAppend]) -> None:
        """These appends are flushed here, and wait for the followers."""
        self._uncommitted.extend(flushed)
        self._advance_to_committed_end()

    def _finish_duplicates(self) -> None:
        flushed_offset, high_watermark = self._log.flushed_offset, self.high_watermark
        waiting, self._duplicates = self._duplicates, []
        for duplicate, flush_needed in waiting:
            is_seen = not duplicate.waits_for_all or duplicate.next_offset <= high_watermark
            if is_seen and flush_needed <= flushed_offset:
                duplicate.finish()
            else:
                self._duplicates.append((duplicate, flush_needed))

    # Followers

    def fetched(self, follower: int, offset: int) -> None:
        """A follower, whose log agrees with ours so far, fetches from `offset` on: it has flushed
        everything before it."""
        self._follower_ends[follower] = offset
        if follower in self._holding_back:
            self._advance_to_committed_end()

    def may_join(self, follower: int) -> bool:
        """Whether a follower has all that is committed, and something of this epoch's start."""
        end = self._follower_ends.get(follower, -1)
        return end >= max(self.high_watermark, self.epoch_start_offset)

    def propose_in_sync(self, followers: frozenset[int]) -> None:
        """A new in-sync set is proposed; until that is decided, both sets count."""
        self._holding_back = self.in_sync_followers | followers

    def hold_back(self, followers: frozenset[int]) -> None:
        """Followers that count besides the in-sync ones: proposed, or about to join."""
        if followers != self._holding_back:
            self._holding_back = self.in_sync_followers | followers
            self._advance_to_committed_end()

    def set_in_sync(self, followers: frozenset[int], replica_count: int | None = None) -> None:
        """The in-sync set as it was decided, whether that was proposed from here or not; and how
        many replicas there are, if that has changed too."""
        self.in_sync_followers = self._holding_back = followers
        if replica_count is not None:
            self._replica_count = replica_count
            self.is_alone = replica_count == 1
        if self.in_sync_count < self.min_in_sync:
            self._fail_uncommitted()
        self._advance_to_committed_end()

    def withdraw_proposal(self) -> None:
        """The proposed in-sync set was refused."""
        self.set_in_sync(self.in_sync_followers)

    def _fail_uncommitted(self) -> None:
        """The high watermark stands still now, so that acks=all appends cannot be acknowledged."""
        waiting = [append for append in self._unflushed if append.waits_for_all]
        waiting += [*self._uncommitted, *(append for append, _ in self._duplicates)]
        # They still hold back the high watermark until they are flushed, but no request waits.
        for pending in self._unflushed:
            pending.waits_for_all = False
        self._uncommitted.clear()
        self._duplicates.clear()
        error = ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"written, but only {self.in_sync_count} replicas are in sync; min.insync.replicas "
            f"asks for {self.min_in_sync}",
        )
        for pending in waiting:
            pending.fail(error)

    def begin_epoch(self, epoch: int) -> None:
        """The same leader continues in a later epoch: followers report their ends again."""
        if epoch <= self.epoch:
            return
        self.epoch = epoch
        self.epoch_start_offset = self._log.log_end_offset
        self._follower_ends.clear()

    def replace_log(self, log: LedLog) -> None:
        """The same records, in another place."""
        self._log = log

    def follow(self, epoch: int, high_watermark: int) -> None:
        """This replica follows another leader, whose high watermark is at least this one. It moves
        back only if this log has been truncated below it."""
        self.epoch = epoch
        self._bytes_before.clear()
        while self._ended and self._ended[-1].marker_offset >= self._log.log_end_offset:
            self._ended.pop()  # truncated: the transaction is open again
        if high_watermark < self.high_watermark:
            self.high_watermark = high_watermark
            self._find_stable()
        elif high_watermark > self.high_watermark:
            self._is_held_back = True  # look for open transactions
            self._advance(high_watermark, self.visible_bytes + 1)

    def resign(self, error: ApiError) -> None:
        """Leadership is lost: fail all waiting appends."""
        waiting = [
            *self._uncommitted,
            *self._unflushed,
            *(append for append, _ in self._duplicates),
        ]
        self._uncommitted.clear()
        self._unflushed.clear()
        self._duplicates.clear()
        for pending in waiting:
            if not pending.is_done:
                pending.fail(error)

    def notify(self, changed: Callable[[], None] | None) -> None:
        """Call this from now on when the visible state has changed; None: nobody watches."""
        self._changed = changed

    # The high watermark

    def _advance_to_committed_end(self) -> None:
        """Advance the high watermark to the in-sync replicas, and complete waiting appends."""
        if self.in_sync_count < self.min_in_sync:
            return
        unflushed = self._unflushed
        end = unflushed[0].first_offset if unflushed else self._log.log_end_offset
        for follower in self._holding_back:
            end = min(end, self._follower_ends.get(follower, self.high_watermark))
        if end > self.high_watermark:
            visible_bytes = max(self._bytes_below(end), self.visible_bytes + 1)
            self._appended_bytes = max(self._appended_bytes, visible_bytes)
            self._advance(end, visible_bytes)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].next_offset <= self.high_watermark:
            uncommitted.popleft().finish()
        if self._duplicates:
            self._finish_duplicates()

    def _bytes_below(self, offset: int) -> int:
        """What was appended below an offset past the high watermark: exact where this leader
        remembers it, an estimate elsewhere, for a follower's end may be any."""
        log_end, unflushed = self._log.log_end_offset, self._unflushed
        if offset == log_end:
            return self._appended_bytes
        if unflushed and offset == unflushed[0].first_offset:
            return unflushed[0].bytes_before
        hidden_bytes = self._appended_bytes - self.visible_bytes
        share = hidden_bytes * (offset - self.high_watermark)
        return self.visible_bytes - (-share // (log_end - self.high_watermark))

    # Transactions

    def transaction_began(self, offset: int) -> None:
        """A transaction begins with the append at `offset`, which `appended` has not heard of."""
        self._bytes_before[offset] = self._appended_bytes
        self._is_held_back = True

    def transaction_ended(self, first_offset: int, marker_offset: int) -> None:
        """Its end marker is written; readers see that once it is below the high watermark."""
        self._ended.append(EndedTransaction(first_offset, marker_offset))

    @property
    def appended_bytes(self) -> int:
        """All that was appended since this leadership began."""
        return self._appended_bytes

    @property
    def ended(self) -> tuple[EndedTransaction, ...]:
        """Transactions whose end markers are not below the high watermark."""
        return tuple(self._ended)

    def log_start_moved(self) -> None:
        """Records were deleted from the front."""
        self._find_stable()
        if self._changed is not None:
            self._changed()

    def _find_stable(self) -> None:
        """Update the last stable offset from the transactions."""
        high_watermark, ended, bytes_before = self.high_watermark, self._ended, self._bytes_before
        while ended and ended[0].marker_offset < high_watermark:
            bytes_before.pop(ended.popleft().first_offset, None)
        first_open = self._log.producers.first_open_offset
        self._is_held_back = bool(ended) or first_open is not None
        unstable = [transaction.first_offset for transaction in ended]
        if first_open is not None:
            unstable.append(first_open)
        first = min(unstable, default=high_watermark)
        if first < high_watermark:
            self.last_stable_offset = max(first, self._log.log_start_offset)
            self.stable_bytes = min(bytes_before.get(first, 0), self.visible_bytes)
        else:
            self.last_stable_offset = high_watermark
            self.stable_bytes = self.visible_bytes
