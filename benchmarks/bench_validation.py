"""What it costs to validate a produced batch, opaque and with `millstream.verify.compressed`.

    python -m benchmarks.bench_validation

CPU time per call of `validate_produced`, the best of several repetitions; the figures stand in
docs/decisions/0007-verify-compressed.md.
"""

from __future__ import annotations

import json
import random
import time
import timeit

from millstream.config.topic import TopicConfig
from millstream.records.compression import Compression
from millstream.records.record import Record, encode_batch
from millstream.records.validation import validate_produced

NOW_MS = 1_700_000_000_000
RECORD_COUNTS = (1, 10, 100, 1_000)
REPETITIONS = 9


def make_records(count: int) -> list[Record]:
    rng = random.Random(1)
    values = (
        {
            "id": i,
            "user": f"user{rng.randrange(1_000)}",
            "amount": rng.random(),
            "text": "lorem " * 9,
        }
        for i in range(count)
    )
    return [
        Record(i, NOW_MS, b"key%d" % i, json.dumps(value).encode())
        for i, value in enumerate(values)
    ]


def cost_us(batch: bytes, config: TopicConfig, calls: int) -> float:
    times = timeit.repeat(
        lambda: validate_produced(batch, config, NOW_MS),
        number=calls,
        repeat=REPETITIONS,
        timer=time.process_time,
    )
    return min(times) / calls * 1e6


def main() -> None:
    opaque, verified = TopicConfig(), TopicConfig(millstream_verify_compressed=True)
    print(f"{'records':>8} {'codec':>8} {'bytes':>8} {'opaque µs':>10} {'verified µs':>12}")
    for count in RECORD_COUNTS:
        records = make_records(count)
        calls = max(20, 20_000 // count)
        for codec in Compression:
            batch = encode_batch(records, compression=codec)
            costs = [cost_us(batch, config, calls) for config in (opaque, verified)]
            name = codec.name.lower()
            print(f"{count:8} {name:>8} {len(batch):8} {costs[0]:10.1f} {costs[1]:12.1f}")


if __name__ == "__main__":
    main()
