"""Jars of which a session loads less, and the functions that come when they are needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running.light_jars import (
    EXTENSION,
    MLLIB,
    _Registration,
    jars_fingerprint,
    light_jars,
    register_ml_functions_when_needed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyspark = pytest.importorskip("pyspark")
INSTALLED = Path(pyspark.__file__).parent / "jars"


def entries(jar: Path) -> set[str]:
    with zipfile.ZipFile(jar) as file:
        return set(file.namelist())


def test_jars_are_links_but_mllib_which_lacks_its_extension(tmp_path: Path) -> None:
    jars = light_jars(INSTALLED, tmp_path)
    (mllib,) = INSTALLED.glob(MLLIB)
    assert EXTENSION in entries(mllib), (
        "light_jars: MLlib has no extension any more, so a copy without it is not needed"
    )
    assert entries(jars / mllib.name) == entries(mllib) - {EXTENSION}
    assert (jars / mllib.name).stat().st_mtime_ns == mllib.stat().st_mtime_ns
    for jar in INSTALLED.glob("*.jar"):
        if jar != mllib:
            assert (jars / jar.name).resolve() == jar.resolve()


def test_no_other_jar_has_an_extension() -> None:
    """Ours would have to hide it too."""
    found = [jar.name for jar in INSTALLED.glob("*.jar") if EXTENSION in entries(jar)]
    assert found == [jar.name for jar in INSTALLED.glob(MLLIB)]


def test_jars_are_made_once_and_again_for_others(tmp_path: Path) -> None:
    installed, home = tmp_path / "installed", tmp_path / "home"
    installed.mkdir()
    home.mkdir()
    (mllib,) = INSTALLED.glob(MLLIB)
    shutil.copy2(mllib, installed)
    first = light_jars(installed, home)
    made = first.stat().st_ino
    assert light_jars(installed, home) == first
    assert first.stat().st_ino == made
    (installed / "another.jar").touch()
    second = light_jars(installed, home)
    assert {it.name for it in second.iterdir()} == {"another.jar", mllib.name}
    os.utime(installed / "another.jar", (1, 1))
    third = light_jars(installed, home)
    assert [it.name for it in home.iterdir()] == [third.name]
    assert third.name.endswith(jars_fingerprint(installed))


def test_registration_waits_for_one_module_and_for_one_session(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "pyspark.ml", raising=False)
    for _ in range(2):
        register_ml_functions_when_needed(spark)
    (waiting,) = (it for it in sys.meta_path if isinstance(it, _Registration))
    waiting.find_spec("pyspark.mllib", None)
    assert waiting in sys.meta_path
    waiting.find_spec("pyspark.ml", None)
    assert waiting not in sys.meta_path


def test_functions_are_there_when_they_are_imported(spark: SparkSession) -> None:
    """If this fails, look whether light_jars.py still works with this Spark."""
    jvm: Any = spark._jvm
    assert jvm.java.lang.ClassLoader.getSystemResource(EXTENSION) is None
    from pyspark.ml.functions import array_to_vector, vector_to_array

    rows = spark.createDataFrame([([1.0, 2.0],)], "xs array<double>")
    (row,) = rows.select(vector_to_array(array_to_vector("xs")).alias("xs")).collect()
    assert row.xs == [1.0, 2.0]


NEEDS_ML = """
from pathlib import Path
from millstream.pipelines.running.session import create_session

spark = create_session("local[1]", {}, "light jars", Path("spark.log"))
registry = getattr(spark._jvm, "org.apache.spark.sql.catalyst.analysis.FunctionRegistry$")
functions = getattr(registry, "MODULE$").internal()
name = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier("vector_to_array")
print(functions.functionExists(name))
import pyspark.ml.functions
print(functions.functionExists(name))
spark.stop()
"""


@pytest.mark.slow
def test_our_session_has_the_functions_from_the_import_on(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", NEEDS_ML],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "True"]
