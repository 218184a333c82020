"""TLS beside Apache Kafka: producing and consuming 1 KB records, and handshakes per second.

Both brokers have the same certificate (ECDSA, P-256) and the same TLS 1.3; clients show none. A
handshake is a new connection without resumption that is closed when it is complete, eight of them
under way at once.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.peers.secured import Secured, start_secured

from benchmarks.apache_kafka import OPTIMISED
from benchmarks.bench_consume import TUNED
from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target

KINDS = {"millstream": "millstream", "kafka": "apache-kafka"}
RECORD_BYTES = 1000
AT_ONCE = 8
SECONDS = 4.0
WARM_UP_SECONDS = 8.0  # for the just-in-time compiler
PATIENCE_SECONDS = 120
OPEN = {"listener.name.ssl.ssl.client.auth": "none", "allow.everyone.if.no.acl.found": "true"}


@dataclass
class Door:
    """A broker's TLS listener."""

    secured: Secured
    topics: int = 0

    @property
    def client(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.secured.address("SSL"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.secured.certificates.authority),
        }

    def new_topic(self) -> str:
        self.topics += 1
        return f"tls-{self.topics}"


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    produced = Measurement("produce 1 KB over TLS, acks=1", "MB/s", bar=1.0)
    consumed = Measurement("consume 1 KB over TLS", "MB/s", bar=1.0)
    handshakes = Measurement("TLS handshakes", "handshakes/s", bar=1.0)
    costs = Measurement("broker's CPU time per handshake", "ms", "lower is better", bar=1.0)
    count = scale.of(400_000)
    with ExitStack() as stack:
        doors = {it.name: Door(stack.enter_context(_started(KINDS[it.name]))) for it in targets}
        for door in doors.values():
            _produce(door, count // 2)
            _shake(door, scale.seconds(WARM_UP_SECONDS))
        for _ in range(scale.rounds):
            for name, door in doors.items():
                topic, rate = _produce(door, count)
                produced.add(name, rate)
                consumed.add(name, _consume(door, topic, count))
                per_second, milliseconds = _shake(door, scale.seconds(SECONDS))
                handshakes.add(name, per_second)
                costs.add(name, milliseconds)
    yield from (produced, consumed, handshakes, costs)


@contextmanager
def _started(kind: str) -> Iterator[Secured]:
    with tempfile.TemporaryDirectory() as directory:
        secured = start_secured(kind, Path(directory), settings=OPEN, jvm_options=OPTIMISED)
        try:
            yield secured
        finally:
            secured.stop()


def _produce(door: Door, count: int) -> tuple[str, float]:
    """The topic, and MB per second from the first record to the last acknowledgement."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = door.new_topic()
    admin = AdminClient(door.client)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_SECONDS)
    producer = Producer(
        {
            **door.client,
            "acks": "1",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    producer.list_topics(topic, timeout=PATIENCE_SECONDS)
    value = b"x" * RECORD_BYTES
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(PATIENCE_SECONDS)
    assert left == 0, f"{left} records left"
    return topic, count * RECORD_BYTES / 1e6 / (time.perf_counter() - started)


def _consume(door: Door, topic: str, count: int, settings: Mapping[str, object] = TUNED) -> float:
    """MB per second, from the first record to the last."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {**door.client, "group.id": "bench", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = len(consumer.consume(1, timeout=PATIENCE_SECONDS))
        started = time.perf_counter()
        while seen < count:
            messages = consumer.consume(min(10_000, count - seen), timeout=30)
            assert messages, f"{seen} of {count} records"
            seen += len(messages)
        return count * RECORD_BYTES / 1e6 / (time.perf_counter() - started)
    finally:
        consumer.close()


def _shake(door: Door, seconds: float) -> tuple[float, float]:
    """Handshakes per second, and the broker's CPU time for each in milliseconds."""
    broker = psutil.Process(door.secured.server.process.pid)
    host, port = door.secured.address("SSL").rsplit(":", 1)
    context = door.secured.certificates.client_context()
    begun, cpu = time.perf_counter(), _cpu_seconds(broker)
    count = shake_for((host, int(port)), context, seconds)
    took, cpu = time.perf_counter() - begun, _cpu_seconds(broker) - cpu
    return count / took, cpu / count * 1000


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def shake_for(address: tuple[str, int], context: ssl.SSLContext, seconds: float) -> int:
    """Keep some handshakes under way for so long; returns how many were completed."""
    selector = selectors.DefaultSelector()
    for _ in range(AT_ONCE):
        selector.register(_connect(address, context), selectors.EVENT_READ)
    count = 0
    deadline = time.perf_counter() + seconds
    while selector.get_map():
        for key, _ in selector.select(10):
            connection = key.fileobj
            assert isinstance(connection, ssl.SSLSocket)
            try:
                connection.do_handshake()
            except ssl.SSLWantReadError:
                continue
            selector.unregister(connection)
            connection.close()
            count += 1
            if time.perf_counter() < deadline:
                selector.register(_connect(address, context), selectors.EVENT_READ)
    return count


def _connect(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection whose client has said hello."""
    raw = socket.create_connection(address)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Closed at once, without keeping the port.
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.setblocking(False)
    wrapped = context.wrap_socket(raw, server_hostname=address[0], do_handshake_on_connect=False)
    with suppress(ssl.SSLWantReadError):
        wrapped.do_handshake()
    return wrapped
