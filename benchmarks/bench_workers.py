"""Two workers against one broker and against Apache Kafka, in one run.

One-record requests over many partitions use all workers; the client is one thread, and its share
of a core is noted: where it is near 100 %, the client is what is measured. Two workers need both
cores, so each sample waits until the others are idle: Kafka's JVM goes on compiling after its turn.
Throughput and latency of one partition must not be worse than those of one broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.bench_consume import consume
from benchmarks.bench_latency import round_trips
from benchmarks.bench_produce import produce
from benchmarks.measurement import Measurement, interleave, percentile
from benchmarks.raw_client import produce_request, run_windows_to
from benchmarks.targets import (
    MillstreamTarget,
    Scale,
    Target,
    WorkersTarget,
    create_topic,
    running,
    wait_for_leaders,
    wait_until_idle,
)

PARTITIONS = 100
WORKERS = "2 workers"
RECORD_BYTES = 1000


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with running(WorkersTarget(2)) as workers:
        others = [it for it in targets if isinstance(it, MillstreamTarget) or it.name == "kafka"]
        every = [workers, *others]
        for acks in (1, -1):
            yield from _requests(every, scale, acks)
        yield from _throughput(every, scale)
        yield _latency(every, scale)


def _requests(targets: Sequence[Target], scale: Scale, acks: int) -> Iterator[Measurement]:
    name = f"one-record requests, {PARTITIONS} partitions, acks={'all' if acks < 0 else acks}"
    result = _measurement(name, "requests/s", bar=1.5)
    requests = {target.name: _by_leader(target, acks) for target in targets}

    def sample(target: Target) -> float:
        seconds = scale.seconds(4.0)
        used = time.process_time()
        answers = run_windows_to(
            requests[target.name], connections=8, in_flight=20, seconds=seconds
        )
        share = (time.process_time() - used) / seconds
        result.notes[target.name] = f"client uses {share:.0%} of a core"
        return sum(answers) / seconds

    yield _interleave(result, targets, scale, sample)
    if "kafka" in result.samples:
        against = Measurement(f"{name}, against Kafka", "requests/s", subject=WORKERS, bar=1.0)
        against.samples = result.samples
        yield against


def _by_leader(target: Target, acks: int) -> dict[str, list[bytes]]:
    """The requests for each broker's partitions, by its address."""
    topic = create_topic(target, partitions=PARTITIONS)
    found = wait_for_leaders(target, topic, PARTITIONS)
    requests: dict[str, list[bytes]] = {}
    for index, partition in found.topics[topic].partitions.items():
        leader = found.brokers[partition.leader]
        address = f"{leader.host}:{leader.port}"
        requests.setdefault(address, []).append(produce_request(topic, index, acks))
    return requests


def _throughput(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    count = scale.of(300_000)

    def megabytes(rate: float) -> float:
        return rate * RECORD_BYTES / 1e6

    produced = _measurement("produce 1 KB, acks=all", "MB/s", bar=0.95)
    yield _interleave(
        produced,
        targets,
        scale,
        lambda target: megabytes(produce(target, RECORD_BYTES, count, "all")),
    )
    topics = {target.name: target.last_topic for target in targets}
    consumed = _measurement("consume 1 KB", "MB/s", bar=0.95)
    yield _interleave(
        consumed,
        targets,
        scale,
        lambda target: megabytes(consume(target, topics[target.name], count)),
    )


def _latency(targets: Sequence[Target], scale: Scale) -> Measurement:
    result = _measurement("end-to-end latency, acks=all, p99", "ms", bar=1.1)
    result.direction = "lower is better"
    return _interleave(
        result,
        targets,
        scale,
        lambda target: percentile(round_trips(target, scale.of(2_000), "all"), 0.99),
    )


def _interleave(
    result: Measurement,
    targets: Sequence[Target],
    scale: Scale,
    sample: Callable[[Target], float],
) -> Measurement:
    def when_idle(target: Target) -> float:
        wait_until_idle(targets)
        return sample(target)

    return interleave(result, targets, scale.rounds, when_idle)


def _measurement(name: str, unit: str, *, bar: float) -> Measurement:
    """Two workers against one broker."""
    return Measurement(name, unit, bar=bar, subject=WORKERS, peer="millstream")
