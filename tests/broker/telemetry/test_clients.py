"""Clients that push, push too often, too much, or for too long."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.broker.telemetry.clients import (
    KEPT_MS_MIN,
    NO_ID,
    SERIES_MAX,
    ClientTelemetry,
)
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
            self.telemetry.push(client, subscription_id, compression, data, now_ms, is_last=is_last)
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
    assert pushing.look(0).sum("g") == 2.0


def test_deltas_are_added_and_cumulative_values_replaced() -> None:
    pushing = Pushing()
    client = pushing.join()
    for push, now_ms in ((3, 0), (4, INTERVAL_MS)):
        data = metrics_data(total("d", point(push), is_delta=True), total("c", point(push)))
        assert pushing.push(client, data, now_ms) == ErrorCode.NONE
    found = pushing.look(INTERVAL_MS)
    assert (found.sum("d_total"), found.sum("c_total")) == (7, 4)


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
    assert not found.all("g")
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
    assert sum(it.name.startswith("g") for it in found.samples) == SERIES_MAX
    later = KEPT_MS_MIN + 1
    assert pushing.push(third, many, later) == ErrorCode.NONE
    found = pushing.look(later)
    assert found.value("millstream_telemetry_clients") == 1
    assert {it.labels["client_instance_id"] for it in found.all("g0")} == {str(third.instance_id)}


def test_names_that_are_none_are_left_out() -> None:
    pushing = Pushing()
    client = pushing.join()
    data = metrics_data(gauge("1x", point(1.0)), gauge("a b\n", point(1.0, **{"9": "z"})))
    assert pushing.push(client, data, 0) == ErrorCode.NONE
    found = pushing.look(0)
    (sample,) = found.all("a_b_")
    assert set(sample.labels) == {"client_id", "client_instance_id"}
    assert UUID(sample.labels["client_instance_id"]) == client.instance_id
