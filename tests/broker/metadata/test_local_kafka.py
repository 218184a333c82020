"""A data directory goes to Apache Kafka and comes back, with all that either has written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.admin import NewTopic as KafkaTopic

from millstream.broker.embedded import Broker
from millstream.coordination.cluster_records import decode_record, encode_record
from millstream.coordination.cluster_security import SECURITY_SCHEMAS
from millstream.records.batch import iterate_headers
from millstream.records.record import decode_batch
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import ToolRunner
from tests.peers.kafka import start_kafka
from tests.peers.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.java, pytest.mark.slow]

CONFIG_COMMAND = "kafka.admin.ConfigCommand"
WITH_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@contextmanager
def kafka_on(directory: Path, settings: dict[str, str]) -> Iterator[str]:
    """Apache Kafka on `directory/data`, by its bootstrap server."""
    try:
        kafka = start_kafka(directory, settings)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()


@pytest.fixture
def tools() -> Iterator[ToolRunner]:
    runner = ToolRunner()
    yield runner
    runner.close()


class Security:
    """What Kafka's tools set and describe."""

    def __init__(self, tools: ToolRunner, bootstrap: str) -> None:
        self._tools = tools
        self._server = ("--bootstrap-server", bootstrap)

    def acls(self, *arguments: str) -> str:
        result = self._tools.check("AclCommand", *self._server, *arguments)
        return "\n".join(sorted(line for line in result.lines if "principal=" in line))

    def configs(self, *arguments: str) -> str:
        return "\n".join(sorted(self._tools.check(CONFIG_COMMAND, *self._server, *arguments).lines))

    def add(self) -> None:
        for user in ("ann", "bob", "eve"):
            principal = ("--allow-principal", f"User:{user}")
            self.acls("--add", *principal, "--operation", "Read", "--topic", "t")
            scram = f"SCRAM-SHA-256=[iterations=4096,password={user}]"
            self.alter("--add-config", scram, "--entity-type", "users", "--entity-name", user)
            rate = "consumer_byte_rate=1000000"
            self.alter("--add-config", rate, "--entity-type", "users", "--entity-name", user)
            both = ("--entity-type", "users", "--entity-name", user, "--entity-type", "clients")
            self.alter("--add-config", rate, *both, "--entity-default")
        every_ip = ("--entity-type", "ips", "--entity-default")
        self.alter("--add-config", "connection_creation_rate=90", *every_ip)

    def alter(self, *arguments: str) -> None:
        self.configs("--alter", *arguments)

    def remove(self, user: str) -> None:
        who = ("--entity-type", "users", "--entity-name", user)
        principal = ("--allow-principal", f"User:{user}")
        self.acls("--remove", "--force", *principal, "--operation", "Read", "--topic", "t")
        self.alter("--delete-config", "SCRAM-SHA-256", *who)
        self.alter("--delete-config", "consumer_byte_rate", *who)
        both = ("--entity-type", "users", "--entity-name", user, "--entity-type", "clients")
        self.alter("--delete-config", "consumer_byte_rate", *both, "--entity-default")

    def describe(self) -> str:
        described = [self.acls("--list")]
        described += [self.configs("--describe", "--entity-type", it) for it in ("users", "ips")]
        return "\n".join(described)


def write_snapshot(directory: Path) -> None:
    """Open the directory with Millstream and have it replace the log by a snapshot."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    log = directory / "data" / "__cluster_metadata-0"
    before = max((path.name for path in log.glob("*.checkpoint")), default="")
    with Broker.start(directory / "data", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        name = f"t{len(admin.list_topics().topics)}"
        admin.create_topics([KafkaTopic(name, 1, 1)])[name].result()
    assert max(path.name for path in log.glob("*.checkpoint")) > before
    assert len(list(log.glob("*.checkpoint"))) == 1


def assert_same_bytes(directory: Path) -> None:
    """Each record of security in the directory's metadata log, read and written, is unchanged."""
    log = directory / "data" / "__cluster_metadata-0"
    seen: set[int] = set()
    for path in sorted(log.glob("*.log")):
        content = path.read_bytes()
        for position, header in iterate_headers(content):
            for record in [] if header.is_control else decode_batch(content, position):
                value = record.value or b""
                if value[1] in SECURITY_SCHEMAS:
                    seen.add(value[1])
                    assert encode_record(decode_record(value)) == value
    assert seen == set(SECURITY_SCHEMAS)


def test_access_lists_credentials_and_quotas_of_kafka_survive_snapshots(
    tmp_path: Path, tools: ToolRunner
) -> None:
    with kafka_on(tmp_path, WITH_AUTHORIZER) as bootstrap:
        security = Security(tools, bootstrap)
        security.add()
        security.remove("eve")
        before = security.describe()
    assert_same_bytes(tmp_path)
    for word in ("User:ann", "User:bob", "SCRAM-SHA-256", "consumer_byte_rate", "connection_"):
        assert word in before
    assert "eve" not in before
    write_snapshot(tmp_path)
    with kafka_on(tmp_path, WITH_AUTHORIZER) as bootstrap:
        security = Security(tools, bootstrap)
        assert security.describe() == before
        security.remove("bob")
        after = security.describe()
    assert "bob" not in after
    write_snapshot(tmp_path)
    with kafka_on(tmp_path, WITH_AUTHORIZER) as bootstrap:
        assert Security(tools, bootstrap).describe() == after


def test_kafka_takes_over_a_directory_and_gives_it_back(tmp_path: Path) -> None:
    """Topics, records, settings and committed offsets go to Apache Kafka and come back."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "metadata.log.max.record.bytes.between.snapshots": "1000",
    }
    with Broker.start(tmp_path / "data", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topic = KafkaTopic("t", 3, 1, config={"retention.ms": "987654321"})
        admin.create_topics([topic])["t"].result()
        produce(broker.bootstrap_servers, range(1000))
        commit_offset(broker.bootstrap_servers, 7)
    metadata_log = tmp_path / "data" / "__cluster_metadata-0"
    assert list(metadata_log.glob("*.checkpoint")), "a snapshot should be part of what Kafka reads"
    with kafka_on(tmp_path, settings) as bootstrap:
        assert_same(bootstrap, range(1000), 7)
        produce(bootstrap, range(1000, 1100))
        commit_offset(bootstrap, 8)
    with Broker.start(tmp_path / "data", settings) as broker:
        assert_same(broker.bootstrap_servers, range(1100), 8)


def produce(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce("t", str(number))
    assert producer.flush(PATIENCE_SECONDS) == 0


def commit_offset(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def assert_same(bootstrap: str, numbers: range, committed: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource("topic", "t")
    settings = admin.describe_configs([resource])[resource].result()
    assert settings["retention.ms"].value == "987654321"
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    assert committed_offset(consumer) == committed
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(3)])
    read = {
        int(message.value()) for message in consumer.consume(len(numbers), timeout=PATIENCE_SECONDS)
    }
    assert read == set(numbers)
    consumer.close()


def committed_offset(consumer: Consumer) -> int:
    """Asked again while the coordinator, just started, does not know its groups yet."""
    for _ in range(100):
        try:
            return int(
                consumer.committed([TopicPartition("t", 0)], timeout=PATIENCE_SECONDS)[0].offset
            )
        except KafkaException:
            consumer.poll(0.2)
    raise AssertionError("the coordinator never loaded")
