"""The clients that push metrics, and what they pushed last.

Requests are checked as Kafka's broker does: a client must know its subscription, and must not push
before its interval is over. The number of clients and of series per client is limited; a client
that has not pushed for three intervals, or has ended, is forgotten after two minutes at the
earliest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias
from uuid import UUID, uuid4

from millstream.broker.telemetry.otlp import MalformedMetrics, Point, decode
from millstream.broker.telemetry.subscriptions import (
    ClientDescription,
    Subscription,
    subscription_of,
)
from millstream.config.metrics import ClientMetricsConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.metrics.exposition import Family, Sample, counter, gauge, label_text
from millstream.records.compression import Compression, decompress

SERIES_MAX = 1_000  # of one client
KEPT_INTERVALS = 3
KEPT_MS_MIN = 120_000  # longer than Prometheus waits between two scrapes
EARLY_SHARE = 0.5  # of the interval: clients push after a random part of their first one

NO_ID = UUID(int=0)
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")

SeriesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


class _Client:
    """One client instance."""

    def __init__(self, described: ClientDescription, subscription: Subscription) -> None:
        self.described = described
        self.subscription = subscription
        self.series: dict[SeriesKey, float] = {}
        self.asked_ms = -1
        self.pushed_ms = -1
        self.has_ended = False

    def is_stale(self, now_ms: int) -> bool:
        last = max(self.asked_ms, self.pushed_ms)
        kept_ms = max(KEPT_INTERVALS * self.subscription.interval_ms, KEPT_MS_MIN)
        return now_ms - last > (KEPT_MS_MIN if self.has_ended else kept_ms)


Configs: TypeAlias = Callable[[], Iterable[tuple[str, ClientMetricsConfig]]]


class ClientTelemetry:
    """Answers the two requests. Times are of a monotonic clock, in milliseconds."""

    def __init__(self, configs: Configs, *, clients_max: int, bytes_max: Callable[[], int]) -> None:
        self._configs = configs
        self._clients_max = clients_max
        self._bytes_max = bytes_max
        self._clients: dict[UUID, _Client] = {}
        self._kinds: dict[str, bool] = {}  # whether a metric is a counter, by name
        self.pushes = 0
        self.refused = 0

    def subscribe(self, described: ClientDescription, now_ms: int) -> tuple[UUID, Subscription]:
        """The client's id, a new one if it has none, and what it is asked for."""
        if described.instance_id == NO_ID:
            described = described._replace(instance_id=uuid4())
        known = self._clients.get(described.instance_id)
        subscription = subscription_of(described, self._configs())
        if known is not None:
            early = now_ms - known.asked_ms < known.subscription.interval_ms * EARLY_SHARE
            if early and known.asked_ms >= 0 and known.subscription == subscription:
                raise _too_early("GetTelemetrySubscriptions", known.subscription.interval_ms)
            known.subscription = subscription
        client = known or self._admit(_Client(described, subscription), now_ms)
        if client is not None:
            client.asked_ms = now_ms
        return described.instance_id, subscription

    def push(
        self,
        described: ClientDescription,
        subscription_id: int,
        compression: int,
        metrics: bytes,
        now_ms: int,
        *,
        is_last: bool,
    ) -> None:
        """Raises `ApiError`; nothing is kept then."""
        try:
            self._push(described, subscription_id, compression, metrics, now_ms, is_last)
        except ApiError:
            self.refused += 1
            raise
        self.pushes += 1

    def _push(
        self,
        described: ClientDescription,
        subscription_id: int,
        compression: int,
        metrics: bytes,
        now_ms: int,
        is_last: bool,
    ) -> None:
        if described.instance_id == NO_ID:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client has no instance id")
        client = self._clients.get(described.instance_id)
        subscription = subscription_of(described, self._configs())
        if client is None:
            client = self._admit(_Client(described, subscription), now_ms)
            if client is None:
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many clients push metrics")
        if client.has_ended:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client has sent its last metrics")
        client.subscription = subscription
        if subscription_id != subscription.id:
            raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription has changed")
        early = now_ms - client.pushed_ms < subscription.interval_ms * EARLY_SHARE
        if client.pushed_ms >= 0 and early and not is_last:
            raise _too_early("PushTelemetry", subscription.interval_ms)
        client.pushed_ms = now_ms
        client.has_ended = is_last
        self._keep(client, self._decode(compression, metrics))

    def _decode(self, compression: int, metrics: bytes) -> list[Point]:
        limit = self._bytes_max()
        if len(metrics) > limit:
            raise ApiError(
                ErrorCode.TELEMETRY_TOO_LARGE, f"{len(metrics)} bytes; telemetry.max.bytes={limit}"
            )
        try:
            codec = Compression(compression)
        except ValueError:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {compression}"
            ) from None
        try:
            data = metrics if codec is Compression.NONE else decompress(metrics, codec, limit)
            return decode(bytes(data))
        except (CorruptBatch, MalformedMetrics) as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None

    def _keep(self, client: _Client, points: list[Point]) -> None:
        series = client.series
        for point in points:
            key = point.name, point.attributes
            if key not in series and len(series) >= SERIES_MAX:
                continue
            before = series.get(key, 0.0) if point.is_delta else 0.0
            series[key] = before + point.value
            self._kinds.setdefault(point.name, point.is_counter)

    def _admit(self, client: _Client, now_ms: int) -> _Client | None:
        """None if there are too many."""
        if len(self._clients) >= self._clients_max:
            self.forget_stale(now_ms)
            if len(self._clients) >= self._clients_max:
                return None
        self._clients[client.described.instance_id] = client
        return client

    def forget_stale(self, now_ms: int) -> None:
        for instance_id, client in list(self._clients.items()):
            if client.is_stale(now_ms):
                del self._clients[instance_id]
        used = {name for client in self._clients.values() for name, _ in client.series}
        self._kinds = {name: kind for name, kind in self._kinds.items() if name in used}

    # Metrics

    def families(self, now_ms: int) -> Iterator[Family]:
        """What clients pushed last: a dot in a name is an underscore here."""
        self.forget_stale(now_ms)
        yield gauge(
            "millstream_telemetry_clients", "Clients that push metrics.", len(self._clients)
        )
        yield counter(
            "millstream_telemetry_pushes_total",
            "Pushes of clients that were accepted.",
            self.pushes,
        )
        yield counter(
            "millstream_telemetry_refused_total",
            "Pushes of clients that were refused.",
            self.refused,
        )
        by_name: dict[str, list[tuple[_Client, SeriesKey, float]]] = {}
        for client in list(self._clients.values()):
            for key, value in client.series.items():
                by_name.setdefault(key[0], []).append((client, key, value))
        written: set[str] = set()
        for name, found in by_name.items():
            is_counter = self._kinds.get(name, False)
            shown = _NO_NAME.sub("_", name)
            if is_counter and not shown.endswith("_total"):
                shown += "_total"
            if shown in written or not shown[0].isalpha():
                continue
            written.add(shown)
            make = counter if is_counter else gauge
            yield make(shown, f"{name}, as pushed by clients (KIP-714).", list(_samples(found)))


def _samples(found: list[tuple[_Client, SeriesKey, float]]) -> Iterator[Sample]:
    for client, (_, attributes), value in found:
        values = {_NO_NAME.sub("_", key): text for key, text in attributes if key}
        values |= {
            "client_id": client.described.client_id,
            "client_instance_id": str(client.described.instance_id),
        }
        yield label_text({key: it for key, it in values.items() if key[0].isalpha()}), value


def _too_early(api: str, interval_ms: int) -> ApiError:
    return ApiError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{api} comes before its interval of {interval_ms} ms"
    )
