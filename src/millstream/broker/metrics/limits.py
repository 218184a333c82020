"""Metrics of what holds clients back: quotas, backlog policies, authentication, access control."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from millstream.broker.backlog.backlog import PartitionBacklog
from millstream.broker.quotas.clients import QuotaMetric
from millstream.broker.services import Services
from millstream.metrics.exposition import Family, counter, gauge, label_text, labels

PROCESSOR = "0"
# The resource in Kafka's name of each quota.
_RESOURCES = {
    "producer_byte_rate": "Produce",
    "consumer_byte_rate": "Fetch",
    "request_percentage": "Request",
    "controller_mutation_rate": "ControllerMutation",
    "connection_creation_rate": "ConnectionCreation",
}


class Authentications(Protocol):
    """How often clients have authenticated."""

    successful: int
    failed: int
    successful_reauthentications: int
    failed_reauthentications: int
    expired_connections_killed: int


Labelled: TypeAlias = tuple[str, QuotaMetric]


async def survey(services: Services) -> list[Labelled]:
    """The clients that have quotas, with their labels; other work is done meanwhile."""
    quotas = services.throttling.quotas
    found: list[Labelled] = []
    if quotas is None:
        return found
    for metric in quotas.metrics(services.clock.monotonic_ms()):
        if metric is None:
            await asyncio.sleep(0)
        else:
            found.append((labels_of(metric), metric))
    return found


def labels_of(metric: QuotaMetric) -> str:
    return label_text(
        {
            "resource": _RESOURCES.get(metric.key, metric.key),
            "user": metric.user,
            "clientId": metric.client_id,
        }
    )


def families(
    services: Services,
    quotas: list[Labelled],
    authentications: Authentications | None,
    failed_handshakes: int,
) -> Iterator[Family]:
    yield from quota_families(quotas)
    yield from _backlog_families(services)
    yield from _authentication_families(services, authentications, failed_handshakes)


def quota_families(placed: list[Labelled]) -> Iterator[Family]:
    """Only clients that have a quota are measured."""
    yield gauge(
        "kafka_server_quota_byte_rate",
        "Bytes per second of clients with a quota of bytes.",
        ((text, it.value) for text, it in placed if it.key.endswith("byte_rate")),
    )
    yield gauge(
        "kafka_server_quota_throttle_time",
        "Average time, in milliseconds, of the throttles within the window of quotas.",
        ((text, it.throttle_ms) for text, it in placed),
    )
    for name, help, value in (
        ("value", "What the client uses: per second, or in percent of a thread.", "value"),
        ("limit", "What the client may use.", "bound"),
    ):
        yield gauge(
            f"millstream_quota_{name}", help, ((text, getattr(it, value)) for text, it in placed)
        )
    yield counter(
        "millstream_quota_throttled_total",
        "Requests that were throttled.",
        ((text, it.throttled_count) for text, it in placed),
    )
    yield counter(
        "millstream_quota_throttled_seconds_total",
        "Time for which requests were throttled.",
        ((text, it.throttled_ms / 1000) for text, it in placed),
    )


def _backlog_families(services: Services) -> Iterator[Family]:
    counters = services.backlog.counters
    described: tuple[tuple[str, str, Iterable[tuple[tuple[str, str], float]]], ...] = (
        (
            "held_seconds",
            "Time for which producers waited for a slow group.",
            list(counters.held_seconds.items()),
        ),
        (
            "rejected",
            "Appends that were refused because of a slow group.",
            list(counters.rejected.items()),
        ),
        (
            "dropped_records",
            "Records that were deleted before a slow group had read them.",
            list(counters.dropped_records.items()),
        ),
    )
    for name, help, found in described:
        yield counter(
            f"millstream_backlog_{name}_total",
            help,
            [(labels(topic=topic, group=group), value) for (topic, group), value in found],
        )
    yield from backlog_gauges(list(services.backlog.partitions()))


def backlog_gauges(found: list[PartitionBacklog]) -> Iterator[Family]:
    """Partitions under a policy that this broker leads."""
    placed = [(labels(topic=it.topic, partition=it.partition, group=it.group), it) for it in found]
    yield gauge(
        "millstream_backlog_bytes",
        "Bytes that the slowest group has not read, of partitions with a backlog policy.",
        ((text, it.size_bytes) for text, it in placed),
    )
    yield gauge(
        "millstream_backlog_over",
        "Whether the backlog is over its bound, and the policy applies.",
        ((text, int(it.is_over)) for text, it in placed),
    )


def _authentication_families(
    services: Services, found: Authentications | None, failed_handshakes: int
) -> Iterator[Family]:
    prefix = "kafka_server_socket_server_metrics"
    at = labels(networkProcessor=PROCESSOR)
    for name, help, value in (
        ("successful_authentication", "Clients that have logged in.", "successful"),
        ("failed_authentication", "Clients that have failed to log in.", "failed"),
        (
            "successful_reauthentication",
            "Clients that have logged in again.",
            "successful_reauthentications",
        ),
        (
            "failed_reauthentication",
            "Clients that have failed to log in again.",
            "failed_reauthentications",
        ),
    ):
        number = 0 if found is None else getattr(found, value)
        yield counter(f"{prefix}_{name}_total", help, ((at, number),))
    killed = 0 if found is None else found.expired_connections_killed
    yield gauge(
        f"{prefix}_expired_connections_killed_count",
        "Connections closed because their clients did not log in again in time.",
        ((at, killed),),
    )
    yield counter(
        "millstream_tls_failed_handshakes_total", "TLS handshakes that failed.", failed_handshakes
    )
    if services.audit is not None:
        yield counter(
            "millstream_authorization_denied_total",
            "Requests, or parts of them, that were denied.",
            services.audit.denied_count,
        )
