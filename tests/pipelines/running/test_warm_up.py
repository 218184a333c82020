"""What is done while a session starts."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running.warm_up import NEEDED_SOON, start_python_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
IMPORTED = """
import sys, threading
from millstream.pipelines.running.warm_up import NEEDED_SOON, import_in_background

import_in_background()
for thread in threading.enumerate():
    if thread.name == "imports":
        thread.join()
print(all(name in sys.modules for name in NEEDED_SOON))
"""


def test_imports_in_the_background_are_done_by_a_thread() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, check=True)
    assert ended.stdout.strip() == b"True"


def test_pyspark_still_imports_its_testing_for_calls_of_the_jvm() -> None:
    from pyspark.sql.types import NumpyArrayConverter

    assert NEEDED_SOON[0] in inspect.getsource(NumpyArrayConverter), (
        f"warm_up: this PySpark does not import {NEEDED_SOON[0]} for calls of the JVM any more"
    )


def test_python_workers_start_before_the_first_pipeline(spark: SparkSession) -> None:
    before = _jobs(spark)
    thread = start_python_workers(spark)
    thread.join(60)
    assert not thread.is_alive()
    assert len(_jobs(spark) - before) == 1


def _jobs(spark: SparkSession) -> set[Any]:
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
