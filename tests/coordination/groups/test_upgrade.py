"""Groups that go over from the classic to the consumer protocol and back, member by member."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

import pytest

from millstream.coordination.group_records import ClassicProtocol
from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.embedded_protocol import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    NamedPartitions,
    by_topic_id,
    by_topic_name,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from millstream.coordination.groups.group import GroupSettings
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, Member, ShardDriver, settle

FOO = UUID(int=1)
_tokens = itertools.count()


class ClassicMember:
    """A consumer of the classic protocol with a cooperative assignor."""

    def __init__(
        self, driver: ShardDriver, *topics: str, instance_id: str | None = None, **fields: Any
    ) -> None:
        self.driver = driver
        self.member_id = ""
        self.generation = -1
        self.owned: dict[UUID, frozenset[int]] = {}
        self._topics = topics
        self._instance_id = instance_id
        self._protocol = fields.pop("protocol", "range")
        self._type = fields.pop("protocol_type", "consumer")

    def send_join(self) -> object:
        """Send JoinGroup; the answer may come later, for the token returned."""
        token = next(_tokens)
        subscription = EmbeddedSubscription(
            self._topics,
            owned_partitions=by_topic_name(self.owned, self.driver.topics),
            generation=self.generation,
        )
        request = JoinRequest(
            group_id="g",
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            client_id="classic",
            client_host="/127.0.0.1",
            protocol_type=self._type,
            protocols=(ClassicProtocol(self._protocol, encode_subscription(subscription, 3)),),
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            api_version=9,
        )
        self.driver.apply(self.driver.shard.join_group(request, token, self.driver.now_ms))
        return token

    def join(self) -> JoinResponse:
        """Join, and join again with the id that the first attempt is told."""
        response = self.joined(self.send_join())
        if response.error is ErrorCode.MEMBER_ID_REQUIRED:
            response = self.joined(self.send_join())
        return response

    def joined(self, token: object) -> JoinResponse:
        self.driver.advance(0)
        response: JoinResponse = self.driver.answers[token]
        if response.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
            self.generation = response.generation
        return response

    def sync(self, *assignments: tuple[str, bytes]) -> SyncResponse:
        token = next(_tokens)
        request = SyncRequest(
            "g",
            self.member_id,
            self._instance_id,
            self.generation,
            "consumer",
            self._protocol,
            assignments,
        )
        self.driver.apply(self.driver.shard.sync_group(request, token, self.driver.now_ms))
        response: SyncResponse = self.driver.answers[token]
        if response.error is ErrorCode.NONE:
            assigned = decode_assignment(response.assignment).assigned_partitions
            self.owned = dict(by_topic_id(assigned, self.driver.topics))
        return response

    def beat(self) -> ErrorCode:
        request = HeartbeatRequest("g", self.member_id, self._instance_id, self.generation)
        code = self.driver.apply(self.driver.shard.heartbeat(request, self.driver.now_ms))
        assert isinstance(code, ErrorCode)
        return code

    def follow(self) -> None:
        """What a client does in its poll loop: heartbeat, rejoin when told to."""
        if self.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
            assert self.join().error is ErrorCode.NONE
            assert self.sync().error is ErrorCode.NONE

    def leave(self) -> Any:
        request = LeaveRequest("g", (LeavingMember(self.member_id, self._instance_id),))
        return self.driver.apply(self.driver.shard.leave_group(request, self.driver.now_ms))


def assignment_of(**partitions: tuple[int, ...]) -> bytes:
    named = tuple(NamedPartitions(topic, held) for topic, held in partitions.items())
    return encode_assignment(EmbeddedAssignment(named), 3)


def settle_together(classic: list[ClassicMember], *modern: Member) -> None:
    for _ in range(6):
        for member in modern:
            member.acknowledge()
        for old in classic:
            old.follow()
    settle(*modern)


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver(FakeTopics(foo=4))


@pytest.fixture
def classic_pair(driver: ShardDriver) -> list[ClassicMember]:
    """A stable classic group of two, the first of which leads."""
    first, second = ClassicMember(driver, "foo"), ClassicMember(driver, "foo")
    for member in (first, second):
        member.joined(member.send_join())  # both are told their ids first
    tokens = [member.send_join() for member in (first, second)]
    for member, token in zip((first, second), tokens, strict=True):
        assert member.joined(token).error is ErrorCode.NONE
    first.sync(
        (first.member_id, assignment_of(foo=(0, 1))), (second.member_id, assignment_of(foo=(2, 3)))
    )
    second.sync()
    assert isinstance(driver.shard.groups["g"], ClassicGroup)
    return [first, second]


def refuses_upgrade(driver: ShardDriver, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as refused:
        Member(driver, "new", "foo").join()
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(driver.shard.groups["g"], ClassicGroup)


# --- upgrade -------------------------------------------------------------------------------------


def test_empty_classic_group_becomes_a_consumer_group(driver: ShardDriver) -> None:
    old = ClassicMember(driver, "foo")
    old.join()
    old.sync((old.member_id, assignment_of(foo=(0, 1, 2, 3))))
    old.leave()
    assert Member(driver, "new", "foo").join().assignment == {FOO: frozenset(range(4))}
    driver.reload(compacted=True)
    assert isinstance(driver.shard.groups["g"], ConsumerGroup)


def test_first_consumer_heartbeat_upgrades_a_group_and_keeps_what_members_own(
    driver: ShardDriver, classic_pair: list[ClassicMember]
) -> None:
    new = Member(driver, "new", "foo")
    assert new.join().assignment == {}
    group = driver.group()
    for member in classic_pair:
        assert group.members[member.member_id].uses_classic_protocol
    owned = {p for m in group.members.values() for p in m.assigned.get(FOO, {})}
    assert owned == set(range(4)), "nobody lost a partition by the upgrade"
    settle_together(classic_pair, new)
    consumed = [p for m in (*classic_pair, new) for p in m.owned.get(FOO, ())]
    assert sorted(consumed) == [0, 1, 2, 3]
    assert new.assigned
    assert group.state_name == "Stable"


def test_upgraded_group_survives_a_reload(
    driver: ShardDriver, classic_pair: list[ClassicMember]
) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    driver.reload(compacted=True)
    settle_together(classic_pair, new)
    assert driver.group().state_name == "Stable"


def test_members_waiting_in_a_classic_rebalance_are_told_to_come_again(
    driver: ShardDriver, classic_pair: list[ClassicMember]
) -> None:
    waiting = classic_pair[0].send_join()
    Member(driver, "new", "foo").join()
    assert classic_pair[0].joined(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("policy", "reason"), [("disabled", "upgrade is disabled"), ("downgrade", "disabled")]
)
def test_upgrade_is_refused_by_policy(policy: str, reason: str) -> None:
    settings = GroupSettings(
        group_consumer_migration_policy=policy, group_initial_rebalance_delay_ms=0
    )
    driver = ShardDriver(FakeTopics(foo=4), settings)
    ClassicMember(driver, "foo").join()
    refuses_upgrade(driver, reason)


def test_upgrade_is_refused_for_groups_that_are_no_consumers(driver: ShardDriver) -> None:
    ClassicMember(driver, "foo", protocol_type="connect").join()
    refuses_upgrade(driver, "consumer embedded protocol")


def test_upgrade_is_refused_when_a_custom_assignors_data_would_be_lost(
    driver: ShardDriver,
) -> None:
    member = ClassicMember(driver, "foo")
    member.join()
    custom = encode_assignment(EmbeddedAssignment((), user_data=b"mine"), 1)
    member.sync((member.member_id, custom))
    refuses_upgrade(driver, "custom assignor")


def test_classic_session_goes_on_after_the_upgrade(
    driver: ShardDriver, classic_pair: list[ClassicMember]
) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    driver.advance(29_000)
    assert len(driver.group().members) == 3
    new.beat()
    driver.advance(1_000)
    assert driver.group().members.keys() == {"new"}


# --- both ----------------------------------------------------------------------------------------


def test_classic_member_joins_a_consumer_group(driver: ShardDriver) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    new.acknowledge()
    old = ClassicMember(driver, "foo")
    answer = old.join()
    assert (answer.error, answer.protocol_name, answer.leader) == (ErrorCode.NONE, "range", "")
    assert answer.members == ()
    old.sync()
    assert old.owned == {}, "its partitions are not free yet"
    settle_together([old], new)
    assert len(old.owned[FOO]) == len(new.partitions) == 2


def test_classic_member_is_fenced_when_it_does_not_rejoin(driver: ShardDriver) -> None:
    old = ClassicMember(driver, "foo")
    new = Member(driver, "new", "foo")
    new.join()
    old.join()
    old.sync()
    settle_together([old], new)
    driver.topics.grow("foo", 6)
    settle(new)
    for _ in range(7):
        driver.advance(10_000)
        new.beat()
        if old.member_id in driver.group().members:
            assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.group().members.keys() == {"new"}


def test_classic_member_is_fenced_when_it_does_not_sync(driver: ShardDriver) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    old = ClassicMember(driver, "foo")
    old.join()
    for _ in range(6):
        driver.advance(10_000)
        new.beat()
        if old.member_id in driver.group().members:
            old.beat()
    assert driver.group().members.keys() == {"new"}


def test_classic_requests_are_validated(driver: ShardDriver) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    old = ClassicMember(driver, "foo")
    old.join()
    old.generation += 1
    for send in (old.beat, old.sync):
        with pytest.raises(ApiError) as refused:
            send()
        assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
    old.member_id = "new"
    with pytest.raises(ApiError, match="does not use the classic protocol"):
        old.beat()
    stranger = ClassicMember(driver, "foo")
    stranger.member_id = "stranger"
    with pytest.raises(ApiError) as refused:
        stranger.beat()
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_member_without_a_common_protocol_is_refused(driver: ShardDriver) -> None:
    Member(driver, "new", "foo").join()
    ClassicMember(driver, "foo", protocol="range").join()
    with pytest.raises(ApiError) as refused:
        ClassicMember(driver, "foo", protocol="sticky").join()
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_member_may_not_join_when_migration_is_disabled() -> None:
    settings = GroupSettings(group_consumer_migration_policy="disabled")
    driver = ShardDriver(FakeTopics(foo=4), settings)
    Member(driver, "new", "foo").join()
    with pytest.raises(ApiError) as refused:
        ClassicMember(driver, "foo").join()
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_leave_group_removes_members_of_either_protocol(driver: ShardDriver) -> None:
    Member(driver, "one", "foo").join()
    Member(driver, "two", "foo", instance_id="static").join()
    request = LeaveRequest(
        "g", (LeavingMember("one", None), LeavingMember("", "static"), LeavingMember("x", None))
    )
    left = driver.apply(driver.shard.leave_group(request, driver.now_ms))
    assert [member.error for member in left] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert driver.group().is_empty


# --- downgrade -----------------------------------------------------------------------------------


def test_group_goes_back_to_classic_when_its_last_modern_member_leaves(
    driver: ShardDriver, classic_pair: list[ClassicMember]
) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    settle_together(classic_pair, new)
    new.leave()
    driver.advance(0)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.state_name == "PreparingRebalance"
    first, second = classic_pair
    assert first.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [member.send_join() for member in classic_pair]
    answers = [member.joined(token) for member, token in zip(classic_pair, tokens, strict=True)]
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    leader = next(m for m in classic_pair if m.member_id == answers[0].leader)
    leader.sync(
        (first.member_id, assignment_of(foo=(0, 1))), (second.member_id, assignment_of(foo=(2, 3)))
    )
    assert first.sync().error is second.sync().error is ErrorCode.NONE
    driver.reload(compacted=True)
    assert isinstance(driver.shard.groups["g"], ClassicGroup)


def test_silent_modern_member_brings_the_group_back_to_classic(
    driver: ShardDriver, classic_pair: list[ClassicMember]
) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    for _ in range(6):
        driver.advance(7_500)
        for old in classic_pair:
            if isinstance(driver.shard.groups["g"], ConsumerGroup):
                old.follow()
    assert isinstance(driver.shard.groups["g"], ClassicGroup)


def test_static_classic_member_that_replaces_the_last_modern_one_makes_the_group_classic(
    driver: ShardDriver,
) -> None:
    modern = Member(driver, "new", "foo", instance_id="one")
    modern.join()
    modern.leave(epoch=-2)
    old = ClassicMember(driver, "foo", instance_id="one")
    assert old.join().error is ErrorCode.NONE
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert old.join().error is ErrorCode.NONE, "it rebalances by itself"
    assert old.sync((old.member_id, assignment_of(foo=(0, 1, 2, 3)))).error is ErrorCode.NONE
    assert old.owned == {FOO: frozenset(range(4))}


def test_group_stays_a_consumer_group_when_downgrade_is_not_allowed() -> None:
    settings = GroupSettings(
        group_consumer_migration_policy="upgrade", group_initial_rebalance_delay_ms=0
    )
    driver = ShardDriver(FakeTopics(foo=4), settings)
    new = Member(driver, "new", "foo")
    new.join()
    old = ClassicMember(driver, "foo")
    old.join()
    old.sync()
    new.leave()
    for _ in range(3):
        old.follow()
    assert isinstance(driver.shard.groups["g"], ConsumerGroup)


def test_empty_consumer_group_becomes_classic_with_the_first_join(driver: ShardDriver) -> None:
    new = Member(driver, "new", "foo")
    new.join()
    new.leave()
    old = ClassicMember(driver, "foo")
    assert old.join().error is ErrorCode.NONE
    assert isinstance(driver.shard.groups["g"], ClassicGroup)
    old.sync((old.member_id, assignment_of(foo=(0,))))
    driver.reload(compacted=True)
    assert isinstance(driver.shard.groups["g"], ClassicGroup)
