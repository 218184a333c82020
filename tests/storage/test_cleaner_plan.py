"""Which log is cleaned, how far, and in which groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.config.topic import TopicConfig
from millstream.storage.cleaner_plan import group_segments, plan_cleaning, plan_filthiest
from tests.storage.cleaning import DAY_MS, CompactedStore, compacted

HOUR_MS = 3_600_000


def filled(config: TopicConfig | None = None, *, count: int = 40) -> CompactedStore:
    store = CompactedStore(config=config)
    store.write_each((b"key%d" % (i % 5), b"value") for i in range(count))
    store.seal()
    return store


def test_plan_covers_all_but_the_active_segment() -> None:
    store = filled()
    store.write_each([(b"a", b"1")])
    plan = store.plan()
    assert list(plan.segments) == store.log().segments[:-1]
    assert (plan.first_dirty_offset, plan.upper_bound) == (0, 40)
    assert plan.dirty_bytes == sum(segment.size for segment in plan.segments)
    assert plan.dirty_ratio == 1.0
    assert plan.is_due


def test_plan_of_an_empty_log_is_not_due() -> None:
    assert not CompactedStore().plan().is_due


def test_dirty_part_begins_at_the_checkpoint() -> None:
    store = filled()
    boundary = store.log().segments[3].base_offset
    store.first_dirty_offset = boundary
    plan = store.plan()
    assert plan.first_dirty_offset == boundary
    assert plan.clean_bytes == sum(segment.size for segment in store.log().segments[:3])
    assert 0 < plan.dirty_ratio < 1


@pytest.mark.parametrize("checkpoint", [-5, 41, 1_000])
def test_checkpoint_outside_the_log_means_its_start(checkpoint: int) -> None:
    store = filled()
    store.first_dirty_offset = checkpoint
    assert store.plan().first_dirty_offset == 0


def test_log_is_due_above_the_dirty_ratio() -> None:
    store = filled(compacted(min_cleanable_dirty_ratio=0.5))
    segments = store.log().segments
    store.first_dirty_offset = segments[2].base_offset
    assert store.plan().is_due
    store.first_dirty_offset = segments[-2].base_offset
    assert not store.plan().is_due


def test_young_segments_wait_for_the_compaction_lag() -> None:
    store = CompactedStore(config=compacted(min_compaction_lag_ms=HOUR_MS))
    store.write_each((b"a", b"old") for _ in range(10))
    store.seal()
    store.clock.advance(HOUR_MS)
    boundary = store.log().log_end_offset
    store.write_each((b"a", b"new") for _ in range(10))
    store.seal()
    assert store.plan().upper_bound == boundary
    store.clock.advance(HOUR_MS)
    assert store.plan().upper_bound == 20


def test_old_records_are_overdue_whatever_the_ratio() -> None:
    store = filled(compacted(min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms=HOUR_MS))
    store.first_dirty_offset = store.log().segments[-2].base_offset
    store.clock.advance(HOUR_MS)
    assert not store.plan().is_due
    store.clock.advance(1)
    assert store.plan().is_due


def test_plan_stops_at_the_stable_offset() -> None:
    store = filled()
    plan = plan_cleaning(store.log(), 0, 20, store.clock.now_ms())
    assert plan.upper_bound <= 20
    assert all(segment.base_offset < 20 for segment in plan.segments)


def test_filthiest_is_the_one_with_the_highest_ratio() -> None:
    store = filled()
    clean, dirty = store.log(0), store.log(1)
    for i in range(10):
        store.append(b"%d" % i, partition=1)
    dirty.roll(store.clock.now_ms())
    offsets = {(clean.topic, 0): clean.segments[-2].base_offset}
    logs = [(log, log.log_end_offset) for log in (clean, dirty)]
    survey = plan_filthiest(logs, offsets, store.clock.now_ms())
    assert survey.chosen is not None
    assert survey.chosen.log is dirty
    assert survey.dirty_ratio_max == survey.chosen.dirty_ratio == 1


def test_logs_that_are_not_compacted_are_left_alone() -> None:
    store = filled(compacted(cleanup_policy=frozenset({"delete"})))
    log = store.log()
    assert plan_filthiest([(log, log.log_end_offset)], {}, store.clock.now_ms()) == (None, 0)


def test_plan_knows_what_producers_hang_on() -> None:
    store = CompactedStore()
    store.write((b"a", b"1"), (b"a", b"2"), producer_id=9, base_sequence=0)
    store.write((b"b", b"1"), producer_id=8, base_sequence=0)
    assert list(store.plan().producer_ends) == [1, 2]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (lambda sizes: sum(sizes), 1),
        (lambda sizes: max(sizes), 8),
        (lambda sizes: 2 * max(sizes), 4),
    ],
)
def test_neighbours_are_grouped_up_to_the_segment_size(
    limit: Callable[[list[int]], int], expected: int
) -> None:
    store = filled()
    plan = store.plan()
    sizes = [segment.size for segment in plan.segments]
    config = compacted(segment_bytes=limit(sizes))
    groups = group_segments(list(plan.segments), plan.upper_bound, config)
    assert len(groups) == expected
    assert [segment for group, _ in groups for segment in group] == list(plan.segments)
    assert [end for _, end in groups][:-1] == [group[0].base_offset for group, _ in groups][1:]
    assert groups[-1][1] == plan.upper_bound


def test_groups_stay_within_the_index_size() -> None:
    store = filled(compacted(index_interval_bytes=1))
    plan = store.plan()
    largest = max(segment.index_size_bytes() for segment in plan.segments)
    config = compacted(segment_bytes=DAY_MS, segment_index_bytes=largest)
    assert len(group_segments(list(plan.segments), plan.upper_bound, config)) == len(plan.segments)
