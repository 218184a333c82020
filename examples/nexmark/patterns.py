"""The four questions about sequences that Nexmark has for MATCH_RECOGNIZE.

    falling             a bidder's price in an auction falls, at least twice, and then rises above
                        the last but one
    low_average         the longest periods in which a bidder's average price stays below 10,000;
                        the next begins behind the row that ended it
    low_average_from    the same from every bid on: periods overlap
    drop                a bid of more than 50 below an earlier one, less than 5 seconds after it

    bids.transform(SEQUENCES["falling"])

The first three have no limit of time in Nexmark, which a stream needs: here it is ten minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.pipelines.patterns import Pattern, match

LIMIT = "10 minutes"
_OF_BIDDER: Mapping[str, Any] = {"key": ["auction", "bidder"], "time": "dateTime"}
_PERIOD: Mapping[str, Any] = {
    "where": {"low": "avg(low.price) < 10000"},
    "began": "first(low.dateTime)",
    "ended": "last(low.dateTime)",
    "avg_price": "avg(low.price)",
}

SEQUENCES: Mapping[str, Pattern] = {
    "falling": match(
        "begin down+ up",
        **_OF_BIDDER,
        within=LIMIT,
        skip="to last up",
        where={
            "down": "price < coalesce(last(down.price, 1), begin.price)",
            "up": "price > last(down.price, 1)",
        },
        began="begin.dateTime",
        bottom="last(down.dateTime)",
        ended="up.dateTime",
    ),
    "low_average": match("low+ after", **_OF_BIDDER, within=LIMIT, **_PERIOD),
    "low_average_from": match(
        "low+ after", **_OF_BIDDER, within=LIMIT, skip="to next row", **_PERIOD
    ),
    "drop": match(
        "high near* low",
        **_OF_BIDDER,
        within="5 seconds",
        where={"near": "price > high.price - 50", "low": "price < high.price - 50"},
        at="low.dateTime",
        difference="high.price - low.price",
    ),
}
