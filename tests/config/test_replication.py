"""The defaults of replication are Kafka's."""

from __future__ import annotations

import pytest

from millstream.config.broker import BrokerConfig, check_topic
from millstream.config.setting import LONG_MAX
from millstream.errors import ConfigError


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig.from_values()
    assert config.replica_lag_time_max_ms == 30_000
    assert config.replica_fetch_wait_max_ms == 500
    assert config.replica_fetch_max_bytes == 1_048_576
    assert not config.warnings


def test_replication_is_not_throttled_unless_it_is_asked_for() -> None:
    config = BrokerConfig.from_values()
    assert config.leader_replication_throttled_rate == LONG_MAX
    assert config.follower_replication_throttled_rate == LONG_MAX


@pytest.mark.parametrize("value", ["", "*", "0:1", "0:1, 12:3"])
def test_throttled_replicas_are_accepted(value: str) -> None:
    name = "leader.replication.throttled.replicas"
    check_topic(BrokerConfig.from_values().topic_config({name: value}))


@pytest.mark.parametrize("value", ["0", "0:1,*", "a:b", "0:1:2", "0:-1"])
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replicas_of_another_form_are_refused(side: str, value: str) -> None:
    name = f"{side}.replication.throttled.replicas"
    config = BrokerConfig.from_values().topic_config({name: value})
    with pytest.raises(ConfigError, match=r"must be the literal '\*' or a list of replicas"):
        check_topic(config)


def test_settings_are_known_by_kafkas_names() -> None:
    config = BrokerConfig.from_values({"replica.lag.time.max.ms": 2000})
    assert config.replica_lag_time_max_ms == 2000
    assert not config.warnings
