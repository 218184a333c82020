"""Clients that push, push too often, too much, or for too long."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID, uuid4

import pytest

from millstream.broker.telemetry import clients as module
from millstream.broker.telemetry import otlp
from millstream.broker.telemetry.clients import (
    KEPT_MS_MIN,
    NO_ID,
    SERIES_MAX,
    ClientTelemetry,
)
from millstream.broker.telemetry.otlp import Point
from millstream.broker.telemetry.subscriptions import ClientDescription
from millstream.config.metrics import ClientMetricsConfig
from millstream.errors import ApiError, ErrorCode
from millstream.metrics.exposition import render
from millstream.records.compression import Compression, compress
from tests.broker.metrics.scraping import Metrics
from tests.broker.telemetry.pushing import gauge, metrics_data, point, total

INTERVAL_MS = 10_000
CONFIGS = [("all", ClientMetricsConfig(metrics=("*",), interval_ms=INTERVAL_MS))]
NEW = ClientDescription(NO_ID, "billing", "librdkafka", "2.16.0", "10.0.0.1", 4711)


class Pushing:
    """One client, and the broker that it pushes to."""

    def __init__(self, clients_max: int = 10, bytes_max: int = 100_000) -> None:
        self.configs = list(CONFIGS)
        self.telemetry = ClientTelemetry(
            lambda: self.configs, clients_max=clients_max, bytes_max=lambda: bytes_max
        )

    def join(self, now_ms: int = 0) -> ClientDescription:
        instance_id, self.subscription = self.telemetry.subscribe(NEW, now_ms)
        return NEW._replace(instance_id=instance_id)

    def push(
        self,
        client: ClientDescription,
        data: bytes,
        now_ms: int,
        compression: int = 0,
        *,
        is_last: bool = False,
    ) -> ErrorCode:
        subscription_id = self.subscription.id
        try:
            asyncio.run(
                self.telemetry.push(
                    client, subscription_id, compression, data, now_ms, is_last=is_last
                )
            )
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def look(self, now_ms: int) -> Metrics:
        return Metrics("".join(render(self.telemetry.families(now_ms))))


def test_pushed_values_are_served_with_the_client() -> None:
    pushing = Pushing()
    client = pushing.join()
    assert client.instance_id != NO_ID
    data = metrics_data(
        gauge("org.apache.kafka.x.rate", point(1.5, **{"node.id": "3"})),
        total("org.apache.kafka.x", point(7)),
    )
    assert pushing.push(client, data, 1000) == ErrorCode.NONE
    found = pushing.look(1000)
    who = {"client_id": "billing", "client_instance_id": client.instance_id}
    assert found.value("org_apache_kafka_x_rate", node_id=3, **who) == 1.5
    assert found.value("org_apache_kafka_x_total", **who) == 7
    assert "# TYPE org_apache_kafka_x_total counter" in found.text


@pytest.mark.parametrize("codec", list(Compression))
def test_pushes_may_be_compressed(codec: Compression) -> None:
    pushing = Pushing()
    data = compress(metrics_data(gauge("g", point(2.0))), codec)
    assert pushing.push(pushing.join(), data, 0, codec) == ErrorCode.NONE
    assert pushing.look(0).sum("client_g") == 2.0


def test_deltas_are_added_and_cumulative_values_replaced() -> None:
    pushing = Pushing()
    client = pushing.join()
    for push, now_ms in ((3, 0), (4, INTERVAL_MS)):
        data = metrics_data(total("d", point(push), is_delta=True), total("c", point(push)))
        assert pushing.push(client, data, now_ms) == ErrorCode.NONE
    found = pushing.look(INTERVAL_MS)
    assert (found.sum("client_d_total"), found.sum("client_c_total")) == (7, 4)


def test_what_is_wrong_is_answered_and_changes_nothing() -> None:
    pushing = Pushing(bytes_max=200)
    client = pushing.join()
    good = metrics_data(gauge("g", point(1.0)))
    bomb = compress(b"\0" * 1_000_000, Compression.ZSTD)
    for data, compression, code in (
        (b"x" * 201, 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (good, 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"\xff\xff", 0, ErrorCode.INVALID_RECORD),
        (good, Compression.GZIP, ErrorCode.INVALID_RECORD),
        (bomb, Compression.ZSTD, ErrorCode.INVALID_RECORD),
    ):
        fresh = pushing.join()
        assert pushing.push(fresh, data, 0, compression) == code
    assert pushing.push(NEW, good, 0) == ErrorCode.INVALID_REQUEST
    client = pushing.join()
    pushing.configs = []
    assert pushing.push(client, good, 0) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    found = pushing.look(0)
    assert not found.all("client_g")
    assert found.value("millstream_telemetry_refused_total") == 7


def test_a_client_pushes_once_per_interval_and_at_its_end() -> None:
    pushing = Pushing()
    client = pushing.join()
    data = metrics_data(gauge("g", point(1.0)))
    assert pushing.push(client, data, 100) == ErrorCode.NONE
    assert pushing.push(client, data, 200) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushing.push(client, data, 300, is_last=True) == ErrorCode.NONE
    assert pushing.push(client, data, 99_999, is_last=True) == ErrorCode.INVALID_REQUEST
    with pytest.raises(ApiError, match="before its interval"):
        pushing.telemetry.subscribe(client, 50)


def test_clients_and_their_series_are_limited_and_forgotten() -> None:
    pushing = Pushing(clients_max=2)
    clients = [pushing.join() for _ in range(2)]
    many = metrics_data(*(gauge(f"g{number}", point(1.0)) for number in range(SERIES_MAX + 5)))
    assert pushing.push(clients[0], compress(many, Compression.GZIP), 0, 1) != ErrorCode.NONE
    pushing = Pushing(clients_max=2, bytes_max=1_000_000)
    clients = [pushing.join() for _ in range(2)]
    assert pushing.push(clients[1], many, 0) == ErrorCode.NONE
    third = pushing.join()
    assert pushing.push(third, many, 0) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    found = pushing.look(0)
    assert found.value("millstream_telemetry_clients") == 2
    assert sum(it.name.startswith("client_g") for it in found.samples) == SERIES_MAX
    later = KEPT_MS_MIN + 1
    assert pushing.push(third, many, later) == ErrorCode.NONE
    found = pushing.look(later)
    assert found.value("millstream_telemetry_clients") == 1
    assert {it.labels["client_instance_id"] for it in found.all("client_g0")} == {
        str(third.instance_id)
    }


def test_any_name_becomes_one_of_prometheus() -> None:
    pushing = Pushing()
    client = pushing.join()
    data = metrics_data(gauge("1x", point(1.0)), gauge("a b\n", point(1.0, **{"9": "z"})))
    assert pushing.push(client, data, 0) == ErrorCode.NONE
    found = pushing.look(0)
    assert found.sum("client_1x") == 1.0
    (sample,) = found.all("client_a_b_")
    assert set(sample.labels) == {"client_id", "client_instance_id"}
    assert UUID(sample.labels["client_instance_id"]) == client.instance_id


def test_a_client_that_is_asked_for_nothing_is_not_kept() -> None:
    pushing = Pushing(clients_max=1)
    pushing.configs = []
    client = pushing.join()
    data = metrics_data(gauge("org.apache.kafka.x", point(1.0)))
    assert pushing.push(client, data, 0) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    pushing.configs = list(CONFIGS)
    stranger = client._replace(instance_id=uuid4())
    assert pushing.push(stranger, data, 0) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert pushing.look(0).value("millstream_telemetry_clients") == 0
    assert pushing.push(pushing.join(), data, 0) == ErrorCode.NONE


def test_only_what_is_subscribed_to_is_kept() -> None:
    pushing = Pushing()
    wanted = ClientMetricsConfig(metrics=("org.apache.kafka.x.", "own."), interval_ms=INTERVAL_MS)
    pushing.configs = [("some", wanted)]
    names = ("org.apache.kafka.x.a", "org.apache.kafka.y.a", "own.a", "other.a")
    data = metrics_data(*(gauge(name, point(1.0)) for name in names))
    assert pushing.push(pushing.join(), data, 0) == ErrorCode.NONE
    found = pushing.look(0)
    shown = {it.name for it in found.samples if it.name.endswith("_a")}
    assert shown == {"org_apache_kafka_x_a", "client_own_a"}
    assert found.value("millstream_telemetry_dropped_total") == 2


@pytest.mark.parametrize("name", ["millstream.ready", "millstream_ready", "org_apache_kafka_x"])
def test_no_client_can_push_a_metric_of_the_broker(name: str) -> None:
    pushing = Pushing()
    data = metrics_data(gauge(name, point(1.0)))
    assert pushing.push(pushing.join(), data, 0) == ErrorCode.NONE
    found = pushing.look(0)
    shown = name.replace(".", "_")
    assert not found.all(shown)
    assert found.sum(f"client_{shown}") == 1.0


def test_the_memory_for_all_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 10_000)
    pushing = Pushing()
    data = metrics_data(*(gauge(f"g{it}", point(1.0, text="x" * 256)) for it in range(10)))
    for _ in range(2):
        assert pushing.push(pushing.join(), data, 0) == ErrorCode.NONE
    kept = sum(it.name.startswith("client_g") for it in pushing.look(0).samples)
    assert 10 < kept < 20  # 256 bytes of text and the overhead each
    later = KEPT_MS_MIN + 1
    pushing.look(later)  # forgets both, and their memory with them
    assert pushing.push(pushing.join(later), data, later) == ErrorCode.NONE
    assert sum(it.name.startswith("client_g") for it in pushing.look(later).samples) == 10


def test_a_large_push_is_not_decoded_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def decode(data: bytes) -> list[Point]:
        threads.append(threading.current_thread() is not threading.main_thread())
        return otlp.decode(data)

    monkeypatch.setattr(module, "decode", decode)
    pushing = Pushing()
    small = metrics_data(gauge("g", point(1.0)))
    large = metrics_data(*(gauge(f"g{it}", point(1.0, text="x" * 256)) for it in range(50)))
    assert pushing.push(pushing.join(), small, 0) == ErrorCode.NONE
    assert pushing.push(pushing.join(), large, 0) == ErrorCode.NONE
    zipped = compress(small, Compression.GZIP)
    assert pushing.push(pushing.join(), zipped, 0, Compression.GZIP) == ErrorCode.NONE
    assert threads == [False, True, True]


def test_refused_clients_cause_one_search_for_stale_ones_per_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[int] = []

    def is_stale(client: object, now_ms: int) -> bool:
        searches.append(now_ms)
        return False

    pushing = Pushing(clients_max=1)
    pushing.join()
    monkeypatch.setattr(module._Client, "is_stale", is_stale)
    for now_ms in (0, 1, 999, 1000, 1500):
        pushing.join(now_ms)
    assert searches == [0, 1000]
