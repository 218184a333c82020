"""An excision reaches every replica of a cluster, also of a broker that was away."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from millstream.client.cluster import Cluster
from millstream.excision.jobs import StillWaiting, begin, finish, replica_states
from millstream.excision.selection import Access, find_topic
from tests.e2e.test_zookeeper_cluster import SHORT_SESSION_MS, Brokers, brokers, create
from tests.excision.conftest import ALICE
from tests.peers.patience import PATIENCE_SECONDS, wait_until

SECRET = b"alice@example.org"

__all__ = ["brokers"]  # a fixture


def files_with_secret(directory: Path) -> list[str]:
    files = [it for it in directory.rglob("*") if it.is_file() and it.suffix != ""]
    return [str(it) for it in files if SECRET in it.read_bytes()]


@pytest.mark.slow
def test_broker_that_was_away_excises_when_it_is_back(brokers: Brokers, tmp_path: Path) -> None:
    for node_id in (1, 2, 3):
        brokers.start(node_id, SHORT_SESSION_MS)
    wait_until(lambda: brokers.members(1) == {1, 2, 3})
    create(brokers, 1, NewTopic("t", 1, replica_assignment=[[1, 2, 3]]))
    bootstrap = brokers.running[1].bootstrap
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(50):
        producer.produce(
            "t", SECRET if number % 5 == 0 else b"x", "alice" if number % 5 == 0 else "b"
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    wait_until(lambda: len(files_with_secret(tmp_path)) >= 3)
    brokers.running[3].kill()
    wait_until(lambda: brokers.members(1) == {1, 2})
    with Cluster(bootstrap) as cluster:
        plan = find_topic(cluster, "t", ALICE, access=Access(bootstrap))
        job = begin(cluster, [plan], ALICE, requested_by="test")
        wait_until(lambda: sum(it.is_done for it in replica_states(cluster, job)) == 2)
        with pytest.raises(StillWaiting, match="t-0 on broker 3"):
            finish(cluster, job, timeout_seconds=0.0)
        brokers.running[2].kill()  # and another one, after it has reported
        brokers.start(2)
        brokers.start(3)
        receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
    brokers_of = {it["broker"] for it in receipt.replicas if it["kind"] == "removed"}
    assert brokers_of == {1, 2, 3}
    wait_until(lambda: files_with_secret(tmp_path) == [])
