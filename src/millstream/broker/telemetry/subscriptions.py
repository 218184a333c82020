"""Which metrics a client is asked for: the CLIENT_METRICS resources that match it.

Each resource is a subscription: prefixes of metrics, an interval, and patterns that the client has
to match, all of them. A client gets the metrics of all subscriptions that match, at the shortest of
their intervals. Without any, it is asked for nothing, and asks again after five minutes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from millstream.config.metrics import ALL_METRICS, ClientMetricsConfig, parse_match

DEFAULT_INTERVAL_MS = 300_000


class ClientDescription(NamedTuple):
    """What patterns are compared with."""

    instance_id: UUID
    client_id: str
    software_name: str
    software_version: str
    address: str
    port: int

    def value(self, name: str) -> str:
        return str(
            {
                "client_instance_id": self.instance_id,
                "client_id": self.client_id,
                "client_software_name": self.software_name,
                "client_software_version": self.software_version,
                "client_source_address": self.address,
                "client_source_port": self.port,
            }[name]
        )


class Subscription(NamedTuple):
    """What one client is asked for."""

    id: int
    interval_ms: int
    metrics: tuple[str, ...]


def subscription_of(
    client: ClientDescription, configs: Iterable[tuple[str, ClientMetricsConfig]]
) -> Subscription:
    """`configs` are those of all subscriptions, by name."""
    metrics: set[str] = set()
    intervals: list[int] = []
    for _, config in configs:
        if not config.metrics or not _matches(client, parse_match(config.match)):
            continue
        metrics.update(config.metrics)
        intervals.append(config.interval_ms)
    if ALL_METRICS in metrics:
        metrics = {ALL_METRICS}
    chosen = tuple(sorted(metrics))
    interval_ms = min(intervals, default=DEFAULT_INTERVAL_MS)
    text = f"{client.instance_id} {interval_ms} {chosen}"
    return Subscription(zlib.crc32(text.encode()) & 0x7FFFFFFF, interval_ms, chosen)


def _matches(client: ClientDescription, patterns: Mapping[str, re.Pattern[str]]) -> bool:
    return all(it.fullmatch(client.value(name)) for name, it in patterns.items())
