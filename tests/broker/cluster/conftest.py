"""A cluster of its own in ZooKeeper for each test, and ways to lose the connection to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millstream.testing.zookeeper import ZooKeeperProcess
from tests.broker.cluster.clusters import Cluster
from tests.peers.cutting_proxy import CuttingProxy, cutting_proxy


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess) -> Cluster:
    return Cluster(zookeeper.address, f"/test-{uuid.uuid4().hex}/cluster")


@pytest.fixture
def proxy(zookeeper: ZooKeeperProcess) -> Iterator[CuttingProxy]:
    with cutting_proxy("127.0.0.1", zookeeper.port) as it:
        yield it
