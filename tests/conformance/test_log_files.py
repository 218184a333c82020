"""Apache's DumpLogSegments judges our files, and Apache Kafka serves a data directory of ours.

DumpLogSegments exits with 0 whatever it finds, so its words are read: `judge` turns them into a
list of complaints. Two tests damage a file to show that it does complain.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.conformance.conftest import prepared
from tests.conformance.test_compaction import COMPACTED
from tests.peers.clients import ALL_COMPRESSIONS
from tests.peers.java_runtime import ToolRunner
from tests.peers.kafka import start_kafka
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Record
from tests.peers.servers import Server, start_millstream
from tests.peers.transactional import TransactionalProducer

ALSO_ON_A_WORKER = True

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
RECORDS_PER_COMPRESSION = 800
RECORD_COUNT = RECORDS_PER_COMPRESSION * len(ALL_COMPRESSIONS)
# Of the transactions that are ended, the first two and every third are aborted.
ENDED = 24
COMMITTED = [b"%d" % number for number in range(ENDED - 2) if number % 3]
ABORTED_COUNT = ENDED - len(COMMITTED)
DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}
COMPLAINTS = (
    "invalid bytes",
    "exception",
    "mismatch",
    "not consistent",
    "out of order",
    "not found",
)
INTERNAL_RECORD_TYPES = {
    "__consumer_offsets": ['"type":"1"', '"type":"2"', '"type":"3"', '"group":"classic"'],
    "__transaction_state": ['"transactionalId":"ledger-1"', '"transactionalId":"ledger-2"'],
    "__cluster_metadata": ["TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", '"name":"events"'],
}


def value(number: int) -> bytes:
    """Half of it compresses away."""
    return f"{number}:{random.Random(number).randbytes(800).hex()}".encode()


def fill(server: Server) -> None:
    """Every compression, several segments, an idempotent producer, groups of both protocols."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    events = NewTopic("events", 2, 1, config={"segment.bytes": "1048576", "retention.ms": "-1"})
    compacted = {name.replace("_", "."): str(setting) for name, setting in COMPACTED.items()}
    for created in admin.create_topics(
        [events, NewTopic("table", 1, 1, config=compacted)]
    ).values():
        created.result(PATIENCE_SECONDS)
    client = prepared("confluent")
    for step, compression in enumerate(ALL_COMPRESSIONS):
        first = step * RECORDS_PER_COMPRESSION
        numbers = range(first, first + RECORDS_PER_COMPRESSION)
        records = [
            Record(key=b"k", value=value(number), partition=number % 2) for number in numbers
        ]
        small = {"batch.num.messages": 20}
        options = {"compression": compression, "idempotent": step % 2 == 0, "config": small}
        client.produce(server.bootstrap, "events", records, **options)
    for protocol in ("classic", "consumer"):
        config = {"group.protocol": protocol}
        member = client.join(server.bootstrap, "events", protocol, config)
        member.wait_until(lambda m: len(m.records) == RECORD_COUNT)
        member.close()
    transact(server)


