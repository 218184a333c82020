"""Change data capture from PostgreSQL: rows per second of CPU time and of wall time.

A table of 8 columns (bigint key, int, 2 text, numeric, timestamptz, bool, double), rows of about
155 bytes in transactions of 100. Measured are the encoder alone, over messages that are in memory;
reading a slot and encoding, with the records thrown away, beside Debezium's embedded engine, which
counts its events: JSON without schemas; and a whole capture, exactly once into a broker, beside the
same. All from the first event on; rows of the stream are written while the reader is stopped.
"""

from __future__ import annotations

import json
import select
import struct
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from psycopg import pq
from tests.connect.capture.source import SETTINGS, Source, open_source
from tests.peers.cache import PeerMissing
from tests.peers.debezium import running_debezium
from tests.peers.postgres import PostgresServer, start_postgres

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target
from millstream.connect.capture._encoder import AvroEnvelope
from millstream.connect.capture.encoding import TableEncoder, value_types
from millstream.connect.capture.types import TypeCatalogue

ROWS = 200_000
ROWS_PER_TRANSACTION = 100
BAR_ROWS_PER_CPU_SECOND = 1_000_000
DEBEZIUM = "debezium"
READ_SECONDS_MAX = 120.0
TABLE = """
CREATE TABLE bench (id bigint PRIMARY KEY, quantity int, customer text, remark text, price numeric,
                    created timestamptz, is_paid bool, weight float8)
"""
FILL = """
INSERT INTO bench
SELECT i, i %% 1000, 'customer number ' || i, 'a remark of some length, with a comma, number ' || i,
       i / 100.0, '2026-01-01'::timestamptz + i * interval '1.000123 seconds', i %% 2 = 0, i * 1.1
  FROM generate_series(%s::int, %s::int) i
"""
JVM_OPTIONS = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xmx1g")
FORMATS = ("json", "json, flat", "json, transactions", "avro")


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    rows = scale.of(ROWS)
    try:
        server = start_postgres("fsync=off", "wal_level=logical", "max_wal_size=4GB")
    except PeerMissing as missing:
        print(f"PostgreSQL is left out: {missing}")
        return
    try:
        yield from _encoder_alone(server, rows, scale.rounds)
        theirs = {} if scale.is_quick else _debezium_rates(server, rows)
        yield from _compared("read and encoded", _our_rates(server, rows), theirs)
        for target in targets:
            captured = _capture_rates(server, rows, target)
            yield from _compared(f"captured into {target.name}", captured, theirs)
    finally:
        server.remove()


# The encoder


def _encoder_alone(server: PostgresServer, rows: int, rounds: int) -> Iterator[Measurement]:
    with open_source(server.new_database()) as source:
        source.execute(TABLE)
        fill(source.connection, 0, rows)
        messages = read_slot(source, rows)
        for name in FORMATS:
            measurement = Measurement(f"rows encoded as {name}", "rows per CPU-second")
            measurement.notes["millstream"] = f"bar: {BAR_ROWS_PER_CPU_SECOND:,}"
            for _ in range(rounds + 1):
                measurement.add("millstream", _encoding_rate(source, messages, rows, name))
            yield measurement


def _encoding_rate(source: Source, messages: list[bytes], rows: int, name: str) -> float:
    source.settings = replace(
        SETTINGS,
        shape="flat" if "flat" in name else "debezium",
        transaction_metadata="transactions" in name,
    )
    source.encode(messages[:3])  # makes the encoder, for the Relation message among them
    if name == "avro":
        source.feed.register(_avro_encoder(source))
    started = time.process_time()
    for at in range(3, len(messages), 2_000):
        feed(source, messages[at : at + 2_000])
    return rows / (time.process_time() - started)


