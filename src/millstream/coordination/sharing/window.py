"""The window of a share partition: the records in flight, their locks and delivery counts.

    start offset ............................................... end offset
    |  done  |  held by A  |  available x2  |  done  |  held by B  |  never delivered ...

All records before the start offset are done; none from the end offset on was ever delivered. Each
record in between is in one of these states:

    AVAILABLE      may be acquired; with a due time (delayed retry) not before that
    ACQUIRED       locked by a member, until it acknowledges it or the lock expires
    ARCHIVING      its dead letter is being written: not delivered
    ACKNOWLEDGED   done

The start offset moves past done records. The window is bounded. As in Kafka, the limit is a range
of offsets, so one unfinished record can block later ones; with delayed retry, only locked records
count (delayed ones have their own limit), so it does not.

Acquisitions are not persisted; acknowledgements are: the event returns a `Change`, the caller
writes it (`prepare_write`) and then calls `commit`, or `rollback` if the write failed. Timeouts and
retention take effect at once. No operation is linear in the window, except a member that leaves and
a moved log start.

No clock, no I/O; times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from millstream.coordination.share_state import DONE, DeliveryState, StateBatch
from millstream.coordination.sharing.changes import Change, Write, combined
from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.runs import CORRUPT, LIMIT, NO_MEMBER, REJECTED, Run, Runs
from millstream.errors import ApiError, ErrorCode

GAP = 0
ACCEPT = 1
RELEASE = 2
REJECT = 3
RENEW = 4


class Dying(NamedTuple):
    """Consecutive records whose dead letters are not written yet."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: str


