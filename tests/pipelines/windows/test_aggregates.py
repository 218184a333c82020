"""Aggregates as people write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import compare, rolling, summarize_sessions
from millstream.pipelines.windows import hopping, sliding, tumbling
from millstream.pipelines.windows.aggregates import (
    Aggregate,
    check_aggregates,
    parse_aggregate,
    parse_aggregates,
    refuse_distinct,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count(*)", Aggregate("count")),
        ("COUNT()", Aggregate("count")),
        ("count(amount)", Aggregate("count", "amount")),
        (" sum( price * (1 + tax) ) ", Aggregate("sum", "price * (1 + tax)")),
        ("mean(x)", Aggregate("avg", "x")),
        ("percentile(x, 0.95)", Aggregate("percentile", "x", 0.95)),
        ("percentile(greatest(a, b), .5)", Aggregate("percentile", "greatest(a, b)", 0.5)),
        ("median(x)", Aggregate("percentile", "x", 0.5)),
        ("collect(x)", Aggregate("collect", "x")),
        ("count(DISTINCT id)", Aggregate("distinct", "id")),
        ("max(concat(a, ')'))", Aggregate("max", "concat(a, ')')")),
    ],
)
def test_aggregate_is_read(text: str, expected: Aggregate) -> None:
    assert parse_aggregate(text, "it") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("amount", "it='amount' is no aggregate: write it like"),
        ("skewness(x)", "it: there is no skewness in this window, only count, sum"),
        ("sum(*)", "it: sum needs a column or an expression"),
        ("sum(a) / sum(b)", "here an aggregate is one call"),
        ("sum(a", "a parenthesis is not closed"),
        ("sum(distinct a)", "only count has distinct values here"),
        ("percentile(x)", "which percentile?"),
        ("percentile(x, 95)", "between 0 and 1"),
    ],
)
def test_bad_aggregate_is_refused_with_an_example(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_aggregate(text, "it")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("function", "name", "given", "hint"),
    [
        (tumbling, "keys", "shop", "; did you mean key=?"),
        (tumbling, "alowed_lateness", "1 hour", "; did you mean allowed_lateness=?"),
        (tumbling, "every", "1 minute", ""),
        (compare, "emit", "final", ""),
        (summarize_sessions, "allowed_lateness", "1 minute", ""),
        (rolling, "evry", "1 minute", "; did you mean every=?"),
    ],
)
def test_keyword_that_may_be_meant_is_one_of_the_function(
    function: Callable[..., Any], name: str, given: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_aggregates({name: given}, function)
    assert f"{name}={given!r} is no aggregate{hint}: write it like" in str(refused.value)


@pytest.mark.parametrize("define", [tumbling, partial(hopping, slide="10 seconds"), sliding])
def test_window_offers_its_own_keywords(define: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="no aggregate; did you mean allowed_lateness"):
        define("1 minute", time="at", alowed_lateness="1 hour")


def test_window_without_aggregates_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no result"):
        parse_aggregates({})


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("total", 7, "total=7 is no aggregate"),
        ("total", "'sum(x)'", "is no aggregate"),
        ("move", "max_by(price, at) / (1 + min(price)", "a parenthesis is not closed"),
        ("n", "conut(*)", "n='conut(*)': Spark has no function conut; did you mean count?"),
        ("mean", "sum(x) / averages(x)", "Spark has no function averages. A function of your own"),
    ],
)
def test_typo_does_not_become_an_aggregate(name: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_aggregates({name: given})
    assert message in str(refused.value)


def test_any_aggregate_of_spark_has_the_right_form() -> None:
    check_aggregates(
        {
            "move": "max_by(price, at) / min_by(price, at) - 1",
            "n": "count (*)",
            "large": "sum(CASE WHEN (x > 1) AND (kind IN ('conut(', 'b')) THEN (x) ELSE (0) END)",
            "rounded": "sum(cast(x AS decimal(10, 2))) filter (where not (x is null))",
            "quoted": "max(`conut(`)",
        }
    )


def test_function_of_the_users_own_is_known_once_it_is_registered(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="Spark has no function conut"):
        check_aggregates({"n": "conut(x)"})
    spark.udf.register("conut", lambda it: it)
    try:
        check_aggregates({"n": "max(conut(x))"})
    finally:
        spark.sql("drop temporary function conut")


def test_all_functions_of_spark_are_known(spark: SparkSession) -> None:
    names = [row[0] for row in spark.sql("show system functions").collect()]
    assert len(names) > 400
    words = [it for it in names if it.isidentifier()]
    check_aggregates({f"a{number}": f"{it}(x)" for number, it in enumerate(words)})


def test_columns_are_the_same_language(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    for column, kind, of in (
        (F.sum("amount"), "sum", "amount"),
        (F.mean("amount").alias("x"), "avg", "amount"),
        (F.count("*"), "count", None),
        (F.count(F.lit(1)), "count", None),
        (F.max(F.col("a") + 1), "max", "+(a, 1)"),
        (F.count_distinct("id"), "distinct", "id"),
        (F.collect_list("x"), "collect", "x"),
        (F.expr("min(x)"), "min", "x"),
    ):
        found = parse_aggregate(column, "it")
        assert found.kind == kind
        assert (found.of if of is None or isinstance(found.of, str) else str(found.of)) in (
            of,
            f"Column<'{of}'>",
        )
    assert parse_aggregate(F.percentile("x", 0.9), "it").fraction == 0.9
    assert parse_aggregate(F.median("x"), "it").fraction == 0.5
    for column in (F.sum("a") / F.sum("b"), F.col("a")):
        with pytest.raises(ConfigError, match=r"it: (this Column is not one call|there is no /)"):
            parse_aggregate(column, "it")


def test_distinct_aggregates_of_streams_are_refused_in_a_sentence(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    for given in ("count(distinct id)", "count( DISTINCT id)", F.count_distinct("id")):
        with pytest.raises(ConfigError, match=r"n: .* use analytics\.count_distinct"):
            refuse_distinct({"n": given})
    refuse_distinct({"n": "count(id)", "m": F.max("id"), "o": "max(if(is_distinct(a), 1, 0))"})
