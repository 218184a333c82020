"""Metrics of a real broker with real clients, compared with what the clients did."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.broker.embedded import Broker
from millstream.broker.metadata.topics import NewTopic as LogTopic
from tests.broker.metrics.names import EXPORTER, KAFKA, PROCESS
from tests.broker.metrics.scraping import Metrics, scrape
from tests.broker.serving import serving
from tests.peers.cache import PeerMissing, require_command

RECORDS = 250
VALUE = b"x" * 100

BROKER_TOPIC = "kafka_server_brokertopicmetrics"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"millstream.metrics.listener": "127.0.0.1:0", "num.partitions": 3}
    with Broker.start(tmp_path_factory.mktemp("metrics"), settings) as started:
        yield started


def look(broker: Broker) -> Metrics:
    assert broker.metrics_url is not None
    return scrape(broker.metrics_url)


def produce(broker: Broker, topic: str, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, VALUE, partition=number % 3)
    assert producer.flush(60) == 0


def consume_and_commit(
    broker: Broker, topic: str, group: str, count: int, committed: int
) -> Consumer:
    """Reads that many records of partition 0 and commits some; the consumer stays open."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
        | {"enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = 0
    while read < count:
        read += len(consumer.consume(1000, 1.0))
    consumer.commit(offsets=[TopicPartition(topic, 0, committed)], asynchronous=False)
    return consumer


def create(broker: Broker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, config=config)])[topic].result(60)


def test_counters_equal_what_clients_have_done(broker: Broker) -> None:
    create(broker, "orders")
    before = look(broker)
    produce(broker, "orders")
    consumer = consume_and_commit(broker, "orders", "billing", 84, committed=40)
    now = look(broker)
    assert now.value(f"{BROKER_TOPIC}_messagesin_total", topic="orders") == RECORDS
    in_all = f"{BROKER_TOPIC}_messagesin_total"
    assert now.value(in_all) - before.value(in_all) == RECORDS + 1  # one is the commit
    sizes = now.sum("kafka_log_log_size", topic="orders")
    assert now.value(f"{BROKER_TOPIC}_bytesin_total", topic="orders") == sizes > RECORDS * 100
    read = now.value("kafka_log_log_size", topic="orders", partition=0)
    assert now.value(f"{BROKER_TOPIC}_bytesout_total", topic="orders") == read
    appends = now.value(f"{BROKER_TOPIC}_totalproducerequests_total", topic="orders")
    assert 3 <= appends <= RECORDS
    assert now.value(f"{BROKER_TOPIC}_totalfetchrequests_total", topic="orders") >= 1
    ends = now.all("kafka_topic_partition_current_offset", topic="orders")
    assert sorted(it.value for it in ends) == [83, 83, 84]
    assert now.value("kafka_topic_partitions", topic="orders") == 3
    place = {"consumergroup": "billing", "topic": "orders"}
    assert now.value("kafka_consumergroup_current_offset", **place, partition=0) == 40
    assert now.value("kafka_consumergroup_lag", **place, partition=0) == 44
    assert now.value("kafka_consumergroup_lag_sum", **place) == 44
    assert now.value("kafka_consumergroup_members", consumergroup="billing") == 0
    opened = "millstream_connections_accepted_total"
    assert now.value(opened) > before.value(opened)
    software = now.all("kafka_server_socket_server_metrics_connections_software")
    assert any("confluent-kafka" in it.labels["clientSoftwareName"] for it in software)
    consumer.close()


def test_requests_are_counted_by_api_and_timed(broker: Broker) -> None:
    before = look(broker)
    for _ in range(20):
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=60)
    now = look(broker)
    name = "kafka_network_requestmetrics_requests_total"
    assert now.sum(name, request="Metadata") - before.sum(name, request="Metadata") >= 20
    times = "kafka_network_requestmetrics_totaltimems"
    assert now.value(f"{times}_count", request="Metadata") == now.sum(name, request="Metadata")
    half = now.value(times, request="Metadata", quantile=0.5)
    assert 0 < half <= now.value(times, request="Metadata", quantile=0.999) < 60_000


