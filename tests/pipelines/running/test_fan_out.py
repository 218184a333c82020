"""Several outputs in one step, and the same when it is interrupted, on a real broker and SQLite."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream.errors import ConfigError
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running import fan_out
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.fan_out import FanOutSink
from millstream.pipelines.running.progress import GroupProgress
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.sinks import fan_out_sink, open_checked, table_specs
from millstream.pipelines.writing.settling import Settling
from tests.pipelines.conftest import Topics
from tests.pipelines.running.test_progress import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SinkMaker = Callable[[], FanOutSink]


class Killed(BaseException):
    """Nothing after this happens any more."""


def killed_when_decided(
    sink: FanOutSink, batch: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write batch 0, and die before what is decided is settled."""

    def die(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Settling, "settle", die)
        patched.setattr(FanOutSink, "_recover_quietly", lambda self: None)
        with pytest.raises(Killed):
            sink(batch, 0)


def read_committed(topics: Topics, name: str) -> list[bytes]:
    """What a reader sees who waits for no open transaction."""
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(30)
        assert message is not None, "the reader waits for a transaction that nobody ends"
        if message.error() is not None:
            consumer.close()
            return sorted(found)
        found.append(message.value())


def stored(settings: Settings) -> list[int]:
    with sqlite3.connect(settings.store_url.removeprefix("sqlite:///")) as connection:
        return [row[0] for row in connection.execute("select id from everything order by id")]


@pytest.fixture
def settings(topics: Topics, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, broker=topics.bootstrap)


@pytest.fixture
def tagged(spark: SparkSession) -> DataFrame:
    return spark.range(4).selectExpr(
        "struct(id) as all", "case when id > 1 then struct(id) end as large"
    )


@pytest.fixture
def source(topics: Topics) -> str:
    return topics.create()


@pytest.fixture
def checkpoint(spark: SparkSession, source: str, tmp_path: Path) -> Checkpoint:
    """One in which Spark has begun batches 0 and 1."""
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "metadata").write_text(f'{{"id": "{uuid.uuid4()}"}}')
    for number in (0, 1):
        content = f'v1\n{{}}\n{{"{source}": {{"0": {number + 4}}}}}'
        (tmp_path / "c" / "offsets" / str(number)).write_text(content)
    return Checkpoint(spark, str(tmp_path / "c"))


@pytest.fixture
def large(topics: Topics) -> str:
    return topics.create()


@pytest.fixture
def make_sink(
    tagged: DataFrame, large: str, source: str, settings: Settings, checkpoint: Checkpoint
) -> SinkMaker:
    """As every run of the pipeline makes one."""

    def make() -> FanOutSink:
        writes = {"all": table("everything"), "large": topic(large, schema="id long", key="id")}
        declared = pipeline(reads=topic(source), writes=writes, name=f"fan-{large}")(lambda f: f)
        specs, columns = table_specs(declared), {"large": ["id"]}
        store = open_checked(declared, tagged, specs, settings)
        progress = GroupProgress(settings.required_broker(), declared.group_id)
        return fan_out_sink(declared, columns, specs, store, settings, checkpoint, progress)

    return make


LARGE = [b'{"id":2}', b'{"id":3}']


def test_batch_goes_to_all_outputs_once_though_it_comes_twice(
    make_sink: SinkMaker,
    tagged: DataFrame,
    topics: Topics,
    source: str,
    large: str,
    settings: Settings,
) -> None:
    sink = make_sink()
    sink(tagged, 0)
    make_sink()(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == (LARGE, [0, 1, 2, 3])
    assert committed(topics, sink.group_id, source) == {0: 4}
    make_sink()(tagged, 1)
    assert read_committed(topics, large) == sorted(LARGE * 2)


def test_batch_decided_before_a_crash_is_completed_by_the_next_run(
    make_sink: SinkMaker,
    tagged: DataFrame,
    topics: Topics,
    large: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed_when_decided(make_sink(), tagged, monkeypatch)
    assert stored(settings) == [0, 1, 2, 3]
    make_sink().recover()
    assert read_committed(topics, large) == LARGE
    make_sink()(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == (LARGE, [0, 1, 2, 3])


def test_batch_of_a_new_checkpoint_is_not_taken_for_a_completed_one_of_the_old(
    make_sink: SinkMaker,
    tagged: DataFrame,
    topics: Topics,
    large: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches of both are written under one transactional id."""
    monkeypatch.setattr(fan_out, "query_transactional_id", lambda options: f"same-{large}")
    sink = make_sink()
    sink(tagged, 0)
    sink(tagged, 1)
    assert sink.store is not None
    sink.store.forget(sink.query)
    killed_when_decided(make_sink(), tagged, monkeypatch)
    make_sink()(tagged, 0)
    assert read_committed(topics, large) == sorted(LARGE * 3)
    assert stored(settings) == sorted([0, 1, 2, 3] * 3)


def test_batch_not_decided_before_a_crash_is_taken_back(
    make_sink: SinkMaker, tagged: DataFrame, topics: Topics, large: str, settings: Settings
) -> None:
    sink = make_sink()

    def die(*arguments: Any, **named: Any) -> bool:
        raise Killed

    assert sink.store is not None
    sink.store.write_many = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        sink(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == ([], [])
    make_sink()(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == (LARGE, [0, 1, 2, 3])


def test_topics_alone_are_decided_on_the_brokers(
    spark: SparkSession,
    topics: Topics,
    source: str,
    settings: Settings,
    checkpoint: Checkpoint,
    tmp_path: Path,
) -> None:
    one, two = topics.create(), topics.create()
    writes = {"one": topic(one, schema="id long"), "two": topic(two, schema="id long")}
    declared = pipeline(reads=topic(source), writes=writes, name=f"fan-{one}")(lambda f: f)
    progress = GroupProgress(settings.required_broker(), declared.group_id)
    frame = spark.range(4).selectExpr(
        "case when id <= 1 then struct(id) end as one",
        "case when id > 1 then struct(id) end as two",
    )
    columns = {"one": ["id"], "two": ["id"]}
    for _ in range(2):
        fan_out_sink(declared, columns, {}, None, settings, checkpoint, progress)(frame, 0)
    (tmp_path / "c" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{source}": {{"0": 3}}}}')
    with pytest.raises(ConfigError, match="its checkpoint has been set back"):
        fan_out_sink(declared, columns, {}, None, settings, checkpoint, progress)(frame, 0)
    assert read_committed(topics, one) == [b'{"id":0}', b'{"id":1}']
    assert read_committed(topics, two) == LARGE
