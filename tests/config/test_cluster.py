"""Settings of the cluster."""

from __future__ import annotations

from millstream.config.broker import BrokerConfig


def test_start_waits_for_zookeeper_as_long_as_a_session_unless_told_otherwise() -> None:
    config = BrokerConfig.from_values({"zookeeper.session.timeout.ms": 6000})
    assert config.zookeeper_connect is None
    assert config.zookeeper_connection_seconds == 6.0
    told = {"zookeeper.connection.timeout.ms": 1500, "zookeeper.connect": "a:1,b:2/c"}
    config = BrokerConfig.from_values(told)
    assert config.zookeeper_connection_seconds == 1.5
    assert config.zookeeper_connect == "a:1,b:2/c"
