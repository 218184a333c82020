"""Patterns on Spark: as a batch, as a stream that equals it, and refused where they cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.patterns import match, recognize
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.testing.streams import Source, check_stream, moments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PAYMENTS = "card string, at timestamp, amount decimal(10, 2), shop string, ok boolean"
SPREE = match(
    "small{2,} big",
    key="card",
    time="at",
    within="10 minutes",
    where={
        "small": "amount < 5",
        "big": "amount > 500 and amount > 10 * avg(small.amount) and shop <> first(small.shop)",
    },
    began="first(small.at)",
    n="count(small)",
    spent="sum(amount) + 0.5",
    shop="upper(big.shop)",
)


@pytest.fixture(autouse=True)
def _rocksdb(request: pytest.FixtureRequest) -> Iterator[None]:
    if "spark" not in request.fixturenames:
        yield
        return
    spark = request.getfixturevalue("spark")
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield
    spark.conf.set(STORE_PROVIDER, before)


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


@pytest.fixture(scope="module")
def payments(spark: SparkSession) -> DataFrame:
    from decimal import Decimal

    rows = [
        ("x", at(0), "1.00", "a", True),
        ("x", at(1), "2.00", "b", True),
        ("x", at(2), "3.00", "c", None),
        ("x", at(3), "600.00", "d", False),
        ("x", at(20), "1.00", "a", True),
        ("x", at(21), "2.00", "b", True),
        ("x", at(31), "600.00", "d", True),  # too far from the first
        ("y", at(0), "4.00", "a", True),
        ("y", at(1), "4.00", "a", True),
        ("y", at(2), "700.00", "a", True),  # the shop of the first
        ("y", at(3), "4.00", None, True),
    ]
    typed = [(key, time, Decimal(amount), *rest) for key, time, amount, *rest in rows]
    return spark.createDataFrame(typed, PAYMENTS)


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def test_batch_has_matches_with_measures_of_spark(payments: DataFrame) -> None:
    from decimal import Decimal

    (row,) = payments.transform(SPREE).collect()
    assert row.asDict() == {
        "card": "x",
        "began": BEGIN.replace(tzinfo=None),
        "n": 3,
        "spent": Decimal("606.50"),
        "shop": "D",
    }


def test_time_outs_have_the_measures_so_far(payments: DataFrame) -> None:
    late = match(
        "small then big",
        key="card",
        time="at",
        within="5 minutes",
        where={"small": "amount < 2", "big": "amount > 500"},
        since="small.at",
        amount="big.amount",
    )
    rows = payments.transform(late.with_timed_out).collect()
    shown = {(it.since.minute, it.amount is None, it["_kind"]) for it in rows}
    assert shown == {(0, False, "final"), (20, True, "timed_out")}
    (row,) = payments.transform(late.timed_out).collect()
    assert row.since.minute == 20


def test_sql_text_yields_all_rows_in_the_order_of_the_standard(payments: DataFrame) -> None:
    text = """
        MATCH_RECOGNIZE (
          PARTITION BY card ORDER BY at
          MEASURES classifier() AS label, count(up.amount) AS ups, FINAL last(at) AS ended,
                   match_number() AS no
          ALL ROWS PER MATCH AFTER MATCH SKIP PAST LAST ROW
          PATTERN (strt up+)
          DEFINE up AS amount > prev(amount)
        )"""
    rows = payments.transform(recognize(text)).orderBy("card", "at").collect()
    shown = [(it.card, it.at.minute, it.label, it.ups, it.ended.minute, it.no) for it in rows]
    assert shown == [
        ("x", 0, "STRT", 0, 3, 1),
        ("x", 1, "UP", 1, 3, 1),
        ("x", 2, "UP", 2, 3, 1),
        ("x", 3, "UP", 3, 3, 1),
        ("x", 20, "STRT", 0, 31, 2),
        ("x", 21, "UP", 1, 31, 2),
        ("x", 31, "UP", 2, 31, 2),
        ("y", 1, "STRT", 0, 2, 1),
        ("y", 2, "UP", 1, 2, 1),
    ]


def test_batch_may_begin_with_the_newest_row(payments: DataFrame) -> None:
    text = """
        PARTITION BY card ORDER BY at {} MEASURES first(at) AS began, last(at) AS ended
        PATTERN ({}) WITHIN INTERVAL '5' MINUTE DEFINE big AS amount > 500, small AS amount < 5"""
    forth = payments.transform(recognize(text.format("", "small+ big")))
    back = payments.transform(recognize(text.format("DESC", "big small+"))).collect()
    shown = {(it.card, it.began.minute, it.ended.minute) for it in forth.collect()}
    assert shown == {("x", 0, 3), ("y", 0, 2)}
    assert {(it.card, it.ended.minute, it.began.minute) for it in back} == shown


def test_rows_of_one_time_may_be_in_descending_order(payments: DataFrame) -> None:
    from pyspark.sql.functions import col, minute

    rows = payments.where("card = 'x'").select(
        col("at").substr(1, 10).cast("timestamp").alias("at"), minute("at").alias("number")
    )
    text = "ORDER BY at, number {} MEASURES first(number) AS began PATTERN (^ a)"
    began = [rows.transform(recognize(text.format(it))).first() for it in ("ASC", "DESC")]
    assert [it and it.began for it in began] == [0, 31]


def test_anchors_and_next_work_in_a_batch(payments: DataFrame) -> None:
    whole = match(
        "^ a+ $", key="card", time="at", where={"a": "next(amount) is null or amount > 0"},
        n="count(*)", after="prev(last(a.amount))",
    )  # fmt: skip
    shown = {it.card: (it.n, float(it.after)) for it in payments.transform(whole).collect()}
    assert shown == {"x": (7, 2.0), "y": (4, 700.0)}


def test_conditions_may_be_columns(payments: DataFrame) -> None:
    from pyspark.sql.functions import col

    pair = match(
        "a b", key="card", time="at", where={"a": col("ok"), "b": ~col("ok")}, n="count(*)"
    )
    assert found(payments.transform(pair)) == []
    pair = match("a b", key="card", time="at", where={"b": ~col("ok")}, n="count(*)")
    assert found(payments.transform(pair)) == [("x", 2)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"n": "count(*)", "where": {"a": "nothing > 1"}}, "condition of a: .*nothing"),
        ({"n": "count(*)", "where": {"a": "amount"}}, "condition of a: it is decimal"),
        ({"n": "nothing + 1"}, "measure n: there is no column 'nothing'"),
        ({"n": "sum(shop)"}, "there is no sum"),
        ({"card": "count(*)"}, "there is a column card already"),
        ({"n": "count(*)", "order_by": "shop"}, "order_by shop is string"),
        ({"n": "count(*)", "order": "arrival"}, "the order of arrival is not known"),
        ({"n": "count(*)", "where": {"b": "a.shop > shop"}}, "= and <> only"),
    ],
)
def test_definitions_that_do_not_fit_the_rows_are_refused(
    payments: DataFrame, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        match("a b", key="card", time="at", **given)(payments)


@pytest.mark.parametrize(
    ("pattern", "given", "problem"),
    [
        ("a b", {}, "needs a limit"),
        ("a $", {"within": "1 minute"}, "a stream has no last row"),
        ("a b", {"within": "1 minute", "where": {"a": "next(value) > 1"}}, "reads NEXT"),
        ("a b", {"within": "1 minute", "m": "next(a.value)"}, "reads NEXT"),
        ("a b", {"within": "1 minute"}, "needs a watermark"),
    ],
)
def test_streams_refuse_what_they_cannot_decide(
    spark: SparkSession, pattern: str, given: dict[str, Any], problem: str
) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match=problem):
        match(pattern, time="timestamp", n="count(*)", **given)(stream)


def test_nothing_times_out_without_a_limit(payments: DataFrame) -> None:
    with pytest.raises(ConfigError, match="nothing times out"):
        match("a b", time="at", n="count(*)").timed_out(payments)


VISITS = Source(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(["x", "y"]),
            "at": moments("3 minutes", "5 seconds"),
            "page": st.sampled_from(["home", "cart", "pay"]),
            "x": st.integers(0, 9),
        }
    ),
    schema="user string, at timestamp, page string, x long, _offset long",
    watermark=("at", "10 seconds"),
)
LOST = match(
    "home cart+ pay?",
    key="user",
    time="at",
    within="1 minute",
    where={
        "home": "page = 'home'",
        "cart": "page <> 'pay' and x >= min(cart.x) - 1",
        "pay": "page = 'pay' and x > prev(x) - 4",
    },
    since="home.at",
    xs="sum(cart.x)",
    paid="pay.x",
)


def test_stream_equals_batch_on_spark(spark: SparkSession) -> None:
    def lost(visits: DataFrame) -> DataFrame:
        return visits.transform(LOST.with_timed_out)

    outcomes = check_stream(lost, {"visits": VISITS}, spark=spark, seed=3, rows=24, examples=1)
    assert all(it.rows() for it in outcomes)
    assert [it.dropped_by_spark for it in outcomes] == [0] * len(outcomes)


def test_stream_by_arrival_equals_batch_on_spark(spark: SparkSession) -> None:
    alerts = replace(LOST, order="arrival", measures={**LOST.measures, "before": "prev(home.x)"})

    def lost(visits: DataFrame) -> DataFrame:
        return visits.transform(alerts)

    outcomes = check_stream(lost, {"visits": VISITS}, spark=spark, seed=3, rows=24, examples=1)
    assert all(it.rows() for it in outcomes)
