"""The JVM is started by the command that Spark's launcher would make, or else by the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.pipelines.running.jvm_command import (
    launcher_command,
    variables,
    write_command,
)
from millstream.pipelines.running.light_submit import (
    LAUNCHER,
    OPTIONS,
    prepared_command,
    settings_in,
)
from millstream.pipelines.running.spark_home import HOME

pytest.importorskip("pyspark")
MASTER = ("--conf", "spark.master=local[2]")
SHELL = "pyspark-shell"
ARCHIVE = "-XX:SharedArchiveFile=/archive"


@pytest.fixture
def environ(tmp_path: Path, java: Path, home: Path) -> dict[str, str]:
    write_command(tmp_path / "command", java, home, [ARCHIVE])
    return {**variables(tmp_path / "command"), HOME: str(home), "SPARK_LOCAL_IP": "127.0.0.1"}


def without_archive(command: list[str] | None) -> list[str]:
    assert command is not None
    command.remove(ARCHIVE)
    return command


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("spark.driver.memory=3g", "spark.driver.host=127.0.0.1", "spark.jars=/a.jar"),
        (f"{OPTIONS}=-XX:+UseSerialGC -Dname='a b' -Dother=\"c d\"",),
        (f"{OPTIONS}=", "spark.app.name=a = b"),
    ],
)
def test_command_is_the_launchers(
    settings: tuple[str, ...], java: Path, home: Path, environ: dict[str, str]
) -> None:
    arguments = [*MASTER, *(it for setting in settings for it in ("--conf", setting)), SHELL]
    expected = launcher_command(java, home, arguments)
    found = without_archive(prepared_command(arguments, environ))
    settings_at = expected.index(LAUNCHER) + 1  # in any order
    assert found[:settings_at] == expected[:settings_at], (
        "light_submit: Spark's launcher makes another command than we do"
    )
    assert settings_in(found[settings_at:]) == settings_in(expected[settings_at:])


@pytest.mark.parametrize(
    "chosen",
    ["-XX:SharedArchiveFile=a", "-XX:ArchiveClassesAtExit=a", "-Xshare:off", "-XX:AOTMode"],
)
def test_archive_that_was_chosen_is_not_replaced(chosen: str, environ: dict[str, str]) -> None:
    command = prepared_command([*MASTER, "--conf", f"{OPTIONS}={chosen}", SHELL], environ)
    assert command is not None
    assert chosen in command
    assert ARCHIVE not in command


@pytest.mark.parametrize(
    "arguments",
    [
        (*MASTER, "--conf", "spark.driver.extraClassPath=/jars", SHELL),
        (*MASTER, "--conf", "spark.driver.extraLibraryPath=/lib", SHELL),
        (*MASTER, "--conf", "spark.driver.defaultJavaOptions=-Da=b", SHELL),
        (*MASTER, "--conf", f"{OPTIONS}=-Xmx2g", SHELL),
        (*MASTER, "--conf", f"{OPTIONS}=-Da='b", SHELL),
        (*MASTER, "--conf", "spark.remote=sc://host", SHELL),
        (*MASTER, "--driver-memory", "2g", SHELL),
        (*MASTER, "--packages", SHELL),
        (*MASTER, "--conf", "no value", SHELL),
        (*MASTER, "script.py"),
        (),
    ],
)
def test_launcher_is_asked_where_more_counts_than_memory_and_options(
    arguments: tuple[str, ...], environ: dict[str, str]
) -> None:
    assert prepared_command([*MASTER, SHELL], environ) is not None
    assert prepared_command(arguments, environ) is None


@pytest.mark.parametrize(
    "name", ["SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH", "SPARK_DRIVER_MEMORY", "HADOOP_CONF_DIR"]
)
def test_launcher_is_asked_where_the_environment_counts(name: str, environ: dict[str, str]) -> None:
    assert prepared_command([*MASTER, SHELL], environ | {name: "x"}) is None


def test_launcher_is_asked_where_there_are_files_of_settings(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "conf").mkdir()
    assert prepared_command([*MASTER, SHELL], environ | {HOME: str(tmp_path)}) is None


def test_process_that_has_had_a_session_does_without_the_launcher(
    environ: dict[str, str],
) -> None:
    set_by_pyspark = {"SPARK_AUTH_SOCKET_TIMEOUT": "15", "SPARK_BUFFER_SIZE": "65536"}
    assert prepared_command([*MASTER, SHELL], environ | set_by_pyspark) is not None


@pytest.mark.parametrize("content", [None, "", "[]", '{"before": []}'])
def test_launcher_is_asked_if_there_is_no_prepared_command(
    content: str | None, tmp_path: Path, environ: dict[str, str]
) -> None:
    if content is None:
        (tmp_path / "command").unlink()
    else:
        (tmp_path / "command").write_text(content)
    assert prepared_command([*MASTER, SHELL], environ) is None


@pytest.mark.parametrize("is_prepared", [True, False])
def test_spark_submit_of_a_light_home_starts_that_jvm(
    is_prepared: bool, tmp_path: Path, home: Path
) -> None:
    """A Java that tells how it is started, and as launcher answers with itself."""
    fake = tmp_path / "java" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f"  *launcher.Main*) printf '\\0\\n{fake}\\0-Xmx4321m\\0-Dmillstream=options\\0-Dafter\\0"
        "org.apache.spark.deploy.SparkSubmit\\0';;\n"
        '  *) echo "$SPARK_CONF_DIR $PYTHONHASHSEED $*";;\nesac\n'
    )
    fake.chmod(0o755)
    environ = {"PYSPARK_PYTHON": sys.executable, HOME: str(home), "PATH": os.environ["PATH"]}
    environ["JAVA_HOME"] = str(fake.parent.parent)
    if is_prepared:
        write_command(tmp_path / "command", fake, home, [ARCHIVE])
        environ |= variables(tmp_path / "command")
    started = subprocess.run(
        [home / "bin" / "spark-submit", *MASTER, SHELL],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    arguments = "org.apache.spark.deploy.SparkSubmit --conf spark.master=local[2] pyspark-shell"
    expected = {
        True: f"-Xmx1g {ARCHIVE} -Dafter {arguments}",
        False: "-Xmx4321m -Dmillstream=options -Dafter org.apache.spark.deploy.SparkSubmit",
    }
    assert started == f"{home}/conf 0 {expected[is_prepared]}"
