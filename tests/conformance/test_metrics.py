"""The metrics of Millstream and Apache Kafka's own, read over JMX, after the same requests.

The requests are sent byte by byte, so that both brokers get the same ones, and no others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.broker.metrics.names import KAFKA
from tests.broker.metrics.scraping import scrape
from tests.conformance.brokers import SETTINGS, BrokerUnderTest
from tests.peers.java_runtime import ToolRunner
from tests.peers.jmx import jvm_options, read_jmx
from tests.peers.kafka import start_kafka
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import free_port, start_millstream
from tests.peers.share_member import ACCEPT, REJECT, RELEASE, ShareMember, initialize
from tests.peers.wire import Wire, batch, produce_fields

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOPIC, SHARED, GROUP, GROUP_OF_WORKERS = "orders", "jobs", "billing", "workers"
PARTITIONS = 3
MESSAGE_BYTES_MAX = 2000
CORRUPT_MESSAGE, UNKNOWN_TOPIC, MESSAGE_TOO_LARGE, OUT_OF_ORDER_SEQUENCE = 2, 3, 10, 45
OFFSET_OUT_OF_RANGE = 1

# The APIs of the requests below.
SENT = (
    "Produce",
    "Fetch",
    "FetchConsumer",
    "ApiVersions",
    "Metadata",
    "InitProducerId",
    "ListOffsets",
    "DeleteRecords",
    "OffsetCommit",
    "ShareFetch",
    "ShareAcknowledge",
)
# Counters that nothing below changes.
UNCHANGED = {
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
}
# Names of the JMX exporter's rules for attributes that are not read here, or not there yet.
NOT_OVER_JMX = {
    "kafka_server_quota_byte_rate": "there is no client with a quota: test_quotas.py",
    "kafka_server_quota_throttle_time": "the same",
}

Key = tuple[str, tuple[tuple[str, str], ...]]
Values = dict[Key, float]

# Those whose change must be the same, with the labels that count; values of other labels are added.
COUNTERS: dict[str, tuple[str, ...]] = {
    **{
        f"kafka_server_brokertopicmetrics_{name}_total": ("topic",)
        for name in (
            "messagesin",
            "bytesin",
            "bytesout",
            "bytesrejected",
            "failedproducerequests",
            "failedfetchrequests",
            "totalproducerequests",
            "totalfetchrequests",
            "totalsharefetchrequests",
            "totalshareacknowledgementrequests",
        )
    },
    "kafka_network_requestmetrics_requests_total": ("request", "version"),
    "kafka_network_requestmetrics_errors_total": ("request", "error"),
    **{
        f"kafka_network_requestmetrics_{name}_count": ("request",)
        for name in (
            "totaltimems",
            "requestqueuetimems",
            "localtimems",
            "remotetimems",
            "responsequeuetimems",
            "responsesendtimems",
            "throttletimems",
        )
    },
    "kafka_server_replicamanager_isrshrinks_total": (),
    "kafka_server_replicamanager_isrexpands_total": (),
    "kafka_controller_controllerstats_uncleanleaderelections_total": (),
    "kafka_server_sharegroupmetrics_recordacknowledgements_total": ("ackType",),
}
# Those whose value must be the same.
GAUGES: dict[str, tuple[str, ...]] = {
    **{
        f"kafka_log_log_{name}": ("topic", "partition")
        for name in ("size", "logstartoffset", "logendoffset", "numlogsegments")
    },
    **{
        f"kafka_cluster_partition_{name}": ("topic", "partition")
        for name in ("underreplicated", "underminisr", "atminisr", "laststableoffsetlag")
    },
    **{
        f"kafka_server_replicamanager_{name}": ()
        for name in (
            "partitioncount",
            "leadercount",
            "underreplicatedpartitions",
            "underminisrpartitioncount",
            "atminisrpartitioncount",
            "offlinereplicacount",
            "produceridcount",
            "partitionswithlatetransactionscount",
        )
    },
    **{
        f"kafka_controller_kafkacontroller_{name}": ()
        for name in (
            "activecontrollercount",
            "offlinepartitionscount",
            "globaltopiccount",
            "globalpartitioncount",
            "activebrokercount",
            "fencedbrokercount",
            "metadataerrorcount",
            "preferredreplicaimbalancecount",
        )
    },
    "kafka_server_kafkaserver_brokerstate": (),
    "kafka_log_logmanager_offlinelogdirectorycount": (),
    "kafka_log_logcleaner_deadthreadcount": (),
    "kafka_log_logcleanermanager_uncleanable_partitions_count": (),
    "kafka_log_logcleanermanager_max_dirty_percent": (),
    "kafka_server_fetchsessioncache_numincrementalfetchsessions": (),
    "kafka_network_requestchannel_requestqueuesize": (),
    "kafka_network_requestchannel_responsequeuesize": (),
}


@dataclass
class Measured:
    """A broker, and how to read its metrics."""

    broker: BrokerUnderTest
    read: Callable[[], Iterable[tuple[str, dict[str, str], float]]]
    before: Values | None = None  # the counters

    def values(self, chosen: dict[str, tuple[str, ...]]) -> Values:
        found: Counter[Key] = Counter()
        for name, labels, value in self.read():
            if name in chosen:
                kept = tuple((it, labels[it]) for it in chosen[name] if it in labels)
                found[name, kept] += value  # type: ignore[assignment]
        return dict(found)

    def changes(self) -> Values:
        """Of the counters, since `before` was read; those that have not changed are left out."""
        before = self.before or {}
        now = self.values(COUNTERS)
        return {key: now[key] - before.get(key, 0) for key in now if now[key] != before.get(key, 0)}


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, tools: ToolRunner
) -> Iterator[tuple[Measured, Measured]]:
    """Millstream and Apache Kafka with the same topics, which have served the same requests."""
    directory = tmp_path_factory.mktemp("metrics")
    port, jmx_port = free_port(), free_port()
    with ExitStack() as stack:
        ours = start_millstream(
            directory / "ours",
            {**SETTINGS, "millstream.metrics.listener": f"127.0.0.1:{port}"},
        )
        stack.callback(ours.stop)
        theirs = start_kafka(directory / "theirs", SETTINGS, jvm_options=jvm_options(jmx_port))
        stack.callback(theirs.stop)

        def read_ours() -> Iterable[tuple[str, dict[str, str], float]]:
            return scrape(f"http://127.0.0.1:{port}/metrics").samples

        pair = (
            Measured(BrokerUnderTest(ours), read_ours),
            Measured(BrokerUnderTest(theirs), lambda: read_jmx(tools, jmx_port)),
        )
        for measured in pair:
            create_topics(measured.broker)
            with joined(measured.broker) as member:
                measured.before = quiet(measured)
                drive(measured.broker, member)
        yield pair


def create_topics(broker: BrokerUnderTest) -> None:
    config = {"max_message_bytes": MESSAGE_BYTES_MAX}
    broker.create_topic(PARTITIONS, TOPIC, **config)
    broker.create_topic(1, SHARED)
    with Wire(broker.bootstrap) as wire:  # creates the topic of offsets

        def is_there() -> bool:
            answer = wire.call("find_coordinator", 3, key=GROUP, key_type=0)
            return bool(answer.error_code == 0)

        wait_until(is_there)
        wait_until(lambda: commit(wire, 0) == 0)
        wait_until(lambda: init_producer(wire).error_code == 0)


def joined(broker: BrokerUnderTest) -> ShareMember:
    """A member of a share group that has its first record, so that its state is loaded."""
    topic_id = broker.topic_id(SHARED)
    initialize(broker.bootstrap, GROUP_OF_WORKERS, topic_id)
    with Wire(broker.bootstrap) as wire:
        assert produce(wire, batch([b"first"]), topic=SHARED) == 0
    member = ShareMember(broker.bootstrap, GROUP_OF_WORKERS, topic_id)
    wait_until(lambda: bool(member.fetch()))
    assert member.acknowledge((0, 0, ACCEPT)) == 0
    return member


def quiet(measured: Measured) -> Values:
    """The counters, once the last requests are counted: Apache Kafka counts after it answers."""
    before: Values = {}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (now := relevant(measured.values(COUNTERS))) != before:
        assert time.monotonic() < deadline, "the counters do not come to rest"
        before = now
        time.sleep(0.5)
    return now


def commit(wire: Wire, offset: int) -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    answer = wire.call(
        "offset_commit",
        7,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": TOPIC, "partitions": [partition]}],
    )
    code: int = answer.topics[0].partitions[0].error_code
    return code


def drive(broker: BrokerUnderTest, member: ShareMember) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.call("api_versions", 3, client_software_name="wire", client_software_version="1")
        for _ in range(3):
            wire.call("metadata", 12, topics=[{"name": TOPIC}])
        produce_all(wire)
        fetch_all(wire)
        offsets(wire)
        assert commit(wire, 3) == 0
        share(member, wire)


def produce(wire: Wire, records: bytes, partition: int = 0, topic: str = TOPIC) -> int:
    fields = produce_fields(topic, records, partition=partition)
    answer = wire.call("produce", 9, **fields)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def init_producer(wire: Wire) -> Any:
    return wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)


def produce_all(wire: Wire) -> None:
    for partition in range(PARTITIONS):
        for count in range(1, 5):
            assert produce(wire, batch([b"x" * 100] * count), partition) == 0
    producer = init_producer(wire)
    assert producer.error_code == 0
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    assert produce(wire, batch([b"y"], **ids, base_sequence=0)) == 0
    assert produce(wire, batch([b"y"], **ids, base_sequence=7)) == OUT_OF_ORDER_SEQUENCE
    assert produce(wire, batch([b"z" * 2 * MESSAGE_BYTES_MAX])) == MESSAGE_TOO_LARGE
    damaged = bytearray(batch([b"w" * 50]))
    damaged[-1] ^= 1
    assert produce(wire, bytes(damaged)) == CORRUPT_MESSAGE
    assert produce(wire, batch([b"x"]), 99) == UNKNOWN_TOPIC


def fetch(wire: Wire, partition: int, offset: int, **session: int) -> Any:
    asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
    asked |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
    return wire.call(
        "fetch",
        12,
        max_wait=0,
        min_bytes=0,
        max_bytes=10_000_000,
        topics=[{"topic": TOPIC, "partitions": [asked]}],
        rack_id="",
        **({"session_id": 0, "session_epoch": -1} | session),
    )


def fetch_all(wire: Wire) -> None:
    for partition in range(PARTITIONS):
        fetch(wire, partition, 0)
    fetch(wire, 0, 2)
    answer = fetch(wire, 0, 1000)
    assert answer.responses[0].partitions[0].error_code == OFFSET_OUT_OF_RANGE
    assert fetch(wire, 1, 0, session_epoch=0).session_id != 0  # a session that stays


def offsets(wire: Wire) -> None:
    for topic in (TOPIC, "unknown"):
        asked = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
        topics = [{"name": topic, "partitions": asked}]
        wire.call("list_offsets", 5, replica_id=-1, topics=topics)
    partition = {"partition_index": 1, "offset": 5}
    topics = [{"name": TOPIC, "partitions": [partition]}]
    wire.call("delete_records", 2, topics=topics, timeout=60_000)


def share(member: ShareMember, wire: Wire) -> None:
    """Ten records: some accepted, released, rejected."""
    assert produce(wire, batch([b"job"] * 10), topic=SHARED) == 0
    (first, last, _), *_ = member.fetch(max_wait=int(PATIENCE_SECONDS * 1000))
    assert last - first == 9
    accepted, released = (first, first + 4, ACCEPT), (first + 5, first + 6, RELEASE)
    assert member.acknowledge(accepted, released, (first + 7, first + 7, REJECT)) == 0


def relevant(values: Values) -> Values:
    """Without internal topics, and without requests that brokers send to themselves."""
    found: Values = {}
    for (name, labels), value in values.items():
        by_name = dict(labels)
        has_topic = "topic" in COUNTERS.get(name, GAUGES.get(name, ()))
        if has_topic and by_name.get("topic") not in (TOPIC, SHARED):
            continue
        if by_name.get("request", SENT[0]) not in SENT or by_name.get("error") == "NONE":
            continue
        found[name, labels] = value
    return found


def differences(ours: Values, theirs: Values) -> dict[str, tuple[float | None, float | None]]:
    """By name and labels, the values of both."""
    return {
        f"{name}{dict(labels)}": (ours.get((name, labels)), theirs.get((name, labels)))
        for name, labels in sorted({*ours, *theirs})
        if ours.get((name, labels)) != theirs.get((name, labels))
    }


def compared(
    both: tuple[Measured, Measured], read: Callable[[Measured], Values]
) -> tuple[Values, dict[str, tuple[float | None, float | None]]]:
    """The values of Apache Kafka, and how ours differ, once the last requests are counted."""
    ours, theirs = both
    deadline = time.monotonic() + PATIENCE_SECONDS / 2
    while True:
        found = relevant(read(theirs))
        differing = differences(relevant(read(ours)), found)
        if not differing or time.monotonic() > deadline:
            return found, differing
        time.sleep(1)


def test_counters_change_as_apache_kafkas_do(both: tuple[Measured, Measured]) -> None:
    found, differing = compared(both, Measured.changes)
    assert differing == {}
    assert {name for name, _ in found} >= {*COUNTERS} - UNCHANGED


def test_gauges_have_apache_kafkas_values(both: tuple[Measured, Measured]) -> None:
    found, differing = compared(both, lambda measured: measured.values(GAUGES))
    assert differing == {}
    assert {name for name, _ in found} == {*GAUGES}


def test_apache_kafka_has_every_name_of_our_list(both: tuple[Measured, Measured]) -> None:
    """Otherwise dashboards would find these names here alone."""
    names = {name for name, _, _ in both[1].read()}
    names |= {name.removesuffix("_count") for name in names}  # of summaries
    assert KAFKA - {*NOT_OVER_JMX} - names == set()
