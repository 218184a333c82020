"""The home of links that Spark's JVM gets, and what it does with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running.spark_home import (
    installation_directory,
    light_home,
    linked_home,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyspark = pytest.importorskip("pyspark")
INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_linked_home_has_all_that_the_jvm_needs_and_no_archive(tmp_path: Path) -> None:
    home = linked_home(tmp_path)
    assert {it.name for it in (home / "jars").glob("*.jar")} == {
        it.name for it in (INSTALLED / "jars").glob("*.jar")
    }
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert (INSTALLED / "python/lib/pyspark.zip").exists(), (
        "spark_home: PySpark has no archive any more, so a home without it is not needed"
    )
    assert not (home / "python").exists()


def test_linked_home_is_made_once_and_mended(tmp_path: Path) -> None:
    home = linked_home(tmp_path)
    before = (home / "jars").lstat().st_ino
    (home / "bin").unlink()
    (home / "bin").symlink_to("/nowhere")  # as after another Python was installed
    assert linked_home(tmp_path) == home
    assert (home / "jars").lstat().st_ino == before
    assert (home / "bin" / "spark-submit").exists()
    made = {(home / it).resolve().name for it in ("bin", "jars")}
    assert {it.name for it in home.iterdir()} == {"bin", "jars", *made}


def test_light_home_is_set_while_the_jvm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    with light_home(tmp_path) as is_light:
        assert is_light
        assert Path(os.environ["SPARK_HOME"]) == linked_home(installation_directory())
    assert "SPARK_HOME" not in os.environ
    assert installation_directory().is_relative_to(tmp_path / "environment")


def test_light_home_is_elsewhere_if_the_environment_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environment").write_text("no directory can be created below a file")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    with light_home(tmp_path):
        assert Path(os.environ["SPARK_HOME"]) == linked_home(tmp_path)


def test_light_home_leaves_a_home_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with light_home(tmp_path) as is_light:
        assert not is_light
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_light_home_is_not_for_workers_with_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs may have no PySpark, or another one: the archive is what saves them."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    with light_home(tmp_path):
        assert "SPARK_HOME" not in os.environ


def test_spark_looks_for_an_archive_in_its_home_and_workers_do_without(spark: SparkSession) -> None:
    """If this fails, look whether spark_home.py is needed, and whether it still works."""
    jvm: Any = spark._jvm
    path = str(jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath())
    assert "python/lib/pyspark.zip" in path, (
        f"spark_home: Spark does not put an archive in its home before all else: {path}"
    )

    def place(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    (found,) = spark.sparkContext.parallelize([0], 1).map(place).collect()
    assert ".zip" not in found, f"spark_home: workers import PySpark from an archive: {found}"
