"""What may be declared, and what is refused with which words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import pipeline
from millstream.pipelines.spec import Topic, table, topic, view

ORDERS = topic("orders", schema="id long, amount double")
USERS = topic("users", schema="id long, name string")


def test_pipeline_whose_parameters_do_not_match_is_refused() -> None:
    def join(orders: Any, users: Any) -> Any: ...

    declare = pipeline(reads=ORDERS, writes=table("t"))
    with pytest.raises(ConfigError, match=r"takes users, which is not declared.*\"users\": topic"):
        declare(join)
    declare = pipeline(reads={"orders": ORDERS, "users": USERS, "goods": USERS}, writes=table("t"))
    with pytest.raises(ConfigError, match="has no parameter goods"):
        declare(join)


def test_pipeline_that_reads_what_it_writes_is_refused() -> None:
    writes = {"back": topic("orders"), "rows": table("t")}
    declare = pipeline(reads=ORDERS, writes=writes, name="loop")
    with pytest.raises(ConfigError, match="reads topic orders and writes to it"):
        declare(lambda orders: orders)


@pytest.mark.parametrize(
    "writes",
    [
        {"one": table("sales", key="id"), "two": table("Sales")},
        {"one": view("sales", key="id"), "two": table("sales", key="id")},
        {"one": table("two", key="id"), "two": view(key="id")},
    ],
)
def test_pipeline_with_two_outputs_in_one_table_is_refused(writes: Any) -> None:
    declare = pipeline(reads=ORDERS, writes=writes, name="p")
    with pytest.raises(ConfigError, match="writes outputs one and two to the same table"):
        declare(lambda orders: orders)


def test_records_that_are_not_decoded_have_a_watermark_on_their_timestamp() -> None:
    assert topic("t", watermark=("timestamp", "1 minute")).watermark is not None


def test_avro_topic_has_a_watermark_on_a_column_of_its_avro_schema() -> None:
    assert topic("t", format="avro", watermark=("at", "1 minute")).watermark is not None


def test_topic_is_json_with_a_schema_and_raw_without() -> None:
    assert (ORDERS.read_format, topic("orders").read_format) == ("json", "raw")
    assert topic("lines", format="text").read_format == "text"
    assert ORDERS.dead_letters == "dlq.orders"
    assert topic("t", options={"includeHeaders": True, "minPartitions": 4}).options == {
        "includeHeaders": "true",
        "minPartitions": "4",
    }


@pytest.mark.parametrize(
    ("declared", "columns", "expected"),
    [
        (topic("out"), ["key", "value"], "raw"),
        (topic("out"), ["value", "price"], "json"),
        (topic("out"), ["id"], "json"),
        (topic("out", key="value"), ["value"], "json"),
        (topic("out", format="raw"), ["key", "value"], "raw"),
    ],
)
def test_topic_is_written_as_its_columns_suggest(
    declared: Topic, columns: list[str], expected: str
) -> None:
    assert declared.write_format(columns) == expected


@pytest.mark.parametrize("given", [False, "false", "False"])
def test_topic_may_lose_data_where_its_reader_goes_on(given: Any) -> None:
    assert topic("t", options={"failOnDataLoss": given}).may_lose_data
    assert not topic("t", options={"failOnDataLoss": "true"}).may_lose_data


def test_table_replaces_by_key_or_appends() -> None:
    assert table("t").mode == "append"
    assert table("t", key="a").mode == "upsert"
    assert table("t", key=("a", "b"), mode="replace").key == ("a", "b")


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: topic("a b"), "'a b' cannot name a topic"),
        (lambda: topic("t", bad_records="ignore"), "must be deadletter, drop or fail"),
        (lambda: topic("t", format="xml"), "must be raw, json, avro, csv or text"),
        (lambda: topic("t", start_at="yesterday"), "must be earliest, latest, a datetime"),
        (lambda: topic("t", start_at=datetime(2026, 1, 31)), "has no time zone"),
        (lambda: topic("t", start_at=5), "start_at is 5; it must be earliest"),  # type: ignore[arg-type]
        (lambda: topic("t", start_at={"0": 5}), "it must be earliest"),  # type: ignore[dict-item]
        (lambda: topic("t", key=None), "topic t: key is None; name a column"),  # type: ignore[arg-type]
        (lambda: topic("t", table_key=5), "topic t: table_key is 5; name a column"),  # type: ignore[arg-type]
        (lambda: topic("t", watermark="at"), r'write \("column", "10 minutes"\)'),  # type: ignore[arg-type]
        (
            lambda: topic("t", watermark=("at", "1 minute")),
            r'a schema, with the column at\..*frame.withWatermark\("at", "1 minute"\)',
        ),
        (lambda: topic("t", queries="searches"), "queries needs a schema"),
        (lambda: table("1; drop"), "cannot name a table"),
        (lambda: table("t", mode="merge"), "must be upsert, append or replace"),
        (lambda: table("t", mode="upsert"), "needs a key"),
        (lambda: table("t", delete="gone"), "delete needs a key"),
        (lambda: table("t", key=None), "table t: key is None; name a column"),  # type: ignore[arg-type]
        (lambda: table("t", key=("a", 5)), r"table t: key is \('a', 5\)"),  # type: ignore[arg-type]
        (lambda: view(key=5), "view: key is 5; name a column"),  # type: ignore[arg-type]
        (
            lambda: pipeline(reads=ORDERS, writes=table("t"), name="a b")(lambda orders: orders),
            "'a b' cannot name a pipeline",
        ),
        (
            lambda: pipeline(reads=ORDERS, writes=table("t"), name="t", version="2 b")(
                lambda orders: orders
            ),
            "t: version is '2 b'",
        ),
        (
            lambda: pipeline(reads=ORDERS, writes=table("t"), output_mode="all", name="t")(
                lambda orders: 1
            ),
            "must be append, update or complete",
        ),
        (
            lambda: pipeline(reads="orders", writes=table("t"))(lambda orders: 1),  # type: ignore[arg-type]
            r'reads must be topic\("..."\)',
        ),
        (
            lambda: pipeline(reads=table("t"), writes=ORDERS)(lambda orders: 1),  # type: ignore[arg-type]
            r'reads must be topic\("..."\)',
        ),
    ],
)
def test_declaration_that_makes_no_sense_is_refused(declare: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declare()


def test_identity_is_the_name_and_the_version() -> None:
    first = pipeline(reads=ORDERS, writes=table("t"), name="p")(lambda orders: orders)
    assert (first.identity, first.group_id) == ("p", "p")
    second = first.variant("p", version=2, writes=table("t2"))
    assert (second.identity, second.group_id) == ("p@2", "p@2")


def test_variant_needs_outputs_of_its_own() -> None:
    writes = {"one": table("one"), "two": topic("two")}
    both = pipeline(reads=ORDERS, writes=writes, name="p")(lambda orders: orders)
    for changes in ({"name": "q"}, {"name": "p", "version": "2"}):
        with pytest.raises(ConfigError, match="writes to table one, as p does: give it outputs"):
            both.variant(**changes)
    with pytest.raises(ConfigError, match="writes to topic two, as p does"):
        both.variant("q", writes={"one": table("three"), "two": topic("two")})
    for same in (table("ONE"), view("one", key="id")):
        with pytest.raises(ConfigError, match=r"writes to table (?i:one), as p does"):
            both.variant("q", writes={"one": same, "two": topic("three")})
    shown = pipeline(reads=ORDERS, writes=view("shown", key="id"), name="p")(lambda orders: orders)
    with pytest.raises(ConfigError, match="writes to table shown, as p does"):
        shown.variant("q", writes=table("shown", key="id"))
    assert both.variant("q", writes=topic("TWO")).identity == "q"
    assert both.variant("p", output_mode="update").writes == writes  # in its place
    assert both.variant("q", writes=topic("one")).identity == "q"
