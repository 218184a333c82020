"""All operators of bucketed state through the harness, without Spark: dozens of stories of each."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from examples.nexmark.best_match import BestMatch, Events, Lasting, Term
from examples.nexmark.last_rows import LastRows
from hypothesis import strategies as st

from millstream.pipelines.analytics.averages import Smoothing
from millstream.pipelines.analytics.deduplication import Deduplication
from millstream.pipelines.joins import as_of, stream_table
from millstream.pipelines.joins.changes import Changes
from millstream.pipelines.joins.table_table import Side, TableJoin
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.times.clocks import DeviceOffsets
from millstream.pipelines.windows.emission import Emit
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.revisions import RevisedWindows
from millstream.pipelines.windows.sessions import RevisedSessions
from millstream.pipelines.windows.sliding import SlidingWindow
from millstream.testing.streams import Disorder, Source, check_operator, moments
from millstream.testing.streams.inputs import BEGIN
from tests.drawing import draws

SEED = 1
EXAMPLES = draws(25)
SECOND_US = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
TIMES = moments("3 minutes", "5 seconds")
SOMETIMES = st.one_of(TIMES, TIMES, TIMES, TIMES, st.none())
KEYS = st.sampled_from(["x", "y", None])
STRAGGLING = Disorder(late=0.3)


def check(operator: Any, inputs: dict[str, Source], **rest: Any) -> None:
    check_operator(operator, inputs, **({"seed": SEED, "examples": EXAMPLES} | rest))


def rows(**columns: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(columns)


EVENTS_SCHEMA = pa.schema(
    [("key", pa.string()), ("at", TIME), ("x", pa.float64()), ("_offset", pa.int64())]
)
EVENTS = Source(
    rows(key=KEYS, at=SOMETIMES, x=st.one_of(st.integers(0, 80).map(float), st.none())),
    watermark=("at", "10 seconds"),
)


def is_late(row: Any) -> bool:
    return bool(row["_kind"] == "late")


def sliding(lateness: Lateness, emit: Emit) -> SlidingWindow:
    measures = [Measure("n", "count", None), Measure("s", "sum", "x"), Measure("m", "max", "x")]
    columns = EVENTS_SCHEMA.names
    return SlidingWindow(
        EVENTS_SCHEMA, ["key"], "at", 30 * SECOND_US, measures, lateness, columns, emit=emit
    )


def test_sliding_windows_leave_out_what_is_late() -> None:
    """A batch of them has another policy: that nothing is late."""
    check(
        sliding(Lateness("divert", 20 * SECOND_US), Emit("final")),
        {"events": EVENTS},
        disorder=STRAGGLING,
        late_when="20 seconds",
        leave_out=is_late,
    )


@pytest.mark.parametrize("emission", ["final", "change"])
def test_sliding_windows_are_corrected_until_they_are_right(emission: Any) -> None:
    check(
        sliding(Lateness("correct", 60 * SECOND_US), Emit(emission)),
        {"events": EVENTS},
        key="_offset",
        disorder=Disorder(within="70 seconds"),
        leave_out=is_late,
    )


NOW_FIELD = pa.field("_now", TIME)
PARTS = [Measure("n", "count", None), Measure("mean", "avg", "x")]
NUMBERS = st.one_of(st.integers(0, 80).map(float), st.none())
CORRECTED = (Lateness("correct", 60 * SECOND_US), None)
PRELIMINARY = (Lateness("drop", 0), 0)


@pytest.mark.parametrize(("lateness", "every_us"), [CORRECTED, PRELIMINARY])
def test_windows_that_are_revised_end_right(lateness: Lateness, every_us: int | None) -> None:
    bounds = [("window_start", TIME), ("window_end", TIME)]
    schema = pa.schema([("key", pa.string()), *bounds, NOW_FIELD, ("x", pa.float64())])

    def row(key: str | None, minute: int, x: float | None) -> dict[str, Any]:
        begin = BEGIN + timedelta(minutes=minute)
        end = begin + timedelta(minutes=1)
        return {"key": key, "window_start": begin, "window_end": end, "_now": BEGIN, "x": x}

    source = Source(
        st.builds(row, KEYS, st.integers(0, 9), NUMBERS), watermark=("window_end", "2 minutes")
    )
    check(
        RevisedWindows(schema, ["key"], PARTS, lateness, "tumbling", every_us=every_us),
        {"rows": source},
        key=["key", "window_start"],
        disorder=Disorder(within="3 minutes" if lateness.corrects else "2 minutes"),
    )


@pytest.mark.parametrize(("lateness", "every_us"), [CORRECTED, PRELIMINARY])
def test_sessions_that_are_revised_end_right(lateness: Lateness, every_us: int | None) -> None:
    """Those that were withdrawn are gone: others have taken them in."""
    schema = pa.schema([("key", pa.string()), ("_time", TIME), NOW_FIELD, ("x", pa.float64())])
    source = Source(
        rows(key=KEYS, _time=TIMES, _now=st.just(BEGIN), x=NUMBERS),
        watermark=("_time", "10 seconds"),
    )
    check(
        RevisedSessions(schema, ["key"], PARTS, 15 * SECOND_US, lateness, every_us=every_us),
        {"rows": source},
        key=["key", "window_start"],
        disorder=Disorder(within="70 seconds" if lateness.corrects else "10 seconds"),
        leave_out=lambda row: row["_kind"] == "withdrawn",
    )


def test_last_rows_add_up_to_what_sql_says() -> None:
    measures = [Measure("n", "count", None), Measure("m", "max", "x")]
    carried = EVENTS_SCHEMA.names
    operator = LastRows(EVENTS_SCHEMA, ["key"], ["at", "_offset"], 3, measures, carried)
    source = Source(rows(key=KEYS, at=TIMES, x=NUMBERS), time="at")

    def by_hand(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for it in rows:
            before = sorted(
                (row["at"], row["_offset"], row["x"])
                for row in rows
                if row["key"] == it["key"]
                and (row["at"], row["_offset"]) <= (it["at"], it["_offset"])
            )[-3:]
            known = [x for _, _, x in before if x is not None]
            found.append({**it, "n": len(before), "m": max(known, default=None), "_weight": 1})
        return found

    check(operator, {"rows": source}, disorder=Disorder(within="2 minutes"), reference=by_hand)


SALES = pa.schema([("country", pa.string()), ("sold", TIME), ("_offset", pa.int64())])
RATES = pa.schema(
    [("country", pa.string()), ("since", TIME), ("rate", pa.int64()), ("gone", pa.bool_())]
)


@pytest.mark.slow_with("left")
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("lateness", [0, 15])
def test_as_of_join_gets_the_version_of_its_time(how: Any, lateness: int) -> None:
    operator = as_of.AsOfJoin(
        as_of.Events(SALES, ("country",), "sold"),
        as_of.History(RATES, ("country",), "since", ("since", "rate"), None, "gone"),
        how,
        lateness * SECOND_US,
    )
    sales = Source(rows(country=KEYS, sold=SOMETIMES), watermark=("sold", "20 seconds"))
    rate = rows(country=KEYS, since=TIMES, rate=st.integers(1, 9), gone=st.booleans())
    check(
        operator,
        {"events": sales, "versions": Source(rate, time="since")},
        disorder=STRAGGLING,
        late_when=f"{lateness} seconds",
        leave_out=lambda row: row["_kind"] != "final",
    )


AUCTIONS = pa.schema(
    [("id", pa.int64()), ("opens", TIME), ("closes", TIME), ("_offset", pa.int64())]
)
BIDS = pa.schema([("auction", pa.int64()), ("bid_at", TIME), ("price", pa.int64())])


def auction(number: int, opens: datetime, steps: int) -> dict[str, Any]:
    return {"id": number, "opens": opens, "closes": opens + timedelta(seconds=5 * steps)}


@pytest.mark.slow_with("left")
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("lateness", [0, 15])
def test_best_match_is_the_best_of_all_that_came_in_time(how: Any, lateness: int) -> None:
    order = (Term("price", True), Term("bid_at", False))
    operator = BestMatch(
        Lasting(AUCTIONS, ("id",), "opens", "closes"),
        Events(BIDS, ("auction",), "bid_at", order, ("bid_at", "price")),
        how,
        lateness * SECOND_US,
    )
    auctions = Source(
        st.builds(auction, st.integers(1, 3), TIMES, st.integers(0, 12)),
        watermark=("opens", "20 seconds"),
    )
    bids = Source(
        rows(auction=st.integers(1, 3), bid_at=TIMES, price=st.integers(1, 5)),
        watermark=("bid_at", "20 seconds"),
    )
    check(
        operator,
        {"lasting": auctions, "events": bids},
        disorder=STRAGGLING,
        late_when=f"{lateness} seconds",
        leave_out=lambda row: row["_kind"] != "final",
    )


LOG = pa.schema(
    [("id", pa.int64()), ("key", pa.string()), ("_offset", pa.int64()), ("gone", pa.bool_())]
)
CHANGES = Source(rows(id=st.integers(1, 5), key=KEYS, gone=st.booleans()))


def test_changes_add_up_to_the_table() -> None:
    def table(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        newest = {row["id"]: row for row in changes}
        return [
            {"id": it["id"], "key": it["key"], "_offset": it["_offset"], "_weight": 1}
            for it in newest.values()
            if not it["gone"]
        ]

    check(Changes(LOG, ["id"], "_offset", "gone"), {"changes": CHANGES}, reference=table)


LEFT = pa.schema([("key", pa.string()), ("a", pa.int64()), ("_weight", pa.int64())])
RIGHT = pa.schema([("other", pa.string()), ("b", pa.int64()), ("_weight", pa.int64())])
WEIGHTS = st.sampled_from([1, 1, 1, -1, 2])


@pytest.mark.slow_with("left", "right")
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_joined_tables_add_up_to_the_join(how: Any) -> None:
    operator = TableJoin(
        Side(LEFT, ("key",), ("key", "a")), Side(RIGHT, ("other",), ("other", "b")), how
    )
    left = Source(rows(key=KEYS, a=st.integers(1, 2), _weight=WEIGHTS))
    right = Source(rows(other=KEYS, b=st.integers(1, 2), _weight=WEIGHTS))
    check(operator, {"left": left, "right": right})


def test_enriched_rows_are_the_same_when_the_table_comes_first() -> None:
    """Else it depends on when rows come, and must: see tests/pipelines/joins."""
    clicks = pa.schema([("user", pa.string()), ("_offset", pa.int64())])
    operator = stream_table.Enrich(
        stream_table.InputSpec(clicks, ("user",)),
        stream_table.ChangeLog(LOG, ("key",), ("id",), "_offset", "gone"),
        "left",
    )
    check(operator, {"stream": Source([]), "table": CHANGES}, examples=20)
    check(operator, {"stream": Source(rows(user=KEYS)), "table": Source([])}, examples=20)


def test_clocks_of_devices_are_corrected_alike() -> None:
    """In the order in which rows were received; no two at the same time, which has no order."""
    schema = pa.schema([("device", pa.string()), ("_received", TIME), ("_offset_us", pa.int64())])
    rng = random.Random(SEED)
    readings = [
        {
            "device": rng.choice(["x", "y", None]),
            "_received": BEGIN + timedelta(milliseconds=number),
            "_offset_us": rng.choice([None, *range(-20, 20)]),
        }
        for number in range(40)
    ]
    check(
        DeviceOffsets(schema, ["device"], 3, 10**12),
        {"rows": Source(readings, watermark=("_received", "5 milliseconds"))},
        disorder=Disorder(within="0 seconds"),
    )


def test_weighted_averages_are_the_same_to_the_last_bit() -> None:
    schema = pa.schema(
        [("key", pa.string()), ("at", TIME), ("_offset", pa.int64()), ("_smoothed", pa.float64())]
    )
    values = st.one_of(st.integers(0, 80).map(float), st.none())
    readings = Source(
        rows(key=KEYS, at=SOMETIMES, _smoothed=values), watermark=("at", "10 seconds")
    )
    check(
        Smoothing(schema, ["key"], "at", 20 * SECOND_US, 40 * SECOND_US, 15 * SECOND_US, 2.0, 2),
        {"events": readings},
        disorder=STRAGGLING,
        late_when="15 seconds",
        leave_out=is_late,
        tolerance=0.0,
    )


def test_copies_are_left_out_wherever_batches_are_cut() -> None:
    """Each event has a key of its own; its copies come while they can be known."""
    schema = pa.schema([("key", pa.string()), ("at", TIME)])
    events = [
        {"key": str(number), "at": BEGIN + timedelta(seconds=7 * number)} for number in range(25)
    ]
    check(
        Deduplication(schema, ["key"], "at", 30 * SECOND_US, 10 * SECOND_US),
        {"events": Source(events, watermark=("at", "10 seconds"))},
        disorder=Disorder(duplicates=0.5, within="20 seconds"),
        leave_out=lambda row: row["_kind"] == "duplicate",
    )
