"""Apache's tools for replicated topics, on a cluster of three.

`ReplicaVerificationTool` compares what replicas answer, DumpLogSegments reads their files, and the
commands elect, move and describe. All brokers run at the beginning and at the end of a test.
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from crc32c import crc32c

from millstream.records.batch import iterate_headers
from tests.conformance.brokers import unique
from tests.conformance.clusters import (
    BROKERS,
    Cluster,
    MillstreamCluster,
    admin,
    await_equal_replicas,
    await_in_sync,
    create_topic,
    in_sync,
    leaders,
    log_bytes,
    produce,
)
from tests.conformance.test_log_files import dump, judge
from tests.peers.clients import ALL_COMPRESSIONS
from tests.peers.java_runtime import ToolRunner, java_program
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.wire import Wire

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("cluster-tools"),
]

SETTINGS = {
    "auto.leader.rebalance.enable": "false",  # leaders move when a test wants it
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
EVERYWHERE = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
REPORT = re.compile(r"max lag is (-?\d+) for partition (\S+) at offset (\d+) among (\d+) ")


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with MillstreamCluster.running(tmp_path_factory.mktemp("cluster"), SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    yield shared_cluster
    for broker in sorted(shared_cluster.down):  # after a failure
        shared_cluster.start(broker)


@pytest.fixture
def topic() -> str:
    return unique("topic")


def fill(cluster: Cluster, topic: str, partitions: int = 3) -> None:
    """Every compression, idempotent or not, and transactions of which every other is aborted."""
    for number, compression in enumerate(ALL_COMPRESSIONS):
        config = {"compression_type": compression, "enable_idempotence": number % 2 == 0}
        for partition in range(partitions):
            values = [b"%d %s" % (it, b"abc" * 30) for it in range(300)]
            batches = {"batch_num_messages": 20}
            errors = produce(cluster, topic, values, partition, **config, **batches)
            assert errors == [None] * len(values)
    transact(cluster, topic, partitions)


def transact(cluster: Cluster, topic: str, partitions: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "log_level": 0,
            "transactional.id": unique("transactions"),
        }
    )
    producer.init_transactions(PATIENCE_SECONDS)
    for number in range(10):
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, b"transaction %d" % number, partition=partition)
        if number % 2:
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)


@contextmanager
def running(tool: str, *arguments: str) -> Iterator[queue.Queue[str]]:
    """A tool that runs until it is killed, and the lines it prints."""
    command = [*java_program(f"org.apache.kafka.tools.{tool}"), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    lines: queue.Queue[str] = queue.Queue()

    def pump() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.strip())

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.kill()
        process.wait()
        reader.join()


def verify_replicas(cluster: Cluster, topic: str, end: dict[str, int]) -> list[str]:
    """What ReplicaVerificationTool complains about, from the first record to these ends."""
    complaints: list[str] = []
    options = ("--topics-include", topic, "--time", "-2", "--report-interval-ms", "200")
    verified: set[str] = set()
    with running("ReplicaVerificationTool", "--broker-list", cluster.bootstrap, *options) as lines:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not complaints and verified != end.keys():
            line = lines.get(timeout=deadline - time.monotonic())
            report = REPORT.search(line)
            if report is None:
                if line and "verification process is started" not in line:
                    complaints.append(line)
            elif report[1] == "0":
                # All have been compared as far as they go.
                verified = set(end)
                assert int(report[4]) == len(end)
                assert int(report[3]) == end[report[2]]
    return complaints


def ends(cluster: Cluster, topic: str) -> dict[str, int]:
    """The high watermarks of all partitions."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends"})
    found = {}
    for partition in range(len(leaders(cluster, topic))):
        place = TopicPartition(topic, partition)
        _, high = consumer.get_watermark_offsets(place, timeout=PATIENCE_SECONDS)
        found[f"{topic}-{partition}"] = high
    consumer.close()
    return found


def test_replicas_answer_alike(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, EVERYWHERE, segment_bytes=1_048_576)
    fill(cluster, topic)
    assert verify_replicas(cluster, topic, ends(cluster, topic)) == []


def other_record(batch: bytes) -> bytes:
    """A batch that is valid, of the same length, with another record."""
    damaged = bytearray(batch)
    damaged[-100] ^= 1
    damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4)
    return bytes(damaged)


