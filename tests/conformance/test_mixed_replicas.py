"""Replicas of one partition on an Apache broker and on one of ours, under Apache's controllers.

Each is the leader of the other, and the follower's log is the leader's byte for byte; also after
their logs have diverged, and the follower has to truncate its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.records.batch import iterate_headers
from tests.conformance.brokers import unique
from tests.conformance.clusters import (
    await_equal_replicas,
    await_in_sync,
    leaders,
    log_bytes,
    produce,
)
from tests.conformance.test_cluster_tools import fill
from tests.conformance.test_log_files import judge
from tests.peers.java_runtime import ToolRunner
from tests.peers.mixed_cluster import APACHE, OURS, MixedCluster
from tests.peers.patience import wait_until
from tests.peers.wire import Wire

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("mixed-replicas"),
]

BOTH = (OURS, APACHE)
PAIRS = {"ours leads": [OURS, APACHE], "Apache's leads": [APACHE, OURS]}
# The versions of Fetch that Apache's followers use with the formats of these releases.
RELEASES = {"3.3-IV3": 13, "3.5-IV2": 15, "3.7-IV4": 16, "3.9-IV0": 17, "4.3-IV0": 18}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster.running(tmp_path_factory.mktemp("mixed")) as cluster:
        prepare(cluster)
        yield cluster


def prepare(cluster: MixedCluster) -> None:
    """Coordinators are at Apache's broker."""
    create_topic(cluster, "__transaction_state", [APACHE], cleanup_policy="compact")


def create_topic(
    cluster: MixedCluster, name: str, replicas: list[int], **config: str | int
) -> None:
    """Asked of Apache's broker: clients may take any broker for the controller, and ours does not
    forward requests to it."""
    assignment = {"partition_index": 0, "broker_ids": replicas}
    settings = [
        {"name": key.replace("_", "."), "value": str(value)} for key, value in config.items()
    ]
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [assignment],
        "configs": settings,
    }
    with Wire(cluster.address(APACHE)) as wire:
        answer = wire.call("create_topics", 7, topics=(topic,), timeout=60_000)
    assert answer.topics[0].error_code == 0, answer
    wait_until(lambda: leaders(cluster, name) == replicas[:1])


@pytest.mark.parametrize("pair", PAIRS)
def test_followers_have_the_bytes_of_their_leader(
    cluster: MixedCluster, tools: ToolRunner, pair: str
) -> None:
    topic = unique("topic")
    create_topic(cluster, topic, PAIRS[pair], min_insync_replicas=2, segment_bytes=1_048_576)
    fill(cluster, topic, partitions=1)
    await_in_sync(cluster, topic, *BOTH)
    content = await_equal_replicas(cluster, topic, brokers=BOTH)
    headers = [header for _, header in iterate_headers(content)]
    assert {header.compression.name.lower() for header in headers} >= {"gzip", "zstd"}
    assert any(header.is_control for header in headers)
    for broker in BOTH:
        files = sorted((cluster.data(broker) / f"{topic}-0").glob("*.log"))
        assert judge(tools, *files) == []


@pytest.mark.parametrize("pair", PAIRS)
def test_follower_truncates_what_its_leader_does_not_have(
    cluster: MixedCluster, tools: ToolRunner, pair: str
) -> None:
    """The second broker leads alone for a while; then it is lost, and the first one, which has not
    followed it, leads."""
    first, second = PAIRS[pair]
    topic = unique("topic")
    create_topic(cluster, topic, [first, second], unclean_leader_election_enable="true")
    fill(cluster, topic, partitions=1)
    await_equal_replicas(cluster, topic, brokers=BOTH)
    cluster.kill(first)
    wait_until(lambda: leaders(cluster, topic) == [second])
    assert produce(cluster, topic, [b"lost %d" % number for number in range(50)])[-1] is None
    assert b"lost 49" in log_bytes(cluster, second, topic)
    cluster.kill(second)
    cluster.start(first)
    wait_until(lambda: leaders(cluster, topic) == [first])
    assert produce(cluster, topic, [b"kept %d" % number for number in range(10)])[-1] is None
    cluster.start(second)
    await_in_sync(cluster, topic, *BOTH)
    assert produce(cluster, topic, [b"last"]) == [None]
    content = await_equal_replicas(cluster, topic, brokers=BOTH)
    assert (b"lost" in content, b"kept 9" in content, b"last" in content) == (False, True, True)
    epochs = [header.leader_epoch for _, header in iterate_headers(content)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2


@pytest.mark.parametrize("release", RELEASES)
def test_followers_of_older_releases_have_the_bytes_too(
    tmp_path_factory: pytest.TempPathFactory, release: str
) -> None:
    with MixedCluster.running(tmp_path_factory.mktemp("mixed"), release) as cluster:
        for name, replicas in (("ours", [OURS, APACHE]), ("apaches", [APACHE, OURS])):
            create_topic(cluster, name, replicas, min_insync_replicas=2)
            values = [b"%d" % number for number in range(1000)]
            errors = produce(cluster, name, values, batch_num_messages=10)
            assert set(errors) == {None}
            await_in_sync(cluster, name, *BOTH)
            assert b"999" in await_equal_replicas(cluster, name, brokers=BOTH)
