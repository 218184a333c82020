"""What writers ask of their cluster: how long transactions may last, how many partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream import Broker
from millstream.pipelines.writing.clusters import (
    DECISION_TIMEOUT_MS,
    cluster_for,
    decision_timeout_ms,
    make_cluster,
    partition_count,
    transaction_timeout_ms,
)
from millstream.pipelines.writing.options import WriteOptions, parse_write_options
from tests.peers.patience import PATIENCE_SECONDS

LONGEST_MS = 240_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker.start(config={"transaction.max.timeout.ms": LONGEST_MS}) as broker:
        yield broker.bootstrap_servers


def options_for(bootstrap: str, **more: str) -> WriteOptions:
    names = {name.replace("_", "."): value for name, value in more.items()}
    return parse_write_options({"kafka.bootstrap.servers": bootstrap, **names}, streaming=True)


def test_tasks_may_take_as_long_as_the_brokers_allow_by_default(bootstrap: str) -> None:
    options = options_for(bootstrap)
    with make_cluster(options, "driver") as cluster:
        assert transaction_timeout_ms(options, cluster) == LONGEST_MS
        assert decision_timeout_ms(options, cluster) == DECISION_TIMEOUT_MS < LONGEST_MS
        told = options_for(bootstrap, kafka_transaction_timeout_ms="2000")
        assert transaction_timeout_ms(told, cluster) == 2000


def test_connections_are_kept_for_each_role(bootstrap: str) -> None:
    options = options_for(bootstrap)
    driver = cluster_for(options, "driver")
    assert cluster_for(options_for(bootstrap), "driver") is driver
    assert cluster_for(options, "task") is not driver


def test_partitions_are_counted_again_if_more_are_needed(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(PATIENCE_SECONDS)
    with make_cluster(options_for(bootstrap), "driver") as cluster:
        assert partition_count(cluster, "orders", needed=1) == 1
        admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(PATIENCE_SECONDS)
        assert partition_count(cluster, "orders", needed=1) == 1  # nobody asked
        assert partition_count(cluster, "orders", needed=3) == 3
        assert partition_count(cluster, "elsewhere", needed=1) == 0
