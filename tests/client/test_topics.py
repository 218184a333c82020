"""Creating topics on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode
from tests.peers.servers import Server, start_millstream


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_millstream(tmp_path_factory.mktemp("topics") / "data")
    yield running
    running.stop()


def test_create_topics_leaves_existing_topics_as_they_are(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("kept", 2)])
        create_topics(cluster, [NewTopic("kept", 3), NewTopic("new", 1)])
        found = cluster.refresh(["kept", "new"])
        assert {name: len(it.partitions) for name, it in found.items()} == {"kept": 2, "new": 1}


def test_create_topics_applies_settings(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("small", 1, {"max.message.bytes": "1234"})])
        asked = {
            "resource_type": 2,  # a topic
            "resource_name": "small",
            "configuration_keys": ["max.message.bytes"],
        }
        answer = cluster.any_connection().call("describe_configs", {"resources": [asked]})
        assert answer.results[0].configs[0].value == "1234"


def test_create_topics_names_the_topic_that_is_refused(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        with pytest.raises(ApiError, match="cannot create topic zero") as refused:
            create_topics(cluster, [NewTopic("fine", 1), NewTopic("zero", 0)])
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS
