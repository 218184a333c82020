"""Best matches against a loop over all events."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from examples.nexmark.best_match import BestMatch, Events, How, Lasting, Term, parse_order
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, StringType, StructType

from millstream.errors import ConfigError
from millstream.pipelines.state.pages import StateMismatch
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws

TIME = pa.timestamp("us", tz="UTC")
AUCTIONS = pa.schema([("id", pa.int64()), ("opens", TIME), ("closes", TIME), ("name", pa.string())])
BIDS = pa.schema(
    [("auction", pa.int64()), ("at", TIME), ("price", pa.int64()), ("by", pa.string())]
)


class Auction(NamedTuple):
    id: int | None
    opens: int | None
    closes: int | None
    name: str


class Bid(NamedTuple):
    auction: int | None
    at: int | None
    price: int | None
    by: str | None


class Batch(NamedTuple):
    auctions: list[Auction]
    bids: list[Bid]
    watermark_step_us: int


IDS = st.sampled_from([1, 2, None])
TIMES = st.integers(0, 40)
AN_AUCTION = st.builds(Auction, IDS, TIMES | st.none(), TIMES | st.none(), st.sampled_from("ab"))
A_BID = st.builds(
    Bid, IDS, TIMES | st.none(), st.none() | st.integers(1, 3), st.sampled_from(["x", "y", None])
)
BATCHES = st.lists(
    st.builds(
        Batch, st.lists(AN_AUCTION, max_size=4), st.lists(A_BID, max_size=6), st.integers(0, 15)
    ),
    max_size=8,
)
ORDER = (Term("price", True), Term("by", False))


def operator(how: How = "inner", lateness_us: int = 0) -> BestMatch:
    return BestMatch(
        Lasting(AUCTIONS, ("id",), "opens", "closes"),
        Events(BIDS, ("auction",), "at", ORDER, ("at", "price", "by")),
        how,
        lateness_us,
    )


def columns(auctions: Sequence[Auction], bids: Sequence[Bid]) -> dict[str, pa.RecordBatch]:
    return {"lasting": to_batch(auctions, AUCTIONS), "events": to_batch(bids, BIDS)}


def to_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.array([row[place] for row in rows], pa.int64()).cast(field.type)
        if field.type == TIME
        else pa.array([row[place] for row in rows], field.type)
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batch: pa.RecordBatch, kind: str) -> list[tuple[Any, ...]]:
    """Auction, then price and by, of the rows of a kind."""
    names = ("id", "opens", "closes", "name", "price", "by")
    values = [
        batch.column(name).cast(pa.int64()) if name in ("opens", "closes") else batch.column(name)
        for name in names
    ]
    rows = zip(*(it.to_pylist() for it in values), strict=True)
    return [
        row for row, it in zip(rows, batch.column("_kind").to_pylist(), strict=True) if it == kind
    ]


def is_after(horizon_us: int, *times: int | None) -> bool:
    return all(time is not None and time > horizon_us for time in times)


def best(auction: Auction, bids: Sequence[Bid]) -> Bid | None:
    """By definition. Bids that differ in their time alone look the same here."""
    within = [
        it
        for it in bids
        if auction.id is not None
        and it.auction == auction.id
        and it.at is not None
        and auction.opens is not None
        and auction.closes is not None
        and auction.opens <= it.at <= auction.closes
    ]
    return min(
        within,
        key=lambda it: (it.price is None, -(it.price or 0), it.by is None, it.by or ""),
        default=None,
    )


def expected(how: How, auctions: Sequence[Auction], bids: Sequence[Bid]) -> Counter[Any]:
    found = [(auction, best(auction, bids)) for auction in auctions]
    return Counter(
        (*auction, bid.price if bid else None, bid.by if bid else None)
        for auction, bid in found
        if bid is not None or how == "left"
    )


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("lateness_us", [0, 5])
@settings(max_examples=draws(50))
@given(batches=BATCHES)
def test_stream_finds_what_the_definition_says_of_what_was_on_time(
    how: How, lateness_us: int, batches: list[Batch]
) -> None:
    trial = Trial(operator(how, lateness_us))
    watermark_us = 0
    auctions: list[Auction] = []
    bids: list[Bid] = []
    outputs = []
    late = 0
    for batch in batches:
        watermark_us += batch.watermark_step_us
        horizon_us = watermark_us - lateness_us
        is_on_time = [is_after(horizon_us, it.opens, it.closes) for it in batch.auctions]
        auctions += [it for it, ok in zip(batch.auctions, is_on_time, strict=True) if ok]
        on_time = [it for it in batch.bids if is_after(horizon_us, it.at)]
        bids += on_time
        late += is_on_time.count(False) + len(batch.bids) - len(on_time)
        outputs.append(trial.feed(columns(batch.auctions, batch.bids), watermark_us))
        assert all(row[2] <= horizon_us for row in rows_of(outputs[-1], "final"))
    outputs.append(trial.finish())
    finals = [row for output in outputs for row in rows_of(output, "final")]
    assert Counter(finals) == expected(how, auctions, bids)
    told = [
        it for output in outputs for kind in ("late", "late_event") for it in rows_of(output, kind)
    ]
    assert len(told) == late


def test_batch_equals_stream_in_any_cut() -> None:
    rng = Random(1)
    auctions = [Auction(n % 50, n, n + rng.randrange(30), "a") for n in range(400)]
    bids = [Bid(rng.randrange(50), rng.randrange(440), rng.randrange(9), "x") for _ in range(3_000)]
    whole = Trial(operator())
    whole.feed(columns(auctions, bids))
    answer = Counter(rows_of(whole.finish(), "final"))
    assert answer == expected("inner", auctions, bids)
    parts = Trial(operator())
    found: Counter[Any] = Counter()
    for time in range(0, 440, 10):
        here = range(time, time + 10)
        some = columns(
            [it for it in auctions if it.opens in here], [it for it in bids if it.at in here]
        )
        found.update(rows_of(parts.feed(some, time - 1), "final"))
    found.update(rows_of(parts.finish(), "final"))
    assert found == answer


@pytest.mark.parametrize(
    ("is_descending", "prices", "winner"),
    [
        (True, [1.0, math.nan, 2.0, None], "nan"),
        (False, [1.0, math.nan, 2.0, None], "1.0"),
        (False, [None, math.nan], "nan"),
        (True, [None, math.nan], "nan"),
        (True, [None, 1.0], "1.0"),
    ],
)
def test_nan_is_above_all_numbers_as_in_spark(
    is_descending: bool, prices: list[float | None], winner: str
) -> None:
    bids = pa.schema([("auction", pa.int64()), ("at", TIME), ("price", pa.float64())])
    order = (Term("price", is_descending),)
    trial = Trial(
        BestMatch(
            Lasting(AUCTIONS, ("id",), "opens", "closes"),
            Events(bids, ("auction",), "at", order, ("price",)),
            "left",
        )
    )
    given = [(1, 5 + place, price) for place, price in enumerate(prices)]
    auctions = to_batch([Auction(1, 1, 100, "a")], AUCTIONS)
    trial.feed({"lasting": auctions, "events": to_batch(given, bids)}, 0)
    assert [str(it) for it in trial.finish().column("price").to_pylist()] == [winner]


def test_state_of_a_long_row_is_its_best_event() -> None:
    trial = Trial(operator(), buckets=1)
    trial.feed(columns([Auction(1, 1, 1_000_000, "long")], []), 0)
    sizes = []
    for step in range(200):
        bids = [Bid(1, 10 * step + 10 + at, step, "x") for at in range(10)]
        trial.feed(columns([], bids), 10 * step)
        sizes.append(sum(map(len, trial.buckets[0].pages.values())))
    assert max(sizes[100:]) < 2 * max(sizes[:20])
    assert rows_of(trial.finish(), "final") == [(1, 1, 1_000_000, "long", 199, "x")]


def test_state_of_rows_that_began_by_another_column_is_refused() -> None:
    trial = Trial(operator())
    trial.feed(columns([Auction(1, 1, 100, "a")], []), 0)
    events = Events(BIDS, ("auction",), "at", ORDER, ("at", "price", "by"))
    trial.operator = BestMatch(Lasting(AUCTIONS, ("id",), "closes", "closes"), events, "inner")
    with pytest.raises(StateMismatch, match="other settings: best match from opens on"):
        trial.advance(200)


def test_operator_tells_what_it_does_and_keeps() -> None:
    told = json.loads(operator().describe(bucket_count=4))
    assert told["title"] == "best match by price desc, by, inner"
    assert told["tables"]["lasting"] == "until the watermark is past closes"


class FrameOfBids:
    """As much of a DataFrame as `parse_order` looks at."""

    def __init__(self) -> None:
        self.schema = StructType().add("price", "long").add("at", "timestamp")
        self.schema.add("tags", ArrayType(StringType()))
        self.columns = self.schema.names


FRAME: Any = FrameOfBids()


def test_order_is_read_as_in_sql() -> None:
    assert parse_order(FRAME, "price DESC,  at") == (Term("price", True), Term("at", False))


@pytest.mark.parametrize(
    ("order_by", "message"),
    [
        ("cost", "there is no column 'cost': price, at, tags"),
        ("price down", "each with desc or without"),
        ("tags", "array<string>, which has no order"),
    ],
)
def test_order_is_refused_with_the_reason(order_by: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_order(FRAME, order_by)
