"""kill -9 of a Spark driver and its executors, wherever they are: the copy is exact in the end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster
from millstream.client.transactions import open_transactions
from tests.faults.exactly_once_driver import (
    POINTS,
    Settings,
    current_batch,
    kill_session,
    processes_of_session,
)
from tests.peers.kafka import start_kafka
from tests.peers.servers import Server, start_millstream
from tests.pipelines.conftest import Topics
from tests.pipelines.test_writing import committed_offsets, read_committed

pytest.importorskip("pyspark")

REPOSITORY = Path(__file__).parents[2]
SOURCE_PARTITIONS = 2
RUN_SECONDS_MAX = 600


@pytest.fixture(
    scope="module",
    params=["millstream", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("exactly-once")
    if request.param == "kafka":
        running = start_kafka(directory, {})
    else:
        running = start_millstream(directory / "data")
    yield running
    running.stop()


@dataclass
class Copy:
    """A copy of a topic that is run, killed and run again."""

    topics: Topics
    settings: Settings
    records: int
    directory: Path

    @classmethod
    def make(cls, server: Server, directory: Path, *, batches: int, per_batch: int) -> Copy:
        topics = Topics(server)
        source, target = topics.create(SOURCE_PARTITIONS), topics.create(3)
        records = batches * per_batch // SOURCE_PARTITIONS
        for partition in range(SOURCE_PARTITIONS):
            values = [f"{partition}/{number}".encode() for number in range(records)]
            topics.fill(source, values, partition=partition)
        settings = Settings(
            topics.bootstrap,
            source,
            target,
            str(directory / "checkpoint"),
            f"group-{uuid.uuid4().hex[:8]}",
            per_batch,
        )
        return cls(topics, settings, records, directory)

    @contextmanager
    def started(self, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
        """A driver in a session of its own, of which nothing is left in the end."""
        path = self.directory / "settings.json"
        settings.save(path)
        with (self.directory / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.exactly_once_driver", str(path)],
                cwd=REPOSITORY,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            while processes_of_session(process.pid):
                kill_session(process.pid)
                time.sleep(0.05)
            process.wait()

    def run_to_the_end(self, *, tasks: int | None = None) -> None:
        with self.started(replace(self.settings, tasks=tasks)) as process:
            assert process.wait(RUN_SECONDS_MAX) == 0, self.log()

    def run_to(self, point: str, batch: int, *, tasks: int | None = None) -> None:
        """Until it has killed itself there."""
        settings = replace(self.settings, point=point, at_batch=batch, tasks=tasks)
        with self.started(settings) as process:
            code = process.wait(RUN_SECONDS_MAX)
        died = Path(f"{self.settings.checkpoint}.died-{batch}")
        assert died.exists(), f"{point} was not reached (exit code {code}):\n{self.log()}"

    def kill_during_a_batch(self, delay_seconds: float) -> bool:
        """Kill a run some time after it has begun a batch; False if it came to the end before."""
        begun = self._batch()
        with self.started(self.settings) as process:
            deadline = time.monotonic() + RUN_SECONDS_MAX
            while self._batch() == begun and process.poll() is None:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.01)
            time.sleep(delay_seconds)  # the moment is what is tested
            return process.poll() is None

    def _batch(self) -> int:
        try:
            return current_batch(self.settings.checkpoint)
        except FileNotFoundError:
            return -1

    def log(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-5000:]

    def check(self) -> None:
        settings = self.settings
        found = Counter(
            it.value().decode() for it in read_committed(settings.bootstrap, settings.target)
        )
        expected = {
            f"copy of {partition}/{number}"
            for partition in range(SOURCE_PARTITIONS)
            for number in range(self.records)
        }
        assert expected - set(found) == set(), "lost"
        assert [value for value, count in found.items() if count > 1] == [], "doubled"
        assert set(found) == expected
        offsets = committed_offsets(self.topics, settings.group, settings.source, SOURCE_PARTITIONS)
        assert offsets == [self.records] * SOURCE_PARTITIONS
        query = json.loads((Path(settings.checkpoint) / "metadata").read_text())["id"]
        with Cluster(settings.bootstrap) as cluster:
            assert open_transactions(cluster, f"millstream-{query}") == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_copy_is_exact_when_killed_around_the_decision(server: Server, tmp_path: Path) -> None:
    copy = Copy.make(server, tmp_path, batches=6, per_batch=400)
    for batch, point in enumerate(["decision sent", "decided", "half ended"], start=1):
        copy.run_to(point, batch)
    copy.run_to_the_end()
    copy.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tasks", [None, 1, 5])
def test_copy_is_exact_when_killed_at_every_point_and_replayed_with_other_tasks(
    server: Server, tmp_path: Path, tasks: int | None
) -> None:
    copy = Copy.make(server, tmp_path, batches=len(POINTS) + 3, per_batch=200)
    for batch, point in enumerate(POINTS, start=1):
        copy.run_to(point, batch, tasks=tasks if batch % 2 else None)
    copy.run_to_the_end(tasks=tasks)
    copy.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_copy_is_exact_when_killed_at_a_few_moments(server: Server, tmp_path: Path) -> None:
    kill_at_moments(server, tmp_path, 3, seed=5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_copy_is_exact_when_killed_at_many_moments(server: Server, tmp_path: Path) -> None:
    kill_at_moments(server, tmp_path, 20, seed=20)


def kill_at_moments(server: Server, directory: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    copy = Copy.make(server, directory, batches=4 * kills + 4, per_batch=100)
    killed = 0
    while killed < kills and copy.kill_during_a_batch(moments.uniform(0, 1.5)):
        killed += 1
    copy.run_to_the_end()
    copy.check()
    assert killed > kills // 2, "it came to its end too early: make more batches"
