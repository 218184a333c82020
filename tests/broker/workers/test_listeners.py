"""The addresses of workers."""

from __future__ import annotations

import pytest

from millstream.broker.workers.listeners import check_ports, metrics_address, worker_addresses
from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError


def config(listeners: str, advertised: str | None = None) -> BrokerConfig:
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    }
    if advertised is not None:
        settings["advertised.listeners"] = advertised
    return BrokerConfig.from_values(settings)


def test_workers_take_the_ports_after_the_shared_one() -> None:
    addresses = worker_addresses(config("PLAINTEXT://h:9092,INSIDE://[::1]:7000"), 2)
    assert addresses.settings() == {
        "listeners": "PLAINTEXT://h:9094,INSIDE://[::1]:7002",
        "advertised.listeners": "PLAINTEXT://h:9094,INSIDE://[::1]:7002",
    }


def test_advertised_ports_count_in_the_same_way() -> None:
    addresses = worker_addresses(
        config("PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://example.com:30000"), 3
    )
    assert addresses.settings() == {
        "listeners": "PLAINTEXT://0.0.0.0:9095",
        "advertised.listeners": "PLAINTEXT://example.com:30003",
    }


def test_worker_with_any_port_keeps_the_one_that_it_had() -> None:
    free = config("PLAINTEXT://127.0.0.1:0")
    assert worker_addresses(free, 1).listeners[0].port == 0
    kept = worker_addresses(free, 1, {"PLAINTEXT": 4711})
    assert kept.listeners[0].port == 4711
    assert kept.advertised[0].port == 0  # the port that it listens on


@pytest.mark.parametrize(
    ("listeners", "advertised", "problem"),
    [
        ("PLAINTEXT://h:65534", None, "need the ports 65534 to 65536"),
        ("PLAINTEXT://h:9092", "PLAINTEXT://h:65535", "advertised.listeners"),
        ("PLAINTEXT://h:9092,INSIDE://h:9094", None, "both need port 9094"),
    ],
)
def test_fewer_ports_than_workers_are_refused(
    listeners: str, advertised: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_ports(config(listeners, advertised), 2)


def test_enough_ports_are_accepted() -> None:
    check_ports(config("PLAINTEXT://h:9092,INSIDE://h:9095"), 2)
    check_ports(config("PLAINTEXT://h:0,INSIDE://h:0"), 2)


def with_metrics(address: str, listeners: str = "PLAINTEXT://h:9092") -> BrokerConfig:
    return BrokerConfig.from_values(
        {"listeners": listeners, "millstream.metrics.listener": address}
    )


def test_each_worker_has_the_next_port_for_metrics() -> None:
    name = "millstream.metrics.listener"
    assert metrics_address(with_metrics("[::1]:9404"), 1) == {name: "[::1]:9404"}
    assert metrics_address(with_metrics("h:9404"), 3) == {name: "h:9406"}
    assert metrics_address(with_metrics("h:0"), 3) == {name: "h:0"}
    assert metrics_address(config("PLAINTEXT://h:9092"), 1) == {}


def test_ports_for_metrics_must_not_be_those_of_listeners() -> None:
    check_ports(with_metrics("h:9404"), 2)
    with pytest.raises(ConfigError, match="both need port 9094"):
        check_ports(with_metrics("h:9094"), 2)
    with pytest.raises(ConfigError, match="65535 is the last"):
        check_ports(with_metrics("h:65535"), 2)