class ShareWindow:
    """The records of one partition that are in flight in one share group."""

    def __init__(self, start_offset: int, limits: Limits) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.limits = limits
        self.runs = Runs()
        self.done_count = 0  # of those from the start offset on
        self.held_count = 0  # ACQUIRED or ARCHIVING
        self.dying_count = 0  # ARCHIVING
        self.delayed_count = 0
        self.delay_was_refused = False  # more were released than may be delayed
        self._acquirable: list[int] = []  # a heap of offsets, at least all where such runs begin
        self._due: list[tuple[int, int]] = []  # a heap of (due time, first offset)
        self._locks: list[tuple[int, int, int]] = []  # a heap of (end, first, last offset)

    @classmethod
    def restored(
        cls, start_offset: int, batches: Sequence[StateBatch], limits: Limits
    ) -> ShareWindow:
        """Restored from the persisted state: an offset in no batch was never delivered, or not
        acknowledged. Due times in the batches must use this process's clock.
        """
        window = cls(start_offset, limits)
        for batch in batches:
            window._restore_gap(batch.first_offset)
            first = max(batch.first_offset, window.end_offset)
            if batch.last_offset < first:
                continue
            state = DeliveryState(batch.delivery_state)
            done = state in DONE
            run = Run(
                first,
                batch.last_offset,
                DeliveryState.ACKNOWLEDGED if done else state,
                batch.delivery_count,
                batch.due_ms if state is DeliveryState.AVAILABLE else 0,
            )
            if batch.delivery_count < limits.delivery_count_max:
                run.reason = REJECTED  # if it is ARCHIVING; else that has time
            window._append(run)
            window._enter(run)
            if done:
                window.runs.join_done(run.first)
        window._advance_start()
        return window

    def _restore_gap(self, end_offset: int) -> None:
        """Offsets without state start as never delivered."""
        if self.end_offset < end_offset:
            run = Run(self.end_offset, end_offset - 1, DeliveryState.AVAILABLE, 0)
            self._append(run)
            self._enter(run)

    # State

    @property
    def next_fetch_offset(self) -> int:
        """The offset of the first record that can be acquired: released ones before new ones."""
        heap = self._acquirable
        while heap:
            offset = max(heap[0], self.start_offset)
            run = self.runs.at(offset)
            if run is not None and run.is_acquirable:
                return run.first
            heappop(heap)
        return self.end_offset

    @property
    def room(self) -> int:
        """How many more records may be in flight."""
        if self.limits.backoff_ms:
            return self.limits.record_locks_max - self.held_count
        return self.limits.record_locks_max - (self.end_offset - self.start_offset)

    @property
    def can_acquire(self) -> bool:
        """Whether there is room for new records, or any to redeliver."""
        if self.room > 0:
            return True
        return not self.limits.backoff_ms and self.next_fetch_offset < self.end_offset

    @property
    def is_at_rest(self) -> bool:
        """Whether no record is locked and no change is pending."""
        return not self.held_count

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next."""
        locks = self._locks
        while locks and not self._is_locked(*locks[0]):
            heappop(locks)
        times = [heap[0][0] for heap in (locks, self._due) if heap]
        return min(times, default=None)

    def _is_locked(self, lock_end_ms: int, first: int, last: int) -> bool:
        return any(run.lock_end_ms == lock_end_ms for run in self.runs.overlapping(first, last))

    def describe(self) -> list[StateBatch]:
        """Every record of the window; all done ones as ACKNOWLEDGED."""
        return [
            StateBatch(run.first, run.last, run.state, run.delivery_count, run.due_ms)
            for run in self.runs
        ]

    # Acknowledgements

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[tuple[int, int, int]], now_ms: int
    ) -> Change:
        """Acknowledge records that the member holds: (first offset, last offset, type).

        Raises `ApiError` if the member does not hold all of them; then nothing has changed.
        """
        change = Change()
        try:
            for first, last, kind in acknowledgements:
                if last >= self.start_offset:
                    self._acknowledge(change, member_id, first, last, kind, now_ms)
        except ApiError:
            self._withdraw(change)
            raise
        return change

    def _acknowledge(
        self, change: Change, member_id: str, first: int, last: int, kind: int, now_ms: int
    ) -> None:
        first = max(first, self.start_offset)
        if not len(self.runs):
            raise _not_held(f"offsets {first} to {last} are not in flight")
        if last >= self.end_offset:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"offsets {first} to {last} were not delivered: the last delivered record is "
                "before "
                f"{self.end_offset}",
            )
        if kind == RENEW and not self.limits.can_renew:
            raise _not_held("the group may not renew locks: share.renew.acknowledge.enable is off")
        for run in self.runs.overlapping(first, last):
            _check_held(run, member_id)
            run = self.runs.isolate(run, first, last)
            if kind == RENEW:
                self._lock(run, now_ms)
            else:
                self._intend(change, run, self._outcome(run, kind), now_ms)

    def _outcome(self, run: Run, kind: int) -> DeliveryState:
        if kind == ACCEPT:
            return DeliveryState.ACKNOWLEDGED
        if kind == RELEASE:
            return self._released(run)
        if kind == REJECT and self.limits.has_dead_letters:
            run.reason = REJECTED
            return DeliveryState.ARCHIVING
        return DeliveryState.ARCHIVED

    def _released(self, run: Run) -> DeliveryState:
        """The next state of a record that was not processed: available again, or archived."""
        if run.delivery_count < self.limits.delivery_count_max:
            return DeliveryState.AVAILABLE
        if self.limits.has_dead_letters:
            run.reason = LIMIT
            return DeliveryState.ARCHIVING
        return DeliveryState.ARCHIVED

    def release(self, member_id: str, now_ms: int) -> Change:
        """Release all records of a member that left."""
        change = Change()
        for run in self.runs:
            if run.member_id == member_id and run.change is None:
                self._intend(change, run, self._released(run), now_ms)
        return change

    def _intend(self, change: Change, run: Run, target: DeliveryState, now_ms: int) -> None:
        """Set the state that the run gets once the change is durable."""
        run.change = change
        run.target = target
        run.target_due_ms = self._due_time(run, target, now_ms)
        change.runs.append(run)
        change.add(run, target, run.target_due_ms)

    def _due_time(self, run: Run, target: DeliveryState, now_ms: int) -> int:
        """When a released run may be redelivered, counting it as delayed; 0: at once."""
        wait_ms = self.limits.backoff_after(run.delivery_count)
        if target is not DeliveryState.AVAILABLE or not wait_ms:
            return 0
        if self.delayed_count + len(run) > self.limits.delayed_max:
            self.delay_was_refused = True
            return 0
        self.delayed_count += len(run)
        return now_ms + wait_ms

    # Persisting

    def prepare_write(self, changes: Sequence[Change]) -> Write:
        """The write that persists all these changes."""
        included = set(changes)
        start_offset = self.start_offset
        for run in self.runs:
            if not run.is_done and not (run.change in included and run.target in DONE):
                break
            start_offset = run.last + 1
        done_count = self.done_count + sum(
            len(run)
            for change in changes
            for run in change.runs
            if run.change is change and run.target in DONE
        )
        return Write(
            start_offset,
            done_count - (start_offset - self.start_offset),
            combined(changes, start_offset),
        )

    def commit(self, change: Change) -> None:
        """The change is durable: it takes effect."""
        for run in change.runs:
            if run.change is change:
                self._leave(run)
                run.change = None
                run.state = DeliveryState.ACKNOWLEDGED if run.target in DONE else run.target
                run.due_ms = run.target_due_ms
                run.target_due_ms = 0
                self._enter(run)
        self._drop_done(change.runs)

    def rollback(self, change: Change, now_ms: int) -> Change:
        """The change failed: its records stay locked, or have timed out by now.

        Returns the timeouts, which are persisted like any timeout.
        """
        timed_out = Change()
        late = [run for run in self._withdraw(change) if run.lock_end_ms <= now_ms]
        for run in late:
            self._time_out(timed_out, run, now_ms)
        self._drop_done(late)
        return timed_out

    def _withdraw(self, change: Change) -> list[Run]:
        """Detach the change from its runs. Returns those that still exist."""
        runs = [run for run in change.runs if run.change is change]
        for run in runs:
            run.change = None
            if run.target_due_ms:
                self.delayed_count -= len(run)
                run.target_due_ms = 0
        return runs

    # Time

    def tick(self, now_ms: int) -> Change:
        """Expire locks and make delayed records available; called at `next_deadline_ms`."""
        change = Change()
        timed_out: list[Run] = []
        locks = self._locks
        while locks and locks[0][0] <= now_ms:
            lock_end_ms, first, last = heappop(locks)
            for run in self.runs.overlapping(first, last):
                if run.lock_end_ms == lock_end_ms and run.change is None:
                    self._time_out(change, run, now_ms)
                    timed_out.append(run)
        due = self._due
        while due and due[0][0] <= now_ms:
            due_ms, first = heappop(due)
            waiting = self.runs.at(max(first, self.start_offset))
            if waiting is not None and waiting.due_ms == due_ms:
                self._leave(waiting)
                waiting.due_ms = 0
                self._enter(waiting)
        self._drop_done(timed_out)
        return change

    def _time_out(self, change: Change, run: Run, now_ms: int) -> None:
        target = self._released(run)
        due_ms = self._due_time(run, target, now_ms)
        if due_ms:
            self.delayed_count -= len(run)  # `_enter` counts it
        change.add(run, target, due_ms)
        self._leave(run)
        run.state = DeliveryState.ACKNOWLEDGED if target in DONE else target
        run.due_ms = due_ms
        self._enter(run)

    def log_starts_at(self, log_start_offset: int) -> None:
        """Retention has deleted all records before this offset, locked or not."""
        if log_start_offset <= self.start_offset:
            return
        gone = 0
        for run in self.runs:
            if run.first >= log_start_offset:
                break
            self._leave(run, up_to=min(run.last, log_start_offset - 1))
            if run.last < log_start_offset:
                run.change = None
                gone += 1
            else:
                run.first = log_start_offset
                if run.is_acquirable:
                    heappush(self._acquirable, run.first)
        self.runs.drop_head(gone)
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._advance_start()

    # Dead letters

    def dying(self) -> list[Dying]:
        """The records whose dead letters are not written yet."""
        return [
            Dying(run.first, run.last, run.delivery_count, run.reason)
            for run in self.runs
            if run.state is DeliveryState.ARCHIVING
        ]

    def bury(self, first: int, last: int) -> Change:
        """The dead letters of these records are durable: they are archived."""
        change = Change()
        buried: list[Run] = []
        for run in self.runs.overlapping(first, last):
            if run.state is DeliveryState.ARCHIVING:
                run = self.runs.isolate(run, first, last)
                change.add(run, DeliveryState.ARCHIVED, 0)
                self._leave(run)
                run.state = DeliveryState.ACKNOWLEDGED
                self._enter(run)
                buried.append(run)
        self._drop_done(buried)
        return change

    # Used by acquisition

    def hold(self, run: Run, member_id: str, now_ms: int) -> None:
        """Lock an acquirable run for a member."""
        self._leave(run)
        run.state = DeliveryState.ACQUIRED
        run.delivery_count += 1
        run.member_id = member_id
        self.held_count += len(run)
        self._lock(run, now_ms)

    def extend(self, run: Run) -> None:
        """Add records that were never delivered to the end of the window."""
        self._append(run)
        self._enter(run)

    def isolate(self, run: Run, first: int, last: int) -> Run:
        """Split an acquirable run; returns the part within these offsets."""
        end = run.last
        piece = self.runs.isolate(run, first, last)
        if piece.last < end:
            heappush(self._acquirable, piece.last + 1)
        if piece is not run:
            heappush(self._acquirable, piece.first)
        return piece

    def finish(self, runs: Iterable[Run]) -> None:
        """Mark offsets without records as done."""
        finished = list(runs)
        for run in finished:
            self._leave(run)
            run.state = DeliveryState.ACKNOWLEDGED
            self._enter(run)
        self._drop_done(finished)

    def give_up(self, first: int, last: int) -> None:
        """The log cannot be read at these offsets: dead-letter them, if the group does, or mark
        them as done. Records locked by members are not affected."""
        lost = [
            self.isolate(run, first, last)
            for run in self.runs.overlapping(first, last)
            if run.is_acquirable
        ]
        if self.end_offset <= last:
            run = Run(self.end_offset, last, DeliveryState.AVAILABLE, 0)
            self.extend(run)
            lost.append(run)
        if not self.limits.has_dead_letters:
            self.finish(lost)
            return
        for run in lost:
            self._leave(run)
            run.state = DeliveryState.ARCHIVING
            run.reason = CORRUPT
            self._enter(run)

    # Bookkeeping

    def _append(self, run: Run) -> None:
        self.runs.append(run)
        self.end_offset = run.last + 1

    def _enter(self, run: Run) -> None:
        """Count a run in the state that it has now."""
        state = run.state
        if state is DeliveryState.ACKNOWLEDGED:
            self.done_count += len(run)
        elif state is DeliveryState.ARCHIVING:
            self.held_count += len(run)
            self.dying_count += len(run)
        elif run.due_ms:
            self.delayed_count += len(run)
            heappush(self._due, (run.due_ms, run.first))
        else:
            self._offer(run)

    def _leave(self, run: Run, up_to: int | None = None) -> None:
        """Stop counting a run, or its first part, and release its lock."""
        count = (run.last if up_to is None else up_to) - run.first + 1
        state = run.state
        if state is DeliveryState.ACKNOWLEDGED:
            self.done_count -= count
        elif state is DeliveryState.ACQUIRED:
            self.held_count -= count
        elif state is DeliveryState.ARCHIVING:
            self.held_count -= count
            self.dying_count -= count
        if run.due_ms or run.target_due_ms:
            self.delayed_count -= count
        if up_to is None or up_to == run.last:
            run.member_id = NO_MEMBER
            run.lock_end_ms = 0

    def _offer(self, run: Run) -> None:
        if run.is_acquirable:
            heappush(self._acquirable, run.first)

    def _lock(self, run: Run, now_ms: int) -> None:
        run.lock_end_ms = now_ms + self.limits.lock_duration_ms
        heappush(self._locks, (run.lock_end_ms, run.first, run.last))

    def _drop_done(self, runs: Iterable[Run]) -> None:
        """Move the start past done runs, and merge done runs after it."""
        self._advance_start()
        for run in runs:
            if run.is_done and run.first >= self.start_offset:
                self.runs.join_done(run.first)

    def _advance_start(self) -> None:
        passed = 0
        for run in self.runs:
            if not run.is_done:
                break
            self.done_count -= len(run)
            passed += 1
        self.runs.drop_head(passed)
        if passed:
            self.start_offset = self.runs[0].first if len(self.runs) else self.end_offset


def _check_held(run: Run, member_id: str) -> None:
    if run.state is not DeliveryState.ACQUIRED:
        raise _not_held(f"offsets {run.first} to {run.last} are not held by any member")
    if run.member_id != member_id:
        raise _not_held(f"offsets {run.first} to {run.last} are held by another member")
    if run.change is not None:
        raise _not_held(f"offsets {run.first} to {run.last} are being acknowledged already")


def _not_held(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD_STATE, message)