def _avro_encoder(source: Source) -> TableEncoder:
    """Without a registry, whose answer is only a number."""
    table, settings = source.tables["bench"], source.settings
    types = value_types(table, settings, TypeCatalogue())
    envelope = AvroEnvelope(table, settings, types, "version", "postgresql", 1, 2)
    return TableEncoder(table, settings, envelope, source.context, source.buffer)


def feed(source: Source, messages: list[bytes]) -> None:
    """Encode messages, and forget the records."""
    at = 0
    while (at := source.feed.feed(messages, at)) < len(messages):
        if messages[at][25:26] == b"R" and "bench" in source.tables:
            at += 1  # it is known
            continue
        source.control(messages[at])
        at += 1
    source.buffer.clear()


# Reading and encoding


@dataclass
class Rates:
    """What one way of capturing reached."""

    per_second: float
    per_cpu_second: float
    memory_mb: float = 0.0


def _compared(what: str, ours: dict[str, Rates], theirs: dict[str, Rates]) -> Iterator[Measurement]:
    for phase, rates in ours.items():
        name = f"rows {what}, {phase}"
        wall = Measurement(name, "rows/s", bar=5.0, peer=DEBEZIUM)
        cpu = Measurement(name, "rows per CPU-second", bar=10.0, peer=DEBEZIUM)
        memory = Measurement(name, "MB", "lower is better", bar=0.33, peer=DEBEZIUM)
        for who, found in (("millstream", rates), (DEBEZIUM, theirs.get(phase))):
            if found is not None:
                wall.add(who, found.per_second)
                cpu.add(who, found.per_cpu_second)
                if found.memory_mb:
                    memory.add(who, found.memory_mb)
        yield wall
        yield cpu
        if rates.memory_mb:
            yield memory


def _our_rates(server: PostgresServer, rows: int) -> dict[str, Rates]:
    with open_source(server.new_database()) as source:
        source.execute(TABLE)
        fill(source.connection, 0, rows)
        with measured(rows) as streamed:
            read_slot(source, rows, encode=True)
        with measured(rows) as copied:
            _copy(source)
        return {"stream": streamed, "snapshot": copied}


@contextmanager
def measured(rows: int) -> Iterator[Rates]:
    rates = Rates(0.0, 0.0)
    wall, cpu = time.perf_counter(), time.process_time()
    yield rates
    rates.per_second = rows / (time.perf_counter() - wall)
    rates.per_cpu_second = rows / (time.process_time() - cpu)


def _copy(source: Source) -> None:
    encoder = source.encoder(source.tables["bench"])
    with source.connection.cursor().copy("COPY bench TO STDOUT") as lines:
        batch: list[bytes] = []
        for line in lines:
            batch.append(bytes(line))
            if len(batch) == 2_000:
                encoder.copy(batch, flag="true", lsn=1, xid=1, snapshot_time_us=1, now_us=1)
                source.buffer.clear()
                batch = []
        encoder.copy(batch, flag="true", lsn=1, xid=1, snapshot_time_us=1, now_us=1)
        source.buffer.clear()


