"""Inputs: what a pipeline declares, what a plain function must be told, rows that do not fit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.pipelines.pipeline import pipeline
from millstream.pipelines.row_positions import decode_positions
from millstream.pipelines.spec import table, topic
from millstream.testing.streams.case import Arrival, Batch
from millstream.testing.streams.inputs import (
    Source,
    as_moment,
    define,
    make_input,
    moments,
    with_offset,
    with_queries,
    with_queries_end,
)
from tests.testing.streams.orders import CLICKS, SCHEMA, order, orders_input, orders_source

RATES = StructType().add("rate", "integer").add("since", "timestamp")
MARKED = StructType([*SCHEMA.fields]).add("_watermark", "timestamp")


@pipeline(
    reads=topic("orders", schema=MARKED, watermark=("at", "2 minutes")),
    writes=table("counts", key="shop"),
)
def counts(orders: Any) -> Any:
    return orders


def test_pipeline_tells_its_columns_and_watermark() -> None:
    definition = define(counts, {"orders": []})
    it = definition.inputs["orders"]
    assert (it.time, it.delay_us) == ("at", 120_000_000)
    assert it.arrow.names == ["id", "shop", "at"], "the reader adds the watermark itself"


def test_plain_function_becomes_a_pipeline_with_a_key() -> None:
    definition = define(lambda orders: orders, {"orders": orders_source()}, ("shop",))
    (written,) = definition.pipeline.writes.values()
    assert written.key == ("shop",)
    assert definition.name == "lambda"


def test_time_without_watermark_only_orders() -> None:
    source = Source([], schema=RATES, time="since")
    it = define(lambda rates: rates, {"rates": source}).inputs["rates"]
    assert (it.time, it.delay_us) == ("since", None)


@pytest.mark.parametrize(
    ("given", "inputs", "message"),
    [
        (counts, {}, "counts reads orders, and there are rows for nothing"),
        (counts, {"orders": [], "clicks": []}, "rows for orders, clicks"),
        (len, {"obj": []}, "obj needs its columns: Source(rows, schema="),
        (len, {"obj": Source([], schema=CLICKS, watermark=("b", "1 s"))}, "no column 'b': at"),
    ],
)
def test_what_is_missing_is_said(given: Any, inputs: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        define(given, inputs)
    assert message in str(refused.value)


def test_rows_become_columns_and_what_is_left_out_is_null() -> None:
    found = orders_input().table_of([{"at": "2026-01-01 10:00:05"}, order(1, 2)]).to_pylist()
    moment = datetime(2026, 1, 1, 10, 0, 5, tzinfo=UTC)
    assert found[0] == {"id": None, "shop": None, "at": moment}
    assert found[1]["id"] == 1


def test_rows_that_do_not_fit_are_refused() -> None:
    it = orders_input()
    with pytest.raises(ConfigError, match="orders: a row has 'price', and the columns are id"):
        it.table_of([{"price": 1}])
    with pytest.raises(ConfigError, match="orders: a row does not fit its schema"):
        it.table_of([{"id": "one"}])
    with pytest.raises(ConfigError, match="'noon' is no moment"):
        it.table_of([{"at": "noon"}])


def test_moments_are_in_utc() -> None:
    assert as_moment("2026-01-01 10:00") == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert as_moment("2026-01-01T12:00+02:00") == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert as_moment(datetime(2026, 1, 1)).tzinfo is UTC


def test_moments_stay_within_their_span() -> None:
    from hypothesis import given

    @given(moments("1 minute", "500 ms"))
    def check(moment: datetime) -> None:
        assert as_moment("2026-01-01") <= moment <= as_moment("2026-01-01 00:01")
        assert moment.microsecond in (0, 500_000)

    check()


def test_rows_of_a_table_have_its_key_and_a_position_that_moves() -> None:
    columns = StructType().add("name", "string", nullable=False)
    users = topic("users", schema=columns, table_key="user")
    made = make_input("users", users, None)
    assert made.schema.names == ["user", "name", "_position", "_deleted"]
    assert made.schema["user"].metadata == {"millstream.table_key": True}
    counts: dict[str, int] = {}
    arrivals = [
        with_offset(Arrival("users", {"user": "a"}), {"users": made}, counts) for _ in range(6)
    ]
    column = made.table_of([it.row for it in arrivals]).column("_position").combine_chunks()
    positions = decode_positions(column)
    assert positions.times_ms.tolist() == list(range(6))
    assert positions.logs.tolist() == [0, 0, 0, 0, 1, 1]
    assert positions.offsets.tolist() == [0, 1, 2, 3, 0, 1]


def test_batch_has_the_queries_that_are_as_old_as_its_rows() -> None:
    columns = StructType().add("n", "integer").add("at", "timestamp")
    read = topic("offers", schema=columns, queries="searches")
    stored = [
        ("a", "n < 3", "2026-01-01 00:00"),
        ("b", "n > 3", "2026-01-02"),
        ("a", None, "2026-01-03"),
    ]
    source = Source([], time="at", queries=stored)
    made = with_queries(make_input("offers", read, "at"), read, source)
    assert made.schema.names == ["n", "at", "_queries"]
    assert [it.value for it in made.queries] == [b'{"where": "n < 3"}', b'{"where": "n > 3"}', None]
    days = (["2025-12-31"], ["2026-01-02", "2026-01-01"], ["2026-01-01"], [None])
    ends: dict[str, int] = {}
    batches = [
        with_queries_end(
            Batch(tuple(Arrival("offers", {"n": 1, "at": it}) for it in day)),
            {"offers": made},
            ends,
        )
        for day in days
    ]
    found = [[it.row["_queries"] for it in batch.arrivals] for batch in batches]
    assert found == [[0], [2, 2], [2], [3]]
    assert made.with_all_queries({"n": 1}) == {"n": 1, "_queries": 3}
    with pytest.raises(ConfigError, match="offers is read with standing queries"):
        with_queries(made, read, Source([]))
