"""Several outputs in one step, and the same when it is interrupted, on a real broker and SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream.errors import ConfigError, WriterFenced
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.fan_out import FanOutSink
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.sinks import make_sink
from millstream.pipelines.writing.completing import Completer
from millstream.pipelines.writing.protocol import BatchProtocol
from tests.pipelines.conftest import Topics
from tests.pipelines.running.test_progress import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SinkMaker = Callable[..., FanOutSink]


class Killed(BaseException):
    """Nothing after this happens any more."""


def killed_at(patched: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    def die(*arguments: Any) -> None:
        raise Killed

    patched.setattr(owner, name, die)
    patched.setattr(FanOutSink, "_recover_quietly", lambda self: None)


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


def begin_batch(directory: Path, source: str, number: int) -> None:
    """As Spark does before it runs a batch."""
    (directory / "offsets").mkdir(parents=True, exist_ok=True)
    content = f'v1\n{{}}\n{{"{source}": {{"0": {number + 4}}}}}'
    (directory / "offsets" / str(number)).write_text(content)


def complete_batch(directory: Path, number: int) -> None:
    (directory / "commits").mkdir(exist_ok=True)
    (directory / "commits" / str(number)).write_text("v1\n{}")


def new_checkpoint(directory: Path, source: str) -> None:
    """One in which Spark has begun batch 0."""
    begin_batch(directory, source, 0)
    (directory / "metadata").write_text(f'{{"id": "{uuid.uuid4()}"}}')


@pytest.fixture
def directory(source: str, tmp_path: Path) -> Path:
    new_checkpoint(tmp_path / "c", source)
    return tmp_path / "c"


@pytest.fixture
def large(topics: Topics) -> str:
    return topics.create()


@pytest.fixture
def make(
    spark: SparkSession,
    tagged: DataFrame,
    large: str,
    source: str,
    settings: Settings,
    directory: Path,
) -> SinkMaker:
    """As every run of the pipeline makes one."""

    def made(**options: Any) -> FanOutSink:
        writes = {"all": table("everything"), "large": topic(large, schema="id long", key="id")}
        declared = pipeline(reads=topic(source), writes=writes, name=f"fan-{large}")(lambda f: f)
        return make_sink(declared, tagged, settings, Checkpoint(spark, str(directory)), **options)

    return made


LARGE = [b'{"id":2}', b'{"id":3}']


def test_batch_goes_to_all_outputs_once_though_it_is_run_twice(
    make: SinkMaker,
    tagged: DataFrame,
    topics: Topics,
    source: str,
    large: str,
    settings: Settings,
    directory: Path,
) -> None:
    make()(tagged, 0)
    make()(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == (LARGE, [0, 1, 2, 3])
    assert committed(topics, f"fan-{large}", source) == {0: 4}
    complete_batch(directory, 0)
    sink = make()
    begin_batch(directory, source, 1)
    sink(tagged, 1)
    assert read_committed(topics, large) == sorted(LARGE * 2)


def test_batch_decided_before_a_crash_is_completed_by_the_next_run(
    make: SinkMaker,
    tagged: DataFrame,
    topics: Topics,
    large: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = make()
    with monkeypatch.context() as patched:
        killed_at(patched, Completer, "complete")
        with pytest.raises(Killed):
            sink(tagged, 0)
    assert stored(settings) == [0, 1, 2, 3]
    make().recover()
    assert read_committed(topics, large) == LARGE
    make()(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == (LARGE, [0, 1, 2, 3])


def only_topic(declared: str, source: str) -> Any:
    """The same pipeline, which no longer writes the table."""
    writes = {"large": topic(declared, schema="id long", key="id")}
    return pipeline(reads=topic(source), writes=writes, name=f"fan-{declared}")(lambda f: f)


@pytest.mark.parametrize("is_killed", [False, True])
def test_batch_decided_by_the_store_is_written_once_when_the_table_is_no_longer_an_output(
    is_killed: bool,
    make: SinkMaker,
    spark: SparkSession,
    tagged: DataFrame,
    topics: Topics,
    source: str,
    large: str,
    settings: Settings,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark died before it recorded that the batch is completed; or after the transaction of the
    store, when nothing of the batch was visible in the topic."""
    if is_killed:
        with monkeypatch.context() as patched:
            killed_at(patched, BatchProtocol, "decide")
            with pytest.raises(Killed):
                make()(tagged, 0)
    else:
        make()(tagged, 0)
    rest = tagged.select("large")
    sink = make_sink(only_topic(large, source), rest, settings, Checkpoint(spark, str(directory)))
    sink(rest, 0)
    assert read_committed(topics, large) == LARGE


