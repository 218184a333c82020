"""200 idle and 50 busy connections: is each busy one served, and equally?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement
from benchmarks.raw_client import connect, produce_request, run_windows
from benchmarks.targets import Scale, Target, create_topic

IDLE, BUSY = 200, 50


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    total = Measurement(f"{BUSY} busy beside {IDLE} idle connections", "requests/s", bar=1.0)
    fairness = Measurement("slowest connection by the mean", "share", bar=0.8)
    for _ in range(scale.rounds):
        for target in targets:
            counts = busy_counts(target, scale)
            mean = sum(counts) / len(counts)
            total.add(target.name, sum(counts) / scale.seconds(4.0))
            fairness.add(target.name, min(counts) / mean)
    yield total
    yield fairness


def busy_counts(target: Target, scale: Scale) -> list[int]:
    topic = create_topic(target, partitions=1)
    idle = [connect(target.bootstrap) for _ in range(IDLE)]
    try:
        return run_windows(
            target.bootstrap,
            [produce_request(topic, 0, 1)],
            connections=BUSY,
            in_flight=5,
            seconds=scale.seconds(4.0),
        )
    finally:
        for connection in idle:
            connection.close()
