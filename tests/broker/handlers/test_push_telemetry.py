"""PushTelemetry: what real clients push is served as metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from millstream.broker.embedded import Broker
from millstream.errors import ErrorCode
from tests.broker.handlers.calls import create_topic
from tests.broker.handlers.test_get_telemetry_subscriptions import ask, subscribe
from tests.broker.metrics.scraping import Metrics, scrape
from tests.broker.telemetry.pushing import gauge, metrics_data, point
from tests.peers.java_runtime import ToolRunner
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import Wire


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.start(config={"millstream.metrics.listener": "127.0.0.1:0"}) as started:
        yield started


def wait_for(broker: Broker, name: str, client_id: str, work: Callable[[], object]) -> Metrics:
    """Do the work again and again until that client's metric is served."""
    assert broker.metrics_url is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        work()
        found = scrape(broker.metrics_url)
        if found.all(name, client_id=client_id):
            return found
        assert time.monotonic() < deadline, f"{name} of {client_id} is not served"
        time.sleep(0.1)


def test_pushed_values_are_served(broker: Broker) -> None:
    assert broker.metrics_url is not None
    with Wire(broker.bootstrap_servers) as wire:
        subscribe(wire, "wire", metrics="wire.", interval_ms="1000")
        asked = ask(wire)
        answer = wire.call(
            "push_telemetry",
            0,
            client_instance_id=asked.client_instance_id,
            subscription_id=asked.subscription_id,
            terminating=False,
            compression_type=0,
            metrics=metrics_data(gauge("wire.depth", point(3.5))),
        )
        assert answer.error_code == ErrorCode.NONE
        assert scrape(broker.metrics_url).sum("client_wire_depth") == 3.5
        unknown = wire.call(
            "push_telemetry",
            0,
            client_instance_id=uuid4(),
            subscription_id=1,
            terminating=False,
            compression_type=0,
            metrics=b"",
        )
        assert unknown.error_code == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        subscribe(wire, "wire", metrics="", interval_ms="")


def test_librdkafka_pushes_its_metrics(broker: Broker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        create_topic(wire, "pushed")
        subscribe(wire, "all", metrics="*", interval_ms="100", match="client_id=rd-.*")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "rd-producer"}
    producer = Producer(settings)

    def produce() -> None:
        producer.produce("pushed", b"x")
        producer.flush(PATIENCE_SECONDS)

    name = "org_apache_kafka_producer_connection_creation_total"
    found = wait_for(broker, name, "rd-producer", produce)
    assert found.sum(name, client_id="rd-producer") >= 1
    assert found.value("millstream_telemetry_clients") >= 1


@pytest.mark.slow
@pytest.mark.java
def test_the_java_client_pushes_its_metrics(broker: Broker) -> None:
    tools = ToolRunner()
    try:
        tools.check(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", broker.bootstrap_servers, "--alter"),
            *("--entity-type", "client-metrics", "--entity-name", "java"),
            *("--add-config", "metrics=[*],interval.ms=100,match=[client_id=java-.*]"),
        )
        described = tools.check(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", broker.bootstrap_servers, "--describe"),
            *("--entity-type", "client-metrics", "--entity-name", "java"),
        )
        assert "interval.ms=100" in described.stdout
        name = "org_apache_kafka_producer_record_send_total"

        def produce() -> None:
            tools.check(
                "ProducerPerformance",
                *("--topic", "pushed-by-java", "--num-records", 300, "--record-size", 10),
                *("--throughput", 100, "--command-property"),
                *(f"bootstrap.servers={broker.bootstrap_servers}", "client.id=java-producer"),
            )

        found = wait_for(broker, name, "java-producer", produce)
        assert found.sum(name, client_id="java-producer") > 0
    finally:
        tools.close()
