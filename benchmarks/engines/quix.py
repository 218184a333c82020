"""Quix Streams: the queries that it can express, in one process, as its documentation has them.

It stops after so many rows, or after so many seconds: windows take it long.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quixstreams import Application

Count = Callable[[Any], None]  # called with each row that a query looks at
COUNTED_SHARE = 0.05  # of the rows, for windows
SECONDS_MAX = 40.0


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def q0(bids: Any, count: Count) -> Any:
    names = ("auction", "bidder", "price", "dateTime", "extra")
    return bids.update(count).apply(lambda bid: {name: bid[name] for name in names})


def q1(bids: Any, count: Count) -> Any:
    return q0(bids, count).apply(lambda bid: {**bid, "price": bid["price"] * 908 / 1000})


def q2(bids: Any, count: Count) -> Any:
    chosen = bids.update(count).filter(lambda bid: bid["auction"] % 123 == 0)
    return chosen.apply(lambda bid: {"auction": bid["auction"], "price": bid["price"]})


def q5(bids: Any, count: Count) -> Any:
    """Counts per auction; the leaders of each window would need a second window over them."""
    grouped = bids.group_by("auction").update(count)
    return grouped.hopping_window(10_000, 2_000, 5_000).count().final()


def q12(bids: Any, count: Count) -> Any:
    grouped = bids.group_by("bidder").update(count)
    return grouped.tumbling_window(10_000, 5_000).count().final()


# With the share of the rows that is read.
QUERIES = {
    "q0": (q0, 1.0),
    "q1": (q1, 1.0),
    "q2": (q2, 1.0),
    "q5": (q5, COUNTED_SHARE),
    "q12": (q12, COUNTED_SHARE),
}


class Enough(Exception):
    """So many rows have come, or it took so long."""


def measure(name: str, bootstrap: str, row_count: int) -> tuple[int, float]:
    """How many rows were looked at, and how long it took from the first to the last."""
    function, _ = QUERIES[name]
    seen = 0
    started = 0.0

    def count(row: Any) -> None:
        nonlocal seen, started
        seen += 1
        if seen == 1:
            started = time.perf_counter()
        if seen == row_count or time.perf_counter() - started > SECONDS_MAX:
            raise Enough

    with tempfile.TemporaryDirectory() as state:
        app = Application(
            broker_address=bootstrap,
            consumer_group=f"bench-{name}-{time.time_ns()}",
            auto_offset_reset="earliest",
            state_dir=state,
            loglevel="ERROR",
            use_changelog_topics=False,
            on_processing_error=lambda *_: False,
        )
        bids = app.dataframe(app.topic("bid", value_deserializer="json"))
        function(bids, count)
        with suppress(Enough):
            app.run()
    return seen, time.perf_counter() - started


def main() -> None:
    logging.disable(logging.CRITICAL)
    bootstrap, count, *queries = sys.argv[1:]
    say(ready=True)
    for name in queries:
        if name in QUERIES:
            wanted = int(int(count) * 46 // 50 * QUERIES[name][1])
            rows, seconds = measure(name, bootstrap, wanted)
            say(query=name, rows=rows, seconds=seconds)


if __name__ == "__main__":
    main()
