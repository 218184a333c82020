"""Settings of our own session, and what is said where Spark cannot start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.session import (
    CHECKPOINT_FILES,
    JAVA_OPTIONS,
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    assert JAVA_OPTIONS in here
    assert JAVA_OPTIONS not in there, "the driver of a cluster handles no rows"
    assert all(it.reason.endswith(".") for it in SPARK_SETTINGS)


@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_a_collector_in_the_environment_is_kept(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "-Xss4m -XX:+UseSerialGC")
    assert JAVA_OPTIONS not in spark_settings("local[2]"), "a JVM refuses two collectors"
    monkeypatch.setenv(variable, "-XX:+UseStringDeduplication")
    assert "-XX:+UseParallelGC" in spark_settings("local[2]")[JAVA_OPTIONS]


SHORTCUTS = ("spark.sql.streaming.checkpointFileManagerClass", "spark.python.daemon.module")


def test_settings_without_shortcuts_name_no_classes_or_modules_of_ours() -> None:
    full, plain = spark_settings("local[2]"), spark_settings("local[2]", shortcuts=False)
    assert full.keys() - plain.keys() == set(SHORTCUTS)
    there = spark_settings("spark://host:7077")
    assert SHORTCUTS[0] in there
    assert SHORTCUTS[1] not in there, "executors may not have the module"


FACTS = """
import json, os, sys
from pathlib import Path
import psutil
from millstream.pipelines.running.data_sources import _manager
from millstream.pipelines.running.session import create_session

spark = create_session("local[1]", {}, "test", Path(sys.argv[1]))
jvm = spark._jvm
settings = spark._jsc.hadoopConfiguration()
files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), settings)
facts = {
    "home": jvm.System.getenv("SPARK_HOME"),
    "files": files.getClass().getName(),
    "daemon": spark.conf.get("spark.python.daemon.module", ""),
    "sources": _manager(spark).dataSourceBuilders().isDefined(),
    "worker": spark.sparkContext.parallelize([0]).map(
        lambda _: psutil.Process().parent().cmdline()
    ).first(),
    "level": jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString(),
    "rows": spark.sparkContext.parallelize([1, 2]).map(lambda it: it + 1).collect(),
}
print(json.dumps(facts))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("shortcuts", ["true", "false"])
def test_one_setting_turns_all_shortcuts_off(tmp_path: Path, shortcuts: str) -> None:
    unset = ("SPARK_HOME", "PYSPARK_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["MILLSTREAM_SPARK_SHORTCUTS"] = shortcuts
    command = [sys.executable, "-c", FACTS, str(tmp_path / "spark.log")]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True
    )
    facts = json.loads(ended.stdout)
    assert facts["rows"] == [2, 3]
    assert facts["level"] == "WARN", "messages that nobody sees are composed in every batch"
    has_home = "spark-home" in str(facts["home"])
    has_files = facts["files"] == "millstream.LocalDisk"
    has_daemon = facts["daemon"] == "millstream.pipelines.worker_daemon"
    has_server = "millstream.pipelines.process_server" in facts["worker"]
    has = {has_home, has_files, has_daemon, has_server, facts["sources"]}
    assert has == {shortcuts == "true"}, facts


def test_checkpoint_file_manager_is_a_class_of_this_spark(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    found = jvm.java.lang.Class.forName(CHECKPOINT_FILES.value)
    bases = [it.getSimpleName() for it in found.getInterfaces()]
    assert "CheckpointFileManager" in bases, (
        f"CHECKPOINT_FILES in session.py: {CHECKPOINT_FILES.value} does not manage the files of "
        f"checkpoints in this Spark: {bases}"
    )


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


def test_standard_error_of_started_processes_goes_to_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "home" / "spark.log"
    with stderr_into(log):
        subprocess.run([sys.executable, "-c", "import sys; sys.exit('noise')"], check=False)
    subprocess.run([sys.executable, "-c", "import sys; sys.exit('heard')"], check=False)
    written, shown = log.read_text(), capfd.readouterr().err  # threads may have logged something
    assert ("noise\n" in written, "heard\n" in written) == (True, False)
    assert ("noise\n" in shown, "heard\n" in shown) == (False, True)
