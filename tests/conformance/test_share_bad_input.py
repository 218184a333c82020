"""Odd and wrong ShareFetch and ShareAcknowledge requests: refused as by Apache Kafka, nothing lost.

Where Apache Kafka stumbles (an error of the server's own for the whole request, where one field or
one partition is wrong), it is enough that the request is refused.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.queues import QUEUE_SETTINGS
from tests.peers.share_member import (
    ACCEPT,
    FINAL_EPOCH,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acquired,
    ShareMember,
    acquired,
    initialize,
)
from tests.peers.wire import Wire, batch, produce_fields, request_frame

pytestmark = pytest.mark.xdist_group("share-bad-input")

OWN_SETTINGS = QUEUE_SETTINGS

NONE = 0
INVALID_REQUEST = 42
UNKNOWN_TOPIC_ID = 100
INVALID_RECORD_STATE = 121
SHARE_SESSION_NOT_FOUND = 122
INVALID_SHARE_SESSION_EPOCH = 123
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
NO_FETCH = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}


class Attack:
    """A share group on a topic with batches of these sizes, and members to attack it with."""

    def __init__(self, broker: BrokerUnderTest, *sizes: int) -> None:
        self.broker = broker
        self.topic_id = broker.topic_id(topic := broker.create_topic())
        self.group = unique("share")
        with Wire(broker.bootstrap) as wire:
            for size in sizes:
                wire.call("produce", 9, **produce_fields(topic, batch([b"x"] * size)))
        initialize(broker.bootstrap, self.group, self.topic_id)
        with self.member() as first:  # whoever fetches next finds the state loaded
            first.fetch(max_wait=60_000, max_records=1, share_acquire_mode=1)
            assert first.acknowledge((0, 0, ACCEPT)) == NONE
            first.close()

    def member(self, **settings: Any) -> ShareMember:
        return ShareMember(self.broker.bootstrap, self.group, self.topic_id, **settings)

    def rest(self) -> Acquired:
        """What another member gets now."""
        with self.member() as other:
            records = other.fetch(max_wait=60_000, max_records=1_000)
            other.close()
        return records


@pytest.mark.parametrize(
    ("acknowledgements", "error"),
    [
        pytest.param([(-5, 3, ACCEPT)], INVALID_REQUEST, id="negative first"),
        pytest.param([(-5, -3, ACCEPT)], INVALID_REQUEST, id="both negative"),
        pytest.param([(1, INT64_MAX, ACCEPT)], INVALID_REQUEST, id="no end"),
        pytest.param([(INT64_MAX, INT64_MAX, ACCEPT)], INVALID_REQUEST, id="far away"),
        pytest.param([(-INT64_MAX - 1, INT64_MAX, ACCEPT)], INVALID_REQUEST, id="everything"),
        pytest.param([(1, 9, [ACCEPT] * 100_000)], INVALID_REQUEST, id="too many types"),
        pytest.param([(1, 2, [ACCEPT, 77])], INVALID_REQUEST, id="one unknown type"),
        pytest.param([(1, 2, [ACCEPT, RENEW])], INVALID_REQUEST, id="unannounced renewal"),
        pytest.param([(1, 1, ACCEPT), (1, 1, ACCEPT)], INVALID_RECORD_STATE, id="twice"),
        pytest.param([(1, 1, ACCEPT), (1, 1, RELEASE)], INVALID_RECORD_STATE, id="two minds"),
        pytest.param([(1, 1, ACCEPT), (50, 60, ACCEPT)], INVALID_REQUEST, id="second is wrong"),
    ],
)
def test_refused_acknowledgement_changes_nothing(
    own_broker: BrokerUnderTest, acknowledgements: list[Any], error: int
) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as member:
        assert member.fetch() == [(1, 9, 1)]
        assert member.acknowledge(*acknowledgements) == error
        answer = member.fetch_answer(*acknowledgements)
        (partition,) = answer.responses[0].partitions
        assert (partition.error_code, partition.acknowledge_error_code) == (NONE, error)
        assert member.acknowledge((1, 5, ACCEPT), (6, 6, GAP), (7, 7, REJECT)) == NONE
        member.close()
    assert attack.rest() == [(8, 9, 2)]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_records": 0},
        {"max_records": -1},
        {"max_records": -INT32_MAX - 1},
        {"max_bytes": 0},
        {"max_bytes": -1},
        {"share_acquire_mode": 7},
        {"share_acquire_mode": -1},
        {"share_acquire_mode": 1, "max_records": 0},
    ],
    ids=str,
)
def test_senseless_fetch_brings_nothing_and_takes_nothing(
    own_broker: BrokerUnderTest, fields: dict[str, int]
) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as member:
        assert acquired(member.fetch_answer(**fields)) == []
        assert attack.rest() == [(1, 9, 1)]


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 0},
        {"batch_size": INT32_MAX, "max_records": INT32_MAX},
        {"min_bytes": -1},
        {"min_bytes": INT32_MAX},
        {"max_bytes": 1},
        {"max_bytes": INT32_MAX},
    ],
    ids=str,
)
def test_odd_fetch_brings_what_there_is(
    own_broker: BrokerUnderTest, fields: dict[str, int]
) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as member:
        found = acquired(member.fetch_answer(**fields))
        # Apache Kafka counts from offset 0 again where the batch size is 0
        assert {it for first, last, _ in found for it in range(first, last + 1)} - {0} == set(
            range(1, 10)
        )
        assert member.acknowledge((1, 9, ACCEPT)) == NONE


def test_renewal_may_come_with_other_types_but_not_with_a_fetch(
    own_broker: BrokerUnderTest,
) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as member:
        member.fetch()
        answer = member.fetch_answer((1, 4, RENEW), is_renew_ack=True, **NO_FETCH)
        assert answer.responses[0].partitions[0].acknowledge_error_code == NONE
        assert member.acknowledge((1, 2, [RENEW, ACCEPT]), is_renew_ack=True) == NONE
        renewed = member.acknowledge((1, 2, RENEW), is_renew_ack=True)
        assert renewed == INVALID_RECORD_STATE  # the second is accepted
        assert member.acknowledge((3, 9, ACCEPT), is_renew_ack=True) == NONE
        member.close()
    assert attack.rest() == [(1, 1, 2)]


def test_unknown_topic_is_refused(own_broker: BrokerUnderTest) -> None:
    attack = Attack(own_broker, 10)
    for nowhere in (uuid.uuid4(), uuid.UUID(int=0)):
        with attack.member() as member:
            member.topic_id = nowhere
            answer = member.fetch_answer()
            errors = [p.error_code for topic in answer.responses for p in topic.partitions]
            assert answer.error_code != NONE or errors == [UNKNOWN_TOPIC_ID]
            assert member.acknowledge((1, 1, ACCEPT)) == UNKNOWN_TOPIC_ID
    assert attack.rest() == [(1, 9, 1)]


def test_session_without_partitions_is_one(own_broker: BrokerUnderTest) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as member:
        names = {"group_id": attack.group, "member_id": member.member_id, "topics": ()}
        limits = {"max_wait": 100, "min_bytes": 1, "max_bytes": 1000, "max_records": 5}

        def ask(api: str, epoch: int, **fields: Any) -> int:
            answer = member.wire.call(api, 2, share_session_epoch=epoch, **names, **fields)
            assert not answer.responses
            return int(answer.error_code)

        assert ask("share_fetch", 0, batch_size=5, **limits) == NONE
        assert ask("share_fetch", 1, batch_size=5, **limits) == NONE
        assert ask("share_acknowledge", 2) == NONE
        assert ask("share_acknowledge", FINAL_EPOCH) == NONE
        assert ask("share_acknowledge", FINAL_EPOCH) == SHARE_SESSION_NOT_FOUND


def test_member_may_acknowledge_what_it_has_forgotten(own_broker: BrokerUnderTest) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as member:
        assert member.fetch() == [(1, 9, 1)]
        forgotten = (
            {"topic_id": attack.topic_id, "partitions": (0, 77)},
            {"topic_id": uuid.uuid4(), "partitions": (0,)},
        )
        assert member.fetch((1, 5, ACCEPT), forgotten_topics_data=forgotten) == []
        assert member.acknowledge((6, 9, RELEASE)) == NONE
        assert attack.rest() == [(6, 9, 2)]


def test_member_on_two_connections_has_one_session(own_broker: BrokerUnderTest) -> None:
    attack = Attack(own_broker, 10)
    with attack.member() as one, attack.member(member_id=one.member_id) as two:
        assert one.fetch() == [(1, 9, 1)]
        assert two.fetch_answer(epoch=1).error_code == NONE
        assert one.fetch_answer(epoch=1).error_code == INVALID_SHARE_SESSION_EPOCH
        assert one.acknowledge((1, 3, ACCEPT), epoch=2) == NONE
        assert two.fetch_answer(epoch=0).error_code == NONE
        answer = one.acknowledge_answer((4, 4, ACCEPT), epoch=3)
        assert answer.error_code == INVALID_SHARE_SESSION_EPOCH
        assert two.acknowledge((4, 5, ACCEPT), epoch=1) == NONE
        for epoch in (-5, INT32_MAX, 0x7FFFFFF0):
            assert two.fetch_answer(epoch=epoch).error_code == INVALID_SHARE_SESSION_EPOCH
        assert two.acknowledge_answer((6, 99, ACCEPT), epoch=FINAL_EPOCH).error_code == NONE
        assert attack.rest() == [(6, 9, 2)]


@pytest.mark.parametrize("group", ["", " ", "x" * 300, "a/b"])
def test_group_that_nobody_began_gets_nothing(own_broker: BrokerUnderTest, group: str) -> None:
    attack = Attack(own_broker, 10)
    attack.group = group
    with attack.member() as member:
        (partition,) = member.fetch_answer(max_wait=60_000).responses[0].partitions
        assert partition.error_code != NONE


def test_members_that_vanish_while_they_wait_keep_nothing(own_broker: BrokerUnderTest) -> None:
    attack = Attack(own_broker, 40)
    for number in range(12):  # a third of them may take everything: fewer than the limit
        with attack.member() as member:
            fields = {
                "group_id": attack.group,
                "member_id": member.member_id,
                "share_session_epoch": 0,
                "topics": (member._topic((0,), ()),),
                "max_wait": 5_000,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "max_records": 4,
                "batch_size": 4,
            }
            frame = request_frame("share_fetch", 2, **fields)
            member.wire.send(frame[: len(frame) // 2] if number % 3 else frame)
    found: set[int] = set()
    with attack.member() as survivor:
        while len(found) < 39:
            for first, last, _ in survivor.fetch(max_wait=2_000):
                found.update(range(first, last + 1))
                assert survivor.acknowledge((first, last, ACCEPT)) == NONE
    assert found == set(range(1, 40))
