"""Share groups (KIP-932): members, heartbeat by heartbeat; positions; Apache's tools for both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from millstream.errors import ErrorCode
from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import prepared
from tests.peers.java_runtime import ToolRunner
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Record
from tests.peers.wire import Wire

pytestmark = pytest.mark.xdist_group("share-groups")

OWN_SETTINGS = {
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "10000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.assignment.interval.ms": "0",
    "group.share.max.size": "3",
    "share.coordinator.state.topic.num.partitions": "5",
}
NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
GROUP_RESOURCE = 32


class ShareMember:
    """A member of a share group that says what the test tells it to."""

    def __init__(self, broker: BrokerUnderTest, group: str, *topics: str) -> None:
        self.wire = Wire(broker.bootstrap)
        self.member_id = str(uuid.uuid4())
        self.group = group
        self.topics = topics
        self.epoch = 0
        self.assigned: dict[uuid.UUID, set[int]] = {}
        wait_until(lambda: find_coordinator(self.wire, group))

    def send(self, **fields: Any) -> Any:
        """One heartbeat, as it is; waits out a coordinator that is being loaded."""
        named = {"member_id": self.member_id, "member_epoch": self.epoch, "group_id": self.group}
        while True:
            answer = self.wire.call("share_group_heartbeat", 1, **{**named, **fields})
            if answer.error_code not in (*NOT_YET, ErrorCode.NOT_COORDINATOR):
                break
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {
                    topic.topic_id: set(topic.partitions)
                    for topic in answer.assignment.topic_partitions
                }
        return answer

    def join(self) -> Any:
        return self.send(member_epoch=0, subscribed_topic_names=self.topics)

    def beat(self, **fields: Any) -> Any:
        return self.send(
            subscribed_topic_names=fields.pop("subscribed_topic_names", None), **fields
        )

    def leave(self) -> Any:
        return self.wire.call(
            "share_group_heartbeat",
            1,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=-1,
        )

    def has(self, count: int) -> bool:
        """Whether it is given that many partitions, after another heartbeat."""
        self.beat()
        return sum(map(len, self.assigned.values())) == count


def find_coordinator(wire: Wire, group: str) -> bool:
    answer = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=(group,))
    return bool(answer.coordinators[0].error_code == 0)


@pytest.fixture
def members(own_broker: BrokerUnderTest) -> Iterator[list[ShareMember]]:
    """A list to add members to, whose connections end with the test."""
    created: list[ShareMember] = []
    yield created
    for member in created:
        member.wire.socket.close()


@pytest.fixture
def wire(own_broker: BrokerUnderTest) -> Iterator[Wire]:
    with Wire(own_broker.bootstrap) as connected:
        yield connected


def joined(
    broker: BrokerUnderTest, members: list[ShareMember], group: str, *topics: str, count: int = 1
) -> list[ShareMember]:
    new = [ShareMember(broker, group, *topics) for _ in range(count)]
    members += new
    for member in new:
        assert member.join().error_code == 0
    return new


def described(wire: Wire, group: str) -> Any:
    answer = wire.call(
        "share_group_describe", 1, group_ids=(group,), include_authorized_operations=False
    )
    return answer.groups[0]


def listed(wire: Wire, group: str, types: tuple[str, ...] = ()) -> Any:
    answer = wire.call("list_groups", 5, states_filter=(), types_filter=types)
    return next((found for found in answer.groups if found.group_id == group), None)


# --- members ---------------------------------------------------------------------------------


def test_member_is_given_every_partition(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(partitions=4), unique("share")
    (member,) = joined(own_broker, members, group, topic)
    wait_until(lambda: member.has(4))
    assert member.assigned == {own_broker.topic_id(topic): {0, 1, 2, 3}}
    answer = member.beat()
    assert (answer.error_code, answer.assignment) == (0, None)
    assert answer.heartbeat_interval.total_seconds() == 0.5
    group_described = described(wire, group)
    assert (group_described.group_state, group_described.assignor_name) == ("Stable", "simple")
    assert group_described.group_epoch == group_described.assignment_epoch == member.epoch
    (only,) = group_described.members
    assert (only.member_id, only.client_id, only.client_host) == (
        member.member_id,
        "wire",
        "/127.0.0.1",
    )
    assert only.subscribed_topic_names == (topic,)
    assert only.assignment.topic_partitions[0].topic_name == topic
    found = listed(wire, group, ("share",))
    assert (found.protocol_type, found.group_state, found.group_type) == (
        "share",
        "Stable",
        "share",
    )
    assert listed(wire, group, ("consumer", "classic")) is None


def test_members_share_partitions_when_there_are_more_of_them(
    own_broker: BrokerUnderTest, members: list[ShareMember]
) -> None:
    topic, group = own_broker.create_topic(partitions=2), unique("share")
    joined(own_broker, members, group, topic, count=3)

    def all_have_some() -> bool:
        for member in members:
            member.beat()
        held = [set().union(*member.assigned.values()) for member in members]
        return all(held) and set().union(*held) == {0, 1}

    wait_until(all_have_some)


def test_members_follow_subscriptions_and_topics(
    own_broker: BrokerUnderTest, members: list[ShareMember]
) -> None:
    one, two, group = own_broker.create_topic(), own_broker.create_topic(), unique("share")
    (member,) = joined(own_broker, members, group, one)
    wait_until(lambda: member.has(1))
    member.beat(subscribed_topic_names=(one, two))
    wait_until(lambda: member.has(2))
    own_broker.admin.create_partitions([NewPartitions(two, 3)])[two].result(PATIENCE_SECONDS)
    wait_until(lambda: member.has(4))
    own_broker.admin.delete_topics([one])[one].result(PATIENCE_SECONDS)
    wait_until(lambda: member.has(3))
    assert member.assigned == {own_broker.topic_id(two): {0, 1, 2}}


def test_member_that_leaves_or_is_silent_is_out(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(partitions=2), unique("share")
    one, two, three = joined(own_broker, members, group, topic, count=3)
    answer = two.leave()
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    assert configure(wire, group, **{"share.session.timeout.ms": "3000"}) == 0
    assert three.beat().error_code == 0  # the last that is heard of it

    def only_one_is_left() -> bool:
        """While the third one is silent."""
        one.join()  # again, should it have been silent for too long, too
        return [member.member_id for member in described(wire, group).members] == [one.member_id]

    wait_until(only_one_is_left)
    wait_until(lambda: one.has(2))
    assert three.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    one.leave()
    assert described(wire, group).group_state == "Empty"


def test_member_with_another_epoch_is_fenced(
    own_broker: BrokerUnderTest, members: list[ShareMember]
) -> None:
    topic, group = own_broker.create_topic(), unique("share")
    (member,) = joined(own_broker, members, group, topic)
    wait_until(lambda: member.has(1))
    epoch = member.epoch
    fenced = member.send(member_epoch=epoch + 1)
    assert fenced.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = member.send(member_epoch=0, subscribed_topic_names=(topic,))
    assert (again.error_code, again.member_epoch) == (0, epoch)
    assert again.assignment is not None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ()}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_heartbeat_is_refused_that_makes_no_sense(
    own_broker: BrokerUnderTest,
    members: list[ShareMember],
    fields: dict[str, Any],
    code: ErrorCode,
) -> None:
    members.append(ShareMember(own_broker, unique("share")))
    answer = members[0].send(**{"subscribed_topic_names": ("topic",), **fields})
    assert answer.error_code == code


def test_group_takes_no_more_members_than_it_may(
    own_broker: BrokerUnderTest, members: list[ShareMember]
) -> None:
    topic, group = own_broker.create_topic(), unique("share")
    joined(own_broker, members, group, topic, count=3)
    members.append(ShareMember(own_broker, group, topic))
    assert members[3].join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert members[0].join().error_code == 0
    members[0].leave()
    assert members[3].join().error_code == 0


def test_group_that_is_not_there_is_described_as_such(
    own_broker: BrokerUnderTest, wire: Wire
) -> None:
    group = unique("share")
    wait_until(lambda: find_coordinator(wire, group))
    wait_until(lambda: described(wire, group).error_code not in NOT_YET)
    assert described(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# --- kinds of groups -------------------------------------------------------------------------


def test_share_group_is_no_other_group(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(), unique("share")
    joined(own_broker, members, group, topic)
    classic = wire.call(
        "join_group",
        5,
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=({"name": "range", "metadata": b""},),
    )
    assert classic.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    consumer = wire.call(
        "consumer_group_heartbeat",
        1,
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout=10_000,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
    )
    assert consumer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    committed = wire.call(
        "offset_commit",
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=({"name": topic, "partitions": ({"partition_index": 0, "committed_offset": 1},)},),
    )
    partition = committed.topics[0].partitions[0]
    assert partition.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    fetched = wire.call(
        "offset_fetch",
        9,
        groups=({"group_id": group, "topics": ({"name": topic, "partition_indexes": (0,)},)},),
        require_stable=False,
    ).groups[0]
    assert fetched.error_code == 0
    assert fetched.topics[0].partitions[0].committed_offset == -1
    for api, version, name in (
        ("describe_groups", 6, "groups"),
        ("consumer_group_describe", 1, "group_ids"),
    ):
        answer = wire.call(api, version, **{name: (group,), "include_authorized_operations": False})
        assert answer.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_of_another_kind_is_no_share_group(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(), unique("classic")
    members.append(ShareMember(own_broker, group, topic))

    def commit() -> bool:
        partitions = ({"partition_index": 0, "committed_offset": 1},)
        answer = wire.call(
            "offset_commit",
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=({"name": topic, "partitions": partitions},),
        )
        return bool(answer.topics[0].partitions[0].error_code == 0)

    wait_until(commit)  # which makes a group that is classic
    assert members[0].join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    for api, topics in (
        ("alter_share_group_offsets", ({"topic_name": topic, "partitions": ()},)),
        ("delete_share_group_offsets", ({"topic_name": topic},)),
    ):
        answer = wire.call(api, 0, group_id=group, topics=topics)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# --- positions -------------------------------------------------------------------------------


def alter(wire: Wire, group: str, topic: str, **offsets: int) -> Any:
    """Set positions: `p0=7` is partition 0 at offset 7."""
    partitions = tuple(
        {"partition_index": int(name[1:]), "start_offset": offset}
        for name, offset in offsets.items()
    )
    return wire.call(
        "alter_share_group_offsets",
        0,
        group_id=group,
        topics=({"topic_name": topic, "partitions": partitions},),
    )


def positions(wire: Wire, group: str, topics: Any = None, version: int = 1) -> Any:
    answer = wire.call(
        "describe_share_group_offsets", version, groups=({"group_id": group, "topics": topics},)
    )
    return answer.groups[0]


def fill(broker: BrokerUnderTest, topic: str, count: int) -> None:
    records = [Record(value=b"%d" % number, partition=0) for number in range(count)]
    prepared("confluent").produce(broker.bootstrap, topic, records)


def test_positions_can_be_set_before_the_group_begins(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(partitions=2), unique("share")
    fill(own_broker, topic, 10)
    wait_until(lambda: find_coordinator(wire, group))
    wait_until(lambda: described(wire, group).error_code not in NOT_YET)

    def is_altered() -> bool:
        answer = alter(wire, group, topic, p0=4, p2=0)
        assert answer.error_code == 0
        good, bad = answer.responses[0].partitions
        assert bad.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return bool(good.error_code == 0)

    wait_until(is_altered)
    assert described(wire, group).group_state == "Empty"
    asked = ({"topic_name": topic, "partitions": (0, 1)}, {"topic_name": "?", "partitions": (0,)})
    wait_until(lambda: positions(wire, group, asked).topics[0].partitions[0].start_offset == 4)
    known, unknown = positions(wire, group, asked).topics
    assert known.partitions[0].lag == 6
    assert [p.start_offset for p in known.partitions] == [4, -1]
    assert known.partitions[1].lag == -1
    assert unknown.partitions[0].start_offset == -1
    assert unknown.partitions[0].error_code == 0
    # A member finds what was set, and the rest by share.auto.offset.reset.
    (member,) = joined(own_broker, members, group, topic)
    wait_until(lambda: member.has(2))
    assert positions(wire, group, asked).topics[0].partitions[0].start_offset == 4


def test_positions_are_left_alone_while_there_are_members(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(), unique("share")
    (member,) = joined(own_broker, members, group, topic)
    wait_until(lambda: member.has(1))
    non_empty = ErrorCode.NON_EMPTY_GROUP
    assert alter(wire, group, topic, p0=0).error_code == non_empty
    topics = ({"topic_name": topic},)
    answer = wire.call("delete_share_group_offsets", 0, group_id=group, topics=topics)
    assert answer.error_code == non_empty
    answer = wire.call("delete_groups", 2, groups_names=(group,))
    assert answer.results[0].error_code == non_empty


def test_positions_and_groups_can_be_deleted(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(partitions=2), unique("share")
    (member,) = joined(own_broker, members, group, topic)
    wait_until(lambda: member.has(2))
    member.leave()
    assert {p.partition_index for p in positions(wire, group).topics[0].partitions} == {0, 1}

    def delete(*names: str) -> Any:
        topics = tuple({"topic_name": name} for name in names)
        return wire.call("delete_share_group_offsets", 0, group_id=group, topics=topics)

    answer = delete(topic, "absent")
    assert answer.error_code == 0
    codes = {found.topic_name: found.error_code for found in answer.responses}
    assert codes == {topic: 0, "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert positions(wire, group).topics == ()
    assert delete(topic).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # It begins anew, and goes for good.
    member.join()
    wait_until(lambda: member.has(2))
    member.leave()
    assert wire.call("delete_groups", 2, groups_names=(group,)).results[0].error_code == 0
    assert described(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert listed(wire, group) is None
    assert positions(wire, group).topics == ()
    assert delete(topic).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    answer = wire.call("delete_groups", 2, groups_names=(group,))
    assert answer.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "is_good"),
    [
        ("share.session.timeout.ms", "1000", True),
        ("share.session.timeout.ms", "999", False),
        ("share.session.timeout.ms", "60001", False),
        ("share.heartbeat.interval.ms", "100", True),
        ("share.heartbeat.interval.ms", "99", False),
        ("share.heartbeat.interval.ms", "15001", False),
        ("share.record.lock.duration.ms", "15000", True),
        ("share.record.lock.duration.ms", "14999", False),
        ("share.record.lock.duration.ms", "60001", False),
        ("share.delivery.count.limit", "10", True),
        ("share.delivery.count.limit", "1", False),
        ("share.delivery.count.limit", "11", False),
        ("share.partition.max.record.locks", "4000", True),
        ("share.partition.max.record.locks", "99", False),
        ("share.partition.max.record.locks", "4001", False),
        ("share.auto.offset.reset", "earliest", True),
        ("share.auto.offset.reset", "by_duration:PT1H", True),
        ("share.auto.offset.reset", "by_duration:1h", False),
        ("share.auto.offset.reset", "by_duration:-PT1H", False),
        ("share.auto.offset.reset", "none", False),
        ("share.isolation.level", "read_committed", True),
        ("share.isolation.level", "serializable", False),
        ("share.renew.acknowledge.enable", "false", True),
        ("share.renew.acknowledge.enable", "maybe", False),
    ],
)
def test_group_setting_is_checked(
    own_broker: BrokerUnderTest, wire: Wire, name: str, value: str, is_good: bool
) -> None:
    code = configure(wire, unique("share"), **{name: value})
    assert code == (ErrorCode.NONE if is_good else ErrorCode.INVALID_CONFIG)


def configure(wire: Wire, group: str, **settings: str) -> Any:
    """Set a group's settings; the error code."""
    changes = tuple(
        {"name": name, "config_operation": 0, "value": value} for name, value in settings.items()
    )
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": changes}
    answer = wire.call("incremental_alter_configs", 1, resources=(resource,), validate_only=False)
    return answer.responses[0].error_code


