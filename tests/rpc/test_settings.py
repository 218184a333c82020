"""Settings of clients, the topic of replies, and share groups of servers."""

from __future__ import annotations

from millstream.admin.settings import Resource, settings_of
from millstream.rpc.settings import (
    REPLY_PARTITIONS,
    client_settings,
    create_reply_topic,
    create_request_topic,
    make_cluster,
    start_share_group_at_the_beginning,
)
from millstream.testing.pytest_plugin import SharedBroker


def test_client_settings_translate_security_and_keep_others() -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "client.id": "shop",
    }
    found = client_settings("b:1", given, **{"linger.ms": 0})
    assert found["bootstrap.servers"] == "b:1"
    assert found["sasl.username"] == "alice"
    assert (found["client.id"], found["linger.ms"]) == ("shop", 0)


def test_reply_topic_is_created_once_with_a_short_retention(millstream: SharedBroker) -> None:
    name = millstream.unique_topic("replies")
    with make_cluster(millstream.bootstrap_servers, None) as cluster:
        create_reply_topic(cluster, name)
        create_reply_topic(cluster, name)
        assert len(cluster.topic(name).partitions) == REPLY_PARTITIONS
        found = {it.name: it.value for it in settings_of(cluster, Resource.TOPIC, name)}
        assert found["retention.ms"] == "600000"


def test_request_topic_is_created_once(millstream: SharedBroker) -> None:
    name = millstream.unique_topic("requests")
    with make_cluster(millstream.bootstrap_servers, None) as cluster:
        create_request_topic(cluster, name)
        create_request_topic(cluster, name)
        assert len(cluster.topic(name).partitions) == 1


def test_share_groups_start_at_the_beginning(millstream: SharedBroker) -> None:
    group = millstream.unique_group()
    with make_cluster(millstream.bootstrap_servers, None) as cluster:
        start_share_group_at_the_beginning(cluster, group)
        found = {it.name: it.value for it in settings_of(cluster, Resource.GROUP, group)}
        assert found["share.auto.offset.reset"] == "earliest"
