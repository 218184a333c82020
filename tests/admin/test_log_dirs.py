"""Log directories and the replicas in them; moves and failures as brokers answer them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.admin.log_dirs import DirectoryState, log_dirs
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from millstream.errors import ApiError, ErrorCode
from tests.peers.patience import PATIENCE_SECONDS


def test_replicas_have_their_sizes(cluster: Cluster, bootstrap_servers: str, name: str) -> None:
    create_topic(cluster, name, partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(name, b"x" * 5000, partition=1)
    assert producer.flush(PATIENCE_SECONDS) == 0
    found = log_dirs(cluster, partitions=[(name, 0), (name, 1)])
    (directory,) = found.directories
    assert (directory.problem, directory.replicas) == ("", 2)
    assert directory.total_bytes > directory.usable_bytes > 0
    assert 0 < (directory.used_share or 0) < 1
    sizes = [(it.topic, it.partition, it.bytes > 5000, it.log_dir) for it in found.replicas]
    assert sizes == [(name, 0, False, directory.path), (name, 1, True, directory.path)]


def test_used_share_is_unknown_without_sizes() -> None:
    assert DirectoryState(1, "/x").used_share is None


def partition(index: int, size: int, *, future: bool = False) -> Any:
    return SimpleNamespace(
        partition_index=index, partition_size=size, offset_lag=7, is_future_key=future
    )


def directory(path: str, *partitions: Any, error: ErrorCode = ErrorCode.NONE) -> Any:
    topics = [SimpleNamespace(name="t", partitions=partitions)]
    return SimpleNamespace(
        error_code=error, log_dir=path, topics=topics, total_bytes=100, usable_bytes=40
    )


class Answers:
    """What a cluster of two brokers answers: one moves a replica, one refuses."""

    def broker_ids(self, **_: Any) -> list[int]:
        return [1, 2]

    def ask_broker(self, broker: int, api: str, fields: Any) -> Any:
        if broker == 2:
            return SimpleNamespace(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=[])
        results = [
            directory("/b", partition(0, 10, future=True)),
            directory("/a", partition(0, 30), partition(1, 5)),
            directory("/broken", error=ErrorCode.KAFKA_STORAGE_ERROR),
        ]
        return SimpleNamespace(error_code=ErrorCode.NONE, results=results)


def test_move_is_one_replica_and_a_refusal_hides_nothing_else() -> None:
    cluster: Any = Answers()
    found = log_dirs(cluster)
    first, second = found.replicas
    assert (first.log_dir, first.bytes, first.moving_to, first.copied_bytes, first.lag) == (
        "/a",
        30,
        "/b",
        10,
        7,
    )
    assert (second.log_dir, second.moving_to, second.lag) == ("/a", None, None)
    assert [(it.broker, it.path) for it in found.directories] == [
        (1, "/b"),
        (1, "/a"),
        (1, "/broken"),
        (2, ""),
    ]
    assert "offline" in found.directories[2].problem
    assert "needs Describe on the cluster" in found.directories[3].problem


def test_broker_that_is_gone_is_a_problem_of_its_own() -> None:
    class Gone(Answers):
        def ask_broker(self, broker: int, api: str, fields: Any) -> Any:
            if broker == 2:
                raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "unknown broker 2")
            return super().ask_broker(broker, api, fields)

    cluster: Any = Gone()
    assert log_dirs(cluster).directories[-1].problem == "BROKER_NOT_AVAILABLE: unknown broker 2"
    with pytest.raises(KeyError):
        _ = {it.broker: it for it in log_dirs(cluster, [1]).directories}[2]
