"""kill -9 around every statement and step of operations on versions: readers read one version.

Versions do not run here, so every place of an operation is reached. `test_crash_running.py` has
versions that run, and fewer places.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.pipelines.versions.catalog import Work, open_catalog
from millstream.pipelines.versions.registry import Versions, identity_of, physical_table
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics
from tests.pipelines.stores.conftest import Database
from tests.pipelines.stores.test_crash import OTHER_CLIENTS
from tests.pipelines.versions.operating import (
    ORDER_COUNT,
    ORDERS,
    POSITION,
    tables_of,
)
from tests.pipelines.writing.test_writer import values_of

ROOT = Path(__file__).resolve().parents[3]
CALLS_MAX = 800  # with a topic, versions are halted, which takes several hundred
CALLS_MIN = 17
# At every call it takes minutes.
READER = "reader"
STRIDES = [29, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]


class Reader:
    """Reads both tables of a pipeline in one statement, all the time, from a thread. The table that
    an operation locks last is read first."""

    def __init__(self, database: Database, pipeline: str) -> None:
        one, two = tables_of(pipeline)
        self._statement = (
            f"SELECT id, version FROM {two} UNION ALL SELECT id, version FROM {one} ORDER BY 1"
        )
        self._database = database
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem: BaseException | None = None
        self.reads = 0
        self.versions: list[str] = []  # each time that it changes

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        if self._problem is not None:
            raise self._problem
        assert self.reads

    def _run(self) -> None:
        try:
            connection: Any
            if self._database.is_sqlite:
                path = self._database.url.removeprefix("sqlite:///")
                connection = sqlite3.connect(path, timeout=PATIENCE_SECONDS)
            else:
                connection = psycopg.connect(
                    self._database.url, autocommit=True, application_name=READER
                )
            with connection:
                while not self._ended.is_set() or not self.reads:
                    self._look(connection.execute(self._statement).fetchall())
            connection.close()
        except BaseException as error:  # noqa: BLE001  raised by the test
            self._problem = error

    def _look(self, rows: list[tuple[int, str]]) -> None:
        assert [number for number, _ in rows] == [0, 0, 1, 1], rows
        (version,) = {version for _, version in rows}  # no mixture
        if [version] != self.versions[-1:]:
            self.versions.append(version)
        self.reads += 1


class Operators:
    """Processes that work on versions, one after another."""

    versions_run = False  # they have connections of their own

    def __init__(self, database: Database, topics: Topics, directory: Path) -> None:
        self.database, self.topics = database, topics
        if ORDERS not in topics.admin.list_topics().topics:
            topics.fill(topics.create(name=ORDERS), [b""] * ORDER_COUNT)
        module = "tests.pipelines.versions.operating"
        self._server = subprocess.Popen(
            [sys.executable, "-m", module, database.url, topics.bootstrap, str(directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, operation: str, pipeline: str, kill_at: int | str = 0) -> bool:
        """Whether it came to its end; otherwise it was killed."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(operation, pipeline, kill_at, file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline().split()[1])
        self._wait_until_nobody_writes()
        assert status in (0, -signal.SIGKILL), f"{operation} of {pipeline} failed"
        return status == 0

    def _wait_until_nobody_writes(self) -> None:
        """A server goes on with the statement of a client that was killed since."""
        if self.database.is_sqlite or self.versions_run:
            return
        others = f"{OTHER_CLIENTS} AND application_name <> '{READER}'"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.database.rows(others) != [(0,)]:
            assert time.monotonic() < deadline, "a killed client's connection does not end"
            time.sleep(0.01)

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()

    # What is there

    def document(self, pipeline: str) -> Versions | None:
        with open_catalog(self.database.url) as catalog:
            return catalog.find(pipeline)

    def read(self, pipeline: str) -> str:
        """The version that wrote what readers read, in both tables."""
        one, two = tables_of(pipeline)
        rows = self.database.rows(
            f"SELECT id, version FROM {one} UNION ALL SELECT id, version FROM {two} ORDER BY id"
        )
        (version,) = {version for _, version in rows}
        assert [number for number, _ in rows] == [0, 0, 1, 1]
        return str(version)

    def kinds(self, pipeline: str, version: str | None = None) -> set[str | None]:
        names = tables_of(pipeline)
        if version is not None:
            names = tuple(physical_table(it, version) for it in names)  # type: ignore[assignment]

        def look(work: Work) -> set[str | None]:
            return {work.kind(it) for it in names}

        with open_catalog(self.database.url) as catalog:
            return catalog.read(look)


