"""The archive of Spark's classes: when it is written, and that a JVM uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.class_archive import (
    CACHE,
    COMMAND,
    archive_path,
    prepare,
    prepared_jvm,
    would_help,
)
from millstream.pipelines.running.javas import installed_javas
from millstream.pipelines.running.light_submit import LAUNCHER, PREPARED
from millstream.pipelines.running.spark_home import linked_home

pytest.importorskip("pyspark")

SESSION = """
import sys
from pathlib import Path
from millstream.pipelines.running.session import JAVA_OPTIONS, create_session

log, options = Path(sys.argv[1]), sys.argv[2]
create_session("local[1]", {JAVA_OPTIONS: options}, "test", log).range(3).count()
"""
FROM_ARCHIVE = "source: shared objects file"
OF_JAVA = 2_000  # classes at most, in the archive that every Java comes with


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment in which nothing is prepared."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path / "environment"


def write_files() -> Path:
    archive = archive_path()
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"")
    archive.with_suffix(COMMAND).write_text("{}")
    return archive


def test_nothing_is_prepared_before_there_is_an_archive(environment: Path) -> None:
    with prepared_jvm():
        assert PREPARED not in os.environ
    archive = write_files()
    assert archive.is_relative_to(environment)
    with prepared_jvm():
        assert os.environ[PREPARED] == str(archive.with_suffix(COMMAND))
    assert PREPARED not in os.environ


def test_archive_would_help_sessions_that_use_it_while_there_is_none(environment: Path) -> None:
    assert would_help("local[2]", shortcuts=True)
    assert not would_help("local[2]", shortcuts=False)
    assert not would_help("spark://host:7077", shortcuts=True)
    archive = write_files()
    assert not would_help("local[2]", shortcuts=True)
    archive.unlink()
    assert would_help("local[2]", shortcuts=True)


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


@pytest.mark.slow
def test_run_that_fails_leaves_no_archive(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outdated = write_files()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    _make_java(tmp_path, "echo 'no memory' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"launcher ended with 1: no memory"):
        prepare()
    command = "\\0".join(["java", "-Xmx4321m", "-Dmillstream=options", LAUNCHER, ""])
    answer = f"printf '\\0\\n{command}'"
    _make_java(tmp_path, f'case "$*" in *launcher.Main*) {answer};; *) exit 1;; esac')
    with pytest.raises(ConfigError, match=r"ended with 1: .*JAVA_GATEWAY"):
        prepare()
    left = {it.name for it in (environment / "share" / "millstream").iterdir()}
    assert left == {"spark-home", outdated.name, outdated.with_suffix(COMMAND).name}


@pytest.mark.slow
@pytest.mark.parametrize("java", [17, 25])
def test_jvm_maps_the_classes_of_an_archive(
    java: int, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = next((it for it in installed_javas() if it.version[0] == java), None)
    if program is None:
        pytest.skip(f"Java {java} is not installed")
    monkeypatch.setenv("JAVA_HOME", str(program.program.parent.parent))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    outdated = archive_path().with_name("spark-classes-0123.jsa")
    outdated.parent.mkdir(parents=True)
    outdated.write_bytes(b"of another Java")
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_DRIVER_MEMORY", "2g")  # with it, other sessions ask the launcher
        assert prepare()
    assert not prepare(), "once is enough"
    archive = archive_path()
    home = linked_home(archive.parent)
    assert set(archive.parent.iterdir()) == {archive, archive.with_suffix(COMMAND), home}

    loaded, used = tmp_path / "classes.log", tmp_path / "archive.log"
    options = f"-Xlog:class+load:file={loaded}"
    if archive.suffix == CACHE.suffix:
        options += f" -Xlog:aot:file={used}"
    with prepared_jvm():
        command = [sys.executable, "-c", SESSION, str(tmp_path / "spark.log"), options]
        subprocess.run(command, check=True, cwd=tmp_path)
    assert loaded.read_text().count(FROM_ARCHIVE) > OF_JAVA + 5_000, (
        "class_archive: Spark's JVM does not map the classes of the archive that it wrote"
    )
    if archive.suffix == CACHE.suffix:
        assert "Using AOT-linked classes: true" in used.read_text(), (
            "class_archive: Spark's JVM links classes itself that are linked in the archive"
        )


def _make_java(home: Path, does: str) -> None:
    """A Java 17 by its version, which does something else when it is to run a program."""
    java = home / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    version = """if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit; fi"""
    java.write_text(f"#!/bin/sh\n{version}\n{does}\n")
    java.chmod(0o755)
