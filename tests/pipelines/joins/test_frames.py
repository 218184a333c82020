"""What joins refuse before anything runs, and what they say then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.columns import check_choice
from millstream.pipelines.joins.frames import (
    check_comparable,
    check_flag,
    check_order,
    name_keys,
    name_order,
    other_columns,
    table_key,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

How = Literal["inner", "left"]


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [], "id long, country string, sold_at timestamp, tags map<int,int>"
    )


@pytest.fixture
def rates(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "land string, country int, rate double, is_gone boolean")


def test_choice_is_one_of_those_there_are() -> None:
    check_choice("how", "left", How)
    with pytest.raises(ConfigError, match="how='outer': choose one of inner, left"):
        check_choice("how", "outer", How)


def test_keys_are_named_on_both_sides(sales: DataFrame, rates: DataFrame) -> None:
    assert name_keys(sales, rates, {"country": "land"}) == (("country",), ("land",))
    assert name_keys(sales, sales, ["id", "country"]) == (("id", "country"), ("id", "country"))


def test_keys_that_cannot_meet_are_refused(
    spark: SparkSession, sales: DataFrame, rates: DataFrame
) -> None:
    with pytest.raises(ConfigError, match="country is string and country is int: cast one"):
        name_keys(sales, rates, "country")
    with pytest.raises(ConfigError, match="needs a column that both sides have"):
        name_keys(sales, rates, [])
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="one side of the join is a stream"):
        name_keys(sales, stream, "id")


def test_columns_of_the_wrong_kind_are_refused(sales: DataFrame, rates: DataFrame) -> None:
    check_order(sales, "id")
    with pytest.raises(ConfigError, match="sequence is country, which is string: use a column of"):
        check_order(sales, "country")
    check_flag(rates, "is_gone")
    with pytest.raises(ConfigError, match="delete is rate, which is double: use a condition"):
        check_flag(rates, "rate")
    check_comparable(rates)
    with pytest.raises(ConfigError, match=r"tags is map<int,int>.*use to_json\(tags\)"):
        check_comparable(sales)


def test_offsets_do_not_order_a_table(spark: SparkSession) -> None:
    """They order the records of one partition, and keys move to others."""
    raw = spark.createDataFrame([], "user string, _offset long, _position binary, _deleted boolean")
    with pytest.raises(ConfigError, match="orders the records of one partition only"):
        check_order(raw, "_offset")
    renamed = raw.withMetadata("_offset", {"_offset": True}).withColumnRenamed("_offset", "place")
    with pytest.raises(ConfigError, match="Use sequence='_position'"):
        check_order(renamed, "place")
    assert name_order(raw, None, None)[1:] == ("_position", "_deleted")


def test_table_without_a_key_or_an_order_is_refused(sales: DataFrame) -> None:
    with pytest.raises(ConfigError, match=r'topic\(\.\.\., table_key="user"\)'):
        table_key(sales)
    with pytest.raises(ConfigError, match="which change of a key is newer is unknown"):
        name_order(sales, None, None)
    assert name_order(sales, None, None, optional=True) == (sales, None, None)
    marked = sales.withMetadata("country", {"millstream.table_key": True})
    assert table_key(marked.withColumnRenamed("country", "land")) == ("land",)


def test_result_has_no_two_columns_of_a_name(sales: DataFrame, rates: DataFrame) -> None:
    assert other_columns(sales, rates, ["country"], ["_late"]) == ("land", "rate", "is_gone")
    with pytest.raises(ConfigError, match="two columns country: rename one"):
        other_columns(sales, rates, [], [])
