"""What a share group consumes: where it begins, what it skips, and how it goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.queues import QUEUE_SETTINGS, Queue, delete_if_empty
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.share_consumers import SHARE_CLIENTS, Delivered, ShareConsumer
from tests.peers.share_member import RELEASE
from tests.peers.transactional import TransactionalProducer
from tests.peers.wire import Wire, batch, produce_fields

pytestmark = pytest.mark.xdist_group("share-consuming")

OWN_SETTINGS = QUEUE_SETTINGS
HOUR_MS = 3_600_000


@pytest.fixture
def consumers() -> Iterator[list[ShareConsumer]]:
    """A list to add consumers to, which end with the test."""
    joined: list[ShareConsumer] = []
    yield joined
    for consumer in joined:
        consumer.kill()


def taken(consumers: list[ShareConsumer], count: int) -> list[list[Delivered]]:
    """What each of them accepts, polled in turn, until they have so many together."""
    taken: list[list[Delivered]] = [[] for _ in consumers]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, taken)) < count:
        assert time.monotonic() < deadline, f"only {sum(map(len, taken))} of {count} came"
        for consumer, records in zip(consumers, taken, strict=True):
            some = consumer.poll(0.2)
            consumer.acknowledge(some)
            assert set(consumer.commit().values()) <= {None}
            records += some
    return taken


@pytest.mark.parametrize(
    ("begin", "values"),
    [
        ("earliest", ["old", "recent", "new"]),
        ("latest", ["new"]),
        ("by_duration:PT2H", ["recent", "new"]),
        ("by_duration:PT1S", ["new"]),
    ],
)
def test_group_begins_where_its_setting_says(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer], begin: str, values: list[str]
) -> None:
    queue = Queue(own_broker, share_auto_offset_reset=begin)
    now_ms = int(time.time() * 1000)
    with Wire(own_broker.bootstrap) as wire:
        for value, age_ms in ((b"old", 10 * HOUR_MS), (b"recent", HOUR_MS)):
            records = batch([value], timestamp_ms=now_ms - age_ms)
            wire.call("produce", 9, **produce_fields(queue.topic, records))
    consumers.append(queue.join())
    found: list[str] = []
    while "new" not in found:
        if found == values[:-1]:  # a group that begins with the end has to be there first
            queue.produce("new")
        records = consumers[0].poll()
        consumers[0].acknowledge(records)
        consumers[0].commit()
        found += [record.value for record in records]
    assert [value for value in found if value != "new"] == values[:-1]


def accepted(consumer: ShareConsumer) -> list[Delivered]:
    records = consumer.receive()
    consumer.acknowledge(records)
    assert set(consumer.commit().values()) == {None}
    return records


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_group_sees_aborted_records_only_if_it_may(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer], isolation: str
) -> None:
    queue = Queue(own_broker, share_isolation_level=isolation)
    with TransactionalProducer(own_broker.bootstrap, unique("id"), protocol=2) as producer:
        producer.init()
        for committed in (True, False, True, False):
            kind = b"committed" if committed else b"aborted"
            producer.produce(queue.topic, [kind] * 3)
            producer.end(committed=committed)
        producer.produce(queue.topic, [b"open"])
        if isolation == "read_uncommitted":
            queue.produce("the end")
            expected = ["committed", "aborted", "committed", "aborted"]
            everything = [kind for kind in expected for _ in range(3)] + ["open", "the end"]
        else:
            everything = ["committed"] * 6
        consumers.append(queue.join())
        (records,) = taken(consumers, len(everything))
        assert [record.value for record in records] == everything
        if isolation == "read_committed":
            assert consumers[0].poll(0.5) == []  # what is open may be aborted yet
            producer.end(committed=True)
            assert [record.value for record in accepted(consumers[0])] == ["open"]


def test_group_takes_all_partitions(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer]
) -> None:
    queue = Queue(own_broker, partitions=4)
    for partition in range(4):
        queue.produce(*(f"{partition}-{number}" for number in range(25)), partition=partition)
    consumers.append(queue.join())
    (records,) = taken(consumers, 100)
    for partition in range(4):
        values = [record.value for record in records if record.partition == partition]
        assert values == [f"{partition}-{number}" for number in range(25)]


def test_member_gets_only_the_partitions_that_it_is_assigned(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer]
) -> None:
    """Of two members each has one of two partitions: one of them waits while the other one's
    partition is full. A test must not expect records of a member whose partition may be empty."""
    queue = Queue(own_broker, partitions=2)
    consumers += [queue.join(), queue.join()]
    divisions: list[list[set[int]]] = []
    # Until both know their assignments, one may have both partitions, and take one by chance.
    while divisions[-3:] not in ([[{0}, {1}]] * 3, [[{1}, {0}]] * 3):
        for partition in range(2):
            queue.produce(str(len(divisions)), partition=partition)
        divisions.append([{it.partition for it in some} for some in taken(consumers, 2)])
    queue.produce(*["x"] * 10, partition=divisions[-1][0].pop())
    records, none = taken(consumers, 10)
    assert (len(records), none) == (10, [])


def test_records_go_once_to_members_that_come_and_go(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer]
) -> None:
    """Members join, close and die while records flow. Only what the dead one had comes again."""
    queue = Queue(own_broker, partitions=2)
    numbers = itertools.count()

    def produce(count: int) -> None:
        for number in itertools.islice(numbers, count):
            queue.produce(str(number), partition=number % 2)

    # Before one member alone is asked, each partition gets more than the others can take away: a
    # member may be assigned a partition that was consumed to its end.
    limits = {"max_poll_records": 5}
    produce(120)
    consumers += [queue.join(**limits) for _ in range(2)]
    records = [it for some in taken(consumers, 30) for it in some]
    consumers.append(queue.join(**limits))
    records += [it for some in taken(consumers, 30) for it in some]
    produce(60)
    records += accepted(consumers[0])  # what it has fetched would be released, and come again
    consumers.pop(0).close()
    records += [it for some in taken(consumers, 20) for it in some]
    produce(60)
    held = consumers[0].receive()
    consumers.pop(0).kill()
    consumers.append(queue.join(**limits))
    records += [it for some in taken(consumers, 240 - len(records)) for it in some]
    assert sorted(int(record.value) for record in records) == list(range(240))
    again = {record.value for record in records if record.delivery_count == 2}
    assert again == {record.value for record in held}
    assert {record.delivery_count for record in records} == {1, 2}


def test_member_waits_for_a_topic_that_is_created_later(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer]
) -> None:
    queue = Queue(own_broker)
    topic = unique("later")
    consumer = SHARE_CLIENTS["confluent"].join(
        own_broker.bootstrap, topic, queue.group, topic_metadata_refresh_interval_ms=500
    )
    consumers.append(consumer)
    assert consumer.poll() == []
    own_broker.create_topic(name=topic)
    queue.topic = topic
    queue.produce("first")
    found: list[Delivered] = []
    while not found:
        found = consumer.poll()
    assert found == [Delivered(0, 0, "first", 1)]


def test_deleted_group_begins_again(
    own_broker: BrokerUnderTest, consumers: list[ShareConsumer]
) -> None:
    queue = Queue(own_broker)
    queue.produce("a", "b", "c")
    with queue.join() as first:
        records = first.receive()
        first.acknowledge(records[:1])
        first.acknowledge(records[1:], RELEASE)
        assert first.commit() == {0: None}
        first.close()
    wait_until(lambda: delete_if_empty(own_broker, queue.group))
    queue.configure(share_auto_offset_reset="earliest")  # settings go with their group
    consumers.append(queue.join())
    assert consumers[0].receive() == [
        Delivered(0, number, value, 1) for number, value in enumerate("abc")
    ]
