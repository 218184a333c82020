"""`check_stream` on Spark's own windows: what is right passes, in seconds; what is not, is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.pipeline import pipeline
from millstream.pipelines.spec import ONLY, table, topic
from millstream.pipelines.windows import tumbling
from millstream.testing.streams import Disorder, check_stream, moments
from millstream.testing.streams.check import SEED_VARIABLE, Judge, Rules, choose_seed
from millstream.testing.streams.inputs import Source, define
from tests.testing.streams.orders import SCHEMA, order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(1, 3),
        "shop": st.sampled_from(["a", "b", None]),
        "at": moments("5 minutes", "10 s"),
    }
)


@pipeline(
    reads=topic("orders", schema=SCHEMA, watermark=("at", "30 seconds")),
    writes=table("counts"),
)
def counts(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import window

    return orders.groupBy("shop", window("at", "1 minute")).count()


def test_window_as_a_stream_is_the_window_as_a_batch(spark: SparkSession) -> None:
    """With late rows, in disorder, through all faults that there are."""
    before = dict(spark.conf.getAll)
    disorder = Disorder(late=0.2, late_by="1 minute")
    outcomes = check_stream(
        counts, {"orders": ORDERS}, spark=spark, disorder=disorder, seed=3, examples=1, batches=4
    )
    assert all(it.rows() for it in outcomes)
    assert any(it.dropped_by_spark for it in outcomes), "late rows came, and were dropped"
    assert dict(spark.conf.getAll) == before


def test_all_columns_of_a_stream_are_those_of_the_batch(spark: SparkSession) -> None:
    """Without the watermark, which differs between batches; windows find it all the same."""

    @pipeline(
        reads={
            "orders": topic("orders", schema=SCHEMA, watermark=("at", "30 seconds")),
            "others": topic("others", schema=SCHEMA, watermark=("at", "30 seconds")),
        },
        writes={"values": topic("values"), "counts": table("counts")},
    )
    def everything(orders: DataFrame, others: DataFrame) -> dict[str, DataFrame]:
        united = orders.union(others)
        value = "to_json(struct(*)) as value"
        return {
            "values": united.selectExpr(value, "cast(xxhash64(*) as string) as key"),
            "counts": united.transform(tumbling("1 minute", time="at", n="count(*)")),
        }

    outcomes = check_stream(
        everything,
        {"orders": ORDERS, "others": ORDERS},
        spark=spark,
        seed=3,
        examples=1,
        batches=4,
    )
    assert all(it.rows("values") for it in outcomes)


def test_bad_input_is_refused_before_anything_runs(spark: SparkSession) -> None:
    def refusal(**arguments: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            check_stream(counts, {"orders": ORDERS}, spark=spark, **arguments)
        return str(refused.value)

    assert "nothing says which of them count" in refusal(disorder=Disorder(late=0.1))
    both = Disorder(late=0.1, late_by="1 minute")
    assert "leave out one" in refusal(disorder=both, late_when="1 minute")

    def own_watermark(orders: DataFrame) -> DataFrame:
        return orders.withWatermark("at", "1 minute").groupBy("at").count()

    with pytest.raises(ConfigError, match="own_watermark calls withWatermark itself"):
        check_stream(own_watermark, {"orders": Source([], schema=SCHEMA)}, spark=spark)


@pytest.mark.parametrize(
    ("written", "output_mode", "key"),
    [
        (table("t"), "append", ()),
        (table("t", key="shop"), "append", ("shop",)),
        (table("t", key="shop", mode="append"), "append", ()),
        (topic("t", key="shop"), "append", ()),
        (topic("t", key="shop"), "update", ("shop",)),
    ],
)
def test_rows_are_compared_as_their_output_takes_them(
    written: Any, output_mode: str, key: tuple[str, ...]
) -> None:
    declared = define(counts.variant("counts", writes=written), {"orders": []})
    judge = Judge(declared, Rules(), None)  # type: ignore[arg-type]
    assert judge.comparison(ONLY, output_mode).key == key
    judge = Judge(declared, Rules(key=("id",)), None)  # type: ignore[arg-type]
    assert judge.comparison(ONLY, output_mode).key == ("id",)


def judge_of(pipeline: Any, inputs: Any, **rules: Any) -> Judge:
    given = Rules(**rules)
    return Judge(define(pipeline, inputs, given.key), given, None)  # type: ignore[arg-type]


def test_trial_is_printed_with_what_the_check_was_given() -> None:
    plain = "trial = StreamTrial(counts, spark=spark)"
    assert judge_of(counts, {"orders": []}).trial_code() == plain
    rules = {"key": ("shop",), "late_when": "1 minute", "end": {"orders": {"id": 1}}}
    assert judge_of(counts, {"orders": []}, **rules).trial_code() == (
        "trial = StreamTrial(counts, spark=spark, key=['shop'], late_when='1 minute', "
        "end={'orders': {'id': 1}})"
    )
    unsaid = judge_of(counts, {"orders": []}, reference=counts, tolerance=0.5)
    assert unsaid.trial_code("clock=...") == (
        "trial = StreamTrial(counts, spark=spark, reference=..., tolerance=0.5, clock=...)"
        "  # ...: as in your test"
    )


def test_trial_of_a_plain_function_is_printed_with_its_sources() -> None:
    def both(orders: DataFrame, clicks: DataFrame) -> DataFrame:
        return orders

    sources = {
        "orders": Source([], schema=SCHEMA, watermark=("at", "1 minute")),
        "clicks": Source([], schema=SCHEMA, time="at"),
    }
    assert judge_of(both, sources).trial_code() == (
        "trial = StreamTrial(both, {'orders': Source([], schema=..., watermark=('at', '1 minute')),"
        " 'clicks': Source([], schema=..., time='at')}, spark=spark)  # ...: as in your test"
    )
    timed = {"orders": Source([], time="at")}
    assert "{'orders': Source([], time='at')}" in judge_of(counts, timed).trial_code()


def fails_in_plan(orders: DataFrame) -> DataFrame:
    return orders.select("nothing")


def test_error_of_the_pipeline_says_case_and_seed(spark: SparkSession) -> None:
    orders = {"orders": Source([order(1, 1)], schema=SCHEMA)}
    with pytest.raises(Exception, match="nothing") as raised:
        check_stream(fails_in_plan, orders, spark=spark, seed=5, examples=1)
    notes = "\n".join(raised.value.__notes__)
    assert "trial.batch(" in notes
    assert "check_stream(..., seed=5)" in notes


def test_seed_is_given_or_from_the_environment_or_new(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_seed(7) == 7
    monkeypatch.setenv(SEED_VARIABLE, "11")
    assert choose_seed(None) == 11
    monkeypatch.setenv(SEED_VARIABLE, "eleven")
    with pytest.raises(ConfigError, match="'eleven' is no number"):
        choose_seed(None)
    monkeypatch.delenv(SEED_VARIABLE)
    assert choose_seed(None) != choose_seed(None)
