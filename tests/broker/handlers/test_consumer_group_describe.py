"""ConsumerGroupDescribe over the wire: every group asked for is answered."""

from __future__ import annotations

from millstream.broker.embedded import Broker
from millstream.errors import ErrorCode
from millstream.protocol.metadata import OPERATIONS_NOT_ASKED
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.test_consumer_group_heartbeat import (
    create_topic,
    find_coordinator,
    join,
)
from tests.peers.wire import Wire


def test_description_shows_members_with_assignment_and_target(millstream: SharedBroker) -> None:
    topic, group = millstream.unique_topic(), millstream.unique_group()
    with Wire(millstream.bootstrap_servers) as wire:
        create_topic(wire, topic, 2)
        find_coordinator(wire, group)
        join(wire, group, 1, subscribed_topic_names=(topic,), rack_id="r", instance_id="i")
        (described,) = wire.call("consumer_group_describe", 1, group_ids=(group,)).groups
        assert (described.error_code, described.group_state) == (0, "Stable")
        assert (described.group_epoch, described.assignment_epoch) == (1, 1)
        assert described.assignor_name == "uniform"
        assert described.authorized_operations == OPERATIONS_NOT_ASKED
        (member,) = described.members
        assert (member.member_id, member.member_epoch, member.member_type) == ("m", 1, 1)
        assert (member.instance_id, member.rack_id, member.client_id) == ("i", "r", "wire")
        assert member.client_host == "/127.0.0.1"
        assert member.subscribed_topic_names == (topic,)
        for assignment in (member.assignment, member.target_assignment):
            (partitions,) = assignment.topic_partitions
            assert (partitions.topic_name, partitions.partitions) == (topic, (0, 1))


def test_description_has_authorized_operations_when_asked(millstream: SharedBroker) -> None:
    group = millstream.unique_group()
    with Wire(millstream.bootstrap_servers) as wire:
        find_coordinator(wire, group)
        join(wire, group, 0, subscribed_topic_names=())
        answer = wire.call(
            "consumer_group_describe", 0, group_ids=(group,), include_authorized_operations=True
        )
        assert answer.groups[0].authorized_operations == sum(
            1 << operation for operation in (3, 6, 8, 10, 11)
        )


def test_groups_that_are_not_there_are_answered_one_by_one(millstream: SharedBroker) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        find_coordinator(wire, "any")
        answer = wire.call("consumer_group_describe", 1, group_ids=("not", "there"))
    assert [group.group_id for group in answer.groups] == ["not", "there"]
    assert {group.error_code for group in answer.groups} == {ErrorCode.GROUP_ID_NOT_FOUND}


def test_groups_are_not_found_before_anyone_asked_for_a_coordinator() -> None:
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        answer = wire.call("consumer_group_describe", 1, group_ids=("g",))
    assert answer.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
