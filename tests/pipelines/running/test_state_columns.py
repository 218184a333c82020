"""Generations of the columns of state: those of a start, and on Spark from start to start."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.pipelines import Pipeline, joins, pipeline, table, topic
from millstream.pipelines.plans import BucketedOperator
from millstream.pipelines.running.state_columns import StateColumns
from millstream.pipelines.state.spark import ROCKSDB
from millstream.testing.streams.running import state_store
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def changes_of(*columns: str, number: int = 7) -> BucketedOperator:
    return BucketedOperator(number, "changes by version", {"rows": list(columns)})


def test_columns_of_the_first_start_have_no_generation() -> None:
    first = StateColumns().from_batch(0, [changes_of("name", "country")])
    assert first.of_operators([changes_of("name", "country")]) == {}
    assert StateColumns.of_json(json.loads(json.dumps(first.to_json()))) == first
    assert first.from_batch(5, [changes_of("country", "name")]) is first


def test_column_has_a_new_generation_whenever_it_is_added() -> None:
    columns = StateColumns().from_batch(0, [changes_of("name", "country")])
    found = []
    for batch, names in enumerate((["name"], ["name", "country"], [], ["country", "name"]), 1):
        columns = columns.from_batch(batch, [changes_of(*names)])
        found.append(columns.of_operators([changes_of(*names)]))
    assert found == [
        {},
        {7: {"rows": {"country": 1}}},
        {},
        {7: {"rows": {"name": 2, "country": 2}}},
    ]


def test_start_that_completed_no_batch_changes_nothing() -> None:
    both = [changes_of("name", "country")]
    first = StateColumns().from_batch(0, both)
    tried = first.from_batch(5, [changes_of("name")])
    restored = tried.from_batch(5, both)
    assert restored.of_operators(both) == {}
    again = tried.from_batch(6, both)
    assert again.of_operators(both) == {7: {"rows": {"country": 1}}}
    assert again.from_batch(6, both).of_operators(both) == {7: {"rows": {"country": 2}}}


def test_equal_operators_and_absent_ones_keep_their_columns() -> None:
    two = [changes_of("name"), changes_of("name", "country", number=8)]
    columns = StateColumns().from_batch(0, two).from_batch(1, [two[0]])
    assert columns.from_batch(2, two).of_operators(two) == {}
    more = [two[1], two[1]._replace(number=9)]
    assert columns.from_batch(2, more).of_operators(more) == {8: {"rows": {"country": 1}}}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """With the state store that the operators need."""
    with state_store(spark, ROCKSDB):
        yield spark


def changes_of_topic(items: str, schema: str) -> Pipeline:
    @pipeline(
        reads=topic(items, schema=schema, table_key="item"),
        writes=table("changes", mode="append"),
        name=f"changes-{items}",
    )
    def declared(items: DataFrame) -> DataFrame:
        from pyspark.sql.functions import struct, to_json

        found = items.transform(joins.changes, buckets=1)
        return found.select(to_json(struct(*found.columns)).alias("change"))

    return declared


def test_column_that_comes_back_is_null_in_rows_of_before(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Its old values are still in a page of the state."""
    items = topics.create()
    where = {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    for schema, names in (
        ("name string, country string", ["tea", "mug"]),
        ("name string", ["black tea"]),
        ("name string, country string", ["green tea", "cup"]),
    ):
        topics.fill(items, [json.dumps({"name": it, "country": "IN"}).encode() for it in names])
        declared = changes_of_topic(items, schema)
        run_to_end(partial(declared.start, session, once=True, **where))
    with sqlite3.connect(tmp_path / "store.db") as connection:
        changes = [json.loads(it) for (it,) in connection.execute("SELECT change FROM changes")]
    removed = {it["name"]: it.get("country") for it in changes if it["_weight"] < 0}
    assert removed == {"tea": None, "black tea": None, "mug": None}