@pytest.fixture
def operators(database: Database, topics: Topics, tmp_path: Path) -> Iterator[Operators]:
    opened = Operators(database, topics, tmp_path)
    yield opened
    opened.close()


def kills(
    operators: Operators,
    operation: str,
    before: Sequence[str],
    stride: int,
    *,
    has_topic: bool = False,
) -> Iterator[str]:
    """Pipelines whose operation was killed, each at a later call, until one is not."""
    for call in range(1, CALLS_MAX, stride):
        pipeline = f"{operation}{call}"
        if has_topic:
            kind = "sqlite" if operators.database.is_sqlite else "postgres"
            pipeline = f"{operation}{call}_{stride}_{kind}-topic"
            create_topics(operators.topics, pipeline)
        for it in before:
            assert operators.run(it, pipeline)
        with Reader(operators.database, pipeline) as reader:
            is_done = operators.run(operation, pipeline, call)
        assert len(reader.versions) <= 2  # readers are moved once, if at all
        yield pipeline
        if is_done:
            assert call > CALLS_MIN  # it was killed at all of these
            return
    pytest.fail(f"{operation} made more than {CALLS_MAX} calls")


def create_topics(topics: Topics, pipeline: str) -> None:
    for name in (pipeline, f"{pipeline}.v1", f"{pipeline}.v2"):
        topics.create(name=name)


@pytest.mark.slow_with("postgres")
@pytest.mark.parametrize("stride", STRIDES)
def test_deploy_beside_a_pipeline_that_ran_before(operators: Operators, stride: int) -> None:
    for pipeline in kills(operators, "deploy", ["ran"], stride):
        assert operators.read(pipeline) == "1"
        document = operators.document(pipeline)
        assert operators.kinds(pipeline) == ({"table"} if document is None else {"view"})
        assert operators.run("deploy", pipeline)
        document = operators.document(pipeline)
        assert document is not None
        assert (document.in_force, list(document.versions)) == ("1", ["1", "2"])
        assert operators.read(pipeline) == "1"
        assert operators.kinds(pipeline, "1") == {"table"}


@pytest.mark.slow_with("postgres")
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(
    ("operation", "before", "versions"),
    [("switch", ["deployed"], ("1", "2")), ("rollback", ["deployed", "switch"], ("2", "1"))],
)
def test_readers_are_moved_once(
    operators: Operators,
    stride: int,
    operation: str,
    before: Sequence[str],
    versions: tuple[str, str],
) -> None:
    old, new = versions
    for pipeline in kills(operators, operation, before, stride):
        document = operators.document(pipeline)
        assert document is not None
        assert operators.read(pipeline) == document.in_force
        if document.in_force == old:
            assert operators.run(operation, pipeline)
            document = operators.document(pipeline)
            assert document is not None
        assert (document.in_force, document.previous) == (new, old)
        assert document.number == len(before)
        assert operators.read(pipeline) == new


@pytest.mark.slow_with("postgres")
@pytest.mark.parametrize("stride", STRIDES)
def test_removal_is_completed_by_the_next_one(operators: Operators, stride: int) -> None:
    for pipeline in kills(operators, "remove", ["deployed"], stride):
        document = operators.document(pipeline)
        assert document is not None
        assert operators.read(pipeline) == "1"
        if "2" in document.versions:
            marked = document.get("2").is_removing
            assert marked or operators.kinds(pipeline, "2") == {"table"}
            assert operators.run("remove", pipeline)
            document = operators.document(pipeline)
            assert document is not None
        assert list(document.versions) == ["1"]
        assert operators.kinds(pipeline, "2") == {None}
        with operators.database.open() as store:
            progress = store.progress(identity_of(pipeline, "2"))
        assert progress is not None
        assert progress.offsets is None


