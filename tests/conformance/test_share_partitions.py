"""Share partitions request by request: what is delivered, to whom, and what is refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.share_member import (
    ACCEPT,
    FINAL_EPOCH,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acquired,
    ShareMember,
    initialize,
)
from tests.peers.transactional import TransactionalProducer
from tests.peers.wire import Wire, batch, produce_fields

OWN_SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "3",
}

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REQUEST = 42
INVALID_RECORD_STATE = 121
SHARE_SESSION_NOT_FOUND = 122
INVALID_SHARE_SESSION_EPOCH = 123


class Queue:
    """A topic with batches of these sizes, and a share group that begins with its first record."""

    def __init__(self, broker: BrokerUnderTest, *sizes: int, **settings: Any) -> None:
        self.broker = broker
        self.topic = broker.create_topic()
        self.topic_id = broker.topic_id(self.topic)
        self.group = unique("share")
        self.produce(*sizes)
        if settings:
            self.configure(**settings)
        initialize(broker.bootstrap, self.group, self.topic_id)

    def produce(self, *sizes: int) -> None:
        with Wire(self.broker.bootstrap) as wire:
            for size in sizes:
                wire.call("produce", 9, **produce_fields(self.topic, batch([b"x"] * size)))

    def configure(self, **settings: Any) -> None:
        entries = [
            ConfigEntry(
                name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET
            )
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self.broker.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)

        def is_known() -> bool:
            asked = ConfigResource(ResourceType.GROUP, self.group)
            known = self.broker.admin.describe_configs([asked])[asked].result(PATIENCE_SECONDS)
            return all(known[entry.name].value == entry.value for entry in entries)

        wait_until(is_known)

    def member(self, **settings: Any) -> ShareMember:
        return ShareMember(self.broker.bootstrap, self.group, self.topic_id, **settings)


def first_fetch(member: ShareMember, **fields: Any) -> Acquired:
    """A fetch that waits until the leader has loaded the group's state."""
    return member.fetch(max_wait=60_000, **fields)


def test_batches_have_about_the_size_that_the_member_wishes(own_broker: BrokerUnderTest) -> None:
    with Queue(own_broker, 10, 10, 10, 5).member() as member:
        acquired = first_fetch(member, batch_size=15)
        assert acquired == [(0, 19, 1), (20, 34, 1)]


@pytest.mark.parametrize(
    ("acknowledgements", "error"),
    [
        pytest.param([(0, 9, ACCEPT)], NONE, id="done with, before the start"),
        pytest.param([(5, 11, ACCEPT)], NONE, id="partly done with"),
        pytest.param([(12, 13, ACCEPT)], INVALID_RECORD_STATE, id="twice"),
        pytest.param([(12, 12, RELEASE)], INVALID_RECORD_STATE, id="released after accepted"),
        pytest.param([(30, 40, ACCEPT)], INVALID_REQUEST, id="partly never delivered"),
        pytest.param([(100, 100, ACCEPT)], INVALID_REQUEST, id="never delivered"),
        pytest.param([(20, 15, ACCEPT)], INVALID_REQUEST, id="backwards"),
        pytest.param([(20, 22, ACCEPT), (18, 19, ACCEPT)], INVALID_REQUEST, id="out of order"),
        pytest.param([(20, 22, ACCEPT), (22, 23, ACCEPT)], INVALID_RECORD_STATE, id="touching"),
        pytest.param([(20, 22, ACCEPT), (21, 23, ACCEPT)], INVALID_REQUEST, id="overlapping"),
        pytest.param([(20, 22, [ACCEPT, ACCEPT])], INVALID_REQUEST, id="too few types"),
        pytest.param([(20, 22, [ACCEPT, RELEASE, REJECT])], NONE, id="a type for each"),
        pytest.param([(20, 22, [])], INVALID_REQUEST, id="no type"),
        pytest.param([(20, 22, 9)], INVALID_REQUEST, id="unknown type"),
        pytest.param([(20, 22, -1)], INVALID_REQUEST, id="negative type"),
        pytest.param([(20, 22, RENEW)], INVALID_REQUEST, id="unannounced renewal"),
        pytest.param([(20, 22, GAP)], NONE, id="gap"),
    ],
)
def test_acknowledgement_is_judged(
    own_broker: BrokerUnderTest, acknowledgements: list[Any], error: int
) -> None:
    with Queue(own_broker, 35).member() as member:
        assert first_fetch(member) == [(0, 34, 1)]
        assert member.acknowledge((0, 9, ACCEPT)) == NONE
        assert member.acknowledge((12, 13, ACCEPT)) == NONE
        assert member.acknowledge(*acknowledgements) == error


def test_refused_acknowledgement_changes_nothing(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 10)
    with queue.member() as member, queue.member() as other:
        first_fetch(member)
        assert member.acknowledge((5, 5, ACCEPT)) == NONE
        assert member.acknowledge((0, 6, RELEASE)) == INVALID_RECORD_STATE
        assert other.fetch() == []
        assert other.acknowledge((0, 1, ACCEPT)) == INVALID_RECORD_STATE
        assert member.acknowledge((0, 4, ACCEPT), (6, 9, ACCEPT)) == NONE


