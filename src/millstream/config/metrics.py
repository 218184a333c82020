"""Metrics settings: the HTTP endpoint for Prometheus and probes, and client telemetry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.config.setting import integer, password, string, strings
from millstream.errors import ConfigError

ALL_METRICS = "*"
MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class MetricsSettings:
    """Metrics, health and client telemetry."""

    millstream_metrics_listener: str | None = string(
        None,
        ours=True,
        doc="Serve /metrics (Prometheus), /health and /ready over HTTP at this address, host:port; "
        "port 0: any free port. Each worker listens on the port after that of the worker before "
        "it. Unset: no metrics. Same as --metrics.",
    )
    millstream_metrics_token: str | None = password(
        None,
        ours=True,
        doc="If set, /metrics is served only to clients that send it: as a bearer token, or as the "
        "password of basic authentication, with any user. /health and /ready need none.",
    )
    millstream_metrics_partitions_max: int = integer(
        20_000,
        low=0,
        ours=True,
        doc="A broker with more partitions than this serves no metrics of single partitions, only "
        "those of topics and of all topics; 0: never.",
    )
    millstream_log_format: str = string(
        "text",
        options=("text", "json"),
        ours=True,
        doc="Format of the lines that `millstream serve` logs to standard error: text, or one JSON "
        "object per line. Same as --log-format.",
    )
    telemetry_max_bytes: int = integer(
        1_048_576,
        low=1,
        doc="The maximum size of the metrics that a client pushes, compressed or not (KIP-714). "
        "Clients push only while millstream.metrics.listener is set.",
    )
    millstream_telemetry_clients_max: int = integer(
        1000,
        low=0,
        ours=True,
        doc="Clients whose pushed metrics are kept and served in /metrics at once. Those of others "
        "are dropped and counted; 0: no client telemetry.",
    )


@dataclass(frozen=True, kw_only=True)
class ClientMetricsConfig:
    """A subscription to the metrics of clients: the settings of a CLIENT_METRICS resource."""

    interval_ms: int = integer(
        300_000, low=100, high=3_600_000, doc="How often matching clients push their metrics."
    )
    match: tuple[str, ...] = strings(
        (),
        doc="Which clients are asked, as name=pattern; all must match. Names: "
        + ", ".join(MATCHED)
        + ". None: all clients.",
    )
    metrics: tuple[str, ...] = strings(
        (), doc="Prefixes of the names of metrics that clients push; * for all of them."
    )


def parse_match(patterns: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Raises `ConfigError`."""
    found: dict[str, re.Pattern[str]] = {}
    for text in patterns:
        name, equals, pattern = text.partition("=")
        name = name.strip()
        if not equals or name not in MATCHED:
            raise ConfigError(f"Illegal client matching pattern: {text}")
        try:
            found[name] = re.compile(pattern.strip())
        except re.error as error:
            raise ConfigError(f"Illegal client matching pattern: {text}: {error}") from None
    return found
