"""The new segment and the steps by which it takes the place of the old ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from millstream.storage.cleaner_segment import CleanedSegment, CleaningAborted, swap
from millstream.storage.flush import sync_segments
from millstream.storage.segment import Segment
from millstream.storage.steps import run_here
from tests.storage.cleaning import CompactedStore
from tests.storage.store import truncate_to

T = TypeVar("T")


def now(action: Callable[[], T]) -> T:
    return action()


def store_with_copy() -> tuple[CompactedStore, list[Segment], CleanedSegment]:
    """A log, its first two sealed segments, and an exact copy of both as one new segment."""
    store = CompactedStore()
    store.write_each((b"key%d" % i, b"value") for i in range(20))
    store.seal()
    run_here(sync_segments(store.log(), 0))
    old = store.log().segments[:2]
    cleaned = CleanedSegment(store.plan(), old[0].base_offset)
    for segment in old:
        cleaned.append(memoryview(segment.read_at(segment.size, 0, may_block=True)))
    return store, old, cleaned


def suffixes(store: CompactedStore) -> set[str]:
    return {path.rsplit(".", 1)[1] for path in store.files() if "orders-0/0" in path}


def test_new_segment_counts_for_nothing_until_it_is_swapped_in() -> None:
    store, _, cleaned = store_with_copy()
    before = store.read()
    cleaned.finish()
    assert "cleaned" in suffixes(store)
    store.crash()
    assert store.read() == before
    assert "cleaned" not in suffixes(store)


def test_swap_replaces_the_old_segments_and_their_files() -> None:
    store, old, cleaned = store_with_copy()
    before = store.read()
    new = cleaned.finish()
    following = store.log().segments[2:]
    swap(store.plan(), old, new, now)
    assert store.log().segments == [new, *following]
    assert store.read() == before
    store.directories.sweep()
    assert suffixes(store) <= {"log", "index", "timeindex", "snapshot"}
    store.crash()
    assert store.read() == before


def test_steps_of_a_swap_reach_the_disk_in_order() -> None:
    store, old, cleaned = store_with_copy()
    new = cleaned.finish()
    store.fs.operations.clear()
    swap(store.plan(), old, new, now)
    steps = []
    for operation in store.fs.operations:
        if operation.name == "sync_directory" and operation.path == store.log().path:
            steps.append("sync")
        elif operation.name == "rename" and "orders-0/0" in operation.path:
            suffix = operation.path.rsplit(".", 1)[1]
            step = suffix if suffix in ("swap", "deleted") else "final"
            if step not in steps:
                steps.append(step)
    assert steps[steps.index("swap") :] == ["swap", "sync", "deleted", "sync", "final", "sync"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_swap_is_given_up_when_the_log_has_changed(step: int) -> None:
    store, old, cleaned = store_with_copy()
    new, plan = cleaned.finish(), store.plan()
    steps = 0

    def truncating(action: Callable[[], T]) -> T:
        nonlocal steps
        steps += 1
        if steps == step:
            truncate_to(store.log(), 3)
        return action()

    with pytest.raises(CleaningAborted):
        swap(plan, old, new, truncating)
    cleaned.discard()
    assert [record.offset for record in store.read()] == [0, 1, 2]
    assert suffixes(store).isdisjoint({"cleaned", "swap"})


def test_swap_is_given_up_when_the_directory_has_failed() -> None:
    store, old, cleaned = store_with_copy()
    new, plan = cleaned.finish(), store.plan()
    store.log().directory.fail(OSError("broken"))
    with pytest.raises(CleaningAborted):
        swap(plan, old, new, now)


def test_discarded_segment_leaves_no_files() -> None:
    store, _, cleaned = store_with_copy()
    cleaned.discard()
    assert "cleaned" not in suffixes(store)
