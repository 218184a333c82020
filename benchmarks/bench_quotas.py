"""Quotas: CPU time of the broker for a one-record request of a client that has quotas and does not
reach them, and of one that has none.

Both send the same pre-encoded Produce requests to one broker, in turns of a few hundred; only the
client id differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.peers.wire import Wire

from benchmarks.bench_metrics import BLOCK, BLOCKS, ROUNDS, Lane
from benchmarks.measurement import Measurement
from benchmarks.targets import MillstreamTarget, Scale, Target, running

ON, OFF = "quotas", "no quotas"
BYTES = {"producer_byte_rate": 1e12}
BYTES_AND_TIME = BYTES | {"request_percentage": 1e6}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    """Only ours."""
    if not any(isinstance(it, MillstreamTarget) for it in targets):
        return
    with running(MillstreamTarget()) as target:
        # Bytes are counted every few requests, but each request is timed.
        for kind, quotas, bar in (("bytes", BYTES, 0.95), ("bytes and time", BYTES_AND_TIME, 0.8)):
            set_quotas(target, quotas)
            for name, acks in (("acks=1", 1), ("acks=all", -1)):
                title = f"one-record request, {name}, quota of {kind}"
                yield compare(title, target, acks, scale, bar)


def compare(name: str, target: Target, acks: int, scale: Scale, bar: float) -> Measurement:
    """Requests per CPU second of the broker, in turns."""
    measurement = Measurement(name, "requests/CPU s", bar=bar, aim=0.97, subject=ON, peer=OFF)
    blocks = 2 if scale.is_quick else BLOCKS
    for number in range(2 if scale.is_quick else 1 + ROUNDS):
        lanes = {lane: Lane(target, acks, lane == ON) for lane in (ON, OFF)}
        for block in range(blocks):
            for lane in sorted(lanes, reverse=bool(block % 2)):
                lanes[lane].send()
        for lane, it in lanes.items():
            if number:  # the first round warms up
                measurement.add(lane, blocks * BLOCK / (it.spent_ns / 1e9))
            it.close()
    return measurement


def set_quotas(target: Target, quotas: dict[str, float]) -> None:
    """For the client id of the lane that has quotas."""
    operations = [{"key": key, "value": value, "remove": False} for key, value in quotas.items()]
    entity = [{"entity_type": "client-id", "entity_name": "bench"}]
    with Wire(target.bootstrap) as wire:
        answer = wire.call(
            "alter_client_quotas", 1, entries=[{"entity": entity, "ops": operations}]
        )
    assert answer.entries[0].error_code == 0