def test_refused_records_are_counted(broker: Broker) -> None:
    create(broker, "small", **{"max.message.bytes": "500"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 1})
    errors: list[KafkaError | None] = []
    producer.produce("small", b"x" * 2000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert [it and it.code() for it in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    now = look(broker)
    assert now.value(f"{BROKER_TOPIC}_totalproducerequests_total", topic="small") == 1
    assert now.value(f"{BROKER_TOPIC}_failedproducerequests_total", topic="small") == 0  # as Kafka
    assert now.value(f"{BROKER_TOPIC}_bytesrejected_total", topic="small") > 2000
    errors_total = "kafka_network_requestmetrics_errors_total"
    assert now.sum(errors_total, request="Produce", error="MESSAGE_TOO_LARGE") == 1


def test_a_topic_of_the_same_name_starts_at_zero_and_all_topics_do_not(broker: Broker) -> None:
    produce(broker, "again", 30)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    everything = look(broker).value(f"{BROKER_TOPIC}_messagesin_total")
    admin.delete_topics(["again"])["again"].result(60)
    gone = look(broker)
    assert not gone.all(f"{BROKER_TOPIC}_messagesin_total", topic="again")
    assert not gone.all("kafka_log_log_size", topic="again")
    assert gone.value(f"{BROKER_TOPIC}_messagesin_total") == everything
    create(broker, "again")
    produce(broker, "again", 6)
    now = look(broker)
    assert now.value(f"{BROKER_TOPIC}_messagesin_total", topic="again") == 6
    assert now.value(f"{BROKER_TOPIC}_messagesin_total") == everything + 6


def test_every_name_that_dashboards_use_exists(broker: Broker) -> None:
    families = re.findall(r"^# TYPE (\w+) ", look(broker).text, re.MULTILINE)
    assert {*KAFKA, *EXPORTER, *PROCESS} - {*families} == set()


def test_promtool_reads_everything_and_complains_only_about_kafkas_names(broker: Broker) -> None:
    try:
        promtool = require_command("promtool", "apt-get install prometheus")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    text = look(broker).text
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    complaints = (checked.stdout + checked.stderr).splitlines()
    assert checked.returncode in (0, 3), complaints  # 3: only style
    assert [it for it in complaints if not it.startswith("kafka_")] == []


def test_probes_answer_and_a_stopped_broker_does_not(tmp_path: Path) -> None:
    settings = {"millstream.metrics.listener": "127.0.0.1:0", "millstream.metrics.token": "hunter2"}
    with Broker.start(tmp_path, settings) as broker:
        url = broker.metrics_url
        assert url is not None
        for page, text in (("health", b"ok\n"), ("ready", b"ready\n")):
            with urllib.request.urlopen(url.replace("metrics", page), timeout=60) as response:
                assert response.read() == text
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(url)
        assert scrape(url, "hunter2").value("millstream_ready") == 1
        broker.restart()
        assert broker.metrics_url == url
        assert scrape(url, "hunter2").value("millstream_ready") == 1
    with pytest.raises(urllib.error.URLError):
        scrape(url, "hunter2")


def test_a_broker_with_many_partitions_serves_topics_only(tmp_path: Path) -> None:
    settings = {
        "millstream.metrics.listener": "127.0.0.1:0",
        "millstream.metrics.partitions.max": 2,
    }
    with Broker.start(tmp_path, settings) as broker:
        create(broker, "wide")
        now = look(broker)
        assert not now.all("kafka_log_log_size")
        assert not now.all("kafka_topic_partition_replicas")
        assert now.value("kafka_topic_partitions", topic="wide") == 3
        assert now.value(f"{BROKER_TOPIC}_messagesin_total", topic="wide") == 0
        assert now.value("kafka_server_replicamanager_partitioncount") == 3
        assert now.value("kafka_server_replicamanager_leadercount") == 3


def test_a_scrape_of_many_partitions_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """Between two steps of a scrape, other work is done. A step is measured in calls of functions,
    which are as many on any machine."""

    async def scenario() -> tuple[list[int], str]:
        async with serving(tmp_path, millstream_metrics_listener="127.0.0.1:0") as server:
            assert server.metrics is not None
            await server.topics.create([LogTopic(f"t{number}", 10) for number in range(60)])
            for number in range(60):
                for index in range(10):
                    server.partitions.find(f"t{number}", index)
            async for _ in server.metrics.scrape():  # what is computed once
                await asyncio.sleep(0)
            steps = [0]

            def count(frame: FrameType, event: str, _argument: object) -> None:
                if event == "call" and frame.f_code.co_name == "_run_once":  # the loop's next turn
                    steps.append(0)
                steps[-1] += 1

            sys.setprofile(count)
            reader, writer = await asyncio.open_connection(*server.metrics.address)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = (await reader.read()).decode()
            sys.setprofile(None)
            writer.close()
            return steps, text

    try:
        steps, text = asyncio.run(scenario())
    finally:
        sys.setprofile(None)
    assert text.count("kafka_log_log_size{") == 600
    assert max(steps) < sum(steps) / 10  # 7 %