def transact(server: Server) -> None:
    """Transactions of both protocols that overlap, some aborted, the last two left open."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    ledger = NewTopic("ledger", 1, 1, config={"segment.bytes": "1048576", "segment.ms": "1000"})
    admin.create_topics([ledger])["ledger"].result(PATIENCE_SECONDS)
    producers = [
        TransactionalProducer(server.bootstrap, f"ledger-{protocol}", protocol=protocol)
        for protocol in (1, 2)
    ]
    now_ms = int(time.time() * 1000)
    for producer in producers:
        assert producer.init(timeout_ms=900_000) == 0
        producer.begin("ledger")
        assert producer.produce("ledger", [b"open"], timestamp_ms=now_ms).error_code == 0
    for number in range(ENDED):
        producer = producers[number % 2]
        producer.end(committed=b"%d" % (number - 2) in COMMITTED)
        producer.begin("ledger")
        stamp = now_ms + 200 * number  # so that segments roll
        produced = producer.produce("ledger", [b"%d" % number], timestamp_ms=stamp)
        assert produced.error_code == 0
    for producer in producers:
        producer.wire.socket.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was used and cleanly stopped."""
    directory = tmp_path_factory.mktemp("files") / "data"
    server = start_millstream(directory, SETTINGS)
    fill(server)
    server.stop()
    return directory


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed, started again and killed again."""
    directory = tmp_path_factory.mktemp("files") / "data"
    server = start_millstream(directory, SETTINGS)
    fill(server)
    server.kill()
    server = start_millstream(directory, SETTINGS)
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    producer.produce("events", b"after the crash", partition=0)
    producer.flush(PATIENCE_SECONDS)
    server.kill()
    return directory


def dump(tools: ToolRunner, *files: Path, options: Sequence[str] = ()) -> list[str]:
    """What DumpLogSegments says, complaints about indexes (on stderr) included."""
    result = tools.run("DumpLogSegments", "--files", ",".join(map(str, files)), *options)
    return result.lines + result.stderr.splitlines()


def judge(tools: ToolRunner, *files: Path, options: Sequence[str] = ()) -> list[str]:
    """What DumpLogSegments has to complain about."""
    complaints = []
    for line in dump(tools, *files, options=options):
        is_bad_batch = line.startswith("baseOffset:") and "isvalid: true" not in line
        if is_bad_batch or any(words in line.lower() for words in COMPLAINTS):
            complaints.append(line)
    return complaints


def segment_files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"*-*/*{suffix}"))


@pytest.mark.slow_with("data")
@pytest.mark.parametrize("state", ["data", "crashed"])
def test_every_batch_is_valid(
    tools: ToolRunner, request: pytest.FixtureRequest, state: str
) -> None:
    directory = request.getfixturevalue(state)
    logs = segment_files(directory, ".log")
    assert len([log for log in logs if log.parent.name.startswith("events-")]) >= 3
    assert judge(tools, *logs) == []
    batches = [line for line in dump(tools, *logs) if line.startswith("baseOffset:")]
    codecs = {line.split("compresscodec: ")[1].split()[0] for line in batches}
    assert codecs == {"none", "gzip", "snappy", "lz4", "zstd"}
    counted = [
        line for line in dump(tools, *logs, options=["--deep-iteration"]) if "offset:" in line
    ]
    assert len(counted) > RECORD_COUNT


@pytest.mark.parametrize("state", ["data", "crashed"])
@pytest.mark.parametrize("options", [[], ["--verify-index-only"]])
def test_every_index_matches_its_log(
    tools: ToolRunner, request: pytest.FixtureRequest, state: str, options: list[str]
) -> None:
    directory = request.getfixturevalue(state)
    indexes = segment_files(directory, ".index") + segment_files(directory, ".timeindex")
    assert judge(tools, *indexes, options=options) == []
    assert sum(index.stat().st_size for index in indexes) > 1000


def test_producer_snapshots_are_read(tools: ToolRunner, data: Path) -> None:
    snapshots = [f for f in segment_files(data, ".snapshot") if f.parent.name.startswith("events")]
    shown = dump(tools, *snapshots)
    assert any("producerId: 0 producerEpoch: 0" in line for line in shown)


@pytest.mark.parametrize("topic", DECODERS)
def test_internal_topics_decode(tools: ToolRunner, data: Path, topic: str) -> None:
    logs = sorted(data.glob(f"{topic}-*/*.log"))
    shown = "\n".join(dump(tools, *logs, options=[DECODERS[topic]]))
    for kind in INTERNAL_RECORD_TYPES[topic]:
        assert kind in shown, kind
    assert "Error" not in shown
    assert "nknown" not in shown


def test_indexes_of_aborted_transactions_are_read(tools: ToolRunner, data: Path) -> None:
    indexes = sorted(data.glob("ledger-0/*.txnindex"))
    assert len(indexes) > 1
    entries = [
        {name: int(number) for name, number in re.findall(r"(\w+): (-?\d+)", line)}
        for line in dump(tools, *indexes)
        if line.startswith("version:")
    ]
    assert len(entries) == ABORTED_COUNT
    for entry in entries:
        assert entry["firstOffset"] < entry["lastStableOffset"] <= entry["lastOffset"] + 1
    shown = dump(tools, *sorted(data.glob("ledger-0/*.log")), options=["--deep-iteration"])
    assert sum("endTxnMarker: ABORT" in line for line in shown) == ABORTED_COUNT
    assert sum("endTxnMarker: COMMIT" in line for line in shown) == len(COMMITTED)


def test_judge_notices_a_flipped_byte(tools: ToolRunner, data: Path, tmp_path: Path) -> None:
    log = shutil.copy(segment_files(data, ".log")[0], tmp_path)
    damaged = bytearray(Path(log).read_bytes())
    damaged[len(damaged) // 2] ^= 0x10
    Path(log).write_bytes(damaged)
    assert judge(tools, Path(log)) != []


def test_judge_notices_bytes_at_the_end(tools: ToolRunner, data: Path, tmp_path: Path) -> None:
    log = Path(shutil.copy(segment_files(data, ".log")[0], tmp_path))
    log.write_bytes(log.read_bytes() + b"\x00" * 30)
    assert judge(tools, log) != []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_judge_notices_a_shifted_index_entry(
    tools: ToolRunner, data: Path, tmp_path: Path, suffix: str
) -> None:
    """Byte 7 ends the first entry's position in the log, or its timestamp."""
    index = next(
        f for f in segment_files(data, suffix) if "events" in str(f) and f.stat().st_size > 24
    )
    shutil.copy(index.with_suffix(".log"), tmp_path)
    shutil.copy(index.with_suffix(".index"), tmp_path)
    copied = Path(shutil.copy(index, tmp_path))
    damaged = bytearray(copied.read_bytes())
    damaged[7] ^= 1
    copied.write_bytes(damaged)
    assert judge(tools, copied) != []
    assert judge(tools, copied, options=["--verify-index-only"]) != []


