"""Derived systems that follow topics: tables, search indexes, caches, warehouses.

    from millstream.connect.sinks import SinkRunner, load_config

    SinkRunner(load_config(Path("sink.toml"))).run(once=True)

Every write carries the position in the log that it leads to, so that each record is applied exactly
once, whatever is killed, repeated or run twice: see `positions.py` and `runner.py`.
"""

from __future__ import annotations

from millstream.connect.sinks.config import SinkConfig, TopicConfig, load_config, parse_config
from millstream.connect.sinks.runner import BadRecordFound, Progress, SinkRunner
from millstream.connect.sinks.sink import OutOfStep

__all__ = [
    "BadRecordFound",
    "OutOfStep",
    "Progress",
    "SinkConfig",
    "SinkRunner",
    "TopicConfig",
    "load_config",
    "parse_config",
]
