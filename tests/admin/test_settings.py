"""Settings have their values, sources and documentation, and change one at a time."""

from __future__ import annotations

import pytest

from millstream.admin.settings import (
    Resource,
    Setting,
    alter_settings,
    settings_of,
    settings_of_topics,
)
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from millstream.errors import ApiError, ErrorCode


def setting(cluster: Cluster, topic: str, name: str) -> Setting:
    found = settings_of(cluster, Resource.TOPIC, topic, documentation=True)
    return next(it for it in found if it.name == name)


def test_source_of_a_setting_follows_its_changes(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name)
    before = setting(cluster, name, "max.message.bytes")
    assert (before.is_own, before.source != "topic", before.type) == (False, True, "int")
    alter_settings(cluster, Resource.TOPIC, name, {"max.message.bytes": "1234"})
    changed = setting(cluster, name, "max.message.bytes")
    assert (changed.value, changed.source, changed.is_own) == ("1234", "topic", True)
    assert changed.synonyms[0].value == "1234"
    assert [it.value for it in changed.synonyms[1:]]
    assert changed.documentation
    alter_settings(cluster, Resource.TOPIC, name, {"max.message.bytes": None})
    assert setting(cluster, name, "max.message.bytes") == before


def test_dry_run_validates_only(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name)
    alter_settings(cluster, Resource.TOPIC, name, {"retention.ms": "77"}, dry_run=True)
    assert not setting(cluster, name, "retention.ms").is_own
    with pytest.raises(ApiError, match="retention") as refused:
        alter_settings(cluster, Resource.TOPIC, name, {"retention.ms": "soon"}, dry_run=True)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_brokers_settings_are_described_by_themselves(cluster: Cluster) -> None:
    broker = cluster.broker_ids()[0]
    found = {it.name: it for it in settings_of(cluster, Resource.BROKER, str(broker))}
    assert found["log.dirs"].is_read_only
    assert found["num.partitions"].value is not None


def test_settings_of_missing_topics_are_refused(cluster: Cluster, name: str) -> None:
    with pytest.raises(ApiError, match=name):
        settings_of(cluster, Resource.TOPIC, name)
    with pytest.raises(ApiError, match=name):
        alter_settings(cluster, Resource.TOPIC, name, {"retention.ms": "1"})


def test_settings_of_many_topics_leave_out_missing_ones(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, settings={"cleanup.policy": "compact"})
    wanted = [name, *(f"{name}-no-{number}" for number in range(60))]
    found = settings_of_topics(cluster, wanted, ["cleanup.policy"])
    assert found == {name: {"cleanup.policy": "compact"}}
