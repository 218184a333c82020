"""Where an archive may be, and which topics can be archived."""

from __future__ import annotations

import pytest

from millstream.config.archive import check_archive_path, check_archived
from millstream.config.broker import BrokerConfig
from millstream.config.topic import TopicConfig
from millstream.errors import ConfigError


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("ftp://host/x", "has the scheme ftp"),
        ("s3:///x", "names no bucket"),
        ("s3://key:secret@bucket/x", "must not contain credentials"),
        ("s3://bucket/x?regoin=eu", "unknown parameter regoin"),
    ],
)
def test_impossible_path_is_refused(path: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        check_archive_path(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["/var/archive", "relative", "file:///x", "s3://bucket", "s3://b/p?region=eu-west-1"]
)
def test_possible_path_is_accepted(path: str) -> None:
    check_archive_path(path)


def test_broker_does_not_start_with_an_impossible_path() -> None:
    with pytest.raises(ConfigError, match="has the scheme ftp"):
        BrokerConfig.from_values({"millstream.archive.path": "ftp://host/x"})


def test_topic_needs_an_archive_of_the_brokers() -> None:
    archived = TopicConfig(remote_storage_enable=True)
    check_archived(archived, "/var/archive")
    check_archived(TopicConfig(), None)
    with pytest.raises(ConfigError, match="Tiered Storage functionality is disabled"):
        check_archived(archived, None)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"local_retention_ms": 10, "retention_ms": 5}, "must not be more than retention.ms"),
        ({"local_retention_ms": -1, "retention_ms": 5}, "must not be -1 as retention.ms"),
        ({"local_retention_bytes": 9, "retention_bytes": 8}, "more than retention.bytes"),
    ],
)
def test_broker_keeps_no_more_than_there_is(settings: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_archived(TopicConfig(remote_storage_enable=True, **settings), "/var/archive")  # type: ignore[arg-type]
    check_archived(TopicConfig(**settings), None)  # type: ignore[arg-type]


def test_local_retention_is_that_of_an_archived_topic() -> None:
    settings = {"retention_ms": 100, "local_retention_ms": 10, "local_retention_bytes": 7}
    plain = TopicConfig(**settings)  # type: ignore[arg-type]
    assert (plain.local_ms_max, plain.local_bytes_max) == (100, -1)
    archived = TopicConfig(remote_storage_enable=True, **settings)  # type: ignore[arg-type]
    assert (archived.local_ms_max, archived.local_bytes_max) == (10, 7)
    inherited = TopicConfig(remote_storage_enable=True, retention_ms=100)
    assert (inherited.local_ms_max, inherited.local_bytes_max) == (100, -1)
    stopped = TopicConfig(remote_storage_enable=True, remote_log_copy_disable=True, **settings)  # type: ignore[arg-type]
    assert stopped.local_ms_max == 100
