"""The clients that push metrics, and what they pushed last.

Requests are checked as Kafka's broker does: a client must know its subscription, and must not push
before its interval is over. Only what a client was asked for is kept. The number of clients, of
series per client and the memory for all of them are limited; a client that has not pushed for three
intervals, or has ended, is forgotten after two minutes at the earliest.

Any client can push any name: names that are not Kafka's are served with the prefix `client_`, so
none can be taken for a metric of the broker.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias
from uuid import UUID, uuid4

from millstream.broker.telemetry.otlp import MalformedMetrics, Point, decode
from millstream.broker.telemetry.subscriptions import (
    ClientDescription,
    Subscription,
    subscription_of,
)
from millstream.config.metrics import ALL_METRICS, ClientMetricsConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.metrics.exposition import Family, Sample, counter, gauge, label_text
from millstream.records.compression import Compression, decompress

SERIES_MAX = 200  # of one client
KEPT_BYTES_MAX = 32 * 1024 * 1024  # of the series of all clients
SERIES_BYTES = 300  # of one series, without its text
ATTRIBUTE_BYTES = 64  # of one attribute, without its text
DECODE_HERE_BYTES = 4096  # larger pushes, and compressed ones, are decoded in a thread
FORGET_MS = 1_000  # between two searches for clients to forget
KEPT_INTERVALS = 3
KEPT_MS_MIN = 120_000  # longer than Prometheus waits between two scrapes
EARLY_SHARE = 0.5  # of the interval: clients push after a random part of their first one

NO_ID = UUID(int=0)
KAFKA_PREFIX = "org.apache.kafka."
OTHERS_PREFIX = "client_"
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")

SeriesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


class _Client:
    """One client instance."""

    def __init__(self, described: ClientDescription, subscription: Subscription) -> None:
        self.described = described
        self.subscription = subscription
        self.series: dict[SeriesKey, float] = {}
        self.size_bytes = 0  # of the series
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
        self._size_bytes = 0  # of the series of all clients
        self._forgot_ms: int | None = None
        self._decoding = asyncio.Lock()
        self.pushes = 0
        self.refused = 0
        self.dropped = 0

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
        client = known
        if client is None and subscription.metrics:
            client = self._admit(_Client(described, subscription), now_ms)
        if client is not None:
            client.asked_ms = now_ms
        return described.instance_id, subscription

    async def push(
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
            client = self._check(described, subscription_id, now_ms, is_last)
            points = await self._decoded(compression, metrics)
        except ApiError:
            self.refused += 1
            raise
        self.pushes += 1
        if self._clients.get(described.instance_id) is client:
            self._keep(client, points)

    def _check(
        self, described: ClientDescription, subscription_id: int, now_ms: int, is_last: bool
    ) -> _Client:
        if described.instance_id == NO_ID:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client has no instance id")
        client = self._clients.get(described.instance_id)
        if client is not None and client.has_ended:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client has sent its last metrics")
        subscription = subscription_of(described, self._configs())
        if subscription_id != subscription.id:
            raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription has changed")
        if not subscription.metrics:
            raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the client is asked for no metrics")
        if client is None:
            client = self._admit(_Client(described, subscription), now_ms)
            if client is None:
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many clients push metrics")
        client.subscription = subscription
        early = now_ms - client.pushed_ms < subscription.interval_ms * EARLY_SHARE
        if client.pushed_ms >= 0 and early and not is_last:
            raise _too_early("PushTelemetry", subscription.interval_ms)
        client.pushed_ms = now_ms
        client.has_ended = is_last
        return client

    async def _decoded(self, compression: int, metrics: bytes) -> list[Point]:
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
            if codec is Compression.NONE and len(metrics) <= DECODE_HERE_BYTES:
                return decode(metrics)
            async with self._decoding:  # one at a time: the threads are there for other work, too
                return await asyncio.to_thread(_decompress_and_decode, metrics, codec, limit)
        except (CorruptBatch, MalformedMetrics) as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None

    def _keep(self, client: _Client, points: list[Point]) -> None:
        series = client.series
        wanted = client.subscription.metrics
        takes_all = ALL_METRICS in wanted
        for point in points:
            key = point.name, point.attributes
            if not (takes_all or point.name.startswith(wanted)):
                self.dropped += 1
                continue
            if key not in series:
                size = _size_of(key)
                if len(series) >= SERIES_MAX or self._size_bytes + size > KEPT_BYTES_MAX:
                    self.dropped += 1
                    continue
                client.size_bytes += size
                self._size_bytes += size
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
        """Not more often than every `FORGET_MS`: it reads all series, and clients can cause it."""
        if self._forgot_ms is not None and now_ms - self._forgot_ms < FORGET_MS:
            return
        self._forgot_ms = now_ms
        for instance_id, client in list(self._clients.items()):
            if client.is_stale(now_ms):
                self._size_bytes -= client.size_bytes
                del self._clients[instance_id]
        used = {name for client in self._clients.values() for name, _ in client.series}
        self._kinds = {name: kind for name, kind in self._kinds.items() if name in used}

    # Metrics

    def families(self, now_ms: int) -> Iterator[Family]:
        """What clients pushed last, under the names of `_shown`."""
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
        yield counter(
            "millstream_telemetry_dropped_total",
            "Values in pushes that were not kept: not subscribed to, or too many.",
            self.dropped,
        )
        by_name: dict[str, list[tuple[_Client, SeriesKey, float]]] = {}
        for client in list(self._clients.values()):
            for key, value in client.series.items():
                by_name.setdefault(key[0], []).append((client, key, value))
        written: set[str] = set()
        for name, found in by_name.items():
            is_counter = self._kinds.get(name, False)
            shown = _shown(name, is_counter)
            if shown in written:
                continue
            written.add(shown)
            make = counter if is_counter else gauge
            yield make(shown, f"{name}, as pushed by clients (KIP-714).", list(_samples(found)))


def _decompress_and_decode(metrics: bytes, codec: Compression, limit: int) -> list[Point]:
    data = metrics if codec is Compression.NONE else decompress(metrics, codec, limit)
    return decode(bytes(data))


def _size_of(key: SeriesKey) -> int:
    name, attributes = key
    texts = sum(sys.getsizeof(it) + sys.getsizeof(text) for it, text in attributes)
    return SERIES_BYTES + sys.getsizeof(name) + len(attributes) * ATTRIBUTE_BYTES + texts


def _shown(name: str, is_counter: bool) -> str:
    """A dot is an underscore, and only Kafka's names are left without a prefix."""
    shown = _NO_NAME.sub("_", name)
    if not name.startswith(KAFKA_PREFIX):
        shown = OTHERS_PREFIX + shown
    return shown + "_total" if is_counter and not shown.endswith("_total") else shown


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