@pytest.mark.slow_with("sqlite")
@pytest.mark.parametrize(
    ("side", "step"),
    [
        pytest.param("before", "complete_last_batch", marks=pytest.mark.slow),
        ("after", "complete_last_batch"),
        pytest.param("before", "swap_views", marks=pytest.mark.slow),
        pytest.param("after", "swap_views", marks=pytest.mark.slow),
        pytest.param("before", "note_switch", marks=pytest.mark.slow),
        ("after", "note_switch"),
    ],
)
def test_last_batch_of_a_killed_version_is_in_the_topic_before_readers_are_moved(
    operators: Operators, side: str, step: str
) -> None:
    kind = "sqlite" if operators.database.is_sqlite else "postgres"
    pipeline = f"{side}_{step}_{kind}-topic"
    public = pipeline
    create_topics(operators.topics, pipeline)
    assert operators.run("deployed", pipeline)  # both were killed when they had decided a batch
    assert values_of(operators.topics, public) == []
    assert not operators.run("switch", pipeline, f"{side}:{step}")
    document = operators.document(pipeline)
    assert document is not None
    assert operators.read(pipeline) == document.in_force
    if document.in_force == "1":
        assert operators.run("switch", pipeline)
    document = operators.document(pipeline)
    assert document is not None
    assert (document.in_force, document.number) == ("2", 1)
    assert operators.read(pipeline) == "2"
    assert values_of(operators.topics, public, at_least=1) == [b"1"]


@pytest.mark.slow_with("postgres")
@pytest.mark.parametrize("stride", STRIDES)
def test_state_is_carried_over_by_the_next_deployment(operators: Operators, stride: int) -> None:
    for pipeline in kills(operators, "carry", ["deployed_with_state"], stride):
        assert operators.read(pipeline) == "1"
        assert operators.run("carry", pipeline)
        document = operators.document(pipeline)
        assert document is not None
        with operators.database.open() as store:
            progress = store.progress(identity_of(pipeline, "2"))
        assert progress is not None
        assert progress.offsets == POSITION
        checkpoint = Path(document.get("2").checkpoint)
        assert json.loads((checkpoint / "metadata").read_text()) == {"id": progress.checkpoint}
        for name in tables_of(pipeline):
            rows = operators.database.rows(f"SELECT * FROM {physical_table(name, '2')} ORDER BY 1")
            assert rows == [(0, "1"), (1, "1")]
        leftovers = [it.name for it in checkpoint.parent.iterdir() if it.name.startswith(".")]
        assert leftovers == []


TOPIC_STRIDES = [
    pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)], id="every"),
    pytest.param(90, marks=pytest.mark.slow, id="some"),
]


@pytest.mark.parametrize("stride", TOPIC_STRIDES)
def test_rollback_of_a_topic_is_completed_by_the_next_one(
    operators: Operators, stride: int
) -> None:
    for pipeline in kills(operators, "rollback", ["deployed", "switch"], stride, has_topic=True):
        document = operators.document(pipeline)
        assert document is not None
        assert operators.read(pipeline) == document.in_force
        if document.in_force == "2":
            assert operators.run("rollback", pipeline)
            document = operators.document(pipeline)
            assert document is not None
        assert (document.in_force, document.number) == ("1", 2)
        # Each batch that was decided is where its version had to write it, once.
        assert values_of(operators.topics, pipeline, at_least=1) == [b"1"]
        assert values_of(operators.topics, f"{pipeline}.v2", at_least=1) == [b"2"]
        # Version 2 wrote nothing while it was in force: a record, and its marker, are all there is.
        ends = [it.begins[pipeline]["0"] for it in document.spans[1:]]
        assert 1 <= ends[0] <= ends[1] <= 2


@pytest.mark.parametrize("stride", TOPIC_STRIDES)
def test_removal_with_a_topic_is_completed_by_the_next_one(
    operators: Operators, stride: int
) -> None:
    for pipeline in kills(operators, "remove", ["deployed"], stride, has_topic=True):
        document = operators.document(pipeline)
        assert document is not None
        assert operators.read(pipeline) == "1"
        if "2" in document.versions:
            assert operators.run("remove", pipeline)
            document = operators.document(pipeline)
            assert document is not None
        assert list(document.versions) == ["1"]
        assert f"{pipeline}.v2" not in operators.topics.admin.list_topics().topics
        # It can be deployed again, and begins with nothing that the removed one has decided.
        operators.topics.create(name=f"{pipeline}.v2")
        assert operators.run("deployed_again", pipeline)
        assert operators.run("switch", pipeline)
        assert values_of(operators.topics, pipeline, at_least=1) == [b"1"]
        assert values_of(operators.topics, f"{pipeline}.v2") == []
        assert operators.read(pipeline) == "2"
