"""Conditional appends: CPU time of the broker for a Produce request, with and without them.

The same pre-encoded requests (acks=all) go to two topics of one broker: one that checks the version
of each record's key, and one that does not. Every key is new, which is the most expensive case.

    MILLSTREAM_BASELINE=/path/to/bin/millstream python -m benchmarks conditional

also compares topics without conditions with another installation, such as one from before they
existed: what nobody asks for should cost nothing.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.measurement import Measurement
from benchmarks.raw_client import connect, produce_request_of, receive_frame
from benchmarks.targets import MillstreamTarget, Scale, Target, create_topic, running
from millstream.records.record import Record, encode_batch

ON, OFF, BASELINE = "conditional", "plain", "baseline"
BLOCK = 100  # requests, then it is the other one's turn
BLOCKS = 60
ROUNDS = 5
IN_FLIGHT = 16
VALUE = b"x" * 100


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    """Only ours: no other broker has them."""
    ours = next((it for it in targets if isinstance(it, MillstreamTarget)), None)
    if ours is None:
        return
    for records in (1, 3, 20):
        name = f"Produce request of {records} records, conditional against plain"
        yield alternate(_measurement(name, ON, OFF, bar=1.1), {ON: ours, OFF: ours}, records, scale)
    if program := os.environ.get("MILLSTREAM_BASELINE"):
        with running(BaselineTarget(program)) as baseline:
            for records in (1, 20):
                name = f"Produce request of {records} records, plain against the baseline"
                measurement = _measurement(name, OFF, BASELINE, bar=1.02)
                yield alternate(measurement, {OFF: ours, BASELINE: baseline}, records, scale)


def _measurement(name: str, subject: str, peer: str, bar: float) -> Measurement:
    return Measurement(
        name, "CPU us", direction="lower is better", bar=bar, subject=subject, peer=peer
    )


class BaselineTarget(MillstreamTarget):
    """Another installation."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.name = BASELINE
        self._program = program

    def command(self) -> Sequence[str]:
        return [self._program, *list(super().command())[1:]]


def alternate(
    measurement: Measurement, contenders: Mapping[str, Target], records: int, scale: Scale
) -> Measurement:
    """Microseconds of the broker's CPU time for a request. The contenders take turns after every
    few requests, so that what else the machine does slows all of them alike."""
    blocks = 2 if scale.is_quick else BLOCKS
    encoded = list(batches(blocks * BLOCK, records))
    for number in range(2 if scale.is_quick else 1 + ROUNDS):
        lanes = {name: Lane(target, name == ON) for name, target in contenders.items()}
        for block in range(blocks):
            part = encoded[block * BLOCK : (block + 1) * BLOCK]
            for name in sorted(lanes, reverse=bool(block % 2)):
                lanes[name].send(part)
        for name, lane in lanes.items():
            if number:  # the first round warms up
                measurement.add(name, lane.spent_ns / len(encoded) / 1000)
            lane.connection.close()
    return measurement


class Lane:
    """A topic and a connection."""

    def __init__(self, target: Target, is_conditional: bool) -> None:
        settings = {"millstream_conditional_append": "version"} if is_conditional else {}
        self._target = target
        self._topic = create_topic(target, partitions=1, **settings)
        self.connection = connect(target.bootstrap)
        self.spent_ns = 0

    def send(self, encoded: Sequence[bytes]) -> None:
        requests = [produce_request_of(self._topic, 0, -1, it) for it in encoded]
        before, sent = cpu_ns(self._target), 0
        for answered in range(len(requests)):
            while sent < len(requests) and sent - answered < IN_FLIGHT:
                self.connection.sendall(requests[sent])
                sent += 1
            code = error_code(receive_frame(self.connection), self._topic)
            assert code == 0, f"error {code}"
        self.spent_ns += cpu_ns(self._target) - before


def cpu_ns(target: Target) -> int:
    """CPU time of all threads of the broker, in nanoseconds; Linux only."""
    assert target.process is not None
    tasks = Path(f"/proc/{target.process.pid}/task").iterdir()
    return sum(int((it / "schedstat").read_text().split()[0]) for it in tasks)


def batches(count: int, records: int) -> Iterator[bytes]:
    """With a header that only one of the topics looks at."""
    now_ms = int(time.time() * 1000)
    headers = (("millstream-version", b"1"),)
    for number in range(count):
        keys = (b"key-%d-%d" % (number, index) for index in range(records))
        yield encode_batch(
            [Record(index, now_ms, key, VALUE, headers) for index, key in enumerate(keys)]
        )


def error_code(answer: bytes, topic: str) -> int:
    """Of a Produce answer (v8) with one partition."""
    at = 4 + 4 + 2 + len(topic) + 4 + 4  # correlation id, topics, name, partitions, partition
    return int(struct.unpack_from(">h", answer, at)[0])
