"""The state machine of backlog policies, by properties."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.backlog.state import (
    QUIET_MS,
    RELEASE_AT,
    UNLIMITED_ROOM,
    Backlog,
    ChangeLog,
    GroupActivity,
    PartitionState,
    Position,
    slowest,
)
from millstream.config.backlog import BacklogPolicy

POLICY = BacklogPolicy("hold", 1000, 500, ("g",), 60_000)

backlogs = st.none() | st.builds(
    Backlog, st.just("g"), st.just(0), st.integers(0, 2000), st.integers(0, 1000)
)
positions = st.lists(
    st.builds(Position, st.sampled_from("abc"), st.integers(0, 100), st.booleans())
)


@given(st.lists(backlogs))
def test_policy_applies_from_its_bound_on_and_until_a_tenth_is_free(
    measured: list[Backlog | None],
) -> None:
    state = PartitionState(POLICY)
    was_over = False
    for backlog in measured:
        used = 0.0 if backlog is None else POLICY.usage(backlog.size_bytes, backlog.age_ms)
        has_changed = state.update(backlog)
        assert has_changed == (state.is_over != was_over)
        assert state.is_over or used < 1
        assert not state.is_over or used > RELEASE_AT
        assert not (state.is_over and not was_over and used < 1)
        was_over = state.is_over


@given(backlogs)
def test_room_is_what_fills_the_bound(backlog: Backlog | None) -> None:
    state = PartitionState(replace(POLICY, age_ms_max=-1))
    state.update(backlog)
    used = 0 if backlog is None else backlog.size_bytes
    assert state.room_bytes == max(1000 - used, 0)
    assert state.is_over == (state.room_bytes == 0)


def test_room_is_unlimited_without_a_bound_in_bytes() -> None:
    state = PartitionState(replace(POLICY, bytes_max=-1))
    state.update(Backlog("g", 0, 10**12, 499))
    assert state.room_bytes == UNLIMITED_ROOM
    state.update(Backlog("g", 0, 0, 500))
    assert state.room_bytes == 0


@given(positions, st.integers(0, 50), st.integers(0, 50))
def test_slowest_group_is_the_one_with_most_to_read(
    groups: list[Position], start: int, length: int
) -> None:
    end = start + length
    found = slowest(groups, start, end)
    behind = [it for it in groups if it.offset < end]
    assert (found is None) == (not behind)
    if found is not None:
        assert start <= found.offset
        assert found.offset == max(min(it.offset for it in behind), start)


def test_group_counts_until_it_has_been_idle_for_long() -> None:
    activity = GroupActivity()
    activity.saw(0, Position("g", 5, has_members=True), 1000)
    activity.saw(0, Position("g", 5, has_members=False), 2000)
    assert activity.counts("g", 100, 1100)
    assert not activity.counts("g", 100, 1101)
    assert activity.changes(100, 1101) == (["g"], [])
    assert activity.changes(100, 1102) == ([], [])  # reported once
    activity.saw(0, Position("g", 6, has_members=False), 3000)  # a commit
    assert activity.counts("g", 100, 3100)
    assert activity.changes(100, 3100) == ([], ["g"])
    activity.saw(0, Position("g", 6, has_members=True), 9000)  # a member
    assert activity.counts("g", 100, 9000)


def test_group_that_is_first_seen_without_members_is_idle_since_its_last_commit() -> None:
    activity = GroupActivity()
    activity.saw(0, Position("known", 5, False, committed_ms=1000), 5000)
    activity.saw(0, Position("unknown", 5, False), 5000)
    assert not activity.counts("known", 100, 5000)
    assert activity.counts("unknown", 100, 5100)
    assert not activity.counts("unknown", 100, 5101)
    activity.saw(1, Position("known", 5, False, committed_ms=4950), 5000)
    assert activity.counts("known", 100, 5000)


def test_deleted_group_leaves_nothing_behind() -> None:
    activity = GroupActivity()
    activity.saw(0, Position("g", 5, False, committed_ms=0), 5000)
    assert activity.changes(100, 5000) == (["g"], [])
    activity.keep(set())
    assert activity.changes(100, 5000) == ([], [])
    activity.saw(0, Position("g", 5, False), 6000)  # made again: active since now
    assert activity.counts("g", 100, 6100)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2 * QUIET_MS))))
def test_lines_are_few_and_a_state_that_lasts_is_written(steps: list[tuple[bool, int]]) -> None:
    log = ChangeLog()
    state = written = False
    now_ms, lines = 0, []
    for is_over, after_ms in steps:
        now_ms += after_ms
        skipped = log.note(is_over, is_over != state, now_ms)
        state = is_over
        if skipped is not None:
            lines.append(now_ms)
            assert written != is_over
            written = is_over
    assert all(later - earlier >= QUIET_MS for earlier, later in itertools.pairwise(lines))
    if written != state:
        assert log.note(state, False, now_ms + QUIET_MS) is not None


def test_line_has_the_number_of_changes_without_one() -> None:
    log = ChangeLog()
    assert log.note(True, True, 0) == 0
    for number in range(6):  # ends in the state that was written
        assert log.note(number % 2 == 1, True, 10 + number) is None
    assert log.note(False, True, QUIET_MS) == 6
