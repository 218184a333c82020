"""A group's settings, and the broker's limits on them."""

from __future__ import annotations

import pytest

from millstream.config.broker import GROUP_SETTINGS, BrokerConfig, check_group
from millstream.errors import ConfigError
from tests.config.kafka import kafka_settings


def test_group_settings_are_those_of_kafka_without_streams() -> None:
    kafka = {it for it in kafka_settings("group") if not it.startswith("streams.")}
    assert set(GROUP_SETTINGS) == kafka


def test_group_settings_have_type_and_default_of_kafka() -> None:
    kafka = kafka_settings("group")
    for name, setting in GROUP_SETTINGS.items():
        assert (setting.kind.name, setting.default_text) == (kafka[name].kind, kafka[name].default)


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
    ],
)
def test_group_cannot_exceed_the_limits_of_the_broker(
    overrides: dict[str, str], message: str
) -> None:
    config = BrokerConfig.from_values()
    with pytest.raises(ConfigError, match=message):
        check_group(config, config.group_config(overrides))


def test_limits_of_the_broker_must_be_in_order() -> None:
    with pytest.raises(ConfigError, match=r"must not be greater than group\.max\.session"):
        BrokerConfig.from_values({"group.min.session.timeout.ms": 2_000_000})
