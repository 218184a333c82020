"""The topic of replies that were given, read as a server reads it that takes over."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer

from millstream.admin.topics import delete_topic
from millstream.client.cluster import Cluster
from millstream.errors import MillstreamError
from millstream.rpc import answered
from millstream.rpc.answered import AnsweredLog
from millstream.rpc.replies import Reply
from millstream.testing.pytest_plugin import SharedBroker
from tests.rpc.scene import PATIENCE, make_topics


class Learned(dict[bytes, bytes | None]):
    """Replies by correlation id, as they are read."""

    def remember(self, key: bytes, reply: Reply, given_at_ms: int) -> None:
        assert given_at_ms > 0
        self[key] = reply.value


def transactional(millstream: SharedBroker) -> Producer:
    name = millstream.unique_topic("transactional-id")
    producer = Producer(
        {"bootstrap.servers": millstream.bootstrap_servers, "transactional.id": name}
    )
    producer.init_transactions(PATIENCE)
    return producer


def write(producer: Producer, topic: str, *keys: bytes) -> None:
    for key in keys:
        producer.produce(topic, key=key, value=Reply(key.upper()).encode(), partition=0)
    assert producer.flush(PATIENCE) == 0


def test_what_was_committed_is_read_once(millstream: SharedBroker) -> None:
    requests, _ = make_topics(millstream, partitions=2)
    topic = f"{requests}-answered"
    with Cluster(millstream.bootstrap_servers) as cluster:
        log = AnsweredLog.create(cluster, topic, requests, 600)
        assert (log.partition_for(1), log.partition_for(2)) == (1, 0)
        producer = transactional(millstream)
        for keys, commits in [((b"a", b"b"), True), ((b"c",), False), ((b"d",), True)]:
            producer.begin_transaction()
            write(producer, topic, *keys)
            if commits:
                producer.commit_transaction(PATIENCE)
            else:
                producer.abort_transaction(PATIENCE)
        learned = Learned()
        log.catch_up([0, 1], learned.remember)
        assert learned == {b"a": b"A", b"b": b"B", b"d": b"D"}
        plain = Producer({"bootstrap.servers": millstream.bootstrap_servers})
        write(plain, topic, b"e")
        plain.produce(topic, key=b"f", value=b"\7of another format", partition=0)
        assert plain.flush(PATIENCE) == 0
        learned.clear()
        log.catch_up([0], learned.remember)
        assert learned == {b"e": b"E"}


def test_an_open_transaction_is_waited_for(
    millstream: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, _ = make_topics(millstream)
    topic = f"{requests}-answered"
    with Cluster(millstream.bootstrap_servers) as cluster:
        log = AnsweredLog.create(cluster, topic, requests, 600)
        producer = transactional(millstream)
        producer.begin_transaction()
        write(producer, topic, b"a")
        learned = Learned()
        with monkeypatch.context() as patched:
            patched.setattr(answered, "WAIT_SECONDS", 0.0)
            with pytest.raises(MillstreamError, match="a transaction is open"):
                log.catch_up([0], learned.remember)
        timer = threading.Timer(0.3, producer.commit_transaction, [PATIENCE])
        timer.start()
        log.catch_up([0], learned.remember)
        assert learned == {b"a": b"A"}
        timer.join()


def test_a_log_that_was_deleted_and_created_again_is_read_from_its_start(
    millstream: SharedBroker,
) -> None:
    requests, _ = make_topics(millstream)
    topic = f"{requests}-answered"
    producer = Producer({"bootstrap.servers": millstream.bootstrap_servers})
    with Cluster(millstream.bootstrap_servers) as cluster:
        log = AnsweredLog.create(cluster, topic, requests, 600)
        write(producer, topic, b"a", b"b", b"c")
        log.catch_up([0], Learned().remember)
        delete_topic(cluster, topic)
        cluster.forget_all()
        AnsweredLog.create(cluster, topic, requests, 600)
        again = Producer({"bootstrap.servers": millstream.bootstrap_servers})
        write(again, topic, b"d", b"e", b"f", b"g")
        learned = Learned()
        log.catch_up([0], learned.remember)
        assert learned.keys() == {b"d", b"e", b"f", b"g"}
