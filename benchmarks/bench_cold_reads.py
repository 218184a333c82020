"""Others' latency while a consumer reads gigabytes that are not in memory.

A producer sends one record at a time and waits for its answer, first alone, then while a consumer
reads a topic whose files were dropped from the page cache. A broker that reads the disk on its
event loop shows it here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.bench_consume import consume
from benchmarks.bench_produce import produce
from benchmarks.measurement import Measurement, percentile
from benchmarks.raw_client import connect, produce_request, receive_frame
from benchmarks.targets import Scale, Target, create_topic

RECORD_BYTES = 1000


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    quiet = Measurement("produce p99, nobody reads", "ms", "lower is better")
    cold = Measurement("produce p99 beside cold reads", "ms", "lower is better", bar=1.0)
    for target in targets:
        count = scale.of(2_000_000)
        produce(target, RECORD_BYTES, count, "1")
        topic = target.last_topic
        other = create_topic(target, partitions=1)
        quiet.add(target.name, percentile(_round_trips(target, other, None), 0.99))
        for _ in range(scale.rounds):
            drop_from_memory(target.directory / "data", topic)
            reader = _start_reader(target, topic, count)
            cold.add(target.name, percentile(_round_trips(target, other, reader), 0.99))
            reader.join()
    yield quiet
    yield cold


def drop_from_memory(data: Path, topic: str) -> None:
    """Have the kernel forget a topic's segments, so that reading them means reading the disk."""
    for path in data.glob(f"{topic}-*/*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)  # dirty pages cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _start_reader(target: Target, topic: str, count: int) -> BaseProcess:
    """A consumer in a process of its own, whose interpreter's lock is not the measuring one's."""
    address = Target(name=target.name, port=target.port)
    reader = get_context("spawn").Process(target=consume, args=(address, topic, count))
    reader.start()
    return reader


def _round_trips(target: Target, topic: str, while_runs: BaseProcess | None) -> list[float]:
    """Milliseconds per acks=1 request, for as long as the reader runs, or a while."""
    request = produce_request(topic, 0, acks=1)
    times: list[float] = []
    with connect(target.bootstrap) as connection:
        while len(times) < 500 or (while_runs is not None and while_runs.is_alive()):
            started = time.perf_counter()
            connection.sendall(request)
            receive_frame(connection)
            times.append((time.perf_counter() - started) * 1000)
            time.sleep(0.001)
    return times
