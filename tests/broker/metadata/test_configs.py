"""The settings in force: inherited, changed at run time, kept over a restart, explained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker.metadata.configs import Change, DescribedSetting, Operation
from millstream.broker.metadata.topics import NewTopic
from millstream.config.broker import Source, SourcedValue
from millstream.coordination.cluster import Resource, ResourceType
from millstream.coordination.cluster_records import ConfigRecord
from millstream.errors import ApiError, ErrorCode
from tests.broker.metadata.homes import Home, decided_on, home

TOPIC = Resource(ResourceType.TOPIC, "t")
GROUP = Resource(ResourceType.GROUP, "g")
BROKER = Resource(ResourceType.BROKER, "1")
ALL_BROKERS = Resource(ResourceType.BROKER, "")


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path, settings={"log.retention.hours": 1}) as opened:
        asyncio.run(opened.topics.create([NewTopic("t")]))
        yield opened


def alter(
    it: Home,
    resource: Resource,
    name: str,
    value: str | None,
    operation: int = Operation.SET,
    *,
    validate_only: bool = False,
) -> None:
    change = Change(name, operation, value)
    outcome = asyncio.run(it.configs.alter({resource: [change]}, validate_only=validate_only))
    error = outcome[resource]
    if error is not None:
        raise error


def described(it: Home, resource: Resource, name: str) -> DescribedSetting:
    (only,) = it.configs.describe(resource, [name])
    return only


def test_topic_takes_its_own_setting_before_the_brokers(it: Home) -> None:
    assert it.configs.topic("t").retention_ms == 3_600_000
    alter(it, ALL_BROKERS, "log.retention.ms", "7")
    assert it.configs.topic("t").retention_ms == 7
    alter(it, BROKER, "log.retention.ms", "8")
    assert it.configs.topic("t").retention_ms == 8
    alter(it, TOPIC, "retention.ms", "9")
    assert it.configs.topic("t").retention_ms == 9
    alter(it, TOPIC, "retention.ms", None, Operation.DELETE)
    assert it.configs.topic("t").retention_ms == 8


def test_every_value_of_a_setting_is_explained(it: Home) -> None:
    alter(it, ALL_BROKERS, "log.retention.ms", "7")
    alter(it, TOPIC, "retention.ms", "9")
    setting = described(it, TOPIC, "retention.ms")
    assert (setting.value, setting.source, setting.read_only) == ("9", Source.DYNAMIC_TOPIC, False)
    assert setting.synonyms == (
        SourcedValue("retention.ms", "9", Source.DYNAMIC_TOPIC),
        SourcedValue("log.retention.ms", "7", Source.DYNAMIC_DEFAULT_BROKER),
        SourcedValue("log.retention.hours", "1", Source.STATIC_BROKER),
        SourcedValue("log.retention.hours", "168", Source.DEFAULT),
    )


def test_inherited_value_is_told_in_the_unit_of_the_topic(it: Home) -> None:
    setting = described(it, TOPIC, "retention.ms")
    assert (setting.value, setting.source) == ("3600000", Source.STATIC_BROKER)


def test_broker_setting_is_told_with_its_mode(it: Home) -> None:
    assert described(it, BROKER, "num.partitions").read_only
    assert not described(it, BROKER, "message.max.bytes").read_only
    assert described(it, BROKER, "log.retention.hours").source is Source.STATIC_BROKER
    assert described(it, BROKER, "advertised.listeners").value is None


def test_internal_settings_are_not_described(it: Home) -> None:
    assert it.configs.describe(TOPIC, ["internal.segment.bytes"]) == []


def test_default_of_all_brokers_describes_only_what_is_set(it: Home) -> None:
    assert it.configs.describe(ALL_BROKERS, None) == []
    alter(it, ALL_BROKERS, "log.retention.ms", "7")
    assert [line.setting.name for line in it.configs.describe(ALL_BROKERS, None)] == [
        "log.retention.ms"
    ]


def test_changes_survive_a_restart(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        asyncio.run(it.topics.create([NewTopic("t")]))
        alter(it, BROKER, "message.max.bytes", "5000")
        alter(it, TOPIC, "segment.ms", "6000")
        alter(it, GROUP, "consumer.session.timeout.ms", "50000")
    with home(tmp_path) as it:
        assert it.configs.current.message_max_bytes == 5000
        assert it.configs.topic("t").segment_ms == 6000
        assert it.configs.topic("t").max_message_bytes == 5000
        assert it.configs.group("g").consumer_session_timeout_ms == 50_000


def test_subscribers_hear_of_the_brokers_changes_only(it: Home) -> None:
    heard: list[tuple[int, int]] = []
    it.configs.subscribe(
        lambda before, now: heard.append((before.message_max_bytes, now.message_max_bytes))
    )
    alter(it, TOPIC, "retention.ms", "9")
    alter(it, BROKER, "message.max.bytes", "5000")
    assert heard == [(1_048_588, 5000)]


def test_list_is_appended_to_and_subtracted_from(it: Home) -> None:
    alter(it, TOPIC, "cleanup.policy", "compact", Operation.APPEND)
    assert it.configs.topic("t").cleanup_policy == {"compact", "delete"}
    alter(it, TOPIC, "cleanup.policy", "compact", Operation.APPEND)
    assert described(it, TOPIC, "cleanup.policy").value == "delete,compact"
    alter(it, TOPIC, "cleanup.policy", "delete", Operation.SUBTRACT)
    assert it.configs.topic("t").cleanup_policy == {"compact"}


def test_replacing_unsets_what_is_not_named(it: Home) -> None:
    alter(it, TOPIC, "segment.ms", "6000")
    asyncio.run(it.configs.replace({TOPIC: {"retention.ms": "9"}}, validate_only=False))
    assert it.image.topic_overrides("t") == {"retention.ms": "9"}


def test_validation_alone_changes_nothing(it: Home) -> None:
    version = it.image.version
    alter(it, TOPIC, "retention.ms", "9", validate_only=True)
    asyncio.run(it.configs.replace({TOPIC: {"retention.ms": "9"}}, validate_only=True))
    with pytest.raises(ApiError):
        alter(it, TOPIC, "retention.ms", "-9", validate_only=True)
    assert it.image.version == version


def test_resources_are_changed_in_one_commit_each_by_itself(it: Home) -> None:
    commits: list[int] = []
    it.metadata.subscribe(lambda before, now: commits.append(now.version))
    group, missing = Resource(ResourceType.GROUP, "g"), Resource(ResourceType.TOPIC, "missing")
    wanted = {
        TOPIC: [Change("retention.ms", Operation.SET, "9")],
        missing: [Change("retention.ms", Operation.SET, "9")],
        group: [Change("share.session.timeout.ms", Operation.SET, "50000")],
    }
    outcomes = asyncio.run(it.configs.alter(wanted, validate_only=False))
    assert len(commits) == 1
    assert [error is None for error in outcomes.values()] == [True, False, True]
    assert it.image.topic_overrides("t") == {"retention.ms": "9"}
    assert it.image.config(ResourceType.GROUP, "g")


def test_setting_the_same_again_commits_nothing(it: Home) -> None:
    alter(it, TOPIC, "retention.ms", "9")
    version = it.image.version
    alter(it, TOPIC, "retention.ms", "9")
    assert it.image.version == version


@pytest.mark.parametrize(
    ("resource", "name", "value", "operation", "code", "message"),
    [
        (TOPIC, "retention.m", "1", 0, ErrorCode.INVALID_CONFIG, "Did you mean 'retention.ms'"),
        (TOPIC, "segment.bytes", "10", 0, ErrorCode.INVALID_CONFIG, "at least 1048576"),
        (TOPIC, "retention.ms", None, 0, ErrorCode.INVALID_REQUEST, "Null value"),
        (TOPIC, "retention.ms", "1", 2, ErrorCode.INVALID_CONFIG, "not LIST"),
        (TOPIC, "retention.ms", "1", 9, ErrorCode.INVALID_REQUEST, "Unknown operation"),
        (TOPIC, "min.compaction.lag.ms", str(2**63 - 1), 0, None, ""),
        (Resource(ResourceType.TOPIC, "no"), "retention.ms", "1", 0,
         ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'no' does not exist"),
        (Resource(ResourceType.TOPIC, ""), "retention.ms", "1", 0,
         ErrorCode.INVALID_REQUEST, "Default topic"),
        (BROKER, "num.partitions", "3", 0, ErrorCode.INVALID_CONFIG, "dynamically"),
        (BROKER, "no.such", "3", 0, ErrorCode.INVALID_CONFIG, "Unknown broker config"),
        (BROKER, "message.max.bytes", "-3", 0, ErrorCode.INVALID_CONFIG, "at least 0"),
        (Resource(ResourceType.BROKER, "7"), "message.max.bytes", "3", 0,
         ErrorCode.BROKER_ID_NOT_REGISTERED, "No broker with id 7"),
        (Resource(ResourceType.BROKER, "x"), "message.max.bytes", "3", 0,
         ErrorCode.INVALID_REQUEST, "Invalid broker name"),
        (GROUP, "consumer.session.timeout.ms", "3", 0, ErrorCode.INVALID_CONFIG, "greater than"),
        (Resource(ResourceType.GROUP, ""), "consumer.session.timeout.ms", "50000", 0,
         ErrorCode.INVALID_REQUEST, "Default group"),
        (Resource(ResourceType.CLIENT_METRICS, ""), "metrics", "x", 0,
         ErrorCode.INVALID_REQUEST, "must not be empty"),
        (Resource(ResourceType.CLIENT_METRICS, "m"), "interval.ms", "5", 0,
         ErrorCode.INVALID_CONFIG, "at least 100"),
        (Resource(ResourceType.CLIENT_METRICS, "m"), "match", "color=red", 0,
         ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: color=red"),
        (Resource(ResourceType.CLIENT_METRICS, "m"), "no.such", "5", 0,
         ErrorCode.INVALID_CONFIG, "Unknown client metrics config name: no.such"),
        (Resource(ResourceType.UNKNOWN, "m"), "metrics", "x", 0,
         ErrorCode.INVALID_REQUEST, "Unsupported resource type"),
    ],
)  # fmt: skip
def test_wrong_change_is_refused_with_its_reason(
    it: Home,
    resource: Resource,
    name: str,
    value: str | None,
    operation: int,
    code: ErrorCode | None,
    message: str,
) -> None:
    version = it.image.version
    if code is None:
        alter(it, resource, name, value, operation)
        return
    with pytest.raises(ApiError) as caught:
        alter(it, resource, name, value, operation)
    assert caught.value.code is code
    assert message in str(caught.value)
    assert it.image.version == version


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (Resource(ResourceType.TOPIC, "no"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Resource(ResourceType.BROKER, "7"), ErrorCode.INVALID_REQUEST),
        (Resource(ResourceType.GROUP, ""), ErrorCode.INVALID_REQUEST),
        (Resource(ResourceType.UNKNOWN, "x"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_describing_nothing_is_refused(it: Home, resource: Resource, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        it.configs.describe(resource, None)
    assert caught.value.code is code


def test_stored_setting_that_no_longer_fits_is_skipped(it: Home) -> None:
    records = [
        ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "9"),
        ConfigRecord(ResourceType.TOPIC, "t", "of.another.version", "1"),
        ConfigRecord(ResourceType.BROKER, "1", "of.another.version", "1"),
        ConfigRecord(ResourceType.BROKER, "1", "message.max.bytes", "5000"),
    ]
    asyncio.run(it.metadata.change(decided_on(it.image.version, *records)))
    assert it.configs.topic("t").retention_ms == 9
    assert it.configs.current.message_max_bytes == 5000
