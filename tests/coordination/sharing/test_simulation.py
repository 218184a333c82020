"""A share partition through thousands of random events, with crashes at any point.

What always holds:

* a record is never held by two members at once
* a record whose acceptance was answered without error never returns
* delivery counts grow by one with every delivery while the leader lives, and after a crash resume
  from the last persisted value
* no record is lost: in the end every one was accepted, given up for a reason, or taken by retention
"""

from __future__ import annotations

import random

import pytest

from millstream.coordination.share_state import DeliveryState, StateBatch, combine
from millstream.coordination.sharing.acquisition import LogBatch, Wish, acquire
from millstream.coordination.sharing.changes import Change
from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.window import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    ShareWindow,
)
from millstream.errors import ApiError
from tests.coordination.sharing.windows import check

MEMBERS = ("a", "b", "c")
LOCK_MS = 1_000


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limits = Limits(
            lock_duration_ms=LOCK_MS,
            record_locks_max=self.random.choice((20, 100)),
            delivery_count_max=self.random.choice((2, 3, 5, 8)),
            has_dead_letters=self.random.random() < 0.3,
            backoff_ms=self.random.choice((0, 0, 300)),
            backoff_max_ms=2_000,
            delayed_max=self.random.choice((3, 1_000)),
        )
        self.now_ms = 0
        self.log: list[LogBatch] = []
        self.log_start = self.log_end = self.random.randrange(3)
        self.aborted: list[tuple[int, int]] = []
        # What is durable
        self.persisted_start = self.log_start
        self.persisted: list[StateBatch] = []
        # What the leader knows
        self.window = ShareWindow(self.log_start, self.limits)
        self.queue: list[tuple[Change, list[tuple[int, int, int]]]] = []
        # What the members know
        self.holder: dict[int, str] = {}
        self.delivered: dict[int, int] = {}
        self.accepted: set[int] = set()  # and answered
        self.excused: set[int] = set()  # given up, or accepted without an answer
        self.requests: list[tuple[str, list[tuple[int, int, int]]]] = []  # may come once more

    # What the world does

    def produce(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            if self.random.random() < 0.1:
                self.log_end += self.random.randrange(1, 4)  # compaction left nothing here
            size = self.random.choice((1, 1, 5, 12))
            batch = LogBatch(self.log_end, self.log_end + size - 1)
            self.log.append(batch)
            self.log_end += size
            if self.random.random() < 0.1:
                self.aborted.append((batch.first_offset, batch.last_offset))

    def retain(self) -> None:
        if self.random.random() < 0.2:
            self.log_start = self.random.randint(self.log_start, self.log_end)
            self.window.log_starts_at(self.log_start)
            self.holder = {it: who for it, who in self.holder.items() if it >= self.log_start}

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 100, 400, LOCK_MS))
        held_before = self.held()
        change = self.window.tick(self.now_ms)
        assert self.held() <= held_before
        self.note_given_up(change)
        if change.batches:
            self.queue.append((change, []))
        self.forget_holders()

    def held(self) -> set[int]:
        return {
            offset
            for run in self.window.runs
            if run.state is DeliveryState.ACQUIRED
            for offset in range(run.first, run.last + 1)
        }

    def forget_holders(self) -> None:
        held = self.held()
        self.holder = {it: who for it, who in self.holder.items() if it in held}

    def note_given_up(self, change: Change) -> None:
        for batch in change.batches:
            if batch.delivery_state in (DeliveryState.ARCHIVED, DeliveryState.ARCHIVING):
                self.excused.update(range(batch.first_offset, batch.last_offset + 1))

    # What members do

    def fetch(self) -> None:
        if not self.window.can_acquire:
            return
        member = self.random.choice(MEMBERS)
        offset = self.window.next_fetch_offset
        read = [it for it in self.log if it.last_offset >= offset]
        read = read[: self.random.choice((1, 3, 100))]
        wish = Wish(
            member,
            self.random.choice((1, 10, 50)),
            self.random.choice((1, 10)),
            self.random.random() < 0.3,
        )
        for first, last, count in acquire(
            self.window, wish, offset, read, self.now_ms, aborted=self.aborted
        ):
            for taken in range(first, last + 1):
                assert taken not in self.holder, f"{taken} is held by {self.holder[taken]}"
                assert taken not in self.accepted, f"{taken} returned"
                assert count == self.delivered.get(taken, 0) + 1, taken
                assert count <= self.limits.delivery_count_max
                assert not any(low <= taken <= high for low, high in self.aborted)
                self.holder[taken] = member
                self.delivered[taken] = count

    def acknowledge(self) -> None:
        member = self.random.choice(MEMBERS)
        mine = sorted(it for it, who in self.holder.items() if who == member)
        if not mine:
            return
        ranges: list[tuple[int, int, int]] = []
        for offset in mine[: self.random.choice((1, 5, 100))]:
            kind = self.random.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW))
            if ranges and ranges[-1][1] == offset - 1 and self.random.random() < 0.7:
                ranges[-1] = (ranges[-1][0], offset, ranges[-1][2])
            else:
                ranges.append((offset, offset, kind))
        if self.random.random() < 0.1:  # nonsense
            ranges.append((mine[-1], mine[-1] + self.random.randrange(5), ACCEPT))
        self.send(member, ranges)
        self.requests.append((member, ranges))

    def repeat(self) -> None:
        """A request comes late, or twice."""
        if self.requests:
            self.send(*self.random.choice(self.requests))

    def send(self, member: str, ranges: list[tuple[int, int, int]]) -> None:
        for first, last, _ in ranges:
            for offset in range(max(first, self.window.start_offset), last + 1):
                held_by_other = self.holder.get(offset, member) != member
                if held_by_other:
                    with pytest.raises(ApiError):
                        self.window.acknowledge(member, ranges, self.now_ms)
                    return
        try:
            change = self.window.acknowledge(member, ranges, self.now_ms)
        except ApiError:
            return
        if change.runs:
            self.queue.append((change, ranges))

    def leave(self) -> None:
        change = self.window.release(self.random.choice(MEMBERS), self.now_ms)
        if change.runs:
            self.queue.append((change, []))

    # Durability

    def write(self) -> None:
        if not self.queue:
            return
        count = self.random.randint(1, len(self.queue))
        some, self.queue = self.queue[:count], self.queue[count:]
        changes = [change for change, _ in some]
        write = self.window.prepare_write(changes)
        fate = self.random.random()
        if fate < 0.1:
            for change in changes:
                self.note_given_up(self.window.rollback(change, self.now_ms))
            self.forget_holders()
            return
        combine(self.persisted, write.batches, write.start_offset)
        self.persisted_start = write.start_offset
        for change in changes:
            self.note_given_up(change)
        if fate < 0.2:  # the leader dies before it can answer
            for batch in (batch for change in changes for batch in change.batches):
                if batch.delivery_state is DeliveryState.ACKNOWLEDGED:
                    self.excused.update(range(batch.first_offset, batch.last_offset + 1))
            self.crash()
            return
        for change in changes:
            accepted = [b for b in change.batches if b.delivery_state == DeliveryState.ACKNOWLEDGED]
            for batch in accepted:
                self.accepted.update(range(batch.first_offset, batch.last_offset + 1))
            self.window.commit(change)
        self.forget_holders()
        done = sum(len(run) for run in self.window.runs if run.is_done)
        assert done == self.window.done_count

    def bury(self) -> None:
        for dying in self.window.dying():
            change = self.window.bury(dying.first_offset, dying.last_offset)
            self.queue.append((change, []))

    def crash(self) -> None:
        self.queue = []
        self.holder = {}
        self.window = ShareWindow.restored(self.persisted_start, self.persisted, self.limits)
        self.window.log_starts_at(self.log_start)
        self.delivered = {}
        for batch in self.persisted:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.delivered[offset] = batch.delivery_count
        check(self.window)

    # A life, and its end

    def step(self) -> None:
        events = (
            (self.produce, 3),
            (self.fetch, 10),
            (self.acknowledge, 10),
            (self.repeat, 1),
            (self.write, 8),
            (self.wait, 4),
            (self.leave, 1),
            (self.retain, 1),
            (self.bury, 1),
            (self.crash, 1),
        )
        (event,) = self.random.choices([it for it, _ in events], [weight for _, weight in events])
        event()
        check(self.window)

    def finish(self) -> None:
        """Everybody does well from now on."""
        for _ in range(10_000):
            self.bury()
            self.now_ms += LOCK_MS
            self.note_given_up(self.window.tick(self.now_ms))
            self.forget_holders()
            for change, _ in self.queue:
                self.window.prepare_write([change])
                self.window.commit(change)
                self.note_given_up(change)
                for batch in change.batches:
                    if batch.delivery_state is DeliveryState.ACKNOWLEDGED:
                        self.accepted.update(range(batch.first_offset, batch.last_offset + 1))
            self.queue = []
            self.forget_holders()
            self.fetch()
            for offset, member in list(self.holder.items()):
                self.window.commit(
                    self.window.acknowledge(member, [(offset, offset, ACCEPT)], self.now_ms)
                )
                self.accepted.add(offset)
            self.holder = {}
            if self.window.start_offset >= self.log_end:
                return
        raise AssertionError(f"it never ends: {list(self.window.runs)}")

    def check_that_nothing_was_lost(self) -> None:
        for batch in self.log:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                aborted = any(low <= offset <= high for low, high in self.aborted)
                known = offset in self.accepted or offset in self.excused
                assert known or aborted or offset < self.log_start, f"{offset} was lost"


@pytest.mark.parametrize("seed", range(60))
def test_share_partition_keeps_its_promises_under_crashes(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(400):
        simulation.step()
    simulation.finish()
    simulation.check_that_nothing_was_lost()
