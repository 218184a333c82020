"""What topics inherit from the broker's log settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": 1}, 3_600_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2}, 120_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2, "log.retention.ms": 3}, 3),
        ({"log.retention.ms": -1}, -1),
    ],
)
def test_retention_comes_from_the_finest_unit_set(
    values: dict[str, int], retention_ms: int
) -> None:
    assert BrokerConfig.from_values(values).topic_config().retention_ms == retention_ms


def test_flush_interval_falls_back_to_the_scheduler() -> None:
    config = BrokerConfig.from_values({"log.flush.scheduler.interval.ms": 77})
    assert config.topic_config().flush_ms == 77


def test_data_directories_come_from_log_dirs_before_log_dir() -> None:
    one = BrokerConfig.from_values({"log.dir": "a"})
    several = BrokerConfig.from_values({"log.dir": "a", "log.dirs": "b,c"})
    assert one.log_directories == (Path("a"),)
    assert several.log_directories == (Path("b"), Path("c"))


def test_data_directories_cannot_be_empty() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs is empty"):
        BrokerConfig.from_values({"log.dir": ""})
