"""Whole batches as they lie in the log of a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from millstream.client.cluster import Cluster
from millstream.client.connection import Connection
from millstream.client.fetching import fetch_batches, log_start_offset
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import iterate_headers
from tests.peers.servers import Server, start_millstream
from tests.peers.transactional import TransactionalProducer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_millstream(tmp_path_factory.mktemp("fetching") / "data")
    yield running
    running.stop()


def create_topic(cluster: Cluster, name: str) -> None:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    cluster.any_connection().call("create_topics", {"topics": [topic], "timeout": 5000})


def test_fetch_batches_has_markers_and_what_is_not_committed(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "events")
        with TransactionalProducer(server.bootstrap, "writer", protocol=1) as producer:
            assert producer.init() == 0
            producer.run("events", [b"a", b"b"], committed=True)
            producer.begin("events", 0)
            producer.produce("events", [b"open"])
            while fetch_batches(cluster, "events", 0, 0).end_offset < 4:
                pass
        fetched = fetch_batches(cluster, "events", 0, 0)
        kinds = [header.is_control for _, header in iterate_headers(fetched.records)]
        assert kinds == [False, True, False]
        assert log_start_offset(cluster, "events", 0) == fetched.log_start_offset == 0


def test_fetch_batches_names_an_offset_that_is_not_there(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "empty")
        with pytest.raises(ApiError, match="fetching empty-0 from 9 on") as refused:
            fetch_batches(cluster, "empty", 0, 9)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_fetch_batches_waits_for_a_quota(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Connection.receive
    throttled = 0

    def receive_nothing_twice(connection: Connection) -> Any:
        nonlocal throttled
        answer = receive(connection)
        if not hasattr(answer, "responses") or throttled == 2:
            return answer
        throttled += 1
        return replace(answer, responses=())

    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "metered")
        monkeypatch.setattr(Connection, "receive", receive_nothing_twice)
        assert fetch_batches(cluster, "metered", 0, 0).end_offset == 0
        assert throttled == 2
