"""Offsets of many partitions, from a real broker."""

from __future__ import annotations

import pytest

from millstream.client.cluster import Cluster
from millstream.client.fetching import EARLIEST
from millstream.client.offsets import NONE_AS_NEW, list_offsets, log_bounds
from millstream.errors import ApiError
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.transactional import TransactionalProducer
from tests.query.scene import START_MS, Sent, make_topic


def test_list_offsets_finds_moments(millstream: SharedBroker) -> None:
    records = [Sent(b"x", partition=n % 2, timestamp_ms=START_MS + n) for n in range(10)]
    topic = make_topic(millstream, records, partitions=2)
    with Cluster(millstream.bootstrap_servers) as cluster:
        found = list_offsets(cluster, {(topic, 0): START_MS + 4, (topic, 1): START_MS + 100})
        assert found == {(topic, 0): 2, (topic, 1): NONE_AS_NEW}
        assert list_offsets(cluster, {(topic, 1): EARLIEST}) == {(topic, 1): 0}
        assert list_offsets(cluster, {}) == {}


def test_log_bounds_end_before_an_open_transaction(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"a"), Sent(b"b")])
    with (
        TransactionalProducer(millstream.bootstrap_servers, topic) as producer,
        Cluster(millstream.bootstrap_servers) as cluster,
    ):
        producer.init()
        producer.produce(topic, [b"open"])
        assert log_bounds(cluster, [(topic, 0)]) == {(topic, 0): (0, 3)}
        assert log_bounds(cluster, [(topic, 0)], read_committed=True) == {(topic, 0): (0, 2)}
        producer.end(committed=False)


def test_list_offsets_names_a_topic_that_does_not_exist(millstream: SharedBroker) -> None:
    with (
        Cluster(millstream.bootstrap_servers, missing_topic_seconds=0) as cluster,
        pytest.raises(ApiError, match="there is no topic nowhere"),
    ):
        list_offsets(cluster, {("nowhere", 0): EARLIEST})
