"""Membership: ids, instance ids, leaders, protocols."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.group_records import ClassicProtocol
from millstream.coordination.groups.classic_members import (
    ClassicMember,
    Membership,
    subscribed_topics,
)
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.classic_harness import subscription


def member(member_id: str, *protocols: str, instance_id: str | None = None) -> ClassicMember:
    offered = tuple(ClassicProtocol(name, name.encode()) for name in protocols or ("range",))
    return ClassicMember(member_id, instance_id, "client", "/host", 60_000, 10_000, offered)


def membership(*members: ClassicMember) -> Membership:
    made = Membership()
    for it in members:
        made.add(it)
    return made


def test_first_member_leads_and_the_next_takes_over() -> None:
    members = membership(member("a"), member("b"))
    assert members.leader_id == "a"
    members.remove("a")
    assert members.leader_id == "b"
    members.remove("b")
    assert members.leader_id is None


def test_leader_that_did_not_join_is_replaced_by_one_that_did() -> None:
    members = membership(member("a"), member("b"))
    assert not members.elect_joined_leader()
    joined = members.get("b")
    assert joined is not None
    joined.join_token = 1
    assert members.elect_joined_leader()
    assert members.leader_id == "b"


def test_renamed_member_keeps_its_place() -> None:
    static = member("old", instance_id="i")
    members = membership(static, member("b"))
    members.rename(static, "new")
    assert members.leader_id == "new"
    assert members.static_member("i") is static
    assert members.validate("new", "i") is static
    with pytest.raises(ApiError) as error:
        members.validate("old", "i")
    assert error.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_validation_tells_unknown_members() -> None:
    members = membership(member("a"))
    for member_id, instance_id in (("b", None), ("a", "never seen"), ("", None)):
        with pytest.raises(ApiError) as error:
            members.validate(member_id, instance_id)
        assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_all_have_joined_when_nobody_is_missing_or_pending() -> None:
    only = member("a")
    members = membership(only)
    assert not members.all_have_joined
    only.join_token = 1
    assert members.all_have_joined
    members.pending_ids.add("b")
    assert not members.all_have_joined


def test_protocol_is_one_that_all_offer() -> None:
    members = membership(member("a", "x", "common"), member("b", "y", "common"))
    assert members.common_protocols() == {"common"}
    assert members.select_protocol() == "common"
    assert members.shares_a_protocol(["z", "common"])
    assert not members.shares_a_protocol(["x"])


def test_member_comes_back_from_its_record() -> None:
    original = member("a", "range", instance_id="i")
    restored = ClassicMember.from_record(original.as_record("range", b"assigned"), "range")
    assert restored.assignment == b"assigned"
    assert restored.metadata("range") == b"range"
    assert (restored.member_id, restored.group_instance_id) == ("a", "i")


def test_record_without_a_rebalance_timeout_takes_the_sessions() -> None:
    old = member("a").as_record("range", b"")
    record = type(old)(
        member_id="a",
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=-1,
        session_timeout_ms=7,
        subscription=b"",
        assignment=b"",
    )
    assert ClassicMember.from_record(record, "range").rebalance_timeout_ms == 7


def test_subscription_is_read() -> None:
    assert subscribed_topics(subscription("orders", "payments")) == {"orders", "payments"}
    assert subscribed_topics(subscription()) == set()


@given(st.binary(max_size=40))
def test_any_metadata_is_a_subscription_or_none(metadata: bytes) -> None:
    try:
        topics = subscribed_topics(metadata)
    except ValueError:
        return
    assert all(isinstance(topic, str) for topic in topics)
