"""The archive of Spark's classes: when it is written, and that a JVM uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.class_archive import (
    archive_path,
    prepare,
    share_classes,
    would_help,
)

pytest.importorskip("pyspark")

SESSION = """
import sys
from pathlib import Path
from millstream.pipelines.running.session import JAVA_OPTIONS, create_session

log, options = Path(sys.argv[1]), sys.argv[2]
create_session("local[1]", {JAVA_OPTIONS: options}, "test", log).range(3).count()
"""
SHARED = "source: shared objects file (top)"  # of our archive; Java's own is the base


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment in which nothing is prepared."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path / "environment"


def test_nothing_is_shared_before_the_archive_is_written(environment: Path) -> None:
    assert share_classes() == ""
    archive = archive_path()
    assert archive.is_relative_to(environment)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"")
    assert share_classes() == f"-XX:SharedArchiveFile={archive}"
    assert share_classes("-Xmx1g") == f"-Xmx1g -XX:SharedArchiveFile={archive}"
    assert share_classes("-XX:ArchiveClassesAtExit=other") == "-XX:ArchiveClassesAtExit=other"


def test_archive_would_help_sessions_that_use_it_while_there_is_none(environment: Path) -> None:
    assert would_help("local[2]", shortcuts=True)
    assert not would_help("local[2]", shortcuts=False)
    assert not would_help("spark://host:7077", shortcuts=True)
    archive_path().parent.mkdir(parents=True)
    archive_path().write_bytes(b"")
    assert not would_help("local[2]", shortcuts=True)


def test_another_java_needs_another_archive(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = archive_path()
    _make_java(tmp_path, "exit 0")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_path() != before


def test_spark_installed_again_needs_another_archive(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "pyspark" / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr("pyspark.__file__", str(tmp_path / "pyspark" / "__init__.py"))
    before = archive_path()
    assert archive_path() == before
    os.utime(jar, ns=(1, 1))
    assert archive_path() != before


def test_environment_that_is_read_only_is_named(environment: Path) -> None:
    environment.write_text("no directory can be created below a file")
    with pytest.raises(ConfigError, match=r"cannot write to .*millstream \(Not a directory\)"):
        prepare()


def test_run_that_fails_leaves_no_archive(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_java(tmp_path, "echo 'no memory' >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"ended with 1: .*JAVA_GATEWAY"):
        prepare()
    assert list((environment / "share" / "millstream").iterdir()) == []


@pytest.mark.slow
def test_jvm_maps_the_classes_of_an_archive(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outdated = archive_path().with_name("spark-classes-0123.jsa")
    outdated.parent.mkdir(parents=True)
    outdated.write_bytes(b"of another Java")
    assert prepare()
    assert not prepare(), "once is enough"
    assert list(outdated.parent.iterdir()) == [archive_path()]

    loaded = tmp_path / "classes.log"
    options = share_classes(f"-Xlog:class+load:file={loaded}")
    command = [sys.executable, "-c", SESSION, str(tmp_path / "spark.log"), options]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert loaded.read_text().count(SHARED) > 5000, (
        "class_archive: Spark's JVM does not map the classes of the archive that it wrote"
    )


def _make_java(home: Path, does: str) -> None:
    """A Java 17 by its version, which does something else when it is to run a program."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    version = """if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit; fi"""
    java.write_text(f"#!/bin/sh\n{version}\n{does}\n")
    java.chmod(0o755)
