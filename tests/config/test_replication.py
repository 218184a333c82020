"""The defaults of replication are Kafka's."""

from __future__ import annotations

from millstream.config.broker import BrokerConfig


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig.from_values()
    assert config.replica_lag_time_max_ms == 30_000
    assert config.replica_fetch_wait_max_ms == 500
    assert config.replica_fetch_max_bytes == 1_048_576
    assert not config.warnings


def test_settings_are_known_by_kafkas_names() -> None:
    config = BrokerConfig.from_values({"replica.lag.time.max.ms": 2000})
    assert config.replica_lag_time_max_ms == 2000
    assert not config.warnings
