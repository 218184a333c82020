"""As-of joins against a loop over all versions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.joins.as_of import AsOfJoin, Events, History, How
from millstream.pipelines.state.pages import INDEX_MAGIC, unseal
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws

TIME = pa.timestamp("us", tz="UTC")
SALES = pa.schema([("country", pa.string()), ("sold_at", TIME), ("sale", pa.int64())])
RATES = pa.schema(
    [
        ("land", pa.string()),
        ("since", TIME),
        ("rate", pa.int64()),
        ("offset", pa.int64()),
        ("gone", pa.bool_()),
    ]
)


class Sale(NamedTuple):
    country: str | None
    time_us: int | None
    sale: int


class Rate(NamedTuple):
    country: str | None
    time_us: int | None
    rate: int
    offset: int | None
    gone: bool | None


class Batch(NamedTuple):
    sales: list[Sale]
    rates: list[Rate]
    watermark_step_us: int


COUNTRIES = st.sampled_from(["at", "ch", None])
TIMES = st.integers(0, 40)
A_SALE = st.builds(Sale, COUNTRIES, TIMES | st.none(), st.integers(0, 3))
A_RATE = st.builds(
    Rate,
    COUNTRIES,
    TIMES | st.none(),
    st.integers(0, 5),
    st.none() | st.integers(0, 2),
    st.sampled_from([None, False, False, True]),
)
BATCHES = st.lists(
    st.builds(
        Batch, st.lists(A_SALE, max_size=5), st.lists(A_RATE, max_size=5), st.integers(0, 15)
    ),
    max_size=8,
)


def columns(sales: Sequence[Sale], rates: Sequence[Rate]) -> dict[str, pa.RecordBatch]:
    return {"events": to_batch(sales, SALES), "versions": to_batch(rates, RATES)}


def to_batch(rows: Sequence[Sale] | Sequence[Rate], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.array([row[place] for row in rows], pa.int64()).cast(field.type)
        if field.type == TIME
        else pa.array([row[place] for row in rows], field.type)
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def operator(how: How = "left", lateness_us: int = 0) -> AsOfJoin:
    """Tidies after every few rows, by default."""
    events = Events(SALES, ("country",), "sold_at")
    history = History(RATES, ("land",), "since", ("since", "rate", "offset"), "offset", "gone")
    return AsOfJoin(events, history, how, lateness_us)


class Result(NamedTuple):
    sale: Sale
    rate: int | None
    since_us: int | None
    kind: str


def results(rows: pa.RecordBatch) -> list[Result]:
    as_numbers = [
        rows.column(name).cast(pa.int64()) if name in ("sold_at", "since") else rows.column(name)
        for name in rows.schema.names
    ]
    table = pa.RecordBatch.from_arrays(as_numbers, names=rows.schema.names).to_pylist()
    return [
        Result(Sale(it["country"], it["sold_at"], it["sale"]), it["rate"], it["since"], it["_kind"])
        for it in table
    ]


def valid(sale: Sale, rates: Sequence[Rate]) -> Rate | None:
    """By definition. Of versions that differ in nothing else, the test must not care."""
    found = [
        it
        for it in rates
        if it.country is not None
        and it.country == sale.country
        and it.time_us is not None
        and sale.time_us is not None
        and it.time_us <= sale.time_us
    ]
    if not found:
        return None
    return max(found, key=lambda it: (it.time_us, -1 if it.offset is None else it.offset))


def settled(rates: Sequence[Rate]) -> list[Rate]:
    """Only one of those that neither time nor offset tell apart."""
    return list({(it.country, it.time_us, it.offset): it for it in rates}.values())


def expected(sale: Sale, rates: Sequence[Rate]) -> tuple[int | None, int | None]:
    found = valid(sale, rates)
    return (None, None) if found is None or found.gone else (found.rate, found.time_us)


def without_twins(batches: Sequence[Batch]) -> list[Batch]:
    chosen = settled([rate for batch in batches for rate in batch.rates])
    return [batch._replace(rates=[it for it in batch.rates if it in chosen]) for batch in batches]


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([0, 5, 100]), st.sampled_from(["inner", "left"]))
def test_each_event_gets_the_version_that_a_loop_finds(
    batches: list[Batch], lateness_us: int, how: How
) -> None:
    """Late versions hold for what has no result yet, and for nothing else."""
    trial = Trial(operator(how, lateness_us), buckets=2)
    held: list[Sale] = []
    known: list[Rate] = []
    watermark_us = 0
    for sales, rates, step_us in without_twins(batches):
        horizon_us = watermark_us - lateness_us
        due = [it for it in held if it.time_us is not None and it.time_us <= horizon_us]
        wanted = Counter(Result(it, *expected(it, known), "final") for it in due)
        if how == "inner":
            wanted = Counter({it: n for it, n in wanted.items() if it.rate is not None})
        late = [it for it in sales if it.time_us is None or it.time_us <= horizon_us]
        wanted.update(Result(it, None, None, "late") for it in late)
        wanted.update(
            Result(Sale(None, None, None), it.rate, it.time_us, "late_version")  # type: ignore[arg-type]
            for it in rates
            if it.time_us is None or it.time_us <= horizon_us
        )
        assert Counter(results(trial.feed(columns(sales, rates), watermark_us))) == wanted
        held = [it for it in held if it not in due] + [it for it in sales if it not in late]
        known += rates
        watermark_us += step_us
    last = [Result(it, *expected(it, known), "final") for it in held]
    if how == "inner":
        last = [it for it in last if it.rate is not None]
    assert Counter(results(trial.finish())) == Counter(last)


@settings(max_examples=draws(30))
@given(st.lists(A_SALE, max_size=8), st.lists(A_RATE, max_size=8), st.randoms())
def test_order_of_arrival_changes_nothing(
    sales: list[Sale], rates: list[Rate], random: Random
) -> None:
    """Not even among versions that neither time nor sequence tell apart."""
    whole = Trial(operator())
    found = whole.feed(columns(sales, rates)), whole.finish()
    mixed_sales, mixed_rates = list(sales), list(rates)
    random.shuffle(mixed_sales)
    random.shuffle(mixed_rates)
    trial = Trial(operator())
    pieces = []
    for place in range(8):
        pieces += results(
            trial.feed(columns(mixed_sales[place : place + 1], mixed_rates[place : place + 1]))
        )
    pieces += results(trial.finish())
    assert Counter(pieces) == Counter(it for rows in found for it in results(rows))


def test_event_waits_for_the_watermark_not_longer_and_comes_once() -> None:
    trial = Trial(operator(lateness_us=7))
    trial.feed(columns([Sale("at", 20, 1)], []), 0)
    assert trial.feed(columns([], [Rate("at", 20, 19, 0, False)]), 26).num_rows == 0
    assert [it.rate for it in results(trial.advance(27))] == [19]
    assert trial.advance(28).num_rows == 0


def test_replaced_versions_are_forgotten_behind_the_horizon() -> None:
    trial = Trial(operator(), buckets=1)
    for number in range(200):
        trial.feed(columns([], [Rate("at", number, number, 0, False)]), number - 1)
    kept = sum(page[3] for page in _pages(trial, "versions"))
    assert kept <= 10
    trial.feed(columns([Sale("at", 500, 1)], []))
    assert [it.rate for it in results(trial.advance(500))] == [199]


def test_version_older_than_a_delete_does_not_come_to_life_late() -> None:
    trial = Trial(operator())
    trial.feed(columns([], [Rate("at", 10, 19, 0, False), Rate("at", 20, 0, 0, True)]), 0)
    trial.feed(columns([Sale("at", 200, 1)], []), 100)
    trial.feed(columns([], [Rate("at", 15, 7, 0, False)]), 100)
    assert [it.rate for it in results(trial.advance(200))] == [None]


def test_late_version_has_its_lateness() -> None:
    trial = Trial(operator())
    rows = trial.feed(columns([], [Rate("at", 500_000, 7, 0, False)]), 2_000_000).to_pylist()
    assert [(it["_kind"], it["_lateness"]) for it in rows] == [("late_version", 1.5)]


def test_many_keys_at_once() -> None:
    """Pages, merges and collisions of places: all keys of a large batch find their own."""
    countries = [f"c{number}" for number in range(5_000)]
    rates = [
        Rate(it, at, at * 7 + place, 0, False)
        for place, it in enumerate(countries)
        for at in (0, 9)
    ]
    sales = [Sale(it, at, 0) for it in countries for at in (8, 9)]
    trial = Trial(operator())
    trial.feed(columns(sales, rates))
    places = {it: place for place, it in enumerate(countries)}
    found = results(trial.finish())
    assert len(found) == 10_000
    for it in found:
        base = 63 if it.sale.time_us == 9 else 0
        assert it.rate == base + places[str(it.sale.country)]


def _pages(trial: Trial, table: str) -> list[list[int]]:
    found: list[list[int]] = []
    for store in trial.buckets:
        if store.index is not None:
            index = json.loads(bytes(unseal(INDEX_MAGIC, store.index)))
            found += index["tables"][table]["pages"]
    return found


@pytest.mark.parametrize("how", ["inner", "left"])
def test_event_without_versions(how: How) -> None:
    trial = Trial(operator(how))
    trial.feed(columns([Sale("at", 5, 1)], []))
    assert trial.finish().num_rows == (how == "left")


def test_version_is_kept_until_no_event_on_time_can_need_it() -> None:
    """It is replaced, but only just behind the horizon: an event in between may still come."""
    trial = Trial(operator(), buckets=1)
    trial.feed(columns([], [Rate("at", 5, 1, 0, False), Rate("at", 12, 2, 0, False)]), 0)
    doubled = [Rate("ch", 12, 3, 0, False), Rate("ch", 13, 3, 0, False)]
    trial.feed(columns([], doubled), 10)
    trial.feed(columns([Sale("at", 11, 1), Sale("at", 12, 2)], []), 10)
    assert {it.sale.sale: it.rate for it in results(trial.advance(12))} == {1: 1, 2: 2}
