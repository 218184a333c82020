"""Scripts and notebooks find `format("millstream")` without settings of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.pipelines import interpreter

READ = """
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
print(*spark.read.format("millstream").options(**options).load().columns)
spark.stop()
"""
MAKE_SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
"""


def run_script(tmp_path: Path, text: str) -> str:
    """As `.venv/bin/python script.py`, where `python3` on the PATH is another one."""
    script = tmp_path / "script.py"
    script.write_text(text)
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_script_that_imports_pipelines_finds_the_source(tmp_path: Path) -> None:
    found = run_script(tmp_path, f"import millstream.pipelines\n{MAKE_SESSION}{READ}")
    assert found.split()[:2] == ["key", "value"]


@pytest.mark.slow
def test_session_that_was_there_before_learns_of_the_source(tmp_path: Path) -> None:
    late = "from millstream import pipelines\npipelines.register(spark)\n"
    found = run_script(tmp_path, f"{MAKE_SESSION}{late}{READ}")
    assert found.split()[:2] == ["key", "value"]


CONNECT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session"
"""


@pytest.mark.slow
def test_session_of_spark_connect_is_registered_where_its_server_has_the_source(
    tmp_path: Path,
) -> None:
    text = f"from millstream import pipelines\n{CONNECT}\npipelines.register(spark)\n{READ}"
    assert run_script(tmp_path, text).split()[:2] == ["key", "value"]


@pytest.mark.slow
def test_server_of_spark_connect_without_the_source_is_reported_with_the_cure(
    tmp_path: Path,
) -> None:
    """Its Python was chosen when it was started, and is not ours."""
    refused = """
from millstream import pipelines
from millstream.errors import ConfigError
try:
    pipelines.register(spark)
except ConfigError as error:
    print(error)
spark.stop()
"""
    found = run_script(tmp_path, f"{CONNECT}{refused}")
    assert "the Python of the Spark Connect server has no millstream" in found
    assert "PYSPARK_PYTHON" in found


def test_choice_of_the_user_and_of_spark_submit_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.11")
    interpreter.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "python3.11"
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    interpreter.use_this_python()
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    interpreter.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
