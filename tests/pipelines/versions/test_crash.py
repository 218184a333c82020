"""kill -9 around every statement and step of operations on versions: readers read one version."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.pipelines.versions.catalog import Work, open_catalog
from millstream.pipelines.versions.registry import Versions, identity_of, physical_table
from tests.pipelines.conftest import Topics
from tests.pipelines.stores.conftest import Database
from tests.pipelines.stores.test_crash import wait_until_nobody_writes
from tests.pipelines.versions.operating import tables_of
from tests.pipelines.writing.test_writer import values_of

ROOT = Path(__file__).resolve().parents[3]
CALLS_MAX = 200
CALLS_MIN = 17
# At every call it takes minutes.
STRIDES = [17, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]


class Operators:
    """Processes that work on versions, one after another."""

    def __init__(self, database: Database, topics: Topics) -> None:
        self.database, self.topics = database, topics
        module = "tests.pipelines.versions.operating"
        self._server = subprocess.Popen(
            [sys.executable, "-m", module, database.url, topics.bootstrap],
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
        wait_until_nobody_writes(self.database)
        assert status in (0, -signal.SIGKILL), f"{operation} of {pipeline} failed"
        return status == 0

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
def operators(database: Database, topics: Topics) -> Iterator[Operators]:
    opened = Operators(database, topics)
    yield opened
    opened.close()


def kills(
    operators: Operators, operation: str, before: Sequence[str], stride: int
) -> Iterator[str]:
    """Pipelines whose operation was killed, each at a later call, until one is not."""
    for call in range(1, CALLS_MAX, stride):
        pipeline = f"{operation}{call}"
        for it in before:
            assert operators.run(it, pipeline)
        is_done = operators.run(operation, pipeline, call)
        yield pipeline
        if is_done:
            assert call > CALLS_MIN  # it was killed at all of these
            return
    pytest.fail(f"{operation} made more than {CALLS_MAX} calls")


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
    public = operators.topics.create(name=pipeline)
    operators.topics.create(name=f"{pipeline}.v2")
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
