"""An excision from the request to the receipt, also with clients and brokers that die."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError
from millstream.excision.documents import PlacePlan, Receipt, TopicPlan
from millstream.excision.history import History
from millstream.excision.jobs import StillWaiting, begin, finish, replica_states
from millstream.excision.selection import Access, read_all
from tests.excision.conftest import ALICE, fill, plan_for
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, start_millstream


def run(cluster: Cluster, topic: str, access: Access) -> Receipt:
    job = begin(cluster, [plan_for(cluster, topic, access)], ALICE, requested_by="test")
    return finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)


def keys_of(cluster: Cluster, topic: str) -> list[bytes | None]:
    return [
        record.key
        for partition in (0, 1)
        for record, _ in read_all(cluster, topic, partition, 0, 15)
        if record is not None
    ]


def test_records_go_and_the_receipt_tells_where_they_were(
    cluster: Cluster, topic: str, access: Access
) -> None:
    receipt = run(cluster, topic, access)
    assert b"alice" not in keys_of(cluster, topic)
    assert len(keys_of(cluster, topic)) == 20
    removed = [it for it in receipt.replicas if it["kind"] == "removed"]
    assert sorted((it["partition"], it["removed"]) for it in removed) == [
        (0, "0+3+6+9+12"),
        (1, "1+4+7+10+13"),
    ]
    assert all(it["segments"][0]["sha256Before"] for it in removed)
    assert receipt.job.requested_by == "test"
    assert receipt.verified_records == 17  # up to the last of the offsets


def test_finish_of_another_client_completes_the_job(
    cluster: Cluster, topic: str, access: Access, server: Server
) -> None:
    job = begin(cluster, [plan_for(cluster, topic, access)], ALICE, requested_by="test")
    with Cluster(server.bootstrap) as other:
        (found,) = [it for it in History(other).jobs().values() if it.id == job.id]
        receipt = finish(other, found, timeout_seconds=PATIENCE_SECONDS)
    assert finish(cluster, job, timeout_seconds=PATIENCE_SECONDS) == receipt


def test_two_excisions_at_once_both_get_receipts(
    cluster: Cluster, topic: str, access: Access, server: Server
) -> None:
    """Of the same topic: neither takes the other's offsets from the setting."""
    plan = plan_for(cluster, topic, access)
    halves = [
        TopicPlan(plan.topic, plan.topic_id, plan.role, (place,)) for place in plan.partitions[:2]
    ]

    def excise(half: TopicPlan) -> Receipt:
        with Cluster(server.bootstrap) as own:
            job = begin(own, [half], ALICE, requested_by="test")
            return finish(own, job, timeout_seconds=PATIENCE_SECONDS)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(excise, halves)
    assert one.number != two.number
    assert b"alice" not in keys_of(cluster, topic)


