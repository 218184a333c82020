"""Watches of a real broker's topics."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError
from millstream.query import Watch, WatchFailed, watch
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.transactional import TransactionalProducer
from tests.query.scene import START_MS, Sent, make_topic, produce


def take(changes: Watch, count: int) -> list[bytes | None]:
    return [next(changes).value for _ in range(count)]


def test_watch_waits_for_changes_of_a_key(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"before", b"alice")], partitions=2)
    address = millstream.bootstrap_servers
    with watch(topic, address, key="alice") as changes:
        records = [
            Sent(b"other", b"bob"),
            Sent(b"first", b"alice", 1, headers=[("trace", b"7"), ("trace", None)]),
            Sent(None, b"alice", 1),
        ]
        threading.Timer(0.2, produce, [address, topic, records]).start()
        first = next(changes)
        assert (first.value, first.key, first.partition, first.offset, first.timestamp_ms) == (
            b"first",
            b"alice",
            1,
            0,
            START_MS,
        )
        assert first.headers == (("trace", b"7"), ("trace", None))
        assert next(changes).value is None


def test_watch_resumes_after_the_last_change_that_was_returned(millstream: SharedBroker) -> None:
    records = [Sent(b"%d" % n, b"eu-%d" % n if n % 2 else b"us", n % 3) for n in range(40)]
    topic = make_topic(millstream, records, partitions=3)
    address = millstream.bootstrap_servers
    seen: list[bytes | None] = []
    position = None
    for _ in range(4):
        with watch(topic, address, prefix="eu-", position=position, from_beginning=True) as it:
            seen += take(it, 5)
            position = it.position
    assert sorted(int(it or b"") for it in seen) == list(range(1, 40, 2))
    with watch(topic, address, prefix="eu-", position=position) as changes:
        assert changes.poll(wait_ms=0) == 0
        produce(address, topic, [Sent(b"new", b"eu-x")])
        assert take(changes, 1) == [b"new"]


def test_watch_takes_predicates(millstream: SharedBroker) -> None:
    records = [Sent(b'{"amount": %d}' % n, b"k") for n in range(20)] + [Sent(b"bad", b"k")]
    topic = make_topic(millstream, records)
    address = millstream.bootstrap_servers
    where = "amount >= 17 -- large ones"
    with watch(topic, address, where=where, schema="amount int", from_beginning=True) as changes:
        assert take(changes, 3) == [b'{"amount": 17}', b'{"amount": 18}', b'{"amount": 19}']
    with pytest.raises(ConfigError, match="nonsense"):
        watch(topic, address, where="nonsense = 1")


def test_watch_skips_aborted_and_deleted_records(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"%d" % n) for n in range(5)])
    address = millstream.bootstrap_servers
    with TransactionalProducer(address, topic) as producer:
        producer.init()
        producer.run(topic, [b"aborted"], committed=False)
        producer.run(topic, [b"kept"], committed=True)
    with watch(topic, address, from_beginning=True) as changes:
        position = changes.position
    admin = AdminClient({"bootstrap.servers": address})
    next(iter(admin.delete_records([TopicPartition(topic, 0, 4)]).values())).result(60)
    with watch(topic, address, position=position) as changes:
        assert take(changes, 2) == [b"4", b"kept"]
        assert changes.warnings == [f"{topic}-0: offsets 0 to 3 were deleted before they were seen"]


def test_watch_fails_if_its_topic_is_deleted_or_recreated(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"x")])
    address = millstream.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": address})
    with watch(topic, address) as changes:
        position = changes.position
        admin.delete_topics([topic])[topic].result(60)
        with pytest.raises(WatchFailed, match="was deleted"):
            next(changes)
    with Cluster(address) as cluster:
        create_topics(cluster, [NewTopic(topic, 1)])
    with pytest.raises(WatchFailed, match="deleted and created again"):
        watch(topic, address, position=position)


@pytest.mark.slow
def test_watch_goes_on_when_its_broker_was_killed(tmp_path: Path) -> None:
    now_ms = round(time.time() * 1000)
    with Broker.start(tmp_path, in_process=False) as broker:
        address = broker.bootstrap_servers

        def come_back() -> None:
            broker.restart()
            produce(address, "orders", [Sent(b"2", b"k", timestamp_ms=now_ms)])

        produce(address, "orders", [Sent(b"1", b"k", timestamp_ms=now_ms)])
        with watch("orders", address, key="k", from_beginning=True) as changes:
            assert take(changes, 1) == [b"1"]
            broker.kill()
            thread = threading.Timer(0.5, come_back)
            thread.start()
            assert take(changes, 1) == [b"2"]
            thread.join()


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("nonsense", "is not the position of a watch"),
        (json.dumps({"topic": "other", "id": "x", "offsets": {}}), "one of topic other"),
    ],
)
def test_watch_refuses_positions_that_are_not_its_own(
    millstream: SharedBroker, position: str, message: str
) -> None:
    topic = make_topic(millstream)
    with pytest.raises(WatchFailed, match=message):
        watch(topic, millstream.bootstrap_servers, position=position)


def test_watch_ends_when_it_is_closed(millstream: SharedBroker) -> None:
    topic = make_topic(millstream)
    with watch(topic, millstream.bootstrap_servers) as changes:
        threading.Timer(0.2, changes.close).start()
        assert list(changes) == []
