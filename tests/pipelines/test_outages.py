"""What a pipeline needs goes away under it, and comes back: nothing is lost, nothing is doubled."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.pipelines import Pipeline, pipeline, topic
from millstream.pipelines.running.failures import explain_failure
from tests.peers.servers import start_millstream
from tests.peers.small_disk import small_tmpfs
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AWAY_SECONDS = 60.0
SECONDS_MAX = 300.0
DISK_BYTES = 2 * 1024 * 1024


def copy(source: str, target: str) -> Pipeline:
    declare = pipeline(reads=topic(source), writes=topic(target), name=f"copy-{source}")
    return declare(lambda frame: frame.select("key", "value"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def numbers(count: int) -> list[bytes]:
    return sorted(str(it).encode() for it in range(count))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["killed", "paused"])
def test_pipeline_waits_for_a_broker_that_is_away_for_a_minute(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    server = start_millstream(tmp_path / "data")
    topics = Topics(server)
    source, target = topics.create(2), topics.create(2)
    topics.fill(source, [str(it).encode() for it in range(100)])
    query = copy(source, target).start(
        spark, broker=server.bootstrap, checkpoint=str(tmp_path / "checkpoints")
    )
    try:
        wait_for(lambda: len(values_of(topics, target)) == 100)
        if how == "killed":
            server.kill()
        else:
            server.process.send_signal(signal.SIGSTOP)
        time.sleep(AWAY_SECONDS)  # what is tested
        if how == "killed":
            server = start_millstream(tmp_path / "data", port=server.port)
        else:
            server.process.send_signal(signal.SIGCONT)
        topics = Topics(server)
        topics.fill(source, [str(it).encode() for it in range(100, 200)], partition=1)
        wait_for(lambda: len(values_of(topics, target)) >= 200 or not query.isActive)
        assert query.exception() is None
        assert values_of(topics, target) == numbers(200)
    finally:
        query.stop()
        server.stop()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system, which is soon full."""
    with small_tmpfs(tmp_path / "disk", DISK_BYTES) as directory:
        yield directory


@pytest.mark.timeout(600)
def test_pipeline_names_a_full_disk_under_its_checkpoint_and_goes_on_when_there_is_room(
    spark: SparkSession, topics: Topics, tmp_path: Path, disk: Path
) -> None:
    source, target = topics.create(), topics.create(2)
    declared = copy(source, target)

    def run() -> BaseException | None:
        query = declared.start(
            spark, broker=topics.bootstrap, checkpoint=str(disk / "checkpoints"), once=True
        )
        wait_for(lambda: not query.isActive)
        return query.exception()

    for first in range(0, 300, 100):
        topics.fill(source, [str(it).encode() for it in range(first, first + 100)])
        if first == 100:
            fill_up(disk / "other")
            error = run()
            assert error is not None
            told = str(explain_failure(declared.name, error))
            assert "the disk is full. Free some space and start it again" in told
            (disk / "other").unlink()
        assert run() is None
        assert values_of(topics, target, at_least=first + 100) == numbers(first + 100)


def fill_up(path: Path) -> None:
    """Leave no room at all."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
