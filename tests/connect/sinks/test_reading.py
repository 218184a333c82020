"""Committed records of several partitions, and where they end."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.connect.sinks.positions import Place, Position
from millstream.connect.sinks.reading import (
    begins_after,
    delete_retention_seconds,
    fetch,
    pairs,
    stable_end,
)
from millstream.errors import ApiError, ErrorCode
from tests.connect.sinks.conftest import Log, wait_for


def positions_of(cluster: Cluster, log: Log) -> dict[Place, Position]:
    info = cluster.topic(log.topic)
    return {Place(log.topic, it.number): Position(str(info.id), 0) for it in info.partitions}


def test_records_of_all_partitions_are_fetched_with_one_request(log: Log) -> None:
    log.admin.delete_topics([log.topic])[log.topic].result(60)
    log.create(partitions=3)
    log.send(*((str(number), {"n": number}) for number in range(20)), (b"k", None), (None, b"v"))
    with Cluster(log.bootstrap) as cluster:
        found = fetch(cluster, positions_of(cluster, log))
        assert len(found) == 3
        records = [pair for it in found if it.columns is not None for pair in pairs(it.columns)]
        assert len(records) == 22
        assert (b"k", None) in records
        assert (None, b"v") in records
        assert sum(stable_end(cluster, it.place) for it in found) == 22
        assert sum(it.next_offset for it in found) == 22


def test_open_transaction_ends_what_is_stable(log: Log) -> None:
    log.send((b"1", b"a"))
    producer = Producer({"bootstrap.servers": log.bootstrap, "transactional.id": log.topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(log.topic, b"open")
    producer.flush(60)
    with Cluster(log.bootstrap) as cluster:
        place = Place(log.topic, 0)
        assert stable_end(cluster, place) == 1
        [found] = fetch(cluster, positions_of(cluster, log))
        assert (found.next_offset, found.end_offset) == (1, 1)
        at_end = {place: positions_of(cluster, log)[place]._replace(offset=1)}
        [nothing] = fetch(cluster, at_end)
        assert (nothing.columns, nothing.next_offset) == (None, 1)
        producer.commit_transaction(60)
        wait_for(lambda: stable_end(cluster, place) == 3)


def test_other_topic_id_and_offset_are_refused(log: Log) -> None:
    with Cluster(log.bootstrap) as cluster:
        cluster.topic(log.topic)
        place = Place(log.topic, 0)
        with pytest.raises(ApiError) as unknown:
            fetch(cluster, {place: Position(str(uuid4()), 0)})
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        cluster.forget_all()
        with pytest.raises(ApiError, match="from 5 on") as outside:
            fetch(cluster, {place: positions_of(cluster, log)[place]._replace(offset=5)})
        assert outside.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_age_of_the_record_at_a_position(log: Log) -> None:
    log.send((b"1", b"a"), (b"1", b"b"))
    place = Place(log.topic, 0)
    with Cluster(log.bootstrap) as cluster:
        topic_id = str(cluster.topic(log.topic).id)
        now = time.time()
        assert begins_after(cluster, place, Position(topic_id, 1), now - 3600)
        assert not begins_after(cluster, place, Position(topic_id, 1), now + 3600)
        assert not begins_after(cluster, place, Position(topic_id, 2), 0)  # there is none


def test_time_that_tombstones_are_kept(log: Log) -> None:
    with Cluster(log.bootstrap) as cluster:
        assert delete_retention_seconds(cluster, log.topic) is None
        log.set("cleanup.policy", "compact,delete")
        log.set("delete.retention.ms", "1500")
        assert delete_retention_seconds(cluster, log.topic) == 1.5