def test_topic_deleted_meanwhile_has_a_receipt_too(
    cluster: Cluster, topic: str, access: Access
) -> None:
    job = begin(cluster, [plan_for(cluster, topic, access)], ALICE, requested_by="test")
    admin = AdminClient({"bootstrap.servers": access.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    create_topics(cluster, [NewTopic(topic, 3)])
    fill(access.bootstrap_servers, topic)
    receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
    assert receipt.deleted_topics == (topic,)
    assert keys_of(cluster, topic).count(b"alice") == 10  # of another topic


def test_offsets_that_are_not_there_yet_leave_the_job_open(
    cluster: Cluster, topic: str, access: Access
) -> None:
    plan = plan_for(cluster, topic, access)
    later = TopicPlan(topic, plan.topic_id, plan.role, (PlacePlan(0, "100", 1, 0, 101, 0),))
    job = begin(cluster, [later], ALICE, requested_by="test")
    with pytest.raises(StillWaiting, match=f"{topic}-0 on broker .* millstream excise resume"):
        finish(cluster, job, timeout_seconds=0.0)
    assert [it.is_done for it in replica_states(cluster, job)] == [False]


def test_plan_that_the_brokers_refuse_leaves_no_job(
    cluster: Cluster, topic: str, access: Access
) -> None:
    plan = plan_for(cluster, topic, access)
    offsets = "+".join(str(it) for it in range(0, 200_000, 2))
    long = TopicPlan(
        topic, plan.topic_id, plan.role, (PlacePlan(0, offsets, 100_000, 0, 200_000, 0),)
    )
    jobs = set(History(cluster).jobs())
    with pytest.raises(ApiError, match="excise in parts"):
        begin(cluster, [long], ALICE, requested_by="test")
    assert set(History(cluster).jobs()) == jobs


def test_excision_of_many_records_has_a_receipt(
    cluster: Cluster, topic: str, access: Access
) -> None:
    """Job, reports and receipt each have more than a megabyte's worth of offsets in them."""
    plan = plan_for(cluster, topic, access)
    offsets = "+".join(str(it) for it in range(0, 80_000, 2))
    places = (PlacePlan(0, offsets, 0, 0, 80_000, 0),)
    many = TopicPlan(topic, plan.topic_id, plan.role, places)
    producer = Producer({"bootstrap.servers": access.bootstrap_servers})
    for number in range(80_000):
        producer.produce(topic, b"x", partition=0)
        if number % 10_000 == 0:
            producer.flush(PATIENCE_SECONDS)
    assert producer.flush(PATIENCE_SECONDS) == 0
    many = replace(many, partitions=(replace(places[0], records=40_000),))
    job = begin(cluster, [many], ALICE, requested_by="test")
    receipt = finish(cluster, job, timeout_seconds=2 * PATIENCE_SECONDS)
    (removed,) = [it for it in receipt.replicas if it["kind"] == "removed"]
    assert removed["removedRecords"] == 40_000


def test_broker_killed_in_between_goes_on_after_its_start(tmp_path: Path) -> None:
    port = free_port()
    server = start_millstream(tmp_path, {}, port=port)
    access = Access(server.bootstrap)
    with Cluster(server.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("orders", 3)])
        fill(server.bootstrap, "orders")
        job = begin(cluster, [plan_for(cluster, "orders", access)], ALICE, requested_by="test")
    server.kill()
    server = start_millstream(tmp_path, {}, port=port)
    try:
        with Cluster(server.bootstrap) as cluster:
            receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
            assert receipt.number == 1
            assert b"alice" not in keys_of(cluster, "orders")
        files = [it for it in tmp_path.rglob("*") if it.is_file()]
        assert [it.name for it in files if b"alice@example.org" in it.read_bytes()] == []
    finally:
        server.stop()


def test_record_of_an_open_transaction_goes_and_the_transaction_goes_on(
    cluster: Cluster, topic: str, access: Access
) -> None:
    settings = {"bootstrap.servers": access.bootstrap_servers}
    producer = Producer({**settings, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for key in ("alice", "bob"):
        producer.produce(topic, "in a transaction", key, 2)
    producer.flush(PATIENCE_SECONDS)
    receipt = run(cluster, topic, access)
    assert [it.records for it in receipt.job.topics[0].partitions] == [5, 5, 1]
    producer.produce(topic, "in a transaction", "carol", 2)
    producer.commit_transaction(PATIENCE_SECONDS)
    consumer = Consumer({**settings, "group.id": topic, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 2, 0)])
    read: list[Any] = []
    while len(read) < 2:
        read += [it.key() for it in consumer.consume(1, PATIENCE_SECONDS)]
    consumer.close()
    assert read == [b"bob", b"carol"]


def test_consumers_and_producers_go_on_meanwhile(
    cluster: Cluster, topic: str, access: Access
) -> None:
    """An idempotent producer that continues, and a reader in the middle of the log."""
    settings = {"bootstrap.servers": access.bootstrap_servers}
    producer = Producer({**settings, "enable.idempotence": True})
    producer.produce(topic, "before", "alice", 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, it, 0) for it in range(3)])
    unread = consumer.consume(4, PATIENCE_SECONDS)
    job = begin(cluster, [plan_for(cluster, topic, access)], ALICE, requested_by="test")
    for number in range(200):
        producer.produce(topic, f"after {number}", "bob", 2)
    finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
    assert producer.flush(PATIENCE_SECONDS) == 0
    keys: dict[tuple[int, int], bytes | None] = {}
    while not {(2, 200), (0, 14), (1, 14)} <= keys.keys():
        unread = unread or consumer.consume(50, 0.2)
        for it in unread:
            assert it.error() is None
            assert (it.partition(), it.offset()) not in keys
            keys[it.partition(), it.offset()] = it.key()
        unread = []
    consumer.close()
    kept = sorted(place for place, key in keys.items() if key != b"alice")
    assert [offset for partition, offset in kept if partition == 2] == [*range(1, 201)]
    assert len(kept) == 20 + 200