def everything(server: Server) -> list[tuple[int, int, bytes | None]]:
    """(partition, offset, value) of every record of `events`."""
    records = prepared("confluent").consume(server.bootstrap, "events", RECORD_COUNT)
    return sorted((r.partition or 0, r.offset or 0, r.value) for r in records)


def committed(server: Server, group: str) -> int:
    """The group's offsets in sum, -1 while the broker has not loaded them yet."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group, "log_level": 0})
    try:
        positions = consumer.committed(
            [TopicPartition("events", p) for p in (0, 1)], timeout=PATIENCE_SECONDS
        )
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT):
            raise
        return -1
    finally:
        consumer.close()
    return sum(position.offset for position in positions)


def committed_values(server: Server) -> list[bytes | None]:
    """What is committed in `ledger`, up to the transactions that are open."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "ledger",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("ledger", 0, 0)])
    values = []
    while (message := consumer.poll(PATIENCE_SECONDS)) is not None and message.error() is None:
        values.append(message.value())
    consumer.close()
    return values


def check_contents(server: Server) -> None:
    wait_until(
        lambda: committed(server, "classic") == committed(server, "consumer") == RECORD_COUNT
    )
    numbers = sorted(int((content or b"").split(b":")[0]) for *_, content in everything(server))
    assert numbers == list(range(RECORD_COUNT))
    assert committed_values(server) == COMMITTED
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, "events")
    settings = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert settings["retention.ms"].value == "-1"


@pytest.mark.slow
def test_apache_kafka_serves_a_data_directory_of_ours_and_gives_it_back(
    data: Path, tmp_path: Path
) -> None:
    home = tmp_path / "kafka"
    shutil.copytree(data, home / "data")
    kafka = start_kafka(home, SETTINGS)
    try:
        check_contents(kafka)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        producer.produce("table", b"written by Apache Kafka", b"key")
        assert producer.flush(PATIENCE_SECONDS) == 0
    finally:
        kafka.stop()
    server = start_millstream(home / "data", SETTINGS)
    try:
        check_contents(server)
        (record,) = prepared("confluent").consume(server.bootstrap, "table", 1)
        assert record.value == b"written by Apache Kafka"
    finally:
        server.stop()
