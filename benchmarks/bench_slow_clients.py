"""200 clients that pipeline fetches and read nothing: memory, and what a neighbour notices.

Each hostile client sends 300 fetches in one packet and never reads. Meanwhile a producer sends one
record at a time and waits for its response. A broker that produces responses without a bound shows
it here.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.bench_produce import produce
from benchmarks.measurement import Measurement, percentile
from benchmarks.raw_client import connect, produce_request, receive_frame
from benchmarks.targets import Scale, Target, create_topic

HOSTILE = 200
PIPELINED = 300
FETCH_BYTES = 50 * 1024 * 1024


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    hostile = 10 if scale.is_quick else HOSTILE
    quiet = Measurement("produce p99, no hostile clients", "ms", "lower is better")
    beside = Measurement(
        f"produce p99 beside {hostile} clients that do not read", "ms", "lower is better", bar=1.0
    )
    resident = Measurement(
        f"resident memory beside {hostile} such clients", "MB", "lower is better", bar=1.0
    )
    for _ in range(scale.rounds):
        for target in targets:
            produce(target, 1000, scale.of(20_000), "1")
            crowded, own = target.last_topic, create_topic(target, partitions=1)
            seconds = scale.seconds(5.0)
            quiet.add(target.name, percentile(_round_trips(target, own, seconds), 0.99))
            with ExitStack() as stack:
                for _ in range(hostile):
                    connection = stack.enter_context(connect(target.bootstrap))
                    connection.sendall(fetch_request(crowded) * PIPELINED)
                beside.add(target.name, percentile(_round_trips(target, own, seconds), 0.99))
                resident.add(target.name, target.memory_mb())
    yield quiet
    yield beside
    yield resident


def fetch_request(topic: str) -> bytes:
    """Fetch v4 of everything in partition 0."""
    name = topic.encode()
    header = struct.pack(">hhih", 1, 4, 0, 0)
    body = struct.pack(">iiiib", -1, 0, 1, FETCH_BYTES, 0)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, 0, 0, FETCH_BYTES)
    return struct.pack(">i", len(header) + len(body)) + header + body


def _round_trips(target: Target, topic: str, seconds: float) -> list[float]:
    """Milliseconds per acks=1 request."""
    request = produce_request(topic, 0, acks=1)
    times: list[float] = []
    with connect(target.bootstrap) as connection:
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            connection.sendall(request)
            receive_frame(connection)
            times.append((time.perf_counter() - started) * 1000)
            time.sleep(0.001)
    return times
