"""Data sources that the driver finds for Spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running import data_sources
from millstream.pipelines.running.data_sources import installed_sources, provide_data_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
SOURCE = """
from pyspark.sql.datasource import DataSource

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "theirs"

    def schema(self):
        return "id long"
"""


@pytest.fixture
def manager(spark: SparkSession) -> Iterator[Any]:
    """Spark's list of sources, as before the first of them is asked for."""
    found = data_sources._manager(spark)
    before = found.dataSourceBuilders()
    jvm: Any = spark._jvm
    getattr(found, "dataSourceBuilders_$eq")(jvm.scala.Option.empty())
    yield found
    getattr(found, "dataSourceBuilders_$eq")(before)


@pytest.fixture
def their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Another installed source, a module that only has the prefix of one, and a broken one."""
    (tmp_path / "pyspark_theirs.py").write_text(SOURCE)
    (tmp_path / "pyspark_nothing.py").write_text("")
    (tmp_path / "pyspark_broken.py").write_text("import nothing_that_is_installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "theirs"
    for name in ("pyspark_theirs", "pyspark_nothing"):
        sys.modules.pop(name, None)


def test_installed_sources_are_those_that_spark_finds(
    their_source: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert {"millstream", their_source} <= installed_sources().keys()
    assert "pyspark_broken" in caplog.text


def test_new_sessions_know_the_sources_without_a_search(
    spark: SparkSession, manager: Any, their_source: str
) -> None:
    assert provide_data_sources(spark), (
        "data_sources: this Spark does not take sources from the driver; without that, the first "
        "pipeline waits for a Python process that searches for them"
    )
    builders = manager.dataSourceBuilders().get()
    assert builders.contains("millstream")
    assert builders.contains(their_source)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}
    frame = spark.newSession().readStream.format("millstream").options(**options).load()
    assert "offset" in frame.columns


def test_sources_that_spark_has_found_stay(spark: SparkSession, manager: Any) -> None:
    assert provide_data_sources(spark)
    before = manager.dataSourceBuilders()
    assert provide_data_sources(spark)
    assert manager.dataSourceBuilders().equals(before)


def test_spark_without_such_a_list_searches_itself(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(data_sources, "SPARK", "org.apache.spark.elsewhere")
    with caplog.at_level(logging.WARNING):
        assert not provide_data_sources(spark)
    assert "pipelines will start later" in caplog.text
