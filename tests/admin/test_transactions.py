"""Transactions of real producers: what is open, what it holds back, and its end."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from millstream.admin.errors import InvalidArgument, NotFound, OperationFailed
from millstream.admin.transactions import (
    abort_in_partition,
    abort_transaction,
    check_hangs,
    describe_transaction,
    describe_transactions,
    find_hanging,
    find_open,
    held_partitions,
    list_transactions,
    open_transactions,
    with_transactions,
)
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from tests.peers.patience import wait_until


@pytest.fixture
def producer(cluster: Cluster, bootstrap_servers: str, name: str) -> Producer:
    """A producer with the name of its topic, whose transaction has written to partition 1."""
    create_topics(cluster, [NewTopic(name, 2)])
    plain = Producer({"bootstrap.servers": bootstrap_servers})
    plain.produce(name, b"before", partition=1)
    assert plain.flush(60) == 0
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"in it", partition=1)
    producer.flush(60)
    plain.produce(name, b"behind it", partition=1)
    assert plain.flush(60) == 0
    return producer


def test_open_transaction_holds_its_partition_back(
    cluster: Cluster, producer: Producer, name: str
) -> None:
    places = [(name, 0), (name, 1)]
    [held] = with_transactions(cluster, held_partitions(cluster, places))
    assert (held.partition, held.stable, held.end, held.waiting) == (1, 1, 3, 2)
    assert [(it.transactional_id, it.is_hanging) for it in held.transactions] == [(name, False)]
    assert held.transactions[0].start_offset == 1
    [listed] = [it for it in list_transactions(cluster) if it.transactional_id == name]
    [described] = describe_transactions(cluster, [listed])
    assert described == describe_transaction(cluster, name)
    assert (described.state, described.partitions) == ("Ongoing", ((name, 1),))
    assert described.is_open
    assert described.started_ms is not None
    assert find_hanging(cluster, [name], 0) == []
    producer.commit_transaction(60)
    wait_until(lambda: held_partitions(cluster, places) == [])  # once the markers are written


def test_transaction_is_aborted_by_its_id(cluster: Cluster, producer: Producer, name: str) -> None:
    assert abort_transaction(cluster, name)
    wait_until(lambda: held_partitions(cluster, [(name, 1)]) == [])
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    assert not abort_transaction(cluster, name)


def test_transaction_is_aborted_in_one_partition(
    cluster: Cluster, producer: Producer, name: str
) -> None:
    with pytest.raises(OperationFailed, match="open ones begin at 1"):
        find_open(cluster, name, 1, 0)
    with pytest.raises(OperationFailed, match=f"its transactional id, '{name}'"):
        check_hangs(cluster, find_open(cluster, name, 1, 1), silent_ms_min=0)
    abort_in_partition(cluster, find_open(cluster, name, 1, 1))
    assert open_transactions(cluster, [(name, 1)]) == []
    with pytest.raises(OperationFailed, match="none is open there"):
        find_open(cluster, name, 1, 1)
    abort_transaction(cluster, name)


def test_what_is_not_there_is_named(cluster: Cluster, producer: Producer, name: str) -> None:
    with pytest.raises(NotFound, match=f"did you mean '{name}'"):
        describe_transaction(cluster, name + "x")
    with pytest.raises(InvalidArgument, match="there is no state 'Lost'"):
        list_transactions(cluster, states=["Lost"])
    assert open_transactions(cluster, [("absent", 0)]) == []
    abort_transaction(cluster, name)
