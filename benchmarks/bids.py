"""Bids as Nexmark has them: the values that readers and decoders are measured with.

198 bytes of JSON with 7 fields. A bad one has a price that is a string.
"""

from __future__ import annotations

import json
import random
from typing import Any

FIELDS = {
    "auction": "bigint",
    "bidder": "bigint",
    "price": "bigint",
    "channel": "string",
    "url": "string",
    "dateTime": "timestamp",
    "extra": "string",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())


def make_bids(count: int, bad_share: float = 0.0) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {
            "auction": 1000 + i % 997,
            "bidder": 2000 + i % 1009,
            "price": "much" if rng.random() < bad_share else rng.randint(100, 10_000_000),
            "channel": rng.choice(["Google", "Facebook", "Baidu", "Apple"]),
            "url": f"https://www.nexmark.com/{rng.randint(1, 10**9)}/item.htm?query=1",
            "dateTime": f"2026-11-14T08:{i // 60 % 60:02}:{i % 60:02}.{i % 1000:03}Z",
            "extra": "x" * rng.randint(5, 20),
        }
        for i in range(count)
    ]


def json_bids(count: int, bad_share: float = 0.0) -> list[bytes]:
    return [json.dumps(bid).encode() for bid in make_bids(count, bad_share)]
