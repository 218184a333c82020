"""A whole capture: from PostgreSQL to topics of a broker, exactly once.

Rows of 8 columns (as in bench_capture.py), in transactions of 100. Measured are the first snapshot,
a backlog of the stream, and the latency from the commit in the database to a read_committed
consumer at 1,000 rows a second. The notes have the CPU time of the capture per 100,000 rows.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer, TopicPartition
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres

from benchmarks.bench_capture import FILL, ROWS_PER_TRANSACTION, TABLE
from benchmarks.measurement import Measurement, percentile
from benchmarks.targets import Scale, Target
from millstream.connect.capture.capture import Capture

ROWS = 500_000
LATENCY_SECONDS = 10.0
ROWS_PER_TICK, TICK_SECONDS = 10, 0.01  # 1,000 rows a second
POLL_SECONDS = 0.002
WARM_UP_SECONDS = 1.0  # in which the consumer connects and begins to fetch


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    try:
        server = start_postgres("fsync=off", "wal_level=logical", "max_wal_size=4GB")
    except PeerMissing as missing:
        print(f"PostgreSQL is left out: {missing}")
        return
    snapshot = Measurement("capture, snapshot", "rows/s")
    stream = Measurement("capture, stream", "rows/s")
    p50 = Measurement("capture, commit to consumer, p50", "ms", "lower is better")
    p99 = Measurement("capture, commit to consumer, p99", "ms", "lower is better")
    try:
        for target in targets:
            bench = _Bench(server, target, scale.of(ROWS))
            for _ in range(scale.rounds):
                bench.measure_snapshot(snapshot)
            bench.measure_stream(stream)
            times = bench.latencies(scale.seconds(LATENCY_SECONDS))
            p50.add(target.name, percentile(times, 0.5))
            p99.add(target.name, percentile(times, 0.99))
    finally:
        server.remove()
    yield from (snapshot, stream, p50, p99)


class _Bench:
    """A table, and captures of it under new names."""

    def __init__(self, server: PostgresServer, target: Target, rows: int) -> None:
        self.url, self.target, self.rows = server.new_database(), target, rows
        self.database = psycopg.connect(self.url, autocommit=True)
        self.database.execute(TABLE)
        self.database.execute(FILL, (1, rows))
        self.database.execute("VACUUM ANALYZE bench")
        self.last = rows
        self.name = ""

    @contextmanager
    def capturing(self, name: str) -> Iterator[Capture]:
        capture = Capture(
            name=name,
            database=self.url,
            tables=["public.bench"],
            broker=self.target.bootstrap,
        )
        thread = threading.Thread(target=capture.run)
        thread.start()
        try:
            yield capture
        finally:
            capture.stop()
            thread.join()

    def measure_snapshot(self, measurement: Measurement) -> None:
        if self.name:
            self.database.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = current_database()"
            )
        self.name = f"bench{uuid.uuid4().hex[:8]}"
        started, cpu = time.perf_counter(), time.process_time()
        with self.capturing(self.name) as capture:
            while capture.progress.phase != "streaming":
                time.sleep(POLL_SECONDS)
            self._add(measurement, started, cpu)

    def measure_stream(self, measurement: Measurement) -> None:
        for first in range(self.last + 1, self.last + self.rows, ROWS_PER_TRANSACTION):
            self.database.execute(FILL, (first, first + ROWS_PER_TRANSACTION - 1))
        self.last += self.rows
        row = self.database.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
        assert row is not None
        self.database.execute("SELECT pg_logical_emit_message(true, 'end', '')")
        started, cpu = time.perf_counter(), time.process_time()
        with self.capturing(self.name) as capture:
            while capture.progress.lsn < int(row[0]):
                time.sleep(POLL_SECONDS)
            self._add(measurement, started, cpu)

    def _add(self, measurement: Measurement, started: float, cpu: float) -> None:
        measurement.add(self.target.name, self.rows / (time.perf_counter() - started))
        per_100k = (time.process_time() - cpu) * 100_000 / self.rows
        measurement.notes[self.target.name] = f"{per_100k:.2f} s CPU per 100,000 rows"

    def latencies(self, seconds: float) -> list[float]:
        """Milliseconds from the commit of each row to its consumer."""
        times: list[float] = []
        stopping = threading.Event()
        with self.capturing(self.name) as capture:
            while capture.progress.phase != "streaming":
                time.sleep(POLL_SECONDS)
            # Before the first row: one committed before the consumer knows the end is never read.
            consumer = self._consumer()
            reader = threading.Thread(target=_consume, args=(consumer, times, stopping))
            reader.start()
            started = time.perf_counter()
            ticks = int(seconds / TICK_SECONDS)
            for tick in range(ticks):
                self.database.execute(FILL, (self.last + 1, self.last + ROWS_PER_TICK))
                self.last += ROWS_PER_TICK
                time.sleep(max(started + (tick + 1) * TICK_SECONDS - time.perf_counter(), 0))
            while len(times) < ticks * ROWS_PER_TICK:
                time.sleep(POLL_SECONDS)
            stopping.set()
            reader.join()
        return times

    def _consumer(self) -> Consumer:
        """A consumer that fetches from the end of the captured topic."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.target.bootstrap,
                "group.id": "latency",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        partition = TopicPartition(f"{self.name}.public.bench", 0)
        _, partition.offset = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        consumer.poll(WARM_UP_SECONDS)
        return consumer


def _consume(consumer: Consumer, times: list[float], stopping: threading.Event) -> None:
    while not stopping.is_set():
        message = consumer.poll(0.05)  # consume() would wait for a full batch
        if message is None or message.error() is not None:
            continue
        value = message.value()
        if value is not None:
            commit_us = json.loads(value)["source"]["ts_us"]
            times.append(time.time() * 1000 - commit_us / 1000)
    consumer.close()
