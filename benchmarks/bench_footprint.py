"""Start, memory and restart, alone and with 1,000 partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement
from benchmarks.raw_client import connect, produce_request, receive_frame
from benchmarks.targets import Scale, Target, create_topic

PARTITIONS = 1000


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    start = Measurement("start to first Metadata", "s", "lower is better", bar=0.1)
    idle = Measurement("idle memory", "MB", "lower is better", bar=0.15)
    memory = Measurement("memory, 1,000 partitions", "MB", "lower is better", bar=0.25)
    clean = Measurement("restart, 1,000 partitions, clean stop", "s", "lower is better", bar=0.2)
    killed = Measurement("restart, 1,000 partitions, kill -9", "s", "lower is better", bar=0.2)
    for target in targets:
        if target.name == "null":
            continue
        for _ in range(max(1, scale.rounds - 1)):
            with target.fresh() as own:
                start.add(target.name, own.started_in)
                time.sleep(3)  # let a JIT and a garbage collector settle
                idle.add(target.name, own.memory_mb())
                _fill(own)
                time.sleep(3)
                memory.add(target.name, own.memory_mb())
                own.stop()
                clean.add(target.name, _serving_after(own))
                _produce_to_all(own)
                own.kill()
                killed.add(target.name, _serving_after(own))
    yield from (start, idle, memory, clean, killed)


def _fill(target: Target) -> None:
    create_topic(target, partitions=PARTITIONS)
    _produce_to_all(target)


def _produce_to_all(target: Target) -> None:
    """One acknowledged record into every partition."""
    with connect(target.bootstrap, timeout=60) as connection:
        for partition in range(PARTITIONS):
            connection.sendall(produce_request(target.last_topic, partition, -1))
            receive_frame(connection)


def _serving_after(target: Target) -> float:
    """Seconds from the start of the process until every partition took a record again."""
    started = time.perf_counter()
    target.start()
    deadline = started + 120
    while time.perf_counter() < deadline:
        try:
            if accepts_records(target):
                return time.perf_counter() - started
        except OSError:
            time.sleep(0.01)
    raise TimeoutError(f"{target.name} did not serve its partitions again")


def accepts_records(target: Target) -> bool:
    """Whether every partition of the last topic took a record."""
    topic = target.last_topic
    with connect(target.bootstrap, timeout=60) as connection:
        connection.sendall(b"".join(produce_request(topic, p, 1) for p in range(PARTITIONS)))
        answers = [receive_frame(connection) for _ in range(PARTITIONS)]
    return all(_accepted(answer, topic) for answer in answers)


def _accepted(answer: bytes, topic: str) -> bool:
    """Produce v8: correlation id, one topic, its name, one partition, index, error code."""
    position = 4 + 4 + 2 + len(topic) + 4 + 4
    return answer[position : position + 2] == b"\0\0"
