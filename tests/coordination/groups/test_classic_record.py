"""A classic group out of its records, and the questions answered from them."""

from __future__ import annotations

from millstream.coordination.group_records import (
    ClassicMemberRecord,
    GroupMetadataValue,
    OffsetCommitValue,
)
from millstream.coordination.groups.classic_record import ClassicGroupRecord
from millstream.coordination.groups.classic_state import ClassicState
from tests.coordination.groups.classic_harness import subscription


def record(
    *members: tuple[str, str | None],
    generation: int = 1,
    metadata: bytes = b"",
    protocol_type: str = "consumer",
) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type,
        generation,
        "range" if members else None,
        members[0][0] if members else None,
        500,
        tuple(
            ClassicMemberRecord(member_id, "c", "/h", 1, 1, metadata, member_id.encode(), instance)
            for member_id, instance in members
        ),
    )


def loaded(*values: GroupMetadataValue) -> ClassicGroupRecord:
    group = ClassicGroupRecord("g")
    for value in values:
        group.replay(value)
    return group


def test_last_record_is_the_group() -> None:
    group = loaded(record(("a", None), ("b", None)), record(("b", None), generation=2))
    assert group.generation == 2
    assert [it.member_id for it in group.members] == ["b"]
    assert group.leader_id == "b"
    assert group.state is ClassicState.STABLE


def test_record_without_members_is_an_empty_group() -> None:
    group = loaded(record(("a", None)), record(generation=2))
    assert (group.state, len(group.members), group.leader_id) == (ClassicState.EMPTY, 0, None)


def test_static_member_with_a_new_id_stays_the_same_member() -> None:
    group = loaded(record(("old", "i"), ("b", None)))
    before = group.members.static_member("i")
    group.replay(record(("new", "i"), ("b", None)))
    assert group.members.static_member("i") is before
    assert "old" not in group.members
    assert group.leader_id == "new"


def test_replaying_twice_changes_nothing() -> None:
    value = record(("a", "i"), ("b", None))
    group = loaded(value)
    once = group.describe()
    group.replay(value)
    assert group.describe() == once


def test_subscription_of_consumers_is_known() -> None:
    group = loaded(record(("a", None), metadata=subscription("orders")))
    assert group.is_subscribed_to("orders")
    assert not group.is_subscribed_to("payments")


def test_subscription_that_cannot_be_read_counts_as_everything() -> None:
    group = loaded(record(("a", None), metadata=b"?"))
    assert group.known_subscription() is None
    assert group.is_subscribed_to("anything")


def test_subscription_of_other_protocols_is_nobodys_business() -> None:
    group = loaded(record(("a", None), protocol_type="connect"))
    assert group.known_subscription() is None
    assert not group.is_subscribed_to("orders")


def test_expiry_counts_from_the_commit_or_from_becoming_empty() -> None:
    offset = OffsetCommitValue(1, "", commit_timestamp_ms=100)
    simple = ClassicGroupRecord("g")
    empty = loaded(record())
    consuming = loaded(record(("a", None), metadata=subscription("orders")))
    opaque = loaded(record(("a", None), protocol_type="connect"))
    assert simple.offset_expiry_base_ms(offset) == 100
    assert empty.offset_expiry_base_ms(offset) == 500
    assert consuming.offset_expiry_base_ms(offset) == 100
    assert opaque.offset_expiry_base_ms(offset) is None
