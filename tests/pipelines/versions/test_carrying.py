"""Versions that begin with the state of another one."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, patterns, pipeline, table, topic
from millstream.pipelines.running.launching import launch
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.starting import start_query
from millstream.pipelines.state.spark import ROCKSDB
from millstream.pipelines.versions.carrying import (
    carry_state,
    check_can_be_copied,
    copy_checkpoint,
    copy_tables,
    has_begun,
)
from millstream.pipelines.versions.catalog import Catalog
from millstream.pipelines.versions.deploying import deploy_version
from millstream.pipelines.versions.differing import compare_versions
from millstream.pipelines.versions.registry import Version
from millstream.pipelines.versions.removing import remove_version
from millstream.testing.streams.running import state_store
from tests.pipelines.conftest import Topics
from tests.pipelines.stores.conftest import Database
from tests.pipelines.versions.conftest import Scene, version_of
from tests.pipelines.versions.operating import make_checkpoint
from tests.pipelines.versions.test_versions_on_spark import (  # noqa: F401  fixture
    await_true,
    is_caught_up,
    running,
    settings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_checkpoints(directory: Path) -> tuple[Version, Version]:
    one, two = (
        replace(version_of(it), checkpoint=str(directory / f"checkpoint-{it}")) for it in ("1", "2")
    )
    return one, replace(two, state_from="1")


def test_checkpoint_is_copied_under_another_query_id(tmp_path: Path) -> None:
    one, two = with_checkpoints(tmp_path)
    make_checkpoint(Path(one.checkpoint), state=["aggregate"])
    for _ in range(2):  # the first attempt was interrupted after it
        query_id = copy_checkpoint(one, two)
    copy = Path(two.checkpoint)
    assert json.loads((copy / "metadata").read_text()) == {"id": query_id}
    assert query_id != "old"
    assert sorted(it.name for it in (copy / "commits").iterdir()) == ["0", "1", "2"]
    owner = json.loads((copy / "millstream.json").read_text())
    assert owner == {"pipeline": "revenue", "state": ["aggregate"], "carried_from": "1"}
    assert not (copy / "millstream.lock").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"offsets": 4, "state": []}, "stopped in the middle of a batch"),
        ({"offsets": 0, "commits": 0, "state": []}, "stopped in the middle of a batch"),
        ({}, "start it once"),
    ],
)
def test_checkpoint_that_is_not_complete_is_not_copied(
    tmp_path: Path, made: dict[str, Any], message: str
) -> None:
    one, two = with_checkpoints(tmp_path)
    make_checkpoint(Path(one.checkpoint), **made)
    with pytest.raises(ConfigError, match=message):
        copy_checkpoint(one, two)
    assert not Path(two.checkpoint).exists()


def test_versions_that_cannot_share_state_are_refused(scene: Scene, tmp_path: Path) -> None:
    one, two = with_checkpoints(tmp_path)
    document = scene.deploy("1")
    check_can_be_copied(document, one, two)
    other_key = replace(two, tables=(replace(two.tables[0], key=("week",)),))
    for unfit, message in (
        (replace(two, checkpoint="s3a://bucket/2"), "not on this machine's disk"),
        (replace(two, reads=("refunds",)), "belongs to other topics"),
        (other_key, r"has no table revenue with the key \(week\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_can_be_copied(document, one, unfit)


def test_tables_and_progress_are_copied_in_one_transaction(scene: Scene, tmp_path: Path) -> None:
    scene.deploy("1")
    scene.write("1", 4, 10, [("monday", 1.0), ("tuesday", 2.0)])
    scene.deploy("2")
    document = scene.document()
    one, two = with_checkpoints(tmp_path)
    make_checkpoint(Path(two.checkpoint))
    last = Path(two.checkpoint) / "offsets" / "4"
    last.write_text('v1\n{}\n{"orders": {"0": 9}}')
    with pytest.raises(ConfigError, match="went on while its checkpoint was copied"):
        scene.catalog.run(lambda work: copy_tables(work, "revenue", one, two, "id", {}), "copy")
    last.write_text('v1\n{}\n{"orders": {"0": 10}}')
    assert not has_begun(scene.catalog, document, "2")
    for _ in range(2):
        scene.catalog.run(
            lambda work: copy_tables(work, "revenue", one, two, "id", {("alerts", 0): 7}), "copy"
        )
    assert has_begun(scene.catalog, document, "2")
    assert scene.document().get("2").state_ends == {"alerts": {"0": 7}}
    rows = "SELECT day, total FROM revenue__v2 ORDER BY day"
    assert scene.read(rows) == [("monday", 1.0), ("tuesday", 2.0)]
    with pytest.raises(Exception, match="begins"):  # it goes on where version 1 stood
        scene.store.write_arrow([], 9, "revenue@2", None, begins='{"orders": {"0": 20}}')
    scene.write("2", 5, 11, [("monday", 5.0)])
    assert scene.read(rows) == [("monday", 5.0), ("tuesday", 2.0)]
    assert scene.read() == [("monday", 1.0), ("tuesday", 2.0)]


def orders_of(*pairs: tuple[str, float]) -> list[bytes]:
    return [json.dumps({"user": user, "amount": amount}).encode() for user, amount in pairs]


def declare(orders: str, results: str) -> Pipeline:
    declared: Any = pipeline(
        reads=topic(orders, schema="user string, amount double"),
        writes={
            "totals": table("carried_totals", key="user"),
            "results": topic(results, key="user"),
        },
        name=f"c-{orders}",
    )

    def totals(frame: Any) -> Any:
        found = frame.groupBy("user").agg({"amount": "sum"})
        rows = found.withColumnRenamed("sum(amount)", "total")
        return {"totals": rows, "results": rows}

    return declared(totals)  # type: ignore[no-any-return]


def start_with_state(
    stack: ExitStack,
    spark: SparkSession,
    settings: Settings,  # noqa: F811
    catalog: Catalog,
    version: Pipeline,
) -> None:
    document = deploy_version(version, settings, state_from="1")
    carry_state(catalog, settings, document, version.version)
    stack.callback(start_query(lambda: launch(version, spark, settings)).stop)


def test_version_goes_on_with_the_state_of_another(
    spark: SparkSession,
    topics: Topics,
    settings: Settings,  # noqa: F811
    database: Database,
) -> None:
    orders, results = topics.create(), topics.create()
    one = declare(orders, results)

    def without_refunds(frame: Any) -> Any:
        return one.function(frame.where("amount > 0"))

    def counts(frame: Any) -> Any:
        found = frame.groupBy("user").count().selectExpr("user", "double(count) as total")
        return {"totals": found, "results": found}

    two = replace(one, version="2", function=without_refunds)
    three = replace(one, version="3", function=counts)
    topics.fill(orders, orders_of(("ada", 10.0), ("bob", 5.0), ("ada", -1.0)))
    with running(spark, settings, one) as catalog, ExitStack() as stack:
        topics.delete_records(orders, 3)  # it could not be computed again
        start_with_state(stack, spark, settings, catalog, two)
        rows = "SELECT * FROM carried_totals__v2 ORDER BY 1"
        assert database.rows(rows) == [("ada", 9.0), ("bob", 5.0)]
        topics.fill(orders, orders_of(("ada", -2.0), ("bob", 3.0)))
        await_true(lambda: database.rows(rows) == [("ada", 9.0), ("bob", 8.0)])
        await_true(lambda: is_caught_up(catalog, two))
        found = compare_versions(catalog, settings, one.name, ("1", "2"))
        (compared,), (records,) = found.tables, found.topics
        assert compared.by_column == records.by_column == {"total": 1}
        assert (records.rows, records.only) == ((2, 2), (0, 0))
        with pytest.raises(ConfigError, match="cannot begin with the state of version 1"):
            start_with_state(stack, spark, settings, catalog, three)
        remove_version(catalog, settings, one.name, "3")


def test_pattern_that_has_begun_in_one_version_is_completed_in_the_next(
    spark: SparkSession,
    topics: Topics,
    settings: Settings,  # noqa: F811
    database: Database,
) -> None:
    orders = topics.create()
    matched = patterns.match(
        "small{2} big", key="user", time="_timestamp", order="arrival", within="1 hour",
        where={"small": "amount < 5", "big": "amount > 100"},
        smallest="min(small.amount)", amount="big.amount",
    )  # fmt: skip
    declared: Any = pipeline(
        reads=topic(
            orders,
            schema="user string, amount double, _timestamp timestamp, _offset long",
            watermark=("_timestamp", "1 minute"),
        ),
        writes=table("sprees", key="user"),
        name=f"p-{orders}",
    )
    one: Pipeline = declared(lambda frame: frame.transform(matched))

    def in_cents(frame: Any) -> Any:
        found = one.function(frame.where("user <> 'test'"))
        return found.withColumn("amount", found.amount * 100)

    two = replace(one, version="2", function=in_cents)
    topics.fill(orders, orders_of(("ada", 1.0), ("bob", 2.0), ("ada", 3.0)))
    with (
        state_store(spark, ROCKSDB),
        running(spark, settings, one) as catalog,
        ExitStack() as stack,
    ):
        topics.delete_records(orders, 3)  # only the state has them
        start_with_state(stack, spark, settings, catalog, two)
        topics.fill(orders, orders_of(("bob", 200.0), ("ada", 200.0)))
        for version, amount in (("1", 200.0), ("2", 20_000.0)):
            rows = f"SELECT smallest, amount FROM sprees__v{version}"
            await_true(lambda rows=rows, it=amount: database.rows(rows) == [(1.0, it)])
