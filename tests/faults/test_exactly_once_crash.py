"""kill -9 of Spark drivers and their workers, at named points and at random moments: what pipelines
have written equals, in the end, what a batch over the whole topic computes."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from millstream.client.cluster import Cluster
from millstream.client.transactions import open_transactions
from tests.faults.exactly_once_driver import Settings
from tests.faults.kill_points import (
    FAN_OUT_POINTS,
    PUBLISHED_AGAIN,
    STAGED_POINTS,
    TABLE_POINTS,
    TASK_POINTS,
    TOPIC_POINTS,
    TOPICS_POINTS,
    Kill,
    current_batch,
    processes_of_session,
    signal_session,
)
from tests.peers.postgres import PostgresServer
from tests.peers.servers import Server
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import committed_offsets, read_committed

pytest.importorskip("pyspark")

REPOSITORY = Path(__file__).parents[2]
SOURCE_PARTITIONS = 2
RUN_SECONDS_MAX = 300
START_ATTEMPTS = 5
RECORDS_AT_START = 400
RECORDS_PER_SECOND = 40
USERS = 7
SHORT_TIMEOUT_MS = 2000
# Quick to start rather than quick in the long run.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class Load:
    """A producer that goes on while drivers come and go."""

    topics: Topics
    topic: str
    sent: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def send(self, count: int) -> None:
        for partition in range(SOURCE_PARTITIONS):
            ids = range(self.sent + partition, self.sent + count, SOURCE_PARTITIONS)
            values = [
                json.dumps({"id": it, "user": f"user {it % USERS}", "amount": it % 100}).encode()
                for it in ids
            ]
            self.topics.fill(self.topic, values, partition=partition)
        self.sent += count

    @contextmanager
    def going_on(self) -> Iterator[None]:
        def run() -> None:
            while not self._stopping.wait(1):
                self.send(RECORDS_PER_SECOND)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()


@dataclass
class Rig:
    """Pipelines that are run, killed and run again."""

    topics: Topics
    settings: Settings
    load: Load
    directory: Path

    @classmethod
    def make(
        cls,
        server: Server,
        directory: Path,
        pipelines: Sequence[str],
        postgres: PostgresServer | None = None,
    ) -> Rig:
        topics = Topics(server)
        source = topics.create(SOURCE_PARTITIONS)
        for name in pipelines:
            topics.create(2, name=f"{source}-{name}")
            topics.create(1, name=f"{source}-{name}-more")
        checkpoints = directory / "checkpoints"
        checkpoints.mkdir()
        settings = Settings(
            bootstrap=topics.bootstrap,
            source=source,
            checkpoints=str(checkpoints),
            sqlite=str(directory / "store"),
            postgres=postgres.new_database() if postgres else None,
            pipelines=tuple(pipelines),
        )
        load = Load(topics, source)
        load.send(RECORDS_AT_START)
        return cls(topics, settings, load, directory)

    @contextmanager
    def started(
        self, settings: Settings, kill: Kill | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A driver in a session of its own, of which nothing is left in the end."""
        path = self.directory / "settings.json"
        settings.save(path)
        hooks = f"{REPOSITORY / 'tests/faults/kill_hooks'}:{REPOSITORY}"
        java_options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {JAVA_OPTIONS}"
        with (self.directory / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.exactly_once_driver", str(path)],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": hooks,
                    "JDK_JAVA_OPTIONS": java_options,
                    **(kill.environment() if kill else {}),
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            while processes_of_session(process.pid):
                signal_session(process.pid, signal.SIGKILL)
                time.sleep(0.05)
            process.wait()

    def run_to_the_end(self, **changes: Any) -> None:
        settings = replace(self.settings, once=True, records_per_batch=20_000, **changes)
        for _ in range(START_ATTEMPTS):
            with self.started(settings) as process:
                code = process.wait(RUN_SECONDS_MAX)
            if code == 0:
                return
            assert self._was_too_slow(), self.log()

    def run_to(self, pipeline: str, point: str, *, how: str = "all", **changes: Any) -> None:
        """Until somebody is killed there."""
        begun = self._batch(pipeline)
        kill = Kill(pipeline, point, self.settings.checkpoints, begun, how)
        for _ in range(START_ATTEMPTS):
            with self.started(replace(self.settings, **changes), kill) as process:
                self._wait(process, kill.report.exists)
                if how != "all" and process.poll() is None:  # the driver goes on
                    self._wait(process, lambda: self._batch(pipeline) > begun + 2)
                    assert process.poll() is None, self.log()
                elif kill.report.exists():
                    process.wait(RUN_SECONDS_MAX)
            if kill.report.exists():
                break
            assert self._was_too_slow(), f"{pipeline} did not come to {point!r}:\n{self.log()}"
        print(f"{time.strftime('%H:%M:%S')} {pipeline} killed at {point!r}, batch {begun + 1}")

    def _wait(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        """For the condition, or the driver's end."""
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while process.poll() is None and not condition():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def _was_too_slow(self) -> bool:
        """Spark gives a worker 10 seconds to start, which a busy machine may not keep to."""
        return "failed to connect back" in self.log()

    def kill_during_a_batch(self, delay_seconds: float) -> None:
        """Kill a run some time after its first pipeline has begun a batch."""
        names = self.settings.pipelines
        begun = [self._batch(name) for name in names]
        for _ in range(START_ATTEMPTS):
            with self.started(self.settings) as process:
                self._wait(process, lambda: [self._batch(name) for name in names] != begun)
                time.sleep(delay_seconds)  # the moment is what is tested
                was_running = process.poll() is None
            if was_running:
                break
            assert self._was_too_slow(), self.log()
        print(f"{time.strftime('%H:%M:%S')} killed at batches {[self._batch(it) for it in names]}")

    def wait_for_time_outs(self) -> None:
        """Until the broker has aborted all that is open."""
        with Cluster(self.settings.bootstrap) as cluster:
            deadline = time.monotonic() + RUN_SECONDS_MAX
            while any(open_transactions(cluster, f"millstream-{it}") for it in self._query_ids()):
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def _batch(self, pipeline: str) -> int:
        return current_batch(self.settings.checkpoints, pipeline)

    def log(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-20_000:]

    # What must be true in the end

    def check(self) -> None:
        expected = json.loads(self.settings.batch_results.read_text())
        for name in self.settings.pipelines:
            for output, rows in expected[name].items():
                found = self._found(name, output)
                assert sorted(found) == sorted(rows), f"{name}, {output}"
            assert len(self._found(name, "rows" if "rows" in expected[name] else "")) == (
                self.load.sent
            )
            offsets = committed_offsets(self.topics, name, self.load.topic, SOURCE_PARTITIONS)
            assert sum(offsets) == self.load.sent, name
        with Cluster(self.settings.bootstrap) as cluster:
            for query in self._query_ids():
                assert open_transactions(cluster, f"millstream-{query}") == []

    def _query_ids(self) -> list[str]:
        files = Path(self.settings.checkpoints).glob("*/metadata")
        return [json.loads(it.read_text())["id"] for it in files]

    def _found(self, name: str, output: str) -> list[list[Any]]:
        if output in ("rows", "sums"):
            return self._rows_of(name, f"{name}_{output}")
        topic = f"{self.load.topic}-{name}" + ("-more" if output == "more" else "")
        values = [json.loads(it.value()) for it in read_committed(self.settings.bootstrap, topic)]
        return [[it["id"], it["user"], it["amount"]] for it in values]

    def _rows_of(self, pipeline: str, table: str) -> list[list[Any]]:
        url = self.settings.store_of(pipeline)
        assert url is not None
        if url.startswith("sqlite:///"):
            connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        else:
            import psycopg

            connection = psycopg.connect(url)
        try:
            return [list(row) for row in connection.execute(f"SELECT * FROM {table}").fetchall()]
        finally:
            connection.close()


POINTS = {
    "topic": TOPIC_POINTS,
    "topics": TOPICS_POINTS,
    "sqlite": TABLE_POINTS,
    "postgres": STAGED_POINTS,
    "fan": FAN_OUT_POINTS,
    "pgfan": FAN_OUT_POINTS,
}
WITH_POSTGRES = ("postgres", "pgfan")


def rig_of(request: pytest.FixtureRequest, server: Server, path: Path, *pipelines: str) -> Rig:
    needed = any(it in WITH_POSTGRES for it in pipelines)
    postgres = request.getfixturevalue("postgres") if needed else None
    return Rig.make(server, path, pipelines, postgres)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pipelines_are_exact_when_killed_right_after_the_decision(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """One of them there, the other wherever it is just then."""
    rig = rig_of(request, server, tmp_path, "topic", "fan")
    rig.run_to("fan", "stored")
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", POINTS)
def test_pipeline_is_exact_when_killed_at_every_point(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, name: str
) -> None:
    rig = rig_of(request, server, tmp_path, name)
    with rig.load.going_on():
        for number, point in enumerate(POINTS[name]):
            # The batch that is cut off is replayed with other tasks, fewer or more.
            rig.run_to(name, point, tasks=(None, 1, 5)[number % 3])
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_pipelines_are_exact_when_killed_at_random_moments(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, seed: int
) -> None:
    """Ten times each, all of them at once."""
    moments = random.Random(seed)
    rig = rig_of(request, server, tmp_path, *POINTS)
    with rig.load.going_on():
        for _ in range(10):
            rig.kill_during_a_batch(moments.uniform(0, 6))
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_transactions_time_out_and_their_heir_is_killed(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """Killed after the decision; the broker loses its patience; who writes the records again is
    killed when that is done and not written down."""
    rig = rig_of(request, server, tmp_path, "topic", "topics", "fan")
    for name, decided in (("topic", "decided"), ("topics", "decided"), ("fan", "stored")):
        rig.run_to(name, decided, timeout_ms=SHORT_TIMEOUT_MS)
        rig.wait_for_time_outs()
        rig.run_to(name, PUBLISHED_AGAIN, timeout_ms=SHORT_TIMEOUT_MS)
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["topic", "fan", "postgres"])
def test_pipeline_is_exact_when_only_a_worker_is_killed(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, name: str
) -> None:
    """A task's process is killed, and Spark runs the task again."""
    rig = rig_of(request, server, tmp_path, name)
    with rig.load.going_on():
        for point in TASK_POINTS[name]:
            rig.run_to(name, point, how="worker", master="local[2,4]")
    rig.run_to_the_end()
    rig.check()


CLUSTER = {
    "master": "local-cluster[2,1,1024]",  # executors in processes of their own
    "spark": {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.speculation.quantile": "0.1",
    },
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["topic", "fan"])
@pytest.mark.parametrize("how", ["executor", "straggle"])
def test_pipeline_is_exact_when_an_executor_is_killed_or_slow(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, name: str, how: str
) -> None:
    """A task has written, and is not heard of again; another attempt takes its place. The slow one
    is slower than this test waits: the batch ends only if Spark speculates."""
    rig = rig_of(request, server, tmp_path, name)
    with rig.load.going_on():
        rig.run_to(name, "task written", how=how, **CLUSTER)
    rig.run_to_the_end()
    rig.check()
