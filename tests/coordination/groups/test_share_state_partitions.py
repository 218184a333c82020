"""What a share group writes down about the persister's state, and what becomes of it."""

from __future__ import annotations

from uuid import UUID

from millstream.coordination.group_records import GROUP_RECORDS
from millstream.coordination.groups.share_state_partitions import (
    NO_STATE,
    NamedPartitions,
    StatePartitions,
)

A, B = UUID(int=1), UUID(int=2)


def of(name: str, *partitions: int) -> NamedPartitions:
    return NamedPartitions(name, frozenset(partitions))


def test_partitions_pass_from_initializing_to_initialized() -> None:
    begun = NO_STATE.initialization_begun({A: of("a", 0, 1, 2), B: of("b", 0)})
    assert begun.assignable() == {}
    done = begun.initialization_done({A: of("a", 0, 2)})
    assert done.initializing == {A: of("a", 1), B: of("b", 0)}
    assert done.assignable() == {A: frozenset({0, 2})}


def test_partitions_keep_their_position_while_it_is_set_anew() -> None:
    state = StatePartitions(initialized={A: of("a", 0, 1)}).initialization_begun({A: of("a", 1)})
    assert state.assignable() == {A: frozenset({0, 1})}


def test_topics_being_deleted_are_not_assignable() -> None:
    state = StatePartitions({A: of("a", 2)}, {A: of("a", 0, 1), B: of("b", 0)})
    begun = state.deletion_begun({A: "a"})
    assert begun == StatePartitions({}, {B: of("b", 0)}, {A: "a"})
    assert begun.topic_ids() == {A, B}
    assert begun.deletion_done([A]) == StatePartitions({}, {B: of("b", 0)}, {})


def test_topics_being_deleted_come_back_when_initialized_again() -> None:
    state = StatePartitions(deleting={A: "a", B: "b"}).initialization_begun({A: of("a", 0)})
    assert state == StatePartitions({A: of("a", 0)}, {}, {B: "b"})


def test_topics_that_are_gone_leave_no_trace() -> None:
    state = StatePartitions({A: of("a", 1)}, {A: of("a", 0), B: of("b", 0)}, {A: "a"})
    assert state.without_topics({A}) == StatePartitions({}, {B: of("b", 0)}, {})


def test_record_holds_all_of_it() -> None:
    state = StatePartitions({A: of("a", 3, 1)}, {B: of("b", 0)}, {A: "a"})
    record = state.record("g")
    decoded = GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record.key, record.value))
    assert decoded is not None
    assert decoded[0].group_id == "g"
    assert StatePartitions.of(decoded[1]) == state
