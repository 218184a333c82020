"""Where an archive may be, and which topics can be archived."""

from __future__ import annotations

import pytest

from millstream.config.archive import (
    ArchiveSchema,
    check_archive_path,
    check_archived,
    check_disabled,
    parse_archive_schema,
)
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
        (
            {"remote_log_copy_disable": True, "local_retention_ms": 5},
            "`local.retention.ms` and `retention.ms` must be set to the identical value",
        ),
        (
            {"remote_log_copy_disable": True, "local_retention_bytes": 5},
            "`local.retention.bytes` and `retention.bytes` must be set to the identical value",
        ),
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


def test_archive_is_not_left_behind() -> None:
    archived = TopicConfig(remote_storage_enable=True)
    check_disabled(archived, archived)
    check_disabled(TopicConfig(), TopicConfig())
    check_disabled(archived, TopicConfig(remote_log_delete_on_disable=True))
    with pytest.raises(ConfigError, match="invalid to disable remote storage without deleting"):
        check_disabled(archived, TopicConfig())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("json", "write 'json: id bigint, name string' or 'avro'"),
        ("avro: x", "write 'json"),
        ("protobuf", "write 'json"),
        ("json: id", "the end where a type"),
        ("json: at time", "JSON has no time"),
    ],
)
def test_impossible_schema_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_archived(TopicConfig(millstream_archive_schema=text), "/var/archive", "http://r")


def test_schema_of_keys_may_also_be_text() -> None:
    for text in ("string", "json: id bigint", "avro"):
        topic = TopicConfig(millstream_archive_key_schema=text)
        check_archived(topic, "/var/archive", "http://r")
    with pytest.raises(ConfigError, match=r"key\.schema is 'text': write .* or 'string'"):
        check_archived(TopicConfig(millstream_archive_key_schema="text"), "/var/archive")
    with pytest.raises(ConfigError, match=r"archive\.schema is 'string': write .* or 'avro'$"):
        check_archived(TopicConfig(millstream_archive_schema="string"), "/var/archive")
    with pytest.raises(ConfigError, match=r"key\.schema is avro: set"):
        check_archived(TopicConfig(millstream_archive_key_schema="avro"), "/var/archive")


def test_avro_needs_a_registry() -> None:
    topic = TopicConfig(millstream_archive_schema="avro", remote_storage_enable=True)
    check_archived(topic, "/var/archive", "http://host:8081")
    with pytest.raises(ConfigError, match=r"set millstream.archive.schema.registry.url"):
        check_archived(topic, "/var/archive")
    assert parse_archive_schema(" AVRO ") == ArchiveSchema("avro")


@pytest.mark.parametrize("url", ["host:8081", "ftp://host", "http://user:secret@host"])
def test_impossible_registry_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be like http://host:8081") as caught:
        BrokerConfig.from_values({"millstream.archive.schema.registry.url": url})
    assert "secret" not in str(caught.value)


def test_registry_is_described_by_its_usual_names() -> None:
    values = {
        "millstream.archive.schema.registry.url": "http://host:8081",
        "millstream.archive.schema.registry.user.info": "user:secret",
    }
    config = BrokerConfig.from_values(values)
    assert config.archive_registry == {
        "schema.registry.url": "http://host:8081",
        "basic.auth.user.info": "user:secret",
    }
    assert BrokerConfig.from_values({}).archive_registry == {}
