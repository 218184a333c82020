"""Running pipelines in a session: until all have ended, until a signal, until one fails."""

from __future__ import annotations

import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running import runner
from millstream.pipelines.running.failures import PipelineFailed
from millstream.pipelines.running.runner import Run, embedded_broker, is_free, with_defaults
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.status import Status
from tests.peers.servers import free_port
from tests.pipelines.conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def settings(topics: Topics, tmp_path: Path) -> Settings:
    return with_defaults(Settings(home=tmp_path, broker=topics.bootstrap))


@pytest.fixture
def copying(topics: Topics) -> Pipeline:
    name = topics.create()
    topics.fill(name, [b'{"id": 1}', b'{"id": 2}'])
    reads = topic(name, schema="id long")
    return pipeline(reads=reads, writes=table("copies"), name=f"copy-{name}")(lambda frame: frame)


def test_run_once_ends_when_all_is_read(
    spark: SparkSession, copying: Pipeline, settings: Settings
) -> None:
    shown: list[str] = []
    statuses = Run([copying], spark, settings, once=True).until_end(
        lambda seen: shown.extend(it.state for it in seen)
    )
    assert [(it.name, it.state, it.rows, it.failed) for it in statuses] == [
        (copying.name, "done", 2, 0)
    ]
    assert shown[-1] == "done"


def test_run_stops_after_the_batch_on_a_signal(
    spark: SparkSession, copying: Pipeline, settings: Settings
) -> None:
    seen = threading.Event()

    def interrupt_after_the_first_batch(statuses: list[Status]) -> None:
        if statuses[0].rows == 2 and not seen.is_set():
            seen.set()
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    statuses = Run([copying], spark, settings, once=False).until_end(
        interrupt_after_the_first_batch
    )
    assert [(it.state, it.rows, it.lag) for it in statuses] == [("stopped", 2, 0)]
    assert signal.getsignal(signal.SIGTERM) is before
    assert not spark.streams.active


def test_run_ends_with_the_cause_if_one_fails(
    spark: SparkSession, copying: Pipeline, settings: Settings
) -> None:
    def divide(frame: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        return frame.select(udf(lambda number: 1 // (number - number), "long")("id").alias("id"))

    (reads,) = copying.reads.values()
    failing = pipeline(reads=reads, writes=table("none"), name="failing")(divide)
    with pytest.raises(PipelineFailed, match="pipeline failing failed: ZeroDivisionError"):
        Run([failing], spark, settings, once=True).until_end(lambda statuses: None)
    assert not spark.streams.active


def test_run_names_a_column_that_is_not_there(
    spark: SparkSession, copying: Pipeline, settings: Settings
) -> None:
    (reads,) = copying.reads.values()
    failing = pipeline(reads=reads, writes=table("none"), name="typo")(lambda it: it.select("idd"))
    with pytest.raises(PipelineFailed, match=r"pipeline typo failed: .*`idd`.*Did you mean.*`id`"):
        Run([failing], spark, settings, once=True).until_end(lambda statuses: None)


def test_embedded_broker_lives_for_the_run_and_keeps_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PREFERRED_PORT", free_port())  # nobody else takes it afterwards
    bare = Settings(home=tmp_path)
    with embedded_broker(bare) as settled:
        assert settled.broker is not None
        assert settled.create_topics
        host, port = settled.broker.split(":")
        socket.create_connection((host, int(port))).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))
    assert (tmp_path / "broker" / "meta.properties").exists()


def test_embedded_broker_takes_another_port_if_somebody_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(runner, "PREFERRED_PORT", port)
        monkeypatch.setattr(runner, "is_free", lambda port: True)  # when it was asked
        with embedded_broker(Settings(home=tmp_path)) as settled:
            assert settled.broker is not None
            host, other_port = settled.broker.split(":")
            assert int(other_port) != port
            socket.create_connection((host, int(other_port))).close()


def test_named_broker_is_taken(settings: Settings) -> None:
    with embedded_broker(replace(settings, broker="host:1")) as settled:
        assert (settled.broker, settled.create_topics) == ("host:1", None)


def test_port_that_is_taken_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_free(taken.getsockname()[1])
