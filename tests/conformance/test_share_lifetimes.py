"""Share groups while topics and groups are deleted and recreated, and members return late."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.queues import QUEUE_SETTINGS, Queue, delete_if_empty
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.share_consumers import Delivered, ShareConsumer
from tests.peers.share_member import ACCEPT, RELEASE, ShareMember, initialize
from tests.peers.transactional import TransactionalProducer

pytestmark = pytest.mark.xdist_group("share-lifetimes")

OWN_SETTINGS = QUEUE_SETTINGS
UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_TOPIC_ID = 100
SHORT = {"share_session_timeout_ms": 2000, "share_record_lock_duration_ms": 1000}


@pytest.fixture(params=["confluent", "java"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def delete(broker: BrokerUnderTest, topic: str) -> None:
    broker.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)


def recreate(broker: BrokerUnderTest, topic: str) -> None:
    """Apache Kafka may know the deleted topic for a moment longer."""

    def is_created() -> bool:
        try:
            broker.create_topic(name=topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(is_created)


def member_of(queue: Queue) -> ShareMember:
    """A member that fetches from the topic as it is now, wherever its name goes later."""
    topic_id = queue.broker.topic_id(queue.topic)
    initialize(queue.broker.bootstrap, queue.group, topic_id)
    return ShareMember(queue.broker.bootstrap, queue.group, topic_id)


def test_acknowledgements_for_a_deleted_topic_do_not_affect_the_new_one(
    own_broker: BrokerUnderTest,
) -> None:
    queue = Queue(own_broker)
    queue.produce("a", "b", "c")
    with member_of(queue) as member:
        assert member.fetch(max_wait=60_000) == [(0, 2, 1)]
        delete(own_broker, queue.topic)
        recreate(own_broker, queue.topic)
        queue.produce("new")
        assert member.acknowledge((0, 2, ACCEPT)) in (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID)
    with queue.join() as consumer:
        assert consumer.receive() == [Delivered(0, 0, "new", 1)]


def test_fetch_that_waits_is_answered_when_its_topic_is_deleted(
    own_broker: BrokerUnderTest,
) -> None:
    queue = Queue(own_broker)
    with member_of(queue) as member:
        assert member.fetch() == []
        receive = member.send_fetch(max_wait=2_000)
        delete(own_broker, queue.topic)
        assert receive().error_code == 0  # of the request; the partition has one, or is left out


def test_consumer_continues_with_a_recreated_topic(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker)
    queue.produce("a", "b", "c")
    with queue.join(topic_metadata_refresh_interval_ms=500) as consumer:
        consumer.accept_all(3)
        delete(own_broker, queue.topic)
        recreate(own_broker, queue.topic)
        queue.produce("new")
        assert consumer.receive() == [Delivered(0, 0, "new", 1)]


def test_transactions_of_a_deleted_topic_do_not_affect_the_new_one(
    own_broker: BrokerUnderTest,
) -> None:
    """An aborted transaction covers the offsets at which the new topic has committed records."""
    queue = Queue(own_broker, share_isolation_level="read_committed")
    with TransactionalProducer(own_broker.bootstrap, unique("id"), protocol=2) as producer:
        producer.init()
        producer.produce(queue.topic, [b"aborted"] * 3)
        producer.end(committed=False)
    with member_of(queue) as member:  # the transaction's marker alone
        assert member.fetch(max_wait=60_000) == [(3, 3, 1)]
    delete(own_broker, queue.topic)
    recreate(own_broker, queue.topic)
    with TransactionalProducer(own_broker.bootstrap, unique("id"), protocol=2) as producer:
        producer.init()
        producer.produce(queue.topic, [b"committed"] * 3)
        producer.end(committed=True)
        producer.produce(queue.topic, [b"aborted"])
        producer.end(committed=False)
    with queue.join() as consumer:
        records = consumer.accept_all(3)
    assert records == [Delivered(0, number, "committed", 1) for number in range(3)]


@pytest.mark.slow_with("java")
def test_member_that_was_away_for_longer_than_its_session_returns(
    own_broker: BrokerUnderTest, client: str
) -> None:
    queue = Queue(own_broker, **SHORT)
    queue.produce("a", "b", "c")
    with queue.join(client) as away, contextlib.ExitStack() as stack:
        assert away.receive() == delivered("abc")
        with away.suspended():
            wait_until(lambda: queue.member_count() == 0)
            queue.configure(share_record_lock_duration_ms=60_000)
            other = stack.enter_context(queue.join())
            assert other.receive() == delivered("abc", 2)
        check_holder(other, away)
        queue.produce("new")
        assert away.receive() == [Delivered(0, 3, "new", 1)]


@pytest.mark.slow_with("java")
def test_member_of_a_deleted_group_does_not_affect_the_new_one(
    own_broker: BrokerUnderTest, client: str
) -> None:
    queue = Queue(own_broker, **SHORT)
    queue.produce("a", "b", "c")
    count = own_broker.expects("delivery counts after a share group was deleted and recreated")
    with queue.join(client) as away, contextlib.ExitStack() as stack:
        assert away.receive() == delivered("abc")
        with away.suspended():
            wait_until(lambda: delete_if_empty(own_broker, queue.group))
            queue.configure(share_auto_offset_reset="earliest")  # locks last longer again, too
            other = stack.enter_context(queue.join())
            assert other.receive() == delivered("abc", count)
        check_holder(other, away)
        queue.produce("new")
        assert away.receive() == [Delivered(0, 3, "new", 1)]


def delivered(values: str, count: int = 1) -> list[Delivered]:
    """One record for each letter."""
    return [Delivered(0, offset, value, count) for offset, value in enumerate(values)]


def check_holder(holder: ShareConsumer, away: ShareConsumer) -> None:
    """`holder`, which then leaves, has the three records; `away` no longer does."""
    away.acknowledge(delivered("abc"), RELEASE)
    assert away.commit() == {0: "INVALID_RECORD_STATE"}
    holder.acknowledge(delivered("abc", 2))
    assert holder.commit() == {0: None}
    holder.close()
