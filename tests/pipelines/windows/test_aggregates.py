"""Aggregates as people write them."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.windows import Aggregate
from millstream.pipelines.windows.aggregates import parse_aggregate, parse_aggregates


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
    ],
)
def test_aggregate_is_read(text: str, expected: Aggregate) -> None:
    assert parse_aggregate(text, "it") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("amount", "it='amount' is no aggregate: write it like"),
        ("skewness(x)", "it='skewness': it can be count, sum"),
        ("sum(*)", "it='sum' of what?"),
        ("percentile(x)", "which percentile?"),
        ("percentile(x, 95)", "between 0 and 1"),
    ],
)
def test_bad_aggregate_is_refused_with_an_example(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_aggregate(text, "it")
    assert message in str(refused.value)


def test_window_without_aggregates_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no result"):
        parse_aggregates({})
