"""One partition under a backlog policy: measures the backlog, admits or stops producers.

It implements `Admission` (replicas/admission.py) for hold and reject. The monitor measures at its
intervals. In between, producers are admitted until they have appended what was left of the bound;
then the backlog is measured again, at once. So the bound is exact to one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.backlog.state import (
    UNLIMITED_ROOM,
    Backlog,
    ChangeLog,
    GroupActivity,
    PartitionState,
    Position,
    slowest,
)
from millstream.config.topic import HOLD, NO_BOUND
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.records.batch import NO_TIMESTAMP
from millstream.storage.distance import bytes_between, timestamp_at

if TYPE_CHECKING:
    from millstream.broker.backlog.counters import BacklogCounters
    from millstream.broker.replicas.partition import Partition
    from millstream.clock import Clock
    from millstream.config.backlog import BacklogPolicy
    from millstream.storage.log import Log

logger = logging.getLogger("millstream.backlog")

# Called with a topic and a partition.
PositionsOf = Callable[[str, int], list[Position]]

_VERBS = {"hold": "holds producers", "reject": "rejects producers", "drop": "drops records"}


class Span(NamedTuple):
    """What the slowest group has not read, as offsets."""

    position: Position
    end: int


class Measured(NamedTuple):
    size_bytes: int
    timestamp_ms: int  # of the oldest unread record; NO_TIMESTAMP: not needed, or not known


class Watch:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        partition: Partition,
        policy: BacklogPolicy,
        activity: GroupActivity,
        positions_of: PositionsOf,
        counters: BacklogCounters,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.state = PartitionState(policy)
        self.activity = activity
        self._positions_of = positions_of
        self._counters = counters
        self._clock = clock
        self._change_log = ChangeLog()
        self._room_ends = 0  # in bytes that the leader has appended; first it is measured
        self._counted_by = partition.leadership  # these bytes; another one begins at 0
        self._closed_by = ""  # the slowest group when producers were stopped last
        self._is_stopped = False
        self._dated: tuple[int, int] | None = None  # offset and timestamp that were read last
        self._waiters: dict[Callable[[], None], None] = {}  # in order

    @property
    def policy(self) -> BacklogPolicy:
        return self.state.policy

    def change_policy(self, policy: BacklogPolicy) -> None:
        """Another policy of the same kind; it is measured by the next update."""
        self.state.policy = policy
        self._room_ends = 0

    # Measuring

    def span(self) -> Span | None:
        """What the slowest group that counts has not read; None if there is nothing."""
        partition = self.partition
        now_ms = self._clock.now_ms()
        counted = []
        for position in self._positions_of(partition.topic, partition.index):
            self.activity.saw(partition.index, position, now_ms)
            if self.activity.counts(position.group, self.policy.idle_ms, now_ms):
                counted.append(position)
        end = self._end()
        found = slowest(counted, partition.log_start_offset, end)
        return None if found is None else Span(found, end)

    def _end(self) -> int:
        """The end of what consumers can read, or will in a moment: of all that is appended, unless
        a transaction is open. It cannot be ended if its own records hold its producer."""
        log = self.partition.log
        first_open = log.producers.first_open_offset
        return log.log_end_offset if first_open is None else first_open

    def measure(self, span: Span, *, may_block: bool) -> Measured:
        """Raises `NotCached` unless it may block, which it may in any thread."""
        offset, log = span.position.offset, self.partition.log
        size = bytes_between(log, offset, span.end, may_block=may_block)
        return Measured(size, self._timestamp(log, offset, may_block=may_block))

    def _timestamp(self, log: Log, offset: int, *, may_block: bool) -> int:
        if self.policy.age_ms_max == NO_BOUND:
            return NO_TIMESTAMP
        if self._dated is None or self._dated[0] != offset:
            found = timestamp_at(log, offset, may_block=may_block)
            self._dated = offset, NO_TIMESTAMP if found is None else found
        return self._dated[1]

    def update(self, span: Span | None, measured: Measured | None) -> None:
        """Apply the policy to what was measured, and let producers continue."""
        self._apply(span, measured)
        self._release()

    def _apply(self, span: Span | None, measured: Measured | None) -> None:
        backlog = None
        if span is not None and measured is not None:
            dated = measured.timestamp_ms
            age_ms = 0 if dated == NO_TIMESTAMP else max(self._clock.now_ms() - dated, 0)
            backlog = Backlog(
                span.position.group, span.position.offset, measured.size_bytes, age_ms
            )
        has_changed = self.state.update(backlog)
        if backlog is not None and self.state.is_over:
            self._closed_by = backlog.group
        self._counted_by = self.partition.leadership
        self._room_ends = self._counted_by.appended_bytes + self.state.room_bytes
        self._log_change(has_changed)

    def _measure_now(self) -> None:
        span = self.span()
        try:
            self._apply(span, None if span is None else self.measure(span, may_block=False))
        except MillstreamError:  # the monitor will measure it in a thread
            self._counted_by = self.partition.leadership
            self._room_ends = UNLIMITED_ROOM

    # Admission

    @property
    def holds(self) -> bool:
        return self.policy.kind == HOLD

    def is_open(self) -> bool:
        if self.state.is_over:
            return False
        leadership = self.partition.leadership
        if leadership is self._counted_by and leadership.appended_bytes < self._room_ends:
            return True
        if self._is_stopped:
            return True
        self._measure_now()
        return not self.state.is_over

    def refusal(self) -> ApiError:
        name = f"{self.partition.topic}-{self.partition.index}"
        backlog = self.state.backlog
        if not self.holds:
            if backlog is not None:
                self._counters.rejected[self.partition.topic, backlog.group] += 1
            return ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{name} rejects records (millstream.backlog.policy=reject): {self.reason()}",
            )
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{name} holds producers (millstream.backlog.policy=hold): {self.reason()}. Retry",
        )

    def reason(self) -> str:
        """Who is behind and by how much."""
        backlog, policy = self.state.backlog, self.policy
        if backlog is None:
            return "no group is behind"
        bounds = []
        if policy.bytes_max != NO_BOUND:
            bounds.append(f"{backlog.size_bytes} bytes unread of at most {policy.bytes_max}")
        if policy.age_ms_max != NO_BOUND:
            bounds.append(f"unread records {backlog.age_ms} ms old of at most {policy.age_ms_max}")
        return f"group {backlog.group} has {' and '.join(bounds)}"

    def when_open(self, waiter: Callable[[], None]) -> None:
        self._waiters[waiter] = None

    def forget(self, waiter: Callable[[], None]) -> None:
        self._waiters.pop(waiter, None)

    def held(self, seconds: float) -> None:
        self._counters.held(self.partition.topic, self._closed_by, seconds)

    def _release(self) -> None:
        """Let producers continue in the order in which they came, as long as there is room."""
        while self._waiters and self.is_open():
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            waiter()

    def stop(self) -> None:
        """The policy no longer applies: producers find what there is instead."""
        self.state.update(None)
        self._is_stopped = True
        if self.partition.admission is self:
            self.partition.admission = None
        self._log_change(has_changed=True)
        for waiter in list(self._waiters):
            self._waiters.pop(waiter, None)
            waiter()

    # The log

    def _log_change(self, has_changed: bool) -> None:
        is_over = self.state.is_over
        skipped = self._change_log.note(is_over, has_changed, self._clock.monotonic_ms())
        if skipped is None:
            return
        name = f"{self.partition.topic}-{self.partition.index}"
        verb = _VERBS[self.policy.kind]
        more = f" ({skipped} changes since the last line)" if skipped else ""
        if is_over:
            logger.warning("%s %s: %s%s", name, verb, self.reason(), more)
        else:
            logger.info("%s no longer %s: %s%s", name, verb, self.reason(), more)