def test_share_session_must_be_opened_and_followed(own_broker: BrokerUnderTest) -> None:
    with Queue(own_broker, 5).member() as member:
        for epoch in (1, FINAL_EPOCH):
            assert member.fetch_answer(epoch=epoch).error_code == SHARE_SESSION_NOT_FOUND
            answer = member.acknowledge_answer((0, 0, ACCEPT), epoch=epoch)
            assert answer.error_code == SHARE_SESSION_NOT_FOUND
        answer = member.acknowledge_answer((0, 0, ACCEPT), epoch=0)
        assert answer.error_code == INVALID_SHARE_SESSION_EPOCH
        assert member.fetch_answer((0, 0, ACCEPT), epoch=0).error_code == INVALID_REQUEST
        assert first_fetch(member) == [(0, 4, 1)]
        assert member.fetch_answer(epoch=5).error_code == INVALID_SHARE_SESSION_EPOCH
        answer = member.acknowledge_answer((0, 0, ACCEPT), epoch=5)
        assert answer.error_code == INVALID_SHARE_SESSION_EPOCH
        assert member.fetch((0, 1, ACCEPT)) == []


@pytest.mark.parametrize("member_id", ["", "x" * 37])
def test_member_id_must_be_usable(own_broker: BrokerUnderTest, member_id: str) -> None:
    with Queue(own_broker, 5).member() as member:
        member.member_id = member_id
        assert member.fetch_answer().error_code == INVALID_REQUEST
        assert member.acknowledge_answer((0, 0, ACCEPT), epoch=1).error_code == INVALID_REQUEST


def test_closed_session_releases_and_keeps_the_delivery_count(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 5)
    with queue.member() as member, queue.member() as other:
        first_fetch(member)
        answer = member.fetch_answer((0, 1, ACCEPT), epoch=FINAL_EPOCH)
        assert answer.responses[0].partitions[0].acknowledge_error_code == NONE
        assert first_fetch(other) == [(2, 4, 2)]


def test_lost_connection_releases_what_it_held(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 5)
    with queue.member() as other:
        assert other.fetch(max_records=0) == []
        with queue.member() as member:
            first_fetch(member)
        assert first_fetch(other) == [(0, 4, 2)]


@pytest.mark.parametrize(
    ("limit", "size", "deliveries"),
    [
        (2, 4, [[(0, 3, 1)], [(0, 3, 2)]]),
        (
            3,
            4,
            [
                [(0, 3, 1)],
                [(0, 3, 2)],
                [(0, 0, 3)],
                [(1, 1, 3)],
                [(2, 2, 3)],
                [(3, 3, 3)],
            ],
        ),
        (
            5,
            8,
            [
                [(0, 7, 1)],
                [(0, 7, 2)],
                [(0, 7, 3)],
                [(0, 3, 4)],
                [(0, 0, 5)],
                [(1, 1, 5)],
                [(2, 2, 5)],
                [(3, 3, 5)],
                [(4, 7, 4)],
                [(4, 4, 5)],
                [(5, 5, 5)],
                [(6, 6, 5)],
                [(7, 7, 5)],
            ],
        ),
    ],
)
def test_bad_record_is_isolated_near_the_delivery_limit(
    own_broker: BrokerUnderTest, limit: int, size: int, deliveries: list[Acquired]
) -> None:
    queue = Queue(own_broker, size, share_delivery_count_limit=limit)
    with queue.member() as member:
        for expected in deliveries:
            assert first_fetch(member) == expected
            for first, last, _ in expected:
                assert member.acknowledge((first, last, RELEASE)) == NONE
        assert member.fetch() == []


def test_record_limit_is_kept(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 10, 10)
    with queue.member() as member, queue.member() as other:
        assert first_fetch(member, max_records=3, share_acquire_mode=1) == [(0, 2, 1)]
        assert first_fetch(other, max_records=4, share_acquire_mode=1) == [(3, 6, 1)]
        assert member.acknowledge((0, 2, RELEASE)) == NONE
        assert first_fetch(other, max_records=2, share_acquire_mode=1) == [(0, 1, 2)]
        again = first_fetch(other, max_records=9, share_acquire_mode=1)
        assert again[0] == (2, 2, 2)
        assert sum(last - first + 1 for first, last, _ in again) == 9


def test_window_is_a_span_of_offsets(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, *[60] * 5, share_partition_max_record_locks=100)
    with queue.member() as member:
        assert first_fetch(member, max_records=1_000) == [(0, 119, 1)]
        assert member.fetch() == []
        assert member.acknowledge((1, 119, ACCEPT)) == NONE
        assert member.fetch() == []  # offset 0 holds it back
        assert member.acknowledge((0, 0, RELEASE)) == NONE
        assert first_fetch(member) == [(0, 0, 2)]
        assert member.acknowledge((0, 0, ACCEPT)) == NONE
        assert first_fetch(member) == [(120, 239, 1)]


