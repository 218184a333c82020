"""Disorder by chance: no row is lost, none is later than allowed, late ones are certain."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.pipelines.spec import topic
from millstream.testing.streams.case import Arrival, Batch, Case
from millstream.testing.streams.disorder import (
    Disorder,
    is_sound,
    make_case,
    watermarks_us,
)
from millstream.testing.streams.inputs import as_moment, make_input, moment_us
from tests.testing.streams.orders import CLICKS, arrivals, order, orders_input

INPUTS = {"orders": orders_input("10 seconds")}
TIMES = st.lists(st.integers(0, 300), min_size=1, max_size=30)
SEEDS = st.integers(0, 2**32)


def orders_at(times: list[int]) -> dict[str, list[dict[str, object]]]:
    return {"orders": [order(number, time) for number, time in enumerate(times)]}


def time_us(arrival: Arrival) -> int:
    found = INPUTS["orders"].time_us(arrival.row)
    assert found is not None
    return found


@given(TIMES, SEEDS)
def test_rows_come_less_than_the_delay_behind_the_newest(times: list[int], seed: int) -> None:
    case = make_case(orders_at(times), INPUTS, Disorder(), random.Random(seed))
    assert sorted(it.row["id"] for it in case.arrivals) == list(range(len(times)))
    newest_us = 0
    for arrival in case.arrivals:
        newest_us = max(newest_us, time_us(arrival))
        assert time_us(arrival) > newest_us - 10_000_000


@given(TIMES, SEEDS, st.floats(0, 1), st.integers(0, 100))
def test_late_rows_are_late_by_any_rule(
    times: list[int], seed: int, share: float, seconds: int
) -> None:
    disorder = Disorder(late=share, late_by=f"{seconds} seconds")
    case = make_case(orders_at(times), INPUTS, disorder, random.Random(seed))
    assert sorted(it.row["id"] for it in case.arrivals) == list(range(len(times)))
    assert is_sound(case, INPUTS, disorder)
    if share == 1:
        assert all(it.is_late for it in case.arrivals)


@given(TIMES, SEEDS)
def test_duplicates_come_after_their_row_and_on_time(times: list[int], seed: int) -> None:
    disorder = Disorder(duplicates=0.5, late=0.3, late_by="1 minute")
    case = make_case(orders_at(times), INPUTS, disorder, random.Random(seed))
    assert is_sound(case, INPUTS, disorder)
    counted = Counter(it.row["id"] for it in case.arrivals if not it.is_repeat)
    assert counted == Counter(range(len(times)))


def test_late_row_whose_watermark_is_gone_is_not_sound() -> None:
    late_row = Arrival("orders", order(1, 0), is_late=True)
    batches = (Batch(arrivals(order(2, 120))), Batch(), Batch((late_row,)))
    disorder = Disorder(late=0.1, late_by="1 minute")
    assert is_sound(Case(batches), INPUTS, disorder)
    assert not is_sound(Case(batches[1:]), INPUTS, disorder), "nothing moved the watermark"
    assert not is_sound(Case((batches[0], batches[2])), INPUTS, disorder), "Spark is a batch behind"


def test_duplicate_without_its_row_is_not_sound() -> None:
    row = order(1, 0)
    first, second = Arrival("orders", row), Arrival("orders", row, is_repeat=True)
    assert is_sound(Case((Batch((first, second)),)), INPUTS, Disorder())
    assert not is_sound(Case((Batch((second,)),)), INPUTS, Disorder())


def test_watermark_is_that_of_the_slowest_input() -> None:
    clicks = make_input("clicks", topic("c", schema=CLICKS, watermark=("at", "5 s")), None)
    case = Case(
        (
            Batch(arrivals(order(1, 100))),
            Batch((Arrival("clicks", {"at": "2026-01-01 00:00:30"}),)),
            Batch((Arrival("clicks", {"at": "2026-01-01 00:00:10"}),)),
            Batch(watermark=as_moment("2026-01-01 00:02:00")),
            Batch(),
        )
    )
    marks = watermarks_us(case, INPUTS | {"clicks": clicks})
    begin_us = moment_us(as_moment("2026-01-01"))
    seconds = [None if it is None else (it - begin_us) / 1e6 for it in marks]
    assert seconds == [None, None, 25, 25, 120]


def test_rows_without_a_time_keep_their_order() -> None:
    log = make_input("log", topic("log", schema=StructType().add("n", "integer")), None)
    rows = {"log": [{"n": number} for number in range(20)], **orders_at([1, 50, 99])}
    case = make_case(rows, INPUTS | {"log": log}, Disorder(), random.Random(3))
    assert [it.row["n"] for it in case.arrivals if it.input == "log"] == list(range(20))


def test_faults_are_those_that_are_asked_for() -> None:
    rng = random.Random(1)
    for faults in ([], ["restart"]):
        cases = [
            make_case(orders_at([1, 2]), INPUTS, Disorder(), rng, faults=faults)  # type: ignore[arg-type]
            for _ in range(20)
        ]
        found = {it.fault for case in cases for it in case.batches}
        assert found == {None, *faults}


def test_shares_are_between_none_and_all() -> None:
    with pytest.raises(ConfigError, match="late is a share of the rows"):
        Disorder(late=2)
    with pytest.raises(ConfigError, match="late_by 'soon'"):
        Disorder(late_by="soon")