def test_replica_that_differs_is_noticed(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, [[1, 2, 3]])
    assert produce(cluster, topic, [b"x" * 1000]) == [None]
    await_equal_replicas(cluster, topic)
    cluster.stop(3)
    (segment,) = (cluster.data(3) / f"{topic}-0").glob("*.log")
    segment.write_bytes(other_record(segment.read_bytes()))
    cluster.start(3)
    await_in_sync(cluster, topic, *BROKERS)
    assert verify_replicas(cluster, topic, ends(cluster, topic)) != []
    assert log_bytes(cluster, 3, topic) != log_bytes(cluster, 1, topic)


def test_files_of_replicas_are_alike_and_valid(
    cluster: Cluster, tools: ToolRunner, topic: str
) -> None:
    """Also after each broker was killed: all have led and followed."""
    create_topic(cluster, topic, EVERYWHERE, segment_bytes=1_048_576)
    for broker in BROKERS:
        fill(cluster, topic)
        with down(cluster, topic, broker):
            fill(cluster, topic)
    for partition in range(3):
        content = await_equal_replicas(cluster, topic, partition)
        epochs = [header.leader_epoch for _, header in iterate_headers(content)]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) > 1
    for broker in BROKERS:
        directories = [cluster.data(broker) / f"{topic}-{it}" for it in range(3)]
        files = sorted(file for it in directories for file in it.glob("*.log"))
        assert judge(tools, *files) == []
        indexes = [file for it in directories for file in it.glob("*.*index")]
        assert judge(tools, *indexes) == []
        batches = dump(tools, *files)
        assert sum("isTransactional: true" in line for line in batches) >= 2 * 3 * 20
    await_in_sync(cluster, topic, *BROKERS)


@contextmanager
def down(cluster: Cluster, topic: str, broker: int, *, is_killed: bool = True) -> Iterator[None]:
    """While a broker is down, and in no in-sync set. It is in all of them again afterwards."""
    cluster.kill(broker) if is_killed else cluster.stop(broker)
    others = [it for it in BROKERS if it != broker]
    await_in_sync(cluster, topic, *others)
    try:
        yield
    finally:
        cluster.start(broker)
    await_in_sync(cluster, topic, *BROKERS)


def described(cluster: Cluster, tools: ToolRunner, topic: str, *options: str) -> list[str]:
    """The partitions that TopicCommand lists."""
    arguments = ("--bootstrap-server", cluster.bootstrap, "--describe", "--topic", topic)
    lines = tools.check("TopicCommand", *arguments, *options).lines
    return [line for line in lines if "\tPartition: " in line]


def test_topic_command_finds_under_replicated_partitions(
    cluster: Cluster, tools: ToolRunner, topic: str
) -> None:
    create_topic(cluster, topic, EVERYWHERE, min_insync_replicas=2)

    def listed(option: str) -> list[str]:
        return described(cluster, tools, topic, option)

    assert listed("--under-replicated-partitions") == []
    assert listed("--at-min-isr-partitions") == []
    with down(cluster, topic, 2):
        lines = listed("--under-replicated-partitions")
        assert len(lines) == 3
        for line in lines:
            replicas, synced = re.findall(r"(?:Replicas|Isr): ([\d,]+)", line)
            assert set(replicas.split(",")) == {"1", "2", "3"}
            assert set(synced.split(",")) == {"1", "3"}
        assert len(listed("--at-min-isr-partitions")) == 3
        assert listed("--under-min-isr-partitions") == []
        cluster.kill(3)
        wait_until(lambda: len(listed("--under-min-isr-partitions")) == 3)
        assert listed("--unavailable-partitions") == []
        cluster.start(3)
    assert listed("--under-replicated-partitions") == []


def elect(cluster: Cluster, tools: ToolRunner, kind: str, topic: str, partition: int = 0) -> str:
    arguments = ("--topic", topic, "--partition", partition, "--election-type", kind)
    server = ("--bootstrap-server", cluster.bootstrap)
    return tools.run("LeaderElectionCommand", *server, *arguments).stdout


def test_leader_election_command_elects_preferred_leaders(
    cluster: Cluster, tools: ToolRunner, topic: str
) -> None:
    create_topic(cluster, topic, EVERYWHERE)
    with down(cluster, topic, 1, is_killed=False):
        wait_until(lambda: leaders(cluster, topic)[0] == 2)
        said = elect(cluster, tools, "preferred", topic)
        assert "PREFERRED_LEADER_NOT_AVAILABLE" in said or "not available" in said, said
    assert leaders(cluster, topic)[0] != 1
    said = elect(cluster, tools, "preferred", topic)
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in said
    wait_until(lambda: leaders(cluster, topic) == [1, 2, 3])
    said = elect(cluster, tools, "preferred", topic)
    assert f"Valid replica already elected for partitions {topic}-0" in said


