"""ConsumerGroupHeartbeat over the wire, in both versions, and over a restart of the broker."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.broker.embedded import Broker
from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.wire import Wire


def create_topic(wire: Wire, name: str, partitions: int) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    answer = wire.call("create_topics", 7, topics=(topic,), timeout=10_000)
    assert answer.topics[0].error_code == 0


def find_coordinator(wire: Wire, group: str) -> None:
    answer = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=(group,))
    assert answer.coordinators[0].error_code == 0


def join(wire: Wire, group: str, version: int, **fields: Any) -> Any:
    wishes = {"rebalance_timeout": 1_000, "topic_partitions": (), "member_id": "m"}
    return wire.call("consumer_group_heartbeat", version, group_id=group, **{**wishes, **fields})


@pytest.mark.parametrize("version", [0, 1])
def test_heartbeat_answers_epoch_interval_and_assignment(
    millstream: SharedBroker, version: int
) -> None:
    topic, group = millstream.unique_topic(), millstream.unique_group()
    with Wire(millstream.bootstrap_servers) as wire:
        create_topic(wire, topic, 3)
        find_coordinator(wire, group)
        answer = join(wire, group, version, subscribed_topic_names=(topic,))
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 1)
        assert answer.heartbeat_interval.total_seconds() == 5
        (assigned,) = answer.assignment.topic_partitions
        assert assigned.partitions == (0, 1, 2)
        again = wire.call(
            "consumer_group_heartbeat",
            version,
            group_id=group,
            member_id="m",
            member_epoch=1,
            topic_partitions=None,
        )
        assert (again.error_code, again.assignment) == (0, None)


def test_heartbeat_answers_an_error_with_its_message(millstream: SharedBroker) -> None:
    group = millstream.unique_group()
    with Wire(millstream.bootstrap_servers) as wire:
        find_coordinator(wire, group)
        answer = join(wire, group, 1, subscribed_topic_regex="[")
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "`[`" in answer.error_message
        assert (answer.member_id, answer.assignment) == (None, None)


def test_heartbeat_before_there_is_a_coordinator_says_so() -> None:
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        answer = join(wire, "g", 1, subscribed_topic_names=())
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_member_goes_on_after_the_broker_restarted() -> None:
    """All that the new coordinator knows of the group is in __consumer_offsets."""
    with Broker.start() as broker:
        with Wire(broker.bootstrap_servers) as wire:
            create_topic(wire, "t", 2)
            find_coordinator(wire, "g")
            joined = join(wire, "g", 1, subscribed_topic_regex="t")
            (assigned,) = joined.assignment.topic_partitions
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            owned = {"topic_id": assigned.topic_id, "partitions": assigned.partitions}
            answer = _when_loaded(wire, member_epoch=joined.member_epoch, topic_partitions=(owned,))
            assert (answer.error_code, answer.member_epoch) == (0, joined.member_epoch)
            assert answer.assignment is None, "nothing has changed"


def _when_loaded(wire: Wire, **fields: Any) -> Any:
    while True:
        answer = wire.call("consumer_group_heartbeat", 1, group_id="g", member_id="m", **fields)
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer
