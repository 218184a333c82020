"""Settings of our own session, and what is said where Spark cannot start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.session import (
    SPARK_SETTINGS,
    check_master,
    choose_python,
    local_cores,
    reason_of,
    spark_settings,
    stderr_into,
)
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from tests.peers.servers import free_port


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", None)]
)
def test_cores_are_those_of_the_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == (cores or os.cpu_count())


def test_settings_fit_the_master() -> None:
    here, there = spark_settings("local[3]"), spark_settings("spark://host:7077")
    assert here["spark.sql.shuffle.partitions"] == "3"
    assert here["spark.driver.host"] == "127.0.0.1"
    assert "spark.sql.shuffle.partitions" not in there
    assert "spark.driver.host" not in there
    checksum = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    assert here[checksum] == "false"
    assert checksum not in there, "a cluster loses shuffle output with an executor"
    assert here[STORE_PROVIDER] == there[STORE_PROVIDER] == ROCKSDB, "operators in Python need it"
    assert all(it.reason.endswith(".") for it in SPARK_SETTINGS)


def test_master_that_does_not_answer_is_named() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        there = f"127.0.0.1:{listening.getsockname()[1]}"
        nowhere = f"127.0.0.1:{free_port()}"
        check_master(f"spark://{nowhere},{there}")
        check_master("local[2]")
        check_master("yarn")
        with pytest.raises(ConfigError, match=rf"no Spark master answers \({nowhere}: .*refused"):
            check_master(f"spark://{nowhere}")
    with pytest.raises(ConfigError, match="write spark://host:port"):
        check_master("spark://host")


@pytest.mark.parametrize(
    ("settings", "environment", "python"),
    [
        ({}, {}, sys.executable),
        ({}, {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({"spark.pyspark.python": "./env/bin/python"}, {"PYSPARK_PYTHON": "x"}, "./env/bin/python"),
    ],
)
def test_workers_have_the_python_that_is_set_or_else_ours(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    environment: dict[str, str],
    python: str,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.environ", environment | {"PYSPARK_DRIVER_PYTHON": "jupyter"})
        choose_python(settings)
        assert dict(os.environ) == {"PYSPARK_PYTHON": python}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "An error occurred while calling None.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'sprk://h'\n\tat org.x",
            "Could not parse Master URL: 'sprk://h'",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway\nmore", "[JAVA_GATEWAY_EXITED] Java gateway"),
        ("", "no reason given"),
    ],
)
def test_reason_is_what_java_threw(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_what_is_started_meanwhile_complains_into_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "home" / "spark.log"
    with stderr_into(log):
        subprocess.run([sys.executable, "-c", "import sys; sys.exit('noise')"], check=False)
    subprocess.run([sys.executable, "-c", "import sys; sys.exit('heard')"], check=False)
    assert log.read_text() == "noise\n"
    assert capfd.readouterr().err == "heard\n"