def test_leader_election_command_elects_unclean_leaders(
    cluster: Cluster, tools: ToolRunner, topic: str
) -> None:
    """Broker 2 never had the second record: if it leads, the record is lost, on broker 1 too."""
    create_topic(cluster, topic, [[1, 2]], min_insync_replicas=1)
    assert produce(cluster, topic, [b"first"]) == [None]
    await_in_sync(cluster, topic, 1, 2)
    cluster.kill(2)
    await_in_sync(cluster, topic, 1)
    assert produce(cluster, topic, [b"second"]) == [None]
    cluster.kill(1)
    cluster.start(2)
    wait_until(lambda: leaders(cluster, topic) == [-1])
    said = elect(cluster, tools, "unclean", topic)
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in said
    wait_until(lambda: leaders(cluster, topic) == [2])
    assert produce(cluster, topic, [b"third"]) == [None]
    cluster.start(1)
    await_in_sync(cluster, topic, 1, 2)
    content = await_equal_replicas(cluster, topic, brokers=(1, 2))
    assert (b"first" in content, b"second" in content, b"third" in content) == (True, False, True)


def test_cluster_tool_unregisters_a_broker_that_is_down(
    cluster: Cluster, tools: ToolRunner, topic: str
) -> None:
    create_topic(cluster, topic, EVERYWHERE, min_insync_replicas=2)
    arguments = ("--bootstrap-server", cluster.bootstrap, "--id", 3)
    with down(cluster, topic, 3):
        said = tools.check("ClusterTool", "unregister", *arguments).stdout
        assert "Broker 3 is no longer registered." in said
        assert produce(cluster, topic, [b"without it"]) == [None]
    assert in_sync(cluster, topic) == [{1, 2, 3}] * 3


class Reassignment:
    """ReassignPartitionsCommand for one topic."""

    def __init__(self, cluster: Cluster, tools: ToolRunner, topic: str, directory: Path) -> None:
        self._server = ("--bootstrap-server", cluster.bootstrap)
        self._tools = tools
        self._topic = topic
        self._directory = directory
        self._numbers = itertools.count()

    def generate(self, brokers: str) -> dict[str, Any]:
        """The proposal for these brokers."""
        wanted = {"version": 1, "topics": [{"topic": self._topic}]}
        file = self._written(wanted)
        said = self._run("--generate", "--topics-to-move-json-file", file, "--broker-list", brokers)
        proposal: dict[str, Any] = json.loads(said.split("Proposed partition reassignment")[1][14:])
        return proposal

    def plan(self, *replicas: list[int]) -> dict[str, Any]:
        partitions = [
            {"topic": self._topic, "partition": partition, "replicas": brokers}
            for partition, brokers in enumerate(replicas)
        ]
        return {"version": 1, "partitions": partitions}

    def execute(self, plan: dict[str, Any], *options: str) -> str:
        return self._run("--execute", "--reassignment-json-file", self._written(plan), *options)

    def verify(self, plan: dict[str, Any]) -> str:
        return self._run("--verify", "--reassignment-json-file", self._written(plan))

    def cancel(self, plan: dict[str, Any]) -> str:
        """Throttles are not cleared: the command would wait for brokers that are down."""
        file = self._written(plan)
        return self._run("--cancel", "--reassignment-json-file", file, "--preserve-throttles")

    def list(self) -> str:
        return self._run("--list")

    def _run(self, *arguments: str | Path) -> str:
        tool = "reassign.ReassignPartitionsCommand"
        return self._tools.check(tool, *self._server, *arguments).stdout

    def _written(self, content: object) -> Path:
        file = self._directory / f"{next(self._numbers)}.json"
        file.write_text(json.dumps(content))
        return file


@pytest.fixture
def reassignment(cluster: Cluster, tools: ToolRunner, topic: str, tmp_path: Path) -> Reassignment:
    return Reassignment(cluster, tools, topic, tmp_path)


