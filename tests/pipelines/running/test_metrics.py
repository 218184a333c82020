"""Metrics of pipelines: from statuses, and of real queries."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from millstream.metrics.exposition import render
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running import runner
from millstream.pipelines.running.metrics import PipelineMetrics, families, problems, read
from millstream.pipelines.running.runner import Run, with_defaults
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.status import Status, Watched
from tests.broker.metrics.scraping import Metrics, scrape
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "millstream_pipeline"


def test_statuses_become_series_of_their_pipelines() -> None:
    busy = Status("busy", state="working", rows=10, batches=2, batch_ms=250, batch_ms_sum=400)
    busy.lag, busy.failed, busy.watermark_ms, busy.late = 7, 1, 1_000_000, {"late.x": 3}
    busy.kept_bytes, busy.has_dead_letters = 99, True
    found = Metrics("".join(render(families([busy, Status("new")], now=1060.0))))
    for name, value in (
        ("rows_total", 10),
        ("batches_total", 2),
        ("batch_seconds_total", 0.4),
        ("last_batch_seconds", 0.25),
        ("lag_records", 7),
        ("watermark_delay_seconds", 60),
        ("bad_records_total", 1),
        ("dead_letters_total", 1),
        ("state_bytes", 99),
        ("up", 1),
    ):
        assert found.value(f"{PREFIX}_{name}", pipeline="busy") == value, name
    assert found.value(f"{PREFIX}_late_rows_total", pipeline="busy", operator="late.x") == 3
    assert found.value(f"{PREFIX}_up", pipeline="new") == 0
    assert not found.all(f"{PREFIX}_lag_records", pipeline="new")
    assert not found.all(f"{PREFIX}_dead_letters_total", pipeline="new")
    assert found.value(f"{PREFIX}_state", pipeline="new", state="starting") == 1


def test_pipelines_are_ready_when_all_have_started() -> None:
    assert problems([]) == ["no pipeline is running yet"]
    statuses = [Status("a", state="working"), Status("b", state="failed"), Status("c")]
    assert problems(statuses) == ["b is failed", "c is starting"]
    assert problems([Status("a", state="waiting")]) == []


def test_a_query_that_cannot_be_read_has_failed_until_it_can_be() -> None:
    class Query:
        lastProgress = None  # noqa: N815
        status: ClassVar = {"isTriggerActive": True}
        is_broken = False

        @property
        def isActive(self) -> bool:  # noqa: N802
            if self.is_broken:
                raise ConnectionRefusedError("no JVM")
            return True

    query = Query()
    watched = Watched("p", query)  # type: ignore[arg-type]
    for query.is_broken, state in ((False, "working"), (True, "failed"), (False, "working")):
        read(watched)
        assert watched.status.state == state
    query.is_broken = True
    read(watched)
    assert problems([watched.status]) == ["p is failed"]


@pytest.fixture
def settings(topics: Topics, tmp_path: Path) -> Settings:
    return with_defaults(Settings(home=tmp_path, broker=topics.bootstrap, metrics="127.0.0.1:0"))


def test_a_run_serves_what_its_pipelines_have_done(
    spark: SparkSession, topics: Topics, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    name = topics.create()
    topics.fill(name, [b'{"id": 1}', b'{"id": 2}', b"{bad"])
    reads = topic(name, schema="id long", bad_records="drop")
    declared = pipeline(reads=reads, writes=table("t"), name=f"p-{name}")(lambda frame: frame)
    run = Run([declared], spark, settings, once=True)
    caplog.set_level("INFO")
    with runner.serving_metrics(settings, run.statuses):
        url = caplog.messages[-1].removeprefix("metrics on ")
        run.until_end(lambda statuses: None)
        found = scrape(url)
    assert found.value(f"{PREFIX}_rows_total", pipeline=declared.name) == 3
    assert found.value(f"{PREFIX}_bad_records_total", pipeline=declared.name) == 1
    assert found.value(f"{PREFIX}_lag_records", pipeline=declared.name) == 0
    assert found.value(f"{PREFIX}_state", pipeline=declared.name, state="done") == 1
    assert found.value("process_resident_memory_bytes") > 0
    with runner.serving_metrics(replace(settings, metrics=None), run.statuses):
        pass


def test_a_program_can_serve_the_metrics_of_its_queries(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    name = topics.create()
    topics.fill(name, [b'{"id": 1}', b'{"id": 2}'])
    declared = pipeline(reads=topic(name, schema="id long"), writes=table("t"), name=f"q-{name}")(
        lambda frame: frame
    )
    query = declared.start(
        spark,
        broker=topics.bootstrap,
        store=f"sqlite:///{tmp_path / 'store.db'}",
        checkpoint=str(tmp_path / "checkpoints"),
        once=True,
    )
    with PipelineMetrics("127.0.0.1:0", token="hunter2") as metrics:
        metrics.watch("copies", query)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not scrape(metrics.url, "hunter2").all(f"{PREFIX}_rows_total", pipeline="copies"):
            assert time.monotonic() < deadline
        while scrape(metrics.url, "hunter2").value(f"{PREFIX}_rows_total", pipeline="copies") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        health = metrics.url.replace("metrics", "health")
        with urllib.request.urlopen(health, timeout=60) as response:
            assert response.read() == b"ok\n"
    query.stop()
