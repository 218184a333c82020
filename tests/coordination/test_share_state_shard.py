"""The states of share partitions: by hand, and simulated with a crash at any record."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from millstream.coordination.result import CoordinatorRecord, Result, SetTimer
from millstream.coordination.share_state import (
    DeliveryState,
    SharePartitionKey,
    ShareState,
    ShareStateSummary,
    StateBatch,
    StateWrite,
)
from millstream.coordination.share_state_records import (
    SHARE_STATE_RECORDS,
    ShareSnapshotValue,
    ShareUpdateValue,
)
from millstream.coordination.share_state_shard import (
    COLD_SNAPSHOT_INTERVAL_MS,
    COLD_SNAPSHOT_TIMER,
    ShareStateShard,
)
from millstream.errors import ApiError, ErrorCode

TOPIC = uuid.UUID(int=1)
KEY = SharePartitionKey("g", TOPIC, 0)
OTHER_KEY = SharePartitionKey("g", TOPIC, 1)
AVAILABLE, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED
ARCHIVED = DeliveryState.ARCHIVED


class Driver:
    """A shard and its log, with the runtime's part played by hand."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.topics: dict[uuid.UUID, int] = {TOPIC: 2}
        self.recovered_ends: dict[tuple[uuid.UUID, int], int] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 1_000
        self.shard = self.new_shard()

    def new_shard(self) -> ShareStateShard:
        return ShareStateShard(
            updates_per_snapshot=lambda: self.updates_per_snapshot,
            partition_count=self.topics.get,
            recovered_end=lambda key: self.recovered_ends.get((key.topic_id, key.partition)),
        )

    def apply(self, result: Result[Any]) -> Any:
        for record in result.records:
            encoded = SHARE_STATE_RECORDS.encode(record.key, record.value)
            self.log.append(encoded)
            replay(self.shard, encoded)
        return result.response

    def initialize(self, state_epoch: int = 1, start_offset: int = 0) -> Any:
        return self.apply(self.shard.initialize(KEY, state_epoch, start_offset, self.now_ms))

    def write(self, *batches: StateBatch, **changes: Any) -> Any:
        write = StateWrite(KEY, 1, 0, 0, 0, batches)
        return self.apply(self.shard.write(write._replace(**changes), self.now_ms))

    def read(self, leader_epoch: int = 0) -> ShareState:
        state = self.apply(self.shard.read(KEY, leader_epoch, self.now_ms))
        assert isinstance(state, ShareState)
        return state

    def values(self) -> list[Any]:
        decoded = (SHARE_STATE_RECORDS.decode(*encoded) for encoded in self.log)
        return [it[1] for it in decoded if it is not None]

    def reload(self) -> None:
        self.shard = self.new_shard()
        for encoded in self.log:
            replay(self.shard, encoded)
        self.apply(self.shard.loaded(self.now_ms))


def replay(shard: ShareStateShard, encoded: tuple[bytes, bytes | None]) -> None:
    decoded = SHARE_STATE_RECORDS.decode(*encoded)
    assert decoded is not None
    shard.replay(CoordinatorRecord(*decoded))


def refused(call: Any, *arguments: Any, **changes: Any) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        call(*arguments, **changes)
    return error.value.code


def test_state_behind_the_end_of_a_shortened_log_is_forgotten() -> None:
    driver = Driver()
    driver.initialize()
    driver.write(
        StateBatch(0, 1, AVAILABLE, 2),
        StateBatch(2, 9, ACKNOWLEDGED, 1),
        StateBatch(12, 15, ARCHIVED, 3),
        delivery_complete_count=12,
    )
    driver.recovered_ends[TOPIC, 0] = 5
    driver.reload()
    cut = ShareState(
        1, 0, 0, 3, (StateBatch(0, 1, AVAILABLE, 2), StateBatch(2, 4, ACKNOWLEDGED, 1))
    )
    assert driver.read() == cut
    driver.write(StateBatch(5, 5, AVAILABLE, 1))
    assert driver.read().batches[-1] == StateBatch(5, 5, AVAILABLE, 1)


def test_start_behind_the_end_of_a_shortened_log_moves_back() -> None:
    driver = Driver()
    driver.initialize()
    driver.write(StateBatch(1001, 1001, ACKNOWLEDGED, 1), start_offset=1000)
    driver.recovered_ends[TOPIC, 0] = 500
    driver.reload()
    assert driver.read() == ShareState(1, 0, 500, 0, ())
    driver.write(StateBatch(530, 530, AVAILABLE, 1), start_offset=520)
    assert driver.read() == ShareState(1, 0, 520, 0, (StateBatch(530, 530, AVAILABLE, 1),))


