"""Topics that pipelines need, on a real broker."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster
from millstream.errors import ConfigError
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.topics import BrokerUnreachable, check_topics
from tests.peers.servers import free_port
from tests.pipelines.conftest import Topics


@pytest.fixture
def settings(topics: Topics, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, broker=topics.bootstrap)


def test_missing_topics_are_named_or_created(topics: Topics, settings: Settings) -> None:
    there, read, written = topics.create(), f"a-{uuid.uuid4().hex}", f"b-{uuid.uuid4().hex}"
    declared = [
        pipeline(reads=topic(there), writes=table("t"), name="fine")(lambda frame: frame),
        pipeline(
            reads=topic(read, partitions=3), writes=topic(written, partitions=2), name="misses"
        )(lambda frame: frame),
    ]
    with pytest.raises(ConfigError, match=rf"no topic {written}, {read} at .*--create-topics"):
        check_topics(settings, declared)
    created = check_topics(replace(settings, create_topics=True), declared)
    assert set(created) == {there, read, written}
    assert check_topics(settings, declared) == created, "the same ids"
    with Cluster(topics.bootstrap) as cluster:
        found = cluster.refresh([read, written])
    assert {name: len(it.partitions) for name, it in found.items()} == {read: 3, written: 2}


def test_broker_that_is_not_there_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.running.topics.CONNECT_SECONDS", 0.1)
    address = f"127.0.0.1:{free_port()}"
    declared = pipeline(reads=topic("x"), writes=table("t"), name="p")(lambda frame: frame)
    with pytest.raises(BrokerUnreachable, match=f"no broker answers at {address}"):
        check_topics(replace(settings, broker=address), [declared])


def test_missing_topic_of_queries_is_named_or_created(topics: Topics, settings: Settings) -> None:
    there, searches = topics.create(), f"a-{uuid.uuid4().hex}"
    reads = topic(there, schema="a long", queries=searches)
    declared = pipeline(reads=reads, writes=table("t"), name="fine")(lambda frame: frame)
    with pytest.raises(ConfigError, match=f"millstream queries create {searches}"):
        check_topics(settings, [declared])
    assert set(check_topics(replace(settings, create_topics=True), [declared])) == {there}
    with Cluster(topics.bootstrap) as cluster:
        assert len(cluster.refresh([searches])[searches].partitions) == 1
