"""The variables with which Spark's Python processes find the one that they are forked from."""

from __future__ import annotations

import os
from typing import Any

import pytest

from millstream.pipelines.planner_site.sitecustomize import SERVER
from millstream.pipelines.running import python_processes
from millstream.pipelines.running.python_processes import PATH, SITE, THREADS, forked_processes

pyspark = pytest.importorskip("pyspark")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No JVM runs, and a server is only noted. Its paths."""
    paths: list[str] = []

    def start() -> str:
        paths.append(f"/server/{len(paths)}")
        return paths[-1]

    monkeypatch.setattr(python_processes, "start_server", start)
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)
    for name in (PATH, THREADS):
        monkeypatch.delenv(name, raising=False)
    return paths


def test_a_jvm_that_starts_gets_a_server_and_our_directory(started: list[str]) -> None:
    with forked_processes():
        assert (os.environ[SERVER], os.environ[PATH]) == ("/server/0", str(SITE))
        assert os.environ[THREADS] == "1"
    assert not {SERVER, PATH, THREADS} & os.environ.keys()


def test_what_the_user_has_set_stays(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH, "/theirs")
    monkeypatch.setenv(THREADS, "4")
    with forked_processes():
        assert os.environ[PATH].split(os.pathsep) == [str(SITE), "/theirs"]
        assert os.environ[THREADS] == "4"
    assert os.environ[PATH] == "/theirs"


def test_a_jvm_that_runs_already_gets_none(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", Any)
    with forked_processes():
        assert SERVER not in os.environ
    assert started == []


def test_without_a_server_sparks_processes_start_by_themselves(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise OSError("no more processes")

    monkeypatch.setattr(python_processes, "start_server", fail)
    with forked_processes():
        assert SERVER not in os.environ