def test_state_within_the_log_is_not_written_anew_when_it_is_loaded() -> None:
    driver = Driver()
    driver.initialize()
    driver.write(StateBatch(2, 9, ACKNOWLEDGED, 1))
    driver.recovered_ends[TOPIC, 0] = 10
    written = len(driver.log)
    driver.reload()
    assert len(driver.log) == written


def test_state_outlives_a_reload() -> None:
    driver = Driver()
    driver.initialize()
    driver.read(leader_epoch=3)
    driver.write(StateBatch(2, 4, AVAILABLE, 1, 99), leader_epoch=3, start_offset=1)
    driver.write(StateBatch(3, 3, ACKNOWLEDGED, 2), leader_epoch=3, delivery_complete_count=9)
    expected = ShareState(
        1,
        3,
        1,
        0,  # the second write spoke of an older start offset
        (
            StateBatch(2, 2, AVAILABLE, 1, 99),
            StateBatch(3, 3, ACKNOWLEDGED, 2),
            StateBatch(4, 4, AVAILABLE, 1, 99),
        ),
    )
    assert driver.read(leader_epoch=3) == expected
    driver.reload()
    assert driver.read(leader_epoch=3) == expected
    assert driver.shard.read_summary(KEY) == ShareStateSummary(1, 3, 1, 0)
    assert driver.shard.read_summary(OTHER_KEY) == ShareStateSummary(0, 0, -1, -1)


def test_leaders_of_before_are_fenced_also_after_a_reload() -> None:
    driver = Driver()
    driver.initialize()
    driver.read(leader_epoch=5)
    driver.reload()
    assert refused(driver.read, leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(driver.write, leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    driver.initialize(state_epoch=2, start_offset=7)
    driver.reload()
    assert refused(driver.read, leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(driver.write, leader_epoch=5) is ErrorCode.FENCED_STATE_EPOCH
    assert driver.write(leader_epoch=5, state_epoch=2) is ErrorCode.NONE


def test_repeated_reads_and_initializations_write_nothing() -> None:
    driver = Driver()
    driver.initialize()
    driver.read(leader_epoch=5)
    written = len(driver.log)
    driver.initialize()
    driver.read(leader_epoch=5)
    assert len(driver.log) == written


def test_snapshot_comes_after_so_many_updates() -> None:
    driver = Driver(updates_per_snapshot=3)
    driver.initialize()
    for offset in range(5):
        driver.write(StateBatch(offset * 2, offset * 2, ACKNOWLEDGED, 1))
    kinds = [type(value) for value in driver.values()]
    update, snapshot = ShareUpdateValue, ShareSnapshotValue
    assert kinds == [snapshot, update, update, update, snapshot, update]
    assert [value.snapshot_epoch for value in driver.values()] == [0, 0, 0, 0, 1, 1]
    assert len(driver.values()[4].state_batches) == 4
    driver.log = driver.log[4:]  # what stands before it counts for nothing
    driver.reload()
    assert [it.first_offset for it in driver.read().batches] == [0, 2, 4, 6, 8]


def test_cold_state_gets_a_snapshot_while_others_are_written() -> None:
    driver = Driver()
    driver.initialize()
    driver.write(StateBatch(1, 1, AVAILABLE, 1, 5))
    driver.apply(driver.shard.initialize(OTHER_KEY, 1, 0, driver.now_ms))
    written = len(driver.log)
    driver.now_ms += COLD_SNAPSHOT_INTERVAL_MS
    result = driver.shard.handle_timer(COLD_SNAPSHOT_TIMER, driver.now_ms)
    assert result.timers == (
        SetTimer(COLD_SNAPSHOT_TIMER, driver.now_ms + COLD_SNAPSHOT_INTERVAL_MS),
    )
    before = driver.read()
    driver.apply(result)
    assert len(driver.log) == written + 2
    assert driver.read() == before
    # Nothing but time has passed since: another snapshot of everything would help nobody.
    driver.now_ms += COLD_SNAPSHOT_INTERVAL_MS
    assert not driver.shard.handle_timer(COLD_SNAPSHOT_TIMER, driver.now_ms).records


def test_state_of_a_deleted_topic_is_forgotten() -> None:
    driver = Driver()
    driver.initialize()
    driver.apply(driver.shard.topics_deleted([uuid.UUID(int=2)]))
    driver.read()
    driver.apply(driver.shard.topics_deleted([TOPIC]))
    assert refused(driver.read) is ErrorCode.INVALID_REQUEST
    driver.initialize()
    del driver.topics[TOPIC]  # while the shard is not loaded
    driver.reload()
    assert driver.values()[-1] is None
    assert refused(driver.read) is ErrorCode.INVALID_REQUEST


def test_nothing_is_kept_of_topics_that_are_not_there() -> None:
    driver = Driver()
    nowhere = SharePartitionKey("g", TOPIC, 2)
    for event in (
        lambda: driver.shard.initialize(nowhere, 0, 0, 0),
        lambda: driver.shard.read_summary(nowhere),
        lambda: driver.shard.delete(nowhere),
    ):
        assert refused(event) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(driver.shard.peek, SharePartitionKey("g", TOPIC, -1)) is (
        ErrorCode.INVALID_REQUEST
    )


# --- a leader that writes, late and repeated, and a persister that crashes at any record


class Simulation:
    """One share partition: what its leader did, and what the persister has to remember of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(updates_per_snapshot=self.random.choice([0, 1, 3, 10]))
        self.state_epoch = 0
        self.leader_epoch = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        self.state_epoch += 1
        self.start_offset = self.random.randrange(5)
        self.fates: dict[int, tuple[int, DeliveryState, int]] = {}  # count, state, due
        self.sent: list[StateWrite] = []
        self.driver.initialize(self.state_epoch, self.start_offset)

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.70:
            self.leader_writes()
        elif choice < 0.80:
            self.late_write_comes_again()
        elif choice < 0.85:
            self.leader_epoch += 1
            self.driver.read(self.leader_epoch)
        elif choice < 0.87:
            self.begin_anew()
        elif choice < 0.92:
            self.time_passes()
        else:
            self.crash()

    def leader_writes(self) -> None:
        batches = []
        for _ in range(self.random.randrange(1, 4)):
            first = self.start_offset + self.random.randrange(20)
            last = first + self.random.randrange(4)
            batches += self.deliver(first, last)
        if self.random.random() < 0.3:
            self.start_offset += self.random.randrange(4)
            self.fates = {it: fate for it, fate in self.fates.items() if it >= self.start_offset}
        write = StateWrite(
            KEY, self.state_epoch, self.leader_epoch, self.start_offset, 0, tuple(batches)
        )
        self.sent.append(write)
        self.driver.apply(self.driver.shard.write(write, self.driver.now_ms))

    def deliver(self, first: int, last: int) -> list[StateBatch]:
        """Records that are not done with are delivered once more, each with the same outcome."""
        state = self.random.choice([AVAILABLE, AVAILABLE, ACKNOWLEDGED, ARCHIVED])
        due_ms = self.random.choice([0, 500]) if state is AVAILABLE else 0
        batches = []
        for offset in range(first, last + 1):
            count, known, _ = self.fates.get(offset, (0, AVAILABLE, 0))
            if known is AVAILABLE:
                self.fates[offset] = (count + 1, state, due_ms)
                batches.append(StateBatch(offset, offset, state, count + 1, due_ms))
        return batches

    def late_write_comes_again(self) -> None:
        """A request that was repeated: it says nothing new, so it may change nothing."""
        if not self.sent:
            return
        late = self.random.choice(self.sent)
        if late.leader_epoch < self.leader_epoch:
            call = self.driver.shard.write
            assert refused(call, late, self.driver.now_ms) is ErrorCode.FENCED_LEADER_EPOCH
        else:
            self.driver.apply(self.driver.shard.write(late, self.driver.now_ms))

    def time_passes(self) -> None:
        self.driver.now_ms += COLD_SNAPSHOT_INTERVAL_MS
        self.driver.apply(self.driver.shard.handle_timer(COLD_SNAPSHOT_TIMER, self.driver.now_ms))

    def crash(self) -> None:
        """Load it anew, perhaps from a log that was pruned to the last snapshot."""
        if self.random.random() < 0.5:
            snapshots = [
                place
                for place, value in enumerate(self.driver.values())
                if isinstance(value, ShareSnapshotValue)
            ]
            del self.driver.log[: snapshots[-1]]
        self.driver.reload()

    def check(self) -> None:
        state = self.driver.shard.peek(KEY)
        assert state.state_epoch == self.state_epoch
        assert state.start_offset == self.start_offset
        remembered = {
            offset: (batch.delivery_count, batch.delivery_state, batch.due_ms)
            for batch in state.batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        assert remembered == self.fates


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_or_taken_back_whatever_happens(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(150):
        simulation.step()
        simulation.check()


@pytest.mark.parametrize("seed", range(20))
def test_crash_between_any_two_records_shows_one_of_the_states_between(seed: int) -> None:
    """Every prefix of the log is a state that the shard was in: an update is all or nothing."""
    simulation = Simulation(seed)
    driver = simulation.driver
    states = {0: None, len(driver.log): driver.shard.peek(KEY)}
    for _ in range(40):
        before = len(driver.log)
        simulation.leader_writes()
        assert len(driver.log) == before + 1
        states[len(driver.log)] = driver.shard.peek(KEY)
    for length in range(1, len(driver.log) + 1):
        crashed = driver.new_shard()
        for encoded in driver.log[:length]:
            replay(crashed, encoded)
        assert crashed.peek(KEY) == states[length]