def test_group_obeys_its_own_settings(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(), unique("share")
    settings = {"share.session.timeout.ms": "1000", "share.heartbeat.interval.ms": "200"}
    assert configure(wire, group, **settings) == 0
    (member,) = joined(own_broker, members, group, topic)
    # It joins again: the session may be over between two of its heartbeats.
    wait_until(lambda: member.join().heartbeat_interval.total_seconds() == 0.2)
    wait_until(lambda: described(wire, group).group_state == "Empty")


# --- Apache's tools --------------------------------------------------------------------------


@pytest.mark.java
def test_apache_tools_administer_share_groups(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire, tools: ToolRunner
) -> None:
    topic, group = own_broker.create_topic(partitions=2), unique("share")
    assert configure(wire, group, **{"share.session.timeout.ms": "60000"}) == 0
    fill(own_broker, topic, 10)
    server = ("--bootstrap-server", own_broker.bootstrap)

    command = ("consumer.group.ShareGroupCommand", *server, "--timeout", "60000")

    def share_groups(*arguments: str) -> str:
        return tools.check(*command, *arguments).stdout

    (member,) = joined(own_broker, members, group, topic)
    wait_until(lambda: member.has(2))
    assert group in share_groups("--list").split()
    member.beat()
    (line,) = (
        line for line in share_groups("--list", "--state").splitlines() if line.startswith(group)
    )
    assert line.split() == [group, "Stable"]
    member.beat()
    state = share_groups("--describe", "--group", group, "--state")
    assert "Stable" in state
    member.beat()
    assert member.member_id in share_groups("--describe", "--group", group, "--members")
    member.beat()
    groups = tools.check("GroupsCommand", *server, "--list", "--share").stdout
    assert [group, "Share", "share"] in [line.split() for line in groups.splitlines()]
    member.beat()
    refused = tools.run(*command, "--delete", "--group", group)
    assert "is not EMPTY" in refused.stdout + refused.stderr
    member.leave()
    one = ("--group", group, "--topic", topic)
    reset = share_groups("--reset-offsets", *one, "--to-earliest", "--execute")
    assert topic in reset
    offsets = share_groups("--describe", "--group", group, "--offsets")
    rows = [line.split() for line in offsets.splitlines() if line.startswith(group)]
    assert sorted(row[1:4] for row in rows) == [[topic, "0", "0"], [topic, "1", "0"]]
    share_groups("--delete-offsets", *one)
    offsets = share_groups("--describe", "--group", group, "--offsets")
    assert not [line for line in offsets.splitlines() if line.startswith(group) and topic in line]
    assert "successful" in share_groups("--delete", "--group", group)
    assert group not in share_groups("--list").split()


@pytest.mark.java
def test_java_member_reads_and_is_described(
    own_broker: BrokerUnderTest, wire: Wire, tools: ToolRunner
) -> None:
    topic, group = own_broker.create_topic(partitions=2), unique("share")
    fill(own_broker, topic, 10)
    wait_until(lambda: find_coordinator(wire, group))
    wait_until(lambda: described(wire, group).error_code not in NOT_YET)
    wait_until(lambda: alter(wire, group, topic, p0=0, p1=0).error_code == 0)
    result = tools.check(
        "consumer.ConsoleShareConsumer",
        *("--bootstrap-server", own_broker.bootstrap, "--topic", topic, "--group", group),
        *("--max-messages", 10, "--timeout-ms", 30_000),
    )
    assert sorted(result.stdout.split(), key=int) == [str(number) for number in range(10)]
    wait_until(lambda: described(wire, group).group_state == "Empty")  # it left
    asked = ({"topic_name": topic, "partitions": (0, 1)},)

    def is_done() -> bool:
        (found,) = positions(wire, group, asked).topics
        return [partition.lag for partition in found.partitions] == [0, 0]

    wait_until(is_done)


# --- last, for it switches share groups off ----------------------------------------------------


def test_share_groups_can_be_switched_off(
    own_broker: BrokerUnderTest, members: list[ShareMember], wire: Wire
) -> None:
    topic, group = own_broker.create_topic(), unique("share")
    joined(own_broker, members, group, topic)
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    set_share_version(wire, 0)
    try:
        wait_until(lambda: members[0].beat().error_code == unsupported)
        assert described(wire, group).error_code == unsupported
        assert positions(wire, group).error_code == unsupported
        assert alter(wire, group, topic, p0=0).error_code == unsupported
        topics = ({"topic_name": topic},)
        answer = wire.call("delete_share_group_offsets", 0, group_id=group, topics=topics)
        assert answer.error_code == unsupported
    finally:
        set_share_version(wire, 1)
    wait_until(lambda: members[0].join().error_code == 0)


def set_share_version(wire: Wire, level: int) -> None:
    update = {
        "feature": "share.version",
        "max_version_level": level,
        "upgrade_type": 1 if level else 2,
    }
    answer = wire.call(
        "update_features", 1, timeout=10_000, feature_updates=(update,), validate_only=False
    )
    assert answer.error_code == 0, answer
