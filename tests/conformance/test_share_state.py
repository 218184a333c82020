"""The share state persister's APIs (83 to 87), request by request, as brokers send them.

What Kafka's development branch does and 4.3 does not is done here too: an initialization that is
repeated changes nothing, neither the start offset nor the count of completed deliveries falls, and
negative epochs are refused (tests/coordination/test_share_state_shard.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.peers.transactional import patiently
from tests.peers.wire import Wire

NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 0, 3, 42
FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH = 74, 124
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
_SHARE = 2  # what a coordinator is asked for

Batch = tuple[int, int, int, int]  # first and last offset, delivery state, delivery count


class Persister:
    """The state of one group in partition 0 of one topic."""

    def __init__(self, wire: Wire, topic_id: uuid.UUID) -> None:
        self.wire = wire
        self.topic_id = topic_id
        self.group = unique("group")

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        """The answer for the one partition, once the coordinator is there."""
        partition = {"partition": 0} | fields
        topics = ({"topic_id": self.topic_id, "partitions": (partition,)},)

        def once() -> Any:
            answer = self.wire.call(api, version, group_id=self.group, topics=topics)
            return answer.results[0].partitions[0]

        return patiently(once, lambda answer: int(answer.error_code))

    def initialize(self, state_epoch: int = 1, start_offset: int = 0) -> int:
        return int(
            self.ask(
                "initialize_share_group_state",
                0,
                state_epoch=state_epoch,
                start_offset=start_offset,
            ).error_code
        )

    def write(self, *batches: Batch, **changes: Any) -> int:
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        fields = {
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": 0,
            "delivery_complete_count": 0,
            "state_batches": tuple(dict(zip(names, it, strict=True)) for it in batches),
        }
        return int(self.ask("write_share_group_state", 1, **fields | changes).error_code)

    def read(self, leader_epoch: int = 0) -> Any:
        return self.ask("read_share_group_state", 0, leader_epoch=leader_epoch)

    def batches(self, leader_epoch: int = 0) -> list[Batch]:
        return [
            (it.first_offset, it.last_offset, it.delivery_state, it.delivery_count)
            for it in self.read(leader_epoch).state_batches
        ]

    def summary(self, version: int = 1) -> Any:
        return self.ask("read_share_group_state_summary", version, leader_epoch=0)

    def delete(self) -> int:
        return int(self.ask("delete_share_group_state", 0).error_code)


@pytest.fixture
def persister(broker: BrokerUnderTest) -> Iterator[Persister]:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        made = Persister(wire, broker.topic_id(topic))

        def found() -> int:  # which also makes the topic that the state is kept in
            key = f"{made.group}:AAAAAAAAAAAAAAAAAAAAAQ:0"
            answer = wire.call("find_coordinator", 6, key_type=_SHARE, coordinator_keys=(key,))
            return int(answer.coordinators[0].error_code)

        assert patiently(found) == NO_ERROR
        yield made


def test_state_is_initialized_and_read(persister: Persister) -> None:
    assert persister.initialize(state_epoch=3, start_offset=7) == NO_ERROR
    answer = persister.read()
    assert (answer.error_code, answer.state_epoch, answer.start_offset) == (0, 3, 7)
    assert answer.state_batches == ()


def test_writes_are_combined(persister: Persister) -> None:
    persister.initialize()
    assert persister.write((0, 9, AVAILABLE, 1)) == NO_ERROR
    assert persister.write((4, 5, ACKNOWLEDGED, 2), (12, 12, ARCHIVED, 1)) == NO_ERROR
    assert persister.write((6, 6, AVAILABLE, 2), (7, 7, AVAILABLE, 2), start_offset=2) == NO_ERROR
    assert persister.batches() == [
        (2, 3, AVAILABLE, 1),
        (4, 5, ACKNOWLEDGED, 2),
        (6, 7, AVAILABLE, 2),
        (8, 9, AVAILABLE, 1),
        (12, 12, ARCHIVED, 1),
    ]


def test_higher_count_then_higher_state_wins(persister: Persister) -> None:
    persister.initialize()
    persister.write((0, 0, ACKNOWLEDGED, 2), (1, 1, AVAILABLE, 3), (2, 2, ACKNOWLEDGED, 1))
    persister.write((0, 0, AVAILABLE, 2), (1, 1, ARCHIVED, 2), (2, 2, AVAILABLE, 2))
    assert persister.batches() == [
        (0, 0, ACKNOWLEDGED, 2),
        (1, 1, AVAILABLE, 3),
        (2, 2, AVAILABLE, 2),
    ]


def test_start_offset_rises_and_may_be_left_as_it_is(persister: Persister) -> None:
    persister.initialize()
    for start_offset, expected in ((5, 5), (-1, 5), (6, 6)):
        assert persister.write(start_offset=start_offset, delivery_complete_count=3) == NO_ERROR
        summary = persister.summary()
        assert (summary.start_offset, summary.delivery_complete_count) == (expected, 3)


def test_earlier_leader_is_fenced_by_a_read(persister: Persister) -> None:
    persister.initialize()
    assert persister.write(leader_epoch=4) == NO_ERROR
    assert persister.write(leader_epoch=2) == NO_ERROR  # nobody has read with 4
    assert persister.read(leader_epoch=5).error_code == NO_ERROR
    assert persister.summary().leader_epoch == 5
    assert persister.write(leader_epoch=4) == FENCED_LEADER_EPOCH
    assert persister.read(leader_epoch=4).error_code == FENCED_LEADER_EPOCH
    assert persister.write(leader_epoch=5) == NO_ERROR


def test_earlier_state_is_fenced_by_a_new_beginning(persister: Persister) -> None:
    persister.initialize(state_epoch=1)
    persister.write((3, 3, ACKNOWLEDGED, 1))
    assert persister.initialize(state_epoch=2, start_offset=1) == NO_ERROR
    assert persister.batches() == []
    assert persister.write(state_epoch=1) == FENCED_STATE_EPOCH
    assert persister.initialize(state_epoch=1) == FENCED_STATE_EPOCH


def test_what_is_not_initialized_cannot_be_read_or_written(persister: Persister) -> None:
    assert persister.read().error_code == INVALID_REQUEST
    assert persister.write() == INVALID_REQUEST
    summary = persister.summary()
    assert (summary.error_code, summary.start_offset, summary.state_epoch) == (NO_ERROR, -1, 0)
    assert persister.delete() == NO_ERROR


def test_deleted_state_is_gone(persister: Persister) -> None:
    persister.initialize(state_epoch=5)
    assert persister.delete() == NO_ERROR
    assert persister.read().error_code == INVALID_REQUEST
    assert persister.initialize(state_epoch=1) == NO_ERROR


def test_topic_that_is_not_there_has_no_state(persister: Persister) -> None:
    persister.topic_id = uuid.uuid4()
    assert persister.initialize() == UNKNOWN_TOPIC_OR_PARTITION
    assert persister.summary().error_code == UNKNOWN_TOPIC_OR_PARTITION
