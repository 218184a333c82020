"""A group's settings, and the broker's limits on them."""

from __future__ import annotations

import pytest

from millstream.config.broker import GROUP_SETTINGS, BrokerConfig, check_group
from millstream.config.groups import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    share_reset_timestamp_ms,
)
from millstream.errors import ConfigError
from tests.config.kafka import kafka_settings

# Of Kafka 4.4, by KIP-1191: type and default.
DEAD_LETTER_SETTINGS = {
    "errors.deadletterqueue.topic.name": ("STRING", ""),
    "errors.deadletterqueue.copy.record.enable": ("BOOLEAN", "false"),
}


def test_group_settings_are_those_of_kafka_without_streams_and_ours() -> None:
    kafka = {it for it in kafka_settings("group") if not it.startswith("streams.")}
    ours = {name for name, setting in GROUP_SETTINGS.items() if setting.ours}
    assert set(GROUP_SETTINGS) - ours == kafka
    assert {it for it in ours if not it.startswith("share.retry.")} == set(DEAD_LETTER_SETTINGS)


def test_group_settings_have_type_and_default_of_kafka() -> None:
    kafka = {name: (it.kind, it.default) for name, it in kafka_settings("group").items()}
    kafka.update(DEAD_LETTER_SETTINGS)
    for name, setting in GROUP_SETTINGS.items():
        if name in kafka:
            assert (setting.kind.name, setting.default_text) == kafka[name]


def test_group_inherits_from_the_broker_what_it_does_not_set() -> None:
    config = BrokerConfig.from_values({"group.consumer.heartbeat.interval.ms": 6_000})
    group = config.group_config({"consumer.session.timeout.ms": "50000"})
    assert group.consumer_heartbeat_interval_ms == 6_000
    assert group.consumer_session_timeout_ms == 50_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"consumer.session.timeout.ms": "1000"},
            "greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            {"consumer.session.timeout.ms": "70000"},
            "less than or equal to group.consumer.max.session.timeout.ms",
        ),
        ({"share.record.lock.duration.ms": "1000"}, "group.share.min.record.lock.duration.ms"),
        (
            {"share.retry.backoff.ms": "5000", "share.retry.backoff.max.ms": "1000"},
            r"share.retry.backoff.ms \(5000\) must not be greater",
        ),
        ({"errors.deadletterqueue.topic.name": "__dead"}, "must not start with '__'"),
        ({"errors.deadletterqueue.topic.name": "dead"}, r"must begin with 'dlq\.'"),
        ({"share.auto.offset.reset": "none"}, "either 'earliest', 'latest' or"),
    ],
)
def test_group_cannot_exceed_the_limits_of_the_broker(
    overrides: dict[str, str], message: str
) -> None:
    config = BrokerConfig.from_values()
    with pytest.raises(ConfigError, match=message):
        check_group(config, config.group_config(overrides))


def test_dead_letter_topic_may_have_any_name_without_a_prefix() -> None:
    config = BrokerConfig.from_values({"errors.deadletterqueue.topic.name.prefix": ""})
    check_group(config, config.group_config({"errors.deadletterqueue.topic.name": "dead"}))


@pytest.mark.parametrize(
    ("strategy", "timestamp_ms"),
    [
        ("earliest", EARLIEST_TIMESTAMP),
        ("latest", LATEST_TIMESTAMP),
        ("by_duration:PT1H", 1_000_000_000 - 3_600_000),
        ("by_duration:P1DT2M0.5S", 1_000_000_000 - 86_400_000 - 120_500),
    ],
)
def test_share_reset_names_a_time(strategy: str, timestamp_ms: int) -> None:
    assert share_reset_timestamp_ms(strategy, now_ms=1_000_000_000) == timestamp_ms


@pytest.mark.parametrize(
    "strategy", ["none", "", "by_duration", "by_duration:", "by_duration:P", "by_duration:-PT1S"]
)
def test_share_reset_is_refused_if_it_names_no_time(strategy: str) -> None:
    with pytest.raises(ConfigError, match=r"share\.auto\.offset\.reset"):
        share_reset_timestamp_ms(strategy, now_ms=0)


def test_limits_of_the_broker_must_be_in_order() -> None:
    with pytest.raises(ConfigError, match=r"must not be greater than group\.max\.session"):
        BrokerConfig.from_values({"group.min.session.timeout.ms": 2_000_000})
