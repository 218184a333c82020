"""Tables as sinks, and the options that topics are written with."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError, MillstreamError, StoreError
from millstream.pipelines import Pipeline, pipeline, table, topic, view
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.fan_out import FanOutSink
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.sinks import make_sink, open_checked, table_specs, write_options
from millstream.pipelines.spec import ONLY, Table
from tests.pipelines.conftest import Topics
from tests.pipelines.running.test_progress import committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def declared(source: str, **writes: object) -> Pipeline:
    return pipeline(reads=topic(source), writes=writes, name=f"p-{source}")(lambda f: f)  # type: ignore[arg-type]


def test_two_tables_are_written_as_one(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source = topics.create()
    settings = Settings(home=tmp_path, broker=topics.bootstrap)
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{source}": {{"0": 4}}}}')
    fans = declared(source, small=table("small"), large=table("large", key="id"))
    frame = spark.range(4).selectExpr(
        "case when id < 2 then struct(id) end as small",
        "case when id >= 2 then struct(id) end as large",
    )
    sink = make_sink(fans, frame, settings, Checkpoint(spark, str(tmp_path / "c")))
    sink(frame, 0)
    sink(frame, 0)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert sorted(connection.execute("select id from small")) == [(0,), (1,)]
        assert sorted(connection.execute("select id from large")) == [(2,), (3,)]
    assert committed(topics, fans.group_id, source) == {0: 4}


def test_tables_behind_their_checkpoint_are_noticed(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source = topics.create()
    settings = Settings(home=tmp_path, broker=topics.bootstrap)
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    for number, end in enumerate([4, 4, 6, 9, 12]):  # batch 1 has no data
        content = f'v1\n{{}}\n{{"{source}": {{"0": {end}}}}}'
        (tmp_path / "c" / "offsets" / str(number)).write_text(content)
    only = pipeline(reads=topic(source), writes=table("t"), name=f"p-{source}")(lambda f: f)
    frame = spark.range(1)

    def sink() -> FanOutSink:
        return make_sink(only, frame, settings, Checkpoint(spark, str(tmp_path / "c")))

    sink()(frame, 0)
    sink()(frame, 2)
    with pytest.raises(StoreError, match=r"behind their checkpoint.*forget"):
        sink()(frame, 4)
    after = sink()
    assert after.store is not None
    after.store.forget(only.name)
    after(frame, 4)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert len(connection.execute("select id from t").fetchall()) == 3


def test_table_that_does_not_fit_is_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, broker="127.0.0.1:1")
    only = pipeline(reads=topic("t"), writes=table("t", key="id"), name="p")(lambda f: f)
    specs = table_specs(only, {})
    open_checked(only, spark.range(1), specs, settings)
    with pytest.raises(MillstreamError, match="word"):
        open_checked(only, spark.range(1).selectExpr("id", "'x' as word"), specs, settings)


def test_topic_is_written_with_the_options_that_it_declares(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, broker="host:1", kafka={"security.protocol": "SSL"})
    written = topic("out", schema="id long, at timestamp", key=("id", "at"))
    assert write_options(declared("in", out=written), written, ["id", "at"], settings) == {
        "kafka.bootstrap.servers": "host:1",
        "kafka.security.protocol": "SSL",
        "kafka.group.id": "p-in",
        "kafka.transactional.id": "millstream-p-in",
        "topic": "out",
        "valueFormat": "json",
        "keyColumns": "id,at",
    }


def test_table_of_another_version_is_refused(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source = topics.create()
    settings = Settings(home=tmp_path, broker=topics.bootstrap)
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{source}": {{"0": 4}}}}')
    frame = spark.range(1)

    def sink(version: str) -> FanOutSink:
        declare = pipeline(reads=topic(source), writes=table("t"), name="p", version=version)
        checkpoint = Checkpoint(spark, str(tmp_path / "c"))
        return make_sink(declare(lambda f: f), frame, settings, checkpoint)

    sink("1")(frame, 0)
    sink("1")
    with pytest.raises(ConfigError, match="table t has the rows of p, and p@2 would write its own"):
        sink("2")


@pytest.mark.parametrize("name", ["shown", "Shown"])  # the same for SQLite
def test_view_is_no_table_of_another_pipeline(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    settings = Settings(home=tmp_path, broker="127.0.0.1:1")
    frame = spark.range(1)

    def open_with(query: str, writes: Table) -> None:
        it = pipeline(reads=topic("t"), writes=writes, name=query)(lambda f: f)
        store = open_checked(it, frame, table_specs(it, {ONLY: frame.columns}), settings)
        store.write(frame, 0, query, table_specs(it, {ONLY: frame.columns})[ONLY])
        store.close()

    open_with("p", view("shown", key="id"))
    with pytest.raises(ConfigError, match=f"table {name} is a view of p, and q would write rows"):
        open_with("q", table(name, key="id"))
    with pytest.raises(ConfigError, match=f"table {name} has the rows of p, and q would write"):
        open_with("q", view(name, key="id"))
    open_with("q", table("other", key="id"))
    open_with("p", view("shown", key="id"))
