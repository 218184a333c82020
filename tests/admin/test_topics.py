"""Topics are created, get partitions, are deleted, and come back empty under the same name."""

from __future__ import annotations

import pytest

from millstream.admin.cluster_state import TopicState, cluster_state
from millstream.admin.errors import OperationFailed
from millstream.admin.settings import Resource, settings_of
from millstream.admin.topics import (
    add_partitions,
    check_same_topic,
    create_topic,
    current_id,
    delete_topic,
)
from millstream.client.cluster import Cluster
from millstream.errors import ApiError, ErrorCode


def topic_of(cluster: Cluster, name: str) -> TopicState | None:
    return cluster_state(cluster).topics.get(name)


def test_topic_is_created_with_partitions_and_settings(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, partitions=3, replication_factor=1, settings={"retention.ms": "5"})
    found = topic_of(cluster, name)
    assert found is not None
    assert (len(found.partitions), found.replicas, found.is_internal) == (3, 1, False)
    own = {it.name: it.value for it in settings_of(cluster, Resource.TOPIC, name) if it.is_own}
    assert own == {"retention.ms": "5"}


def test_dry_runs_validate_and_change_nothing(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, dry_run=True)
    assert topic_of(cluster, name) is None
    with pytest.raises(ApiError, match=r"not\.a\.setting"):
        create_topic(cluster, name, settings={"not.a.setting": "1"}, dry_run=True)
    create_topic(cluster, name, partitions=1)
    add_partitions(cluster, name, 4, dry_run=True)
    found = topic_of(cluster, name)
    assert found is not None
    assert len(found.partitions) == 1


def test_partitions_are_added_and_never_removed(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, partitions=2)
    add_partitions(cluster, name, 5)
    found = topic_of(cluster, name)
    assert found is not None
    assert [it.index for it in found.partitions] == [0, 1, 2, 3, 4]
    with pytest.raises(ApiError, match=f"cannot add partitions to topic {name}") as refused:
        add_partitions(cluster, name, 3)
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS


def test_deleted_topic_comes_back_as_another_one(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, partitions=2, settings={"retention.ms": "5"})
    before = topic_of(cluster, name)
    delete_topic(cluster, name)
    assert topic_of(cluster, name) is None
    create_topic(cluster, name, partitions=1)
    after = topic_of(cluster, name)
    assert before is not None
    assert after is not None
    assert (before.id != after.id, len(after.partitions)) == (True, 1)
    assert not [it for it in settings_of(cluster, Resource.TOPIC, name) if it.is_own]


def test_topic_of_the_same_name_is_not_deleted_instead(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name)
    before = current_id(cluster, name)
    delete_topic(cluster, name, before)
    assert current_id(cluster, name) is None
    create_topic(cluster, name)
    with pytest.raises(OperationFailed, match="was deleted meanwhile"):
        delete_topic(cluster, name, before)
    with pytest.raises(OperationFailed, match="was deleted meanwhile"):
        check_same_topic(cluster, name, before)
    after = current_id(cluster, name)
    assert after is not None
    check_same_topic(cluster, name, after)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("with space", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("<script>", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("n" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_invalid_names_are_refused_by_name(cluster: Cluster, wrong: str, code: ErrorCode) -> None:
    with pytest.raises(ApiError, match="cannot create topic") as refused:
        create_topic(cluster, wrong)
    assert refused.value.code is code


def test_existing_and_missing_topics_are_refused(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name)
    with pytest.raises(ApiError) as exists:
        create_topic(cluster, name)
    assert exists.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(ApiError, match=f"cannot delete topic {name}-no") as missing:
        delete_topic(cluster, f"{name}-no")
    assert missing.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
