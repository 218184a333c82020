"""Change data capture from PostgreSQL: rows per second of CPU time and of wall time.

A table of 8 columns (bigint key, int, 2 text, numeric, timestamptz, bool, double), rows of about
155 bytes in transactions of 100. Measured are the encoder alone, over messages that are in memory;
and reading a slot and encoding, with the records thrown away, beside Debezium's embedded engine,
which counts its events: JSON without schemas, from the first event on.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
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
READ_SECONDS_MAX = 600.0
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
        with_peers = [target.name for target in targets] != ["millstream"]
        yield from _beside_debezium(server, rows, with_peers)
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


def _beside_debezium(server: PostgresServer, rows: int, with_peers: bool) -> Iterator[Measurement]:
    ours = _our_rates(server, rows)
    theirs = _debezium_rates(server, rows) if with_peers else {}
    for phase, rates in ours.items():
        wall = Measurement(f"rows captured, {phase}", "rows/s", bar=5.0, peer=DEBEZIUM)
        cpu = Measurement(f"rows captured, {phase}", "rows per CPU-second", bar=10.0, peer=DEBEZIUM)
        for name, found in (("millstream", rates), (DEBEZIUM, theirs.get(phase))):
            if found is not None:
                wall.add(name, found.per_second)
                cpu.add(name, found.per_cpu_second)
        yield wall
        yield cpu


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
            found = {"snapshot": _rates_of([engine.next_line() for _ in range(rows // every)])}
            fill(connection, rows, 2 * rows)
            lines = [engine.next_line() for _ in range(rows // every)]
            return found | {"stream": _rates_of(lines)}


def _rates_of(lines: list[str]) -> Rates:
    """Of lines with count, milliseconds and CPU milliseconds, from the first one on."""
    (first, start, start_cpu), *_, (last, end, end_cpu) = (
        [int(it) for it in line.split()] for line in lines
    )
    rows = last - first
    return Rates(1000 * rows / (end - start), 1000 * rows / max(end_cpu - start_cpu, 1))


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
