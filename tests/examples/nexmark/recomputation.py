"""Nexmark's queries once more, in loops over rows, from the heads of the SQL files alone.

Times are whole milliseconds, rows are dictionaries; each query gives the columns of its answer in
their order. It is for a few thousand events, and shares nothing with DuckDB or with Spark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

Row = dict[str, Any]
Answer = list[tuple[Any, ...]]


class Events(NamedTuple):
    """Rows by kind, their times in milliseconds."""

    person: list[Row]
    auction: list[Row]
    bid: list[Row]


def columns(rows: Iterable[Row], names: str) -> Answer:
    return [tuple(row[name] for name in names.split()) for row in rows]


def window_start(time_ms: int, length_ms: int = 10_000) -> int:
    return time_ms - time_ms % length_ms


def text_of(time_ms: int, form: str) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)


def day_of(bid: Row) -> str:
    return text_of(bid["dateTime"], "%Y-%m-%d")


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def euros(bid: Row) -> Decimal:
    return Decimal("0.908") * bid["price"]


def q0(events: Events) -> Answer:
    return columns(events.bid, "auction bidder price dateTime extra")


def q1(events: Events) -> Answer:
    return columns(
        ({**bid, "price": euros(bid)} for bid in events.bid), "auction bidder price dateTime extra"
    )


def q2(events: Events) -> Answer:
    return [(bid["auction"], bid["price"]) for bid in events.bid if bid["auction"] % 123 == 0]


def q3(events: Events) -> Answer:
    people = {person["id"]: person for person in events.person}
    found = []
    for auction in events.auction:
        person = people[auction["seller"]]
        if auction["category"] == 10 and person["state"] in ("OR", "ID", "CA"):
            found.append((person["name"], person["city"], person["state"], auction["id"]))
    return found


def valid_bids(events: Events) -> list[tuple[Row, list[Row]]]:
    """Auctions that have bids in time, with them."""
    by_auction = grouped(events.bid, lambda bid: bid["auction"])
    found = []
    for auction in events.auction:
        first, last = auction["dateTime"], auction["expires"]
        in_time = [bid for bid in by_auction[auction["id"]] if first <= bid["dateTime"] <= last]
        if in_time:
            found.append((auction, in_time))
    return found


def winners(events: Events) -> list[tuple[Row, Row]]:
    def rank(bid: Row) -> Any:
        return (-bid["price"], bid["dateTime"], bid["bidder"], bid["extra"])

    return [(auction, min(bids, key=rank)) for auction, bids in valid_bids(events)]


def q4(events: Events) -> Answer:
    finals = defaultdict(list)
    for auction, bids in valid_bids(events):
        finals[auction["category"]].append(max(bid["price"] for bid in bids))
    return [(category, sum(prices) // len(prices)) for category, prices in finals.items()]


def q5(events: Events) -> Answer:
    windows: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for bid in events.bid:
        start = window_start(bid["dateTime"], 2_000)
        while start > bid["dateTime"] - 10_000:
            windows[start][bid["auction"]] += 1
            start -= 2_000
    return [
        (auction, count)
        for counts in windows.values()
        for auction, count in counts.items()
        if count == max(counts.values())
    ]


def q6(events: Events) -> Answer:
    found = []
    for seller, sold in grouped(
        ({**auction, "bid": bid} for auction, bid in winners(events)), lambda won: won["seller"]
    ).items():
        sold.sort(key=lambda won: (won["bid"]["dateTime"], won["id"]))
        prices = [won["bid"]["price"] for won in sold]
        for place in range(len(prices)):
            last_ones = prices[max(place - 10, 0) : place + 1]
            found.append((seller, sum(last_ones) // len(last_ones)))
    return found


def q7(events: Events) -> Answer:
    windows = grouped(events.bid, lambda bid: window_start(bid["dateTime"]))
    highest = {start: max(bid["price"] for bid in bids) for start, bids in windows.items()}
    best = [bid for bid in events.bid if bid["price"] == highest[window_start(bid["dateTime"])]]
    return columns(best, "auction bidder price dateTime extra")


def q8(events: Events) -> Answer:
    sold = {(auction["seller"], window_start(auction["dateTime"])) for auction in events.auction}
    return [
        (person["id"], person["name"], window_start(person["dateTime"]))
        for person in events.person
        if (person["id"], window_start(person["dateTime"])) in sold
    ]


def q9(events: Events) -> Answer:
    of_auction = "id itemName description initialBid reserve dateTime expires seller category extra"
    of_bid = "auction bidder price dateTime extra"
    return [
        columns([auction], of_auction)[0] + columns([bid], of_bid)[0]
        for auction, bid in winners(events)
    ]


def q10(events: Events) -> Answer:
    folders = [(day_of(bid), text_of(bid["dateTime"], "%H:%M")) for bid in events.bid]
    return [row + folder for row, folder in zip(q0(events), folders, strict=True)]


def q11(events: Events) -> Answer:
    found = []
    for bidder, bids in grouped(events.bid, lambda bid: bid["bidder"]).items():
        session: list[int] = []
        for time in sorted(bid["dateTime"] for bid in bids):
            if session and time - session[-1] > 10_000:
                found.append((bidder, len(session), session[0], session[-1] + 10_000))
                session = []
            session.append(time)
        found.append((bidder, len(session), session[0], session[-1] + 10_000))
    return found


def q12(events: Events) -> Answer:
    windows = grouped(events.bid, lambda bid: (bid["bidder"], window_start(bid["arrival"])))
    return [(bidder, len(bids), start, start + 10_000) for (bidder, start), bids in windows.items()]


def q13(events: Events) -> Answer:
    names = "auction bidder price dateTime"
    return [columns([bid], names)[0] + (str(bid["auction"] % 10_000),) for bid in events.bid]


def q14(events: Events) -> Answer:
    found = []
    for bid in events.bid:
        hour = int(text_of(bid["dateTime"], "%H"))
        kind = {7: "otherTime", 19: "otherTime"}.get(hour, "dayTime" if 7 < hour < 19 else "")
        if 1_000_000 < euros(bid) < 50_000_000:
            row = {**bid, "price": euros(bid), "kind": kind or "nightTime"}
            row["c_counts"] = sum(letter == "c" for letter in bid["extra"])
            found.append(row)
    return columns(found, "auction bidder price kind dateTime extra c_counts")


def level(bid: Row) -> int:
    return 1 if bid["price"] < 10_000 else 2 if bid["price"] < 1_000_000 else 3


def by_level(bids: list[Row]) -> list[list[Row]]:
    return [bids, *([bid for bid in bids if level(bid) == rank] for rank in (1, 2, 3))]


def statistics(bids: list[Row]) -> tuple[int, ...]:
    levels = by_level(bids)
    counts = [len(some) for some in levels]
    for name in ("bidder", "auction"):
        counts += [len({bid[name] for bid in some}) for some in levels]
    return tuple(counts)


def q15(events: Events) -> Answer:
    return [(day, *statistics(bids)) for day, bids in grouped(events.bid, day_of).items()]


def q16(events: Events) -> Answer:
    groups = grouped(events.bid, lambda bid: (bid["channel"], day_of(bid)))
    return [
        (channel, day, text_of(max(bid["dateTime"] for bid in bids), "%H:%M"), *statistics(bids))
        for (channel, day), bids in groups.items()
    ]


def q17(events: Events) -> Answer:
    found: Answer = []
    for (auction, day), bids in grouped(events.bid, lambda it: (it["auction"], day_of(it))).items():
        prices = [bid["price"] for bid in bids]
        summary = (min(prices), max(prices), sum(prices) // len(prices), sum(prices))
        found.append((auction, day, *map(len, by_level(bids)), *summary))
    return found


def q18(events: Events) -> Answer:
    last = [
        max(bids, key=lambda bid: columns([bid], "dateTime price channel url extra"))
        for bids in grouped(events.bid, lambda bid: (bid["bidder"], bid["auction"])).values()
    ]
    return columns(last, "auction bidder price channel url dateTime extra")


def q19(events: Events) -> Answer:
    names = "auction bidder price channel url dateTime extra"
    found = []
    for bids in grouped(events.bid, lambda bid: bid["auction"]).values():
        ties = "dateTime bidder channel url extra"
        bids.sort(key=lambda bid: (-bid["price"], columns([bid], ties)))
        found += [(*row, place) for place, row in enumerate(columns(bids[:10], names), start=1)]
    return found


def q20(events: Events) -> Answer:
    of_bid = "auction bidder price channel url dateTime extra"
    of_auction = "itemName description initialBid reserve dateTime expires seller category extra"
    auctions = {auction["id"]: auction for auction in events.auction if auction["category"] == 10}
    return [
        columns([bid], of_bid)[0] + columns([auctions[bid["auction"]]], of_auction)[0]
        for bid in events.bid
        if bid["auction"] in auctions
    ]


def q21(events: Events) -> Answer:
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    found = []
    for bid in events.bid:
        named = re.search(r"&channel_id=([^&]+)", bid["url"])
        channel_id = known.get(bid["channel"].lower(), named and named[1])
        if channel_id:
            found.append({**bid, "channel_id": channel_id})
    return columns(found, "auction bidder price channel channel_id")


def q22(events: Events) -> Answer:
    rows = columns(events.bid, "auction bidder price channel")
    folders = [tuple([*bid["url"].split("/")[3:6], None, None, None][:3]) for bid in events.bid]
    return [row + folder for row, folder in zip(rows, folders, strict=True)]
