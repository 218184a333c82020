"""How much a cleaning disturbs the thread that serves requests.

A thread ticks like an event loop: every millisecond it does a little Python work and notes how late
it was. First alone, then while the cleaner compacts half a gigabyte in another thread of the same
process, and while another process does the same work. The first difference is what compaction
costs everyone else; what remains of it against the other process is the GIL's part.

    python benchmarks/bench_compaction_pause.py [--megabytes 500] [--records-per-batch 1 100]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

from millstream.config.topic import TopicConfig
from millstream.records.batch import parse_header
from millstream.records.compression import Compression
from millstream.records.record import Record, encode_batch
from millstream.storage.cleaner import Cleaner, CleaningStats
from millstream.storage.cleaner_plan import plan_cleaning
from millstream.storage.directories import LogDirectories
from millstream.storage.flush import sync_segments
from millstream.storage.log import Log
from millstream.storage.steps import run_here

T = TypeVar("T")

TICK_S = 0.001
WORK_ITERATIONS = 1_000
VALUE_BYTES = 200
DISTINCT_KEYS = 200_000
TEMPLATE_BATCHES = 2_000
BASELINE_S = 5.0


class Ticker(threading.Thread):
    """An event loop's stand-in; `late_ms` has how late each tick was."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.late_ms: list[float] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        due = time.perf_counter()
        while not self._stopping.is_set():
            due += TICK_S
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            sum(range(WORK_ITERATIONS))
            now = time.perf_counter()
            self.late_ms.append((now - due) * 1_000)
            due = max(due, now - TICK_S)

    def stop(self) -> list[float]:
        self._stopping.set()
        self.join()
        return sorted(self.late_ms)


def fill(log: Log, size_bytes: int, records_per_batch: int, compression: Compression) -> None:
    """Append batches with random keys; a few thousand of them over and over."""
    rng = random.Random(7)
    batches = []
    for _ in range(TEMPLATE_BATCHES):
        records = [
            Record(i, 0, b"key-%012d" % rng.randrange(DISTINCT_KEYS), rng.randbytes(VALUE_BYTES))
            for i in range(records_per_batch)
        ]
        batch = encode_batch(records, compression=compression)
        batches.append((batch, [parse_header(batch)]))
    while log.size_bytes < size_bytes:
        for batch, headers in batches:
            log.append(batch, headers, leader_epoch=0, now_ms=0)
    log.roll(0)


def clean(log: Log) -> tuple[CleaningStats, float]:
    plan = plan_cleaning(log, 0, log.log_end_offset, 0)
    started = time.perf_counter()
    stats = Cleaner().clean(plan)
    return stats, time.perf_counter() - started


def percentile(values: list[float], share: float) -> float:
    return values[min(int(len(values) * share), len(values) - 1)]


def summarize(late_ms: list[float]) -> dict[str, float]:
    return {
        "ticks": len(late_ms),
        "p50_ms": round(percentile(late_ms, 0.50), 3),
        "p99_ms": round(percentile(late_ms, 0.99), 3),
        "p999_ms": round(percentile(late_ms, 0.999), 3),
        "max_ms": round(late_ms[-1], 3),
    }


def clean_in_child(log: Log) -> None:
    """The same work by another process: what it costs others there is not the GIL's doing."""
    child = multiprocessing.get_context("fork").Process(target=clean, args=(log,))
    child.start()
    child.join()


def ticks_during(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    ticker = Ticker()
    ticker.start()
    result = work()
    return result, summarize(ticker.stop())


def measure(megabytes: int, records_per_batch: int, compression: Compression) -> dict[str, object]:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=128 * 1024 * 1024)
    with tempfile.TemporaryDirectory() as directory:
        directories = LogDirectories.open([directory], config_for=lambda topic: config)
        here, elsewhere = (directories.create("compacted", i, uuid4(), config) for i in (0, 1))
        for log in (here, elsewhere):
            fill(log, megabytes * 1_000_000, records_per_batch, compression)
            run_here(sync_segments(log, 0))
        _, alone = ticks_during(lambda: time.sleep(BASELINE_S))
        _, beside = ticks_during(lambda: clean_in_child(elsewhere))
        (stats, seconds), during = ticks_during(lambda: clean(here))
        directories.abandon()
    return {
        "records_per_batch": records_per_batch,
        "compression": compression.name.lower(),
        "records": stats.records_read,
        "records_kept": stats.records_kept,
        "seconds": round(seconds, 2),
        "megabytes_per_second": round(stats.bytes_read / seconds / 1e6, 1),
        "alone": alone,
        "cleaning_in_another_process": beside,
        "cleaning_in_this_process": during,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--records-per-batch", type=int, nargs="+", default=[1, 100])
    parser.add_argument(
        "--compression", default="none", choices=[c.name.lower() for c in Compression]
    )
    arguments = parser.parse_args()
    codec = Compression.from_name(arguments.compression)
    for records_per_batch in arguments.records_per_batch:
        result = measure(arguments.megabytes, records_per_batch, codec)
        json.dump(result, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
