"""The defaults of quotas are Kafka's."""

from __future__ import annotations

import pytest

from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig.from_values()
    assert config.quota_window_num == config.controller_quota_window_num == 11
    assert config.quota_window_size_seconds == config.controller_quota_window_size_seconds == 1


def test_window_has_at_least_one_sample() -> None:
    assert BrokerConfig.from_values({"quota.window.num": 1}).quota_window_num == 1
    with pytest.raises(ConfigError, match=r"quota\.window\.num"):
        BrokerConfig.from_values({"quota.window.num": 0})
