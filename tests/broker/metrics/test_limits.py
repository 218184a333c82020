"""Quotas, backlog policies, authentication."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from millstream.broker.backlog.backlog import PartitionBacklog
from millstream.broker.metrics import limits
from millstream.broker.quotas.clients import QuotaMetric
from millstream.metrics.exposition import render
from tests.broker.metrics.scraping import Metrics
from tests.broker.serving import serving


def test_clients_with_quotas_have_kafkas_labels() -> None:
    found = [
        QuotaMetric("producer_byte_rate", "a", "app", 1000.0, 750.0, 4, 2000, 250.0),
        QuotaMetric("request_percentage", "a", "", 50.0, 10.0, 0, 0, 0.0),
    ]
    labelled = [(limits.labels_of(it), it) for it in found]
    text = Metrics("".join(render(limits.quota_families(labelled))))
    at = {"resource": "Produce", "user": "a", "clientId": "app"}
    assert text.value("kafka_server_quota_byte_rate", **at) == 750
    assert text.value("kafka_server_quota_throttle_time", **at) == 250
    assert text.value("millstream_quota_limit", **at) == 1000
    assert text.value("millstream_quota_throttled_seconds_total", **at) == 2
    assert len(text.all("kafka_server_quota_byte_rate")) == 1
    assert text.value("millstream_quota_value", resource="Request", user="a", clientId="") == 10


def test_partitions_with_a_backlog_policy_are_shown() -> None:
    found = [
        PartitionBacklog("orders", 0, "hold", True, "billing", 4711, 0),
        PartitionBacklog("orders", 1, "hold", False, "", 0, 0),
    ]
    text = Metrics("".join(render(limits.backlog_gauges(found))))
    slow = {"topic": "orders", "partition": 0, "group": "billing"}
    assert text.value("millstream_backlog_bytes", **slow) == 4711
    assert text.value("millstream_backlog_over", **slow) == 1
    assert text.value("millstream_backlog_over", topic="orders", partition=1, group="") == 0


def test_backlog_and_authentication_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            counters = server.backlog.counters
            counters.held("orders", "billing", 1.5)
            counters.rejected["orders", "billing"] += 2
            authentications = SimpleNamespace(
                successful=5,
                failed=2,
                successful_reauthentications=1,
                failed_reauthentications=0,
                expired_connections_killed=3,
            )
            text = "".join(render(limits.families(server.services, [], authentications, 7)))
            found = Metrics(text)
            at = {"topic": "orders", "group": "billing"}
            assert found.value("millstream_backlog_held_seconds_total", **at) == 1.5
            assert found.value("millstream_backlog_rejected_total", **at) == 2
            assert not found.all("millstream_backlog_dropped_records_total")
            prefix = "kafka_server_socket_server_metrics"
            processor = {"networkProcessor": 0}
            assert found.value(f"{prefix}_failed_authentication_total", **processor) == 2
            assert found.value(f"{prefix}_expired_connections_killed_count", **processor) == 3
            assert found.value("millstream_tls_failed_handshakes_total") == 7
            nobody = Metrics("".join(render(limits.families(server.services, [], None, 0))))
            assert nobody.value(f"{prefix}_successful_authentication_total", **processor) == 0

    asyncio.run(scenario())