def test_new_checkpoint_of_a_pipeline_that_has_run_is_refused(
    make: SinkMaker,
    tagged: DataFrame,
    topics: Topics,
    source: str,
    large: str,
    settings: Settings,
    directory: Path,
) -> None:
    make()(tagged, 0)
    shutil.rmtree(directory)
    with pytest.raises(ConfigError, match=r"from another checkpoint .*--allow-new-checkpoint"):
        make()
    make(allow_new_checkpoint=True)
    new_checkpoint(directory, source)
    make()(tagged, 0)
    assert read_committed(topics, large) == sorted(LARGE * 2)
    assert stored(settings) == sorted([0, 1, 2, 3] * 2)


def test_older_copy_of_the_checkpoint_is_refused(
    make: SinkMaker, tagged: DataFrame, source: str, directory: Path
) -> None:
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    make()(tagged, 0)
    complete_batch(directory, 0)
    sink = make()
    begin_batch(directory, source, 1)
    sink(tagged, 1)
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
    with pytest.raises(ConfigError, match="it is older than what was written"):
        make()


def test_incomplete_batch_is_refused_when_the_decision_topic_was_deleted(
    make: SinkMaker, tagged: DataFrame, source: str, directory: Path
) -> None:
    """Without the store, whose progress would show whether the batch was written."""
    complete_batch(directory, 0)
    begin_batch(directory, source, 1)
    with pytest.raises(ConfigError, match=r"contains nothing of .* whether batch 1 was written"):
        make()


def test_run_that_was_taken_over_is_refused_between_batches(
    make: SinkMaker, tagged: DataFrame, topics: Topics, source: str, large: str, directory: Path
) -> None:
    first = make()
    first(tagged, 0)
    make()
    begin_batch(directory, source, 1)
    with pytest.raises(WriterFenced, match="was taken over by another run"):
        first(tagged, 1)
    assert read_committed(topics, large) == LARGE


def test_batch_not_decided_before_a_crash_is_taken_back(
    make: SinkMaker, tagged: DataFrame, topics: Topics, large: str, settings: Settings
) -> None:
    sink = make()

    def die(*arguments: Any, **named: Any) -> bool:
        raise Killed

    assert sink.store is not None
    sink.store.write_many = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        sink(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == ([], [])
    make()(tagged, 0)
    assert (read_committed(topics, large), stored(settings)) == (LARGE, [0, 1, 2, 3])


def test_topics_alone_are_decided_on_the_brokers(
    spark: SparkSession, topics: Topics, source: str, settings: Settings, directory: Path
) -> None:
    one, two = topics.create(), topics.create()
    writes = {"one": topic(one, schema="id long"), "two": topic(two, schema="id long")}
    declared = pipeline(reads=topic(source), writes=writes, name=f"fan-{one}")(lambda f: f)
    frame = spark.range(4).selectExpr(
        "case when id <= 1 then struct(id) end as one",
        "case when id > 1 then struct(id) end as two",
    )

    def make() -> FanOutSink:
        return make_sink(declared, frame, settings, Checkpoint(spark, str(directory)))

    for _ in range(2):
        make()(frame, 0)
    sink = make()
    (directory / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{source}": {{"0": 3}}}}')
    with pytest.raises(ConfigError, match="is older than what was written"):
        sink(frame, 0)
    with pytest.raises(ConfigError, match="is older than what was written"):
        make()
    assert read_committed(topics, one) == [b'{"id":0}', b'{"id":1}']
    assert read_committed(topics, two) == LARGE


def test_only_topic_is_written_as_it_is(
    spark: SparkSession, topics: Topics, source: str, settings: Settings, directory: Path
) -> None:
    written = topics.create()
    declared = pipeline(reads=topic(source), writes=topic(written), name=f"p-{written}")
    frame = spark.range(2)
    only = declared(lambda f: f)
    for _ in range(2):
        make_sink(only, frame, settings, Checkpoint(spark, str(directory)))(frame, 0)
    assert read_committed(topics, written) == [b'{"id":0}', b'{"id":1}']