def test_lock_runs_out(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 10, share_record_lock_duration_ms=1_000)
    with queue.member() as member, queue.member() as other:
        assert first_fetch(member) == [(0, 9, 1)]
        assert first_fetch(other) == [(0, 9, 2)]
        assert member.acknowledge((0, 9, ACCEPT)) == INVALID_RECORD_STATE


def test_renewal_prolongs_the_lock(own_broker: BrokerUnderTest) -> None:
    """The other five show when the first lock is over."""
    queue = Queue(own_broker, 10, share_record_lock_duration_ms=5_000)
    with queue.member() as member, queue.member() as other:
        first_fetch(member)
        acquired: Acquired = []  # in several pieces, maybe: Apache Kafka ends the locks one by one
        while sum(last - first + 1 for first, last, _ in acquired) < 5:
            assert member.acknowledge((0, 4, RENEW), is_renew_ack=True) == NONE
            acquired += other.fetch(max_wait=200)
        offsets = [offset for first, last, _ in acquired for offset in range(first, last + 1)]
        assert sorted(offsets) == [5, 6, 7, 8, 9]
        assert member.acknowledge((0, 4, ACCEPT)) == NONE


def test_renewal_is_refused_where_it_may_not_be(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 10)
    with queue.member(version=1) as member:
        first_fetch(member)
        assert member.acknowledge((0, 1, RENEW)) == INVALID_REQUEST
        member.close()
    queue.configure(share_renew_acknowledge_enable="false")
    with queue.member() as member:
        first_fetch(member)
        refused = member.acknowledge((0, 1, RENEW), is_renew_ack=True)
        assert refused == INVALID_RECORD_STATE
        answer = member.fetch_answer((0, 1, RENEW), is_renew_ack=True)
        assert answer.error_code == INVALID_REQUEST  # such a request must not fetch


def test_records_that_retention_took_are_skipped(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 10, 10, 10)
    with queue.member() as member:
        assert first_fetch(member, max_records=1) == [(0, 9, 1)]
        with Wire(own_broker.bootstrap) as wire:
            partitions = ({"partition_index": 0, "offset": 13},)
            topics = ({"name": queue.topic, "partitions": partitions},)
            wire.call("delete_records", 2, topics=topics, timeout=5_000)
        acquired: Acquired = []
        while not acquired:
            acquired = member.fetch()
        ((first, last, _),) = acquired
        assert first in (10, 13)  # whole batches, or what is left of them
        assert last == 29
        assert member.acknowledge((0, 9, ACCEPT)) == NONE


def test_partition_that_is_not_there_is_named(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, 10)
    with queue.member() as member:
        answer = member.fetch_answer(partitions=(0, 7), max_wait=60_000)
        errors = {
            part.partition_index: part.error_code
            for topic in answer.responses
            for part in topic.partitions
        }
        assert errors == {0: NONE, 7: UNKNOWN_TOPIC_OR_PARTITION}
    nowhere = ShareMember(own_broker.bootstrap, unique("share"), queue.topic_id, str(uuid.uuid4()))
    with nowhere:  # a group whose state nobody has initialized
        answer = nowhere.fetch_answer(max_wait=60_000)
        assert answer.responses[0].partitions[0].error_code != NONE
        assert nowhere.acknowledge((0, 0, ACCEPT)) == UNKNOWN_TOPIC_OR_PARTITION


def test_aborted_transactions_are_skipped_in_read_committed(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, share_isolation_level="read_committed")
    initialize(own_broker.bootstrap, queue.group + "-all", queue.topic_id)
    with TransactionalProducer(own_broker.bootstrap, unique("id"), protocol=2) as producer:
        producer.init()
        for committed in (True, False, True):
            producer.produce(queue.topic, [b"a", b"b"])
            producer.end(committed=committed)
    wait_until(lambda: stable_offset(queue) == 9)  # EndTxn may be answered before its marker is
    with queue.member() as member:  # markers, at 2, 5 and 8, are gaps to the member
        acquired = first_fetch(member, max_records=100)
        assert [(first, last) for first, last, _ in acquired] == [(0, 2), (5, 8)]
    with ShareMember(own_broker.bootstrap, queue.group + "-all", queue.topic_id) as member:
        acquired = first_fetch(member, max_records=100)
        assert [(first, last) for first, last, _ in acquired] == [(0, 8)]


def stable_offset(queue: Queue) -> int:
    partitions = ({"partition_index": 0, "timestamp": -1},)
    topics = ({"name": queue.topic, "partitions": partitions},)
    with Wire(queue.broker.bootstrap) as wire:
        answer = wire.call("list_offsets", 5, replica_id=-1, isolation_level=1, topics=topics)
    return int(answer.topics[0].partitions[0].offset)