def test_reassign_command_moves_replicas(
    cluster: Cluster, topic: str, reassignment: Reassignment
) -> None:
    create_topic(cluster, topic, [[1, 2], [1, 2]])
    fill(cluster, topic, partitions=2)
    before = [log_bytes(cluster, 1, topic, partition) for partition in (0, 1)]
    proposal = reassignment.generate("2,3")
    assert {tuple(sorted(it["replicas"])) for it in proposal["partitions"]} == {(2, 3)}
    said = reassignment.execute(proposal, "--throttle", "100000000")
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in said
    wait_until(lambda: "is still in progress" not in reassignment.verify(proposal))
    said = reassignment.verify(proposal)
    for partition in (0, 1):
        assert f"Reassignment of partition {topic}-{partition} is completed." in said
    assert "Clearing broker-level throttles" in said
    await_in_sync(cluster, topic, 2, 3)
    assert reassignment.list().strip() == "No partition reassignments found."
    for partition in (0, 1):
        content = await_equal_replicas(cluster, topic, partition, brokers=(2, 3))
        assert content.startswith(before[partition])  # markers may have followed
        left = cluster.data(1) / f"{topic}-{partition}"
        wait_until(lambda it=left: not it.exists())  # type: ignore[misc]
    assert produce(cluster, topic, [b"later"]) == [None]


def test_reassign_command_cancels(cluster: Cluster, topic: str, reassignment: Reassignment) -> None:
    """A replica is added on a broker that is down, so the reassignment cannot complete. The command
    refuses to begin such a one."""
    create_topic(cluster, topic, [[1, 2]])
    assert produce(cluster, topic, [b"value"]) == [None]
    plan = reassignment.plan([3, 2])
    cluster.kill(3)
    wait_until(lambda: 3 not in brokers_known(cluster))
    begin_reassignment(cluster, topic, (3, 2))
    assert f"Reassignment of partition {topic}-0 is still in progress." in reassignment.verify(plan)
    listed = reassignment.list()
    assert f"{topic}-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
    said = reassignment.cancel(plan)
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in said
    assert reassignment.list().strip() == "No partition reassignments found."
    cluster.start(3)
    assert in_sync(cluster, topic) == [{1, 2}]
    assert produce(cluster, topic, [b"value"]) == [None]
    wait_until(lambda: 3 in brokers_known(cluster))
    assert not (cluster.data(3) / f"{topic}-0").exists()


def begin_reassignment(cluster: Cluster, topic: str, replicas: tuple[int, ...]) -> None:
    partition = {"partition_index": 0, "replicas": replicas}
    with Wire(cluster.bootstrap.split(",")[0]) as wire:
        answer = wire.call(
            "alter_partition_reassignments",
            0,
            timeout=60_000,
            topics=({"name": topic, "partitions": (partition,)},),
        )
    assert answer.responses[0].partitions[0].error_code == 0


def brokers_known(cluster: Cluster) -> set[int]:
    return set(admin(cluster).list_topics(timeout=PATIENCE_SECONDS).brokers)


def test_verifiable_producer_and_consumer_agree_about_a_failover(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Every record is acknowledged and consumed, once. Without the settings, this producer does not
    retry."""
    create_topic(cluster, topic, [[1, 2, 3]], min_insync_replicas=2)
    server = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)
    count = 3_000
    consumer = ("--group-id", unique("group"), "--reset-policy", "earliest", "--verbose")
    settings = tmp_path / "producer.properties"
    settings.write_text(f"enable.idempotence=true\nretries={2**31 - 1}\n")
    options = ("--acks", "-1", "--throughput", "500", "--max-messages", str(count))
    producer = (*options, "--command-config", str(settings))
    with (
        running("VerifiableConsumer", *server, *consumer) as consumed,
        running("VerifiableProducer", *server, *producer) as produced,
    ):
        acknowledged = [await_event(produced, "producer_send_success") for _ in range(count // 3)]
        cluster.kill(1)
        rest, failed = drain(produced, count - len(acknowledged))
        assert failed == []
        values = sorted(int(event["value"]) for event in acknowledged + rest)
        assert values == list(range(count))
        read: list[int] = []
        while len(read) < count:
            read.append(int(await_event(consumed, "record_data")["value"]))
        assert sorted(read) == values
    cluster.start(1)
    await_in_sync(cluster, topic, *BROKERS)
    await_equal_replicas(cluster, topic)


def await_event(lines: queue.Queue[str], name: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        event = parsed(lines.get(timeout=deadline - time.monotonic()))
        if event.get("name") == name:
            return event


def drain(lines: queue.Queue[str], count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The next so many outcomes of a VerifiableProducer: successes and errors."""
    outcomes: dict[str, list[dict[str, Any]]] = {
        "producer_send_success": [],
        "producer_send_error": [],
    }
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, outcomes.values())) < count:
        event = parsed(lines.get(timeout=deadline - time.monotonic()))
        outcomes.get(event.get("name", ""), []).append(event)
    return outcomes["producer_send_success"], outcomes["producer_send_error"]


def parsed(line: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
    return event
