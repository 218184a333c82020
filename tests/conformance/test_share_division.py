"""How the records of a share fetch are divided among its partitions."""

from __future__ import annotations

from typing import Any

from tests.conformance.brokers import BrokerUnderTest
from tests.conformance.queues import QUEUE_SETTINGS, Queue
from tests.peers.share_member import ShareMember, acquired_by_partition, initialize

OWN_SETTINGS = QUEUE_SETTINGS


def filled(broker: BrokerUnderTest, *, partitions: int, sizes: list[int]) -> Queue:
    """A queue whose partitions have batches of these sizes each."""
    queue = Queue(broker, partitions=partitions)
    fill(queue, partitions, sizes)
    return queue


def fill(queue: Queue, partitions: int, sizes: list[int]) -> None:
    for partition in range(partitions):
        for size in sizes:
            queue.produce(*["x" * 100] * size, partition=partition)


def member_of(queue: Queue, partitions: int) -> ShareMember:
    topic_id = queue.broker.topic_id(queue.topic)
    for partition in range(partitions):
        initialize(queue.broker.bootstrap, queue.group, topic_id, partition=partition)
    return ShareMember(queue.broker.bootstrap, queue.group, topic_id)


def fetched(member: ShareMember, partitions: int, **fields: Any) -> dict[int, Any]:
    """What one fetch acquires of each partition; it waits until there is something."""
    answer = member.fetch_answer(partitions=range(partitions), max_wait=60_000, **fields)
    assert answer.error_code == 0
    return acquired_by_partition(answer)


def load(member: ShareMember, queue: Queue, partitions: int) -> None:
    """Have the broker load the state of every partition: a record of each is delivered."""
    fill(queue, partitions, [1])
    loaded: set[int] = set()
    while len(loaded) < partitions:
        loaded |= set(fetched(member, partitions))


def test_first_partition_that_is_loaded_answers_a_fetch(own_broker: BrokerUnderTest) -> None:
    queue = filled(own_broker, partitions=2, sizes=[50])
    with member_of(queue, 2) as member:
        answers = [fetched(member, 2) for _ in range(2)]
        assert sorted(answers, key=min) == [{0: [(0, 49, 1)]}, {1: [(0, 49, 1)]}]


def test_first_poll_of_a_client_brings_one_partition(own_broker: BrokerUnderTest) -> None:
    queue = filled(own_broker, partitions=2, sizes=[50])
    with queue.join() as consumer:
        polls = [consumer.receive()]
        consumer.acknowledge(polls[0])
        polls.append(consumer.receive())
        assert [len(records) for records in polls] == [50, 50]
        assert [len({record.partition for record in records}) for records in polls] == [1, 1]


def test_partitions_that_are_loaded_answer_together(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, partitions=2)
    with member_of(queue, 2) as member:
        load(member, queue, 2)
        fill(queue, 2, [50])
        # The limit of 60 is soft: what is left of it after the first 50 takes a whole batch.
        assert fetched(member, 2, max_records=60) == {0: [(1, 50, 1)], 1: [(1, 50, 1)]}


def test_record_limit_is_spent_on_the_partitions_in_turn(own_broker: BrokerUnderTest) -> None:
    """Every partition gets its turn. Apache Kafka passes over one whose last fetch is not over, so
    its order varies; ours rotates (tests/broker/sharing/test_sessions.py)."""
    queue = Queue(own_broker, partitions=3)
    with member_of(queue, 3) as member:
        load(member, queue, 3)
        fill(queue, 3, [10] * 18)
        answers = [fetched(member, 3, max_records=12) for _ in range(9)]
        assert {len(answer) for answer in answers} == {1}
        assert {partition for answer in answers for partition in answer} == {0, 1, 2}
        ranges = [acquired for answer in answers for acquired in answer.values()]
        assert {last - first + 1 for ((first, last, _),) in ranges} == {20}


def test_batches_larger_than_their_share_come_in_turn(own_broker: BrokerUnderTest) -> None:
    """A batch has some 1,100 bytes, and each partition a third of 1,500. Apache Kafka may read the
    partitions in two groups, and then lets the first of each pass."""
    queue = Queue(own_broker, partitions=3)
    with member_of(queue, 3) as member:
        load(member, queue, 3)
        fill(queue, 3, [10])
        acquired: list[tuple[int, Any]] = []
        while len(acquired) < 3:
            answer = fetched(member, 3, max_bytes=1_500)
            assert len(answer) <= 2
            acquired += answer.items()
        assert sorted(acquired) == [(index, [(1, 10, 1)]) for index in range(3)]


def test_bytes_are_divided_evenly(own_broker: BrokerUnderTest) -> None:
    queue = Queue(own_broker, partitions=3)
    with member_of(queue, 3) as member:
        load(member, queue, 3)
        fill(queue, 3, [10] * 3)
        for first, last in ((1, 10), (11, 20), (21, 30)):  # one batch fits into 2,000 bytes
            expected = {index: [(first, last, 1)] for index in range(3)}
            assert fetched(member, 3, max_bytes=6_000) == expected
