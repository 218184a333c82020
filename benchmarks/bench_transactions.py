"""Transactions through confluent-kafka: small ones, large ones, and reading what they committed.

A small transaction is mostly its coordination (three round trips and, here, as many flushes), a
large one mostly its records. Millstream flushes all of it before it answers; Kafka does not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

from benchmarks.bench_consume import consume
from benchmarks.measurement import Measurement, interleave, percentile
from benchmarks.targets import Scale, Target, create_topic

RECORD = b"x" * 100
RECORDS_OF_SMALL = 100
RECORDS_OF_LARGE = 10_000


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    yield from _small(targets, scale)
    yield _large(targets, scale)
    yield _read_committed(targets, scale)


def _small(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    name = f"transactions of {RECORDS_OF_SMALL} records"
    rate = Measurement(name, "records/s", bar=1.0, aim=1.5)
    p50 = Measurement(f"{name}, p50", "ms", "lower is better")
    p99 = Measurement(f"{name}, p99", "ms", "lower is better", bar=0.5)
    for round_number in range(scale.rounds + 1):
        for target in targets:
            times = commit_transactions(target, scale.of(1_000), RECORDS_OF_SMALL)
            if round_number:
                rate.add(target.name, RECORDS_OF_SMALL * len(times) / (sum(times) / 1000))
                p50.add(target.name, percentile(times, 0.5))
                p99.add(target.name, percentile(times, 0.99))
    yield from (rate, p50, p99)


def _large(targets: Sequence[Target], scale: Scale) -> Measurement:
    name = f"transactions of {RECORDS_OF_LARGE:,} records"
    transactions = max(3, int(60 * scale.factor))

    def sample(target: Target) -> float:
        times = commit_transactions(target, transactions, RECORDS_OF_LARGE)
        return RECORDS_OF_LARGE * len(times) / (sum(times) / 1000)

    measurement = Measurement(name, "records/s", bar=1.0, aim=1.2)
    return interleave(measurement, targets, scale.rounds, sample)


def _read_committed(targets: Sequence[Target], scale: Scale) -> Measurement:
    """One transaction in ten was aborted: its records are sent, and skipped by the client."""
    transactions = max(20, int(2_000 * scale.factor))
    for target in targets:
        commit_transactions(target, transactions, 500, abort_every=10)
    topics = {target.name: target.last_topic for target in targets}
    committed = 500 * (transactions - transactions // 10)
    measurement = Measurement("read-committed consume", "records/s", bar=1.0, aim=1.2)
    return interleave(
        measurement,
        targets,
        scale.rounds,
        lambda target: consume(target, topics[target.name], committed),
    )


def commit_transactions(
    target: Target, transactions: int, records: int, *, abort_every: int | None = None
) -> list[float]:
    """Milliseconds from each transaction's beginning to its acknowledged end."""
    from confluent_kafka import Producer

    topic = create_topic(target, partitions=1)
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "transactional.id": f"bench-{uuid.uuid4().hex[:12]}",
            "linger.ms": 1,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(60)
    times = []
    for number in range(1, transactions + 1):
        started = time.perf_counter()
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, RECORD, partition=0)
        if abort_every is not None and number % abort_every == 0:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
        times.append((time.perf_counter() - started) * 1000)
    return times[len(times) // 10 :]
