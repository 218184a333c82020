"""What a client is asked for."""

from __future__ import annotations

from uuid import UUID

from millstream.broker.telemetry.subscriptions import (
    DEFAULT_INTERVAL_MS,
    ClientDescription,
    subscription_of,
)
from millstream.config.metrics import ClientMetricsConfig

CLIENT = ClientDescription(UUID(int=7), "billing-1", "librdkafka", "2.16.0", "10.0.0.1", 4711)


def test_without_subscriptions_nothing_is_asked_for() -> None:
    found = subscription_of(CLIENT, [("s", ClientMetricsConfig(interval_ms=1000))])
    assert (found.metrics, found.interval_ms) == ((), DEFAULT_INTERVAL_MS)


def test_all_that_match_are_joined_at_the_shortest_interval() -> None:
    configs = [
        ("a", ClientMetricsConfig(metrics=("x.", "y."), interval_ms=5000)),
        ("b", ClientMetricsConfig(metrics=("z.",), interval_ms=1000, match=("client_id=bill.*",))),
        ("c", ClientMetricsConfig(metrics=("no.",), interval_ms=100, match=("client_id=bill",))),
        (
            "d",
            ClientMetricsConfig(
                metrics=("no.",), match=("client_id=.*", "client_software_name=apache.*")
            ),
        ),
    ]
    found = subscription_of(CLIENT, configs)
    assert (found.metrics, found.interval_ms) == (("x.", "y.", "z."), 1000)
    of_all = ClientMetricsConfig(metrics=("*",), match=("client_source_port=4711",))
    assert subscription_of(CLIENT, [*configs, ("e", of_all)]).metrics == ("*",)


def test_the_id_changes_with_the_subscription_and_with_the_client() -> None:
    configs = [("a", ClientMetricsConfig(metrics=("x.",)))]
    first = subscription_of(CLIENT, configs)
    assert first == subscription_of(CLIENT, configs)
    assert first.id != subscription_of(CLIENT._replace(instance_id=UUID(int=8)), configs).id
    assert first.id != subscription_of(CLIENT, [("a", ClientMetricsConfig(metrics=("y.",)))]).id
