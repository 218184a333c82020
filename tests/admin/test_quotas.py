"""Quotas: rates as people write them; against brokers in tests/cli and in the console's page."""

from __future__ import annotations

import pytest

from millstream import Broker
from millstream.admin.errors import InvalidArgument
from millstream.admin.quotas import (
    alter_quotas,
    describe_entity,
    describe_quotas,
    parse_rate,
    readable,
)
from millstream.client.cluster import Cluster


def test_quotas_are_set_and_removed() -> None:
    with Broker.start() as broker, Cluster(broker.bootstrap_servers) as cluster:
        entity: dict[str, str | None] = {"user": "alice", "client-id": None}
        alter_quotas(cluster, entity, {"request_percentage": 50.0, "producer_byte_rate": 1e6})
        expected = [(entity, {"request_percentage": 50.0, "producer_byte_rate": 1e6})]
        assert describe_quotas(cluster, {}) == expected
        assert describe_quotas(cluster, {"user": "alice"}) == expected
        assert describe_quotas(cluster, {"user": "bob"}) == []
        alter_quotas(cluster, entity, {"request_percentage": None})
        assert describe_quotas(cluster, {}) == [(entity, {"producer_byte_rate": 1e6})]


def test_entities_are_described() -> None:
    assert describe_entity({"user": "a", "client-id": None}) == "user a, client id <default>"


def test_rates_without_sense_are_refused() -> None:
    for text in ("fast", "-1", "1 parsec", ""):
        with pytest.raises(InvalidArgument, match="bytes per second"):
            parse_rate("--rate", text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1000", 1000), ("1MB", 10**6), ("1.5 mb/s", 1_500_000), ("1KiB", 1024), ("2GiB/s", 2**31)],
)
def test_rates_have_units(text: str, rate: int) -> None:
    assert parse_rate("--rate", text) == rate


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (500, "500 B/s"),
        (1024, "1 KiB/s"),
        (1_000_000, "1 MB/s"),
        (1_500_000, "1500 kB/s"),
        (1_234_567, "1.235 MB/s"),
        (2**30, "1 GiB/s"),
    ],
)
def test_rates_are_readable(value: float, shown: str) -> None:
    assert readable("producer_byte_rate", value) == shown
