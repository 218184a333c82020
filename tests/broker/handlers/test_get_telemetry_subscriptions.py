"""GetTelemetrySubscriptions: offered with metrics only, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.embedded import Broker
from millstream.errors import ErrorCode
from millstream.protocol.apis import TELEMETRY_APIS
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.wire import Wire

CLIENT_METRICS = 16
NO_ID = UUID(int=0)


@pytest.fixture(scope="module")
def collecting() -> Iterator[Broker]:
    with Broker.start(config={"millstream.metrics.listener": "127.0.0.1:0"}) as broker:
        yield broker


def subscribe(wire: Wire, name: str, **settings: str) -> None:
    """Settings are Kafka's names with underscores for dots; an empty one is removed."""
    configs = [
        {
            "name": key.replace("_", "."),
            "config_operation": 0 if value else 1,
            "value": value or None,
        }
        for key, value in settings.items()
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    answer = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


def ask(wire: Wire, instance_id: UUID = NO_ID) -> Any:
    return wire.call("get_telemetry_subscriptions", 0, client_instance_id=instance_id)


def offered(wire: Wire) -> set[int]:
    return {it.api_key for it in wire.call("api_versions", 0).api_keys}


def test_a_broker_without_metrics_does_not_offer_it(millstream: SharedBroker) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        assert not TELEMETRY_APIS & offered(wire)
        assert ask(wire).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_client_is_asked_for_the_metrics_of_its_subscriptions(collecting: Broker) -> None:
    with Wire(collecting.bootstrap_servers) as wire:
        assert offered(wire) >= TELEMETRY_APIS
        nothing = ask(wire)
        assert (nothing.error_code, nothing.requested_metrics) == (ErrorCode.NONE, ())
        subscribe(wire, "s", metrics="org.apache.kafka.producer.,x.", interval_ms="200")
        first = ask(wire)
        assert first.client_instance_id not in (None, NO_ID)
        assert first.requested_metrics == ("org.apache.kafka.producer.", "x.")
        assert first.push_interval.total_seconds() == 0.2
        assert set(first.accepted_compression_types) == {1, 2, 3, 4}
        assert first.telemetry_max_bytes == 1_048_576
        again = ask(wire, first.client_instance_id)
        assert again.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        subscribe(wire, "s", match="client_id=somebody else")
        changed = ask(wire, first.client_instance_id)
        assert (changed.error_code, changed.requested_metrics) == (ErrorCode.NONE, ())
        assert changed.subscription_id != first.subscription_id
        subscribe(wire, "s", metrics="", interval_ms="", match="")


def test_settings_are_described_with_their_source(collecting: Broker) -> None:
    with Wire(collecting.bootstrap_servers) as wire:
        subscribe(wire, "described", interval_ms="1000")
        resource = {
            "resource_type": CLIENT_METRICS,
            "resource_name": "described",
            "configuration_keys": None,
        }
        answer = wire.call(
            "describe_configs",
            4,
            resources=[resource],
            include_synonyms=False,
            include_documentation=False,
        )
        found = {it.name: (it.value, it.config_source) for it in answer.results[0].configs}
        assert found == {"interval.ms": ("1000", 7), "match": ("", 5), "metrics": ("", 5)}
