"""Archived records beside Apache Kafka's tiered storage, both in a directory: the CPU time that
archiving takes, what is stored, and a consumer that reads what only the archive has.

Kafka's storage manager is the one of its own tests, which copies segments as they are. JSON orders
of about 200 bytes, in segments of 16 MB, compressed by nobody.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from tests.peers.java_runtime import jars
from tests.peers.kafka import tiered_settings
from tests.peers.wire import Wire

from benchmarks.apache_kafka import KafkaTarget
from benchmarks.bench_consume import consume
from benchmarks.measurement import Measurement
from benchmarks.targets import MillstreamTarget, Scale, Target, create_topic, running

SEGMENT_BYTES = 16 * 1024 * 1024
EARLIEST_LOCAL = -4
PATIENCE_SECONDS = 600
QUICK = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}


class TieredKafka(KafkaTarget):
    def _java(self) -> list[str]:
        command = super()._java()
        return [*command[:-1], f"{jars('kafka-tiered')}/*"]

    def prepare(self) -> None:
        self.settings = {**QUICK, **tiered_settings(remote_of(self))}
        super().prepare()


class ArchivingMillstream(MillstreamTarget):
    def prepare(self) -> None:
        self.settings = {**QUICK, "millstream.archive.path": str(remote_of(self))}


KINDS = {"millstream": ArchivingMillstream, "kafka": TieredKafka}


def remote_of(target: Target) -> Path:
    return target.directory / "remote"


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    archived = Measurement("CPU time to archive 100 MB", "s", "lower is better")
    stored = Measurement("archived bytes of 100 MB", "MB", "lower is better")
    first = Measurement("consume archived 200 B, first time", "records/s", bar=1.0)
    again = Measurement("consume archived 200 B, again", "records/s", bar=1.0)
    cost = Measurement("broker's CPU time to read 100 MB again", "s", "lower is better")
    count = max(scale.of(1_000_000), 300_000)
    with ExitStack() as stack:
        for target in targets:
            subject = stack.enter_context(started(target.name))
            seconds, size, end = archive(subject, count)
            archived.add(target.name, 1e8 * seconds / size)
            remote = sum(it.stat().st_size for it in remote_of(subject).rglob("*") if it.is_file())
            stored.add(target.name, remote * 100 / size)
            first.add(target.name, consume(subject, subject.last_topic, end))
            for _ in range(scale.rounds):
                before = cpu_seconds(subject)
                again.add(target.name, consume(subject, subject.last_topic, end))
                cost.add(target.name, 1e8 * (cpu_seconds(subject) - before) / size)
    yield from (archived, stored, first, again, cost)


@contextmanager
def started(name: str) -> Iterator[Target]:
    target: Target = KINDS[name]()
    with running(target):
        yield target


def archive(target: Target, count: int) -> tuple[float, float, int]:
    """Fill a topic, and wait until all but the last segment is archived only. Returns the CPU
    seconds since the last record was acknowledged, the bytes that are archived, and where the
    broker's own log begins."""
    topic = create_topic(
        target,
        partitions=1,
        remote_storage_enable="true",
        segment_bytes=str(SEGMENT_BYTES),
        remote_log_copy_disable="true",
    )
    size = fill(target, topic, count)
    before = cpu_seconds(target)
    change(target, topic, {"remote.log.copy.disable": "false", "local.retention.bytes": "1"})
    deadline = time.monotonic() + PATIENCE_SECONDS
    wanted = count - int(1.5 * count * SEGMENT_BYTES / size)
    while (start := earliest_local(target, topic)) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{target.name} has archived {start} of {count} records")
        time.sleep(0.05)
    return cpu_seconds(target) - before, size * start / count, start


def fill(target: Target, topic: str, count: int) -> int:
    """Returns the bytes of all values."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "linger.ms": 5,
            "batch.size": 20_000,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    source, size = random.Random(7), 0
    for number in range(count):
        value = json.dumps(
            {
                "id": number,
                "customer": f"customer-{source.randrange(10_000)}",
                "status": source.choice(["new", "paid", "shipped", "returned"]),
                "amount": source.randrange(100_000) / 100,
                "note": f"{source.getrandbits(320):080x}",
            }
        ).encode()
        size += len(value)
        producer.produce(topic, value, key=b"%d" % (number % 10_000))
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(PATIENCE_SECONDS):
        raise TimeoutError(f"{target.name} did not take all records")
    return size


def change(target: Target, topic: str, settings: dict[str, str]) -> None:
    from millstream.admin.settings import Resource, alter_settings
    from millstream.client.cluster import Cluster

    with Cluster(target.bootstrap) as cluster:
        alter_settings(cluster, Resource.TOPIC, topic, settings)


def earliest_local(target: Target, topic: str) -> int:
    partition = {"partition_index": 0, "timestamp": EARLIEST_LOCAL, "current_leader_epoch": -1}
    asked = ({"name": topic, "partitions": (partition,)},)
    with Wire(target.bootstrap) as wire:
        answer = wire.call("list_offsets", 9, replica_id=-1, isolation_level=0, topics=asked)
    return int(answer.topics[0].partitions[0].offset)


def cpu_seconds(target: Target) -> float:
    """Of the broker and its processes."""
    assert target.process is not None
    broker = psutil.Process(target.process.pid)
    total = 0.0
    for each in (broker, *broker.children(recursive=True)):
        times = each.cpu_times()
        total += times.user + times.system
    return total
