"""A member of a share group and the records that keep it."""

from __future__ import annotations

from uuid import UUID

from millstream.coordination.groups.share_member import ShareMember

A = UUID(int=1)


def test_member_is_what_its_records_say() -> None:
    member = ShareMember(
        "m", "rack", "client", "/host", frozenset({"a", "b"}), 7, 6, {A: frozenset({0, 3})}
    )
    restored = (
        ShareMember("m")
        .with_subscription_of(member.subscription_record("g").value)
        .with_assignment_of(member.assignment_record("g").value)
    )
    assert restored == member


def test_member_has_nothing_after_its_assignments_tombstone() -> None:
    gone = ShareMember("m", epoch=7, assigned={A: frozenset({0})}).with_assignment_of(None)
    assert (gone.epoch, gone.previous_epoch, gone.assigned) == (-1, -1, {})


def test_member_moves_to_an_epoch_and_remembers_the_one_that_it_knows() -> None:
    member = ShareMember("m", epoch=5, previous_epoch=4)
    moved = member.moved_to(6, {A: frozenset({0})}, known_epoch=5)
    assert (moved.epoch, moved.previous_epoch, moved.assigned) == (6, 5, {A: frozenset({0})})
    # It never got the answer, and moves on.
    moved = moved.moved_to(7, {}, known_epoch=5)
    assert (moved.epoch, moved.previous_epoch) == (7, 5)


def test_member_keeps_its_epochs_when_only_its_assignment_changes() -> None:
    member = ShareMember("m", epoch=5, previous_epoch=4, assigned={A: frozenset({0})})
    assert member.moved_to(5, {}, known_epoch=5) == ShareMember("m", epoch=5, previous_epoch=4)
