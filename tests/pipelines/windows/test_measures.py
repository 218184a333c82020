"""Aggregates as plain data: what they give, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.plans import BucketedOperator, analyzed, bucketed_operators
from millstream.pipelines.state.spark import ROCKSDB
from millstream.pipelines.views import aggregate
from millstream.pipelines.windows import session, sliding, tumbling
from millstream.pipelines.windows.aggregates import parse_aggregates
from millstream.pipelines.windows.measures import (
    Measure,
    add_measured,
    check_measures,
    measured_name,
)
from millstream.testing.streams.running import state_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema({"user": pa.string(), "amount": pa.int32()})


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (Measure("n", "count", None), pa.int64()),
        (Measure("mean", "avg", "amount"), pa.float64()),
        (Measure("most", "max", "amount"), pa.int32()),
    ],
)
def test_measure_has_the_type_of_its_result(measure: Measure, expected: pa.DataType) -> None:
    assert measure.type_in(SCHEMA) == expected
    check_measures([measure], SCHEMA, taken=["user", "amount"])


def test_measure_of_a_taken_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is a column user already"):
        check_measures([Measure("user", "count", None)], SCHEMA, taken=["user"])


def test_measure_of_what_is_no_number_is_refused_with_the_cast() -> None:
    with pytest.raises(ConfigError, match=r"mean: there is no avg.*cast it to a number"):
        check_measures([Measure("mean", "avg", "user")], SCHEMA)


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    from pyspark.sql.functions import lit

    rate = spark.readStream.format("rate").load()
    rows = rate.selectExpr("'ann' as user", "value as amount", "timestamp as at")
    rows = rows.withColumn("_watermark", lit(None).cast("timestamp"))
    return rows.withWatermark("at", "1 second")


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The state store that the operators need."""
    with state_store(spark, ROCKSDB):
        yield


def operator_of(frame: DataFrame) -> BucketedOperator:
    """Without its number, which is another one for each frame."""
    (found,) = bucketed_operators(analyzed(frame))
    return found._replace(number=0)


@pytest.mark.usefixtures("rocksdb")
def test_state_is_named_the_same_however_an_expression_is_written(stream: DataFrame) -> None:
    """As text or as a Column, whatever the spacing: a checkpoint goes on with both."""
    from pyspark.sql import functions as F  # noqa: N812

    weighted = stream.withColumn("_weight", F.lit(1).cast("bigint"))
    kept: dict[str, Any] = {"key": "user", "time": "at", "emit": "change"}

    def operators(total: Any, twice: Any) -> list[BucketedOperator]:
        given = {"total": total, "twice": twice}
        return [
            operator_of(frame)
            for frame in (
                stream.transform(sliding("10 minutes", key="user", time="at", **given)),
                stream.transform(tumbling("10 minutes", **kept, **given)),
                stream.transform(session("10 minutes", **kept, **given)),
                weighted.transform(aggregate, key="user", **given),
            )
        ]

    text = operators("sum(amount)", "max(amount * 2)")
    assert operators(F.sum("amount"), F.max(F.col("amount") * 2)) == text
    assert operators("sum( amount)", "max(amount*2)") == text
    others = operators("sum(amount)", "max(amount * 3)")
    assert all(other != known for other, known in zip(others, text, strict=True))


def test_names_of_earlier_versions_are_those_of_the_text_and_of_the_printed_column(
    stream: DataFrame,
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    given = {"a": "sum(amount*2)", "b": F.sum(F.col("amount") * 2), "c": F.sum("amount")}
    _, measures = add_measured(stream, parse_aggregates(given))
    a, b, c = measures
    assert a.column == b.column
    assert a.earlier == measured_name("amount*2") == "_measured_amount_2_fa95fc20"
    assert b.earlier == measured_name("Column<'*(amount, 2)'>")
    assert (c.column, c.earlier) == ("amount", None)


def test_column_of_an_expression_is_named_by_it_wherever_it_stands(spark: SparkSession) -> None:
    """State of one expression must not be taken for that of another."""
    frame = spark.createDataFrame([("ann", 1)], "user string, amount int")
    given = {"twice": "sum(amount * 2)", "n": "count(*)", "half": "sum(amount / 2)"}
    twice, half = measured_name("amount * 2"), measured_name("amount / 2")
    assert twice != half
    for order in (given, dict(reversed(given.items()))):
        measured, measures = add_measured(frame, parse_aggregates(order))
        assert set(measured.columns) == {"user", "amount", twice, half}
        assert {it.name: it.column for it in measures} == {"twice": twice, "n": None, "half": half}


def test_aggregates_of_one_expression_share_a_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("ann", 1)], "user string, amount int")
    given = {"sum": "sum(amount * 2)", "most": "max(amount * 2)"}
    measured, measures = add_measured(frame, parse_aggregates(given))
    assert measured.columns == ["user", "amount", measured_name("amount * 2")]
    assert {it.column for it in measures} == {measured_name("amount * 2")}