def _debezium_rates(server: PostgresServer, rows: int) -> dict[str, Rates]:
    url, every = server.new_database(), max(rows // 100, 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        fill(connection, 0, rows)
        settings = {"snapshot.mode": "initial", "max.queue.size": "20000"}
        arguments = ("count", str(every))
        with running_debezium(url, settings, *arguments, jvm_options=JVM_OPTIONS) as engine:
            process = psutil.Process(engine.process.pid)
            lines = [engine.next_line() for _ in range(rows // every)]
            found = {"snapshot": _rates_of(lines, process)}
            with stopped(process):
                fill(connection, rows, 2 * rows)
            lines = [engine.next_line() for _ in range(rows // every)]
            return found | {"stream": _rates_of(lines, process)}


def _rates_of(lines: list[str], process: psutil.Process) -> Rates:
    """Of lines with count, milliseconds and CPU milliseconds, from the first one on."""
    (first, start, start_cpu), *_, (last, end, end_cpu) = (
        [int(it) for it in line.split()] for line in lines
    )
    rows = last - first
    cpu_ms = max(end_cpu - start_cpu, 1)
    return Rates(1000 * rows / max(end - start, 1), 1000 * rows / cpu_ms, memory_mb(process))


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    yield
    process.resume()


def memory_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


# A whole capture


def _capture_rates(server: PostgresServer, rows: int, target: Target) -> dict[str, Rates]:
    url, name = server.new_database(), f"bench{uuid.uuid4().hex[:8]}"
    settings = {
        "name": name,
        "database": url,
        "tables": ["public.bench"],
        "broker": target.bootstrap,
    }
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        fill(connection, 0, rows)
        command = [sys.executable, "-m", "tests.connect.capture.driver", json.dumps(settings)]
        capture = psutil.Popen(command)
        try:
            end = EndOffset(target, f"{name}.public.bench")
            found = {"snapshot": end.rates_until(rows, capture)}
            with stopped(capture):
                fill(connection, rows, 2 * rows)
            return found | {"stream": end.rates_until(rows, capture)}
        finally:
            capture.kill()
            capture.wait()


class EndOffset:
    """The end of a topic of one partition, which tells how much was written."""

    def __init__(self, target: Target, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "bench"})
        self._partition = TopicPartition(topic, 0)

    def rates_until(self, rows: int, process: psutil.Process) -> Rates:
        """From the first new records on, unless all come at once."""
        base = self._end()
        wall, cpu = self._now(process)
        start = self._wait_until(base + 1, process)
        if start < base + rows:
            wall, cpu, base, rows = *self._now(process), start, base + rows - start
        end = self._wait_until(base + rows, process)
        end_wall, end_cpu = self._now(process)
        count = end - base
        return Rates(
            count / (end_wall - wall), count / max(end_cpu - cpu, 0.01), memory_mb(process)
        )

    def _now(self, process: psutil.Process) -> tuple[float, float]:
        return time.perf_counter(), sum(process.cpu_times()[:2])

    def _wait_until(self, offset: int, process: psutil.Process) -> int:
        deadline = time.monotonic() + READ_SECONDS_MAX
        while (end := self._end()) < offset:
            if time.monotonic() > deadline or not process.is_running():
                raise RuntimeError(f"{self._partition.topic} ends at {end}, not at {offset}")
            time.sleep(0.005)
        return end

    def _end(self) -> int:
        try:
            _, end = self._consumer.get_watermark_offsets(self._partition, timeout=10)
        except KafkaException:
            return 0  # it is not there yet
        return int(end)


# The database


def fill(connection: psycopg.Connection, start: int, end: int) -> None:
    for first in range(start, end, ROWS_PER_TRANSACTION):
        connection.execute(FILL, [first, min(first + ROWS_PER_TRANSACTION, end) - 1])


def read_slot(source: Source, rows: int, encode: bool = False) -> list[bytes]:
    """Messages until so many rows have come; encoded and dropped on the way, or returned."""
    stream, batch = source.stream, list[bytes]()
    seen, deadline = 0, time.monotonic() + READ_SECONDS_MAX
    while seen < rows:
        size, content = stream.get_copy_data(1)
        if size > 0:
            message = bytes(content)
            if message[0] == ord("w"):
                batch.append(message)
                seen += message[25] == ord("I")
            if encode and len(batch) >= 2_000:
                feed(source, batch)
                batch = []
            continue
        if stream.error_message or time.monotonic() > deadline:
            raise RuntimeError(f"the slot cannot be read: {stream.error_message!r}")
        select.select([stream.socket], [], [], 1.0)
        stream.consume_input()
        stream.put_copy_data(struct.pack(">cQQQQB", b"r", 0, 0, 0, 0, 0))
    if encode:
        feed(source, batch)
    assert stream.status == pq.ConnStatus.OK
    return batch
