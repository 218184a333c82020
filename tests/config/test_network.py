"""Listeners and limits."""

from __future__ import annotations

import pytest

from millstream.config.broker import BrokerConfig, Endpoint
from millstream.errors import ConfigError


def test_listeners_are_parsed_with_every_interface_and_ipv6() -> None:
    config = BrokerConfig.from_values(
        {
            "listeners": "PLAINTEXT://:9092,INSIDE://[::1]:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        }
    )
    assert config.endpoints == (Endpoint("PLAINTEXT", "", 9092), Endpoint("INSIDE", "::1", 0))


def test_advertised_listener_replaces_only_its_own() -> None:
    config = BrokerConfig.from_values(
        {
            "listeners": "PLAINTEXT://:9092,INSIDE://127.0.0.1:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://broker.example:19092",
        }
    )
    assert config.advertised_endpoints == {
        "PLAINTEXT": Endpoint("PLAINTEXT", "broker.example", 19092),
        "INSIDE": Endpoint("INSIDE", "127.0.0.1", 9093),
    }


def test_controller_listeners_of_a_kafka_file_stay_closed() -> None:
    config = BrokerConfig.from_values(
        {
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }
    )
    assert [endpoint.listener for endpoint in config.endpoints] == ["PLAINTEXT"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listeners": "127.0.0.1:9092"}, "Expected NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:99999"}, "Expected NAME://host:port"),
        ({"max.connections.per.ip.overrides": "1.2.3.4"}, "address:number"),
        ({"listeners": "OTHER://:9092"}, "add OTHER:PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "different name"),
        ({"listeners": ""}, "has no listener"),
    ],
)
def test_listeners_are_refused_when_wrong(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.from_values(values)


def test_broker_id_is_the_older_name_of_node_id() -> None:
    assert BrokerConfig.from_values({"broker.id": 5}).id == 5
    assert BrokerConfig.from_values({"node.id": 6}).id == 6
    assert BrokerConfig.from_values({"node.id": 6, "broker.id": 6}).id == 6
    with pytest.raises(ConfigError, match="differ"):
        BrokerConfig.from_values({"node.id": 6, "broker.id": 5})


def test_connections_per_address_are_parsed() -> None:
    config = BrokerConfig.from_values({"max.connections.per.ip.overrides": "10.0.0.1:5, [::1]:7,"})
    assert config.connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 7}


def test_addresses_that_need_not_wait_are_parsed() -> None:
    name = "millstream.authentication.delay.exempt"
    exempt = BrokerConfig.from_values({name: "10.0.0.0/8, ::1"}).authentication_delay_exempt
    assert [host in exempt for host in ("10.9.9.9", "::1", "11.0.0.1")] == [True, True, False]
    assert "10.9.9.9" not in BrokerConfig.from_values({}).authentication_delay_exempt
    with pytest.raises(ConfigError, match=rf"{name}: 'proxy' is not an address or a network"):
        BrokerConfig.from_values({name: "10.0.0.1,proxy"})
