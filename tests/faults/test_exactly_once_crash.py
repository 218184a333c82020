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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    environment_of,
    processes_of_session,
    signal_session,
)
from tests.peers.postgres import PostgresServer
from tests.peers.servers import Server
from tests.peers.spark_cluster import SparkCluster, start_spark_cluster
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import (
    committed_offsets,
    forget_last_commit,
    read_committed,
)

pytest.importorskip("pyspark")

REPOSITORY = Path(__file__).parents[2]
SOURCE_PARTITIONS = 2
RUN_SECONDS_MAX = 300
RECORDS_AT_START = 400
RECORDS_PER_SECOND = 40
USERS = 7
SHORT_TIMEOUT_MS = 2000
START_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # quick to start


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
        self, settings: Settings, kills: Sequence[Kill] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A driver in a session of its own, of which nothing is left in the end."""
        path = self.directory / "settings.json"
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{REPOSITORY / 'tests/faults/kill_hooks'}:{REPOSITORY}",
            **environment_of(kills),
        }
        # Executors on a cluster know nothing of it by themselves.
        for_executors = {f"spark.executorEnv.{it}": value for it, value in environment.items()}
        replace(settings, spark={**settings.spark, **for_executors}).save(path)
        java_options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {START_OPTIONS}"
        with (self.directory / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.exactly_once_driver", str(path)],
                cwd=REPOSITORY,
                env={**os.environ, "JDK_JAVA_OPTIONS": java_options, **environment},
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
        with self.started(settings) as process:
            assert process.wait(RUN_SECONDS_MAX) == 0, self.log()

    def run_to(self, points: Mapping[str, str], *, batches: int = 1, **changes: Any) -> None:
        """Until each pipeline stands at its point, in one of its next batches; then kill all."""
        kills = [self._kill(*it, "stand", batches) for it in points.items()]
        with self.started(replace(self.settings, **changes), kills) as process:
            self._wait(process, lambda: all(it.report.exists() for it in kills), kills)
        self._tell(f"killed at {points}")

    def run_through(self, points: Mapping[str, Sequence[str]], how: str, **changes: Any) -> None:
        """Something happens at each point, in one batch after the other; the driver goes on."""
        kills = [
            self._kill(name, point, how, batches)
            for name, its_points in points.items()
            for batches, point in enumerate(its_points, start=1)
        ]
        with self.started(replace(self.settings, **changes), kills) as process:
            for kill in kills:
                self._wait(process, kill.report.exists)
                self._wait(process, lambda kill=kill: self._batch(kill.pipeline) > kill.after + 2)
                self._tell(f"{kill.pipeline} went on after {how!r} at {kill.point!r}")

    def _kill(self, name: str, point: str, how: str, batches: int) -> Kill:
        """In the next batch but `batches`: with 1, in the next."""
        begun = self._batch(name)
        return Kill(name, point, self.settings.checkpoints, begun + batches - 1, how)

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        condition: Callable[[], bool],
        kills: Sequence[Kill] = (),
    ) -> None:
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while not condition():
            assert process.poll() is None, self.log()
            if time.monotonic() > deadline:
                never = {it.pipeline: it.point for it in kills if not it.report.exists()}
                pytest.fail(f"never came to {never}\n{self.log()}")
            time.sleep(0.02)

    def _tell(self, what: str) -> None:
        batches = [self._batch(it) for it in self.settings.pipelines]
        print(f"{time.strftime('%H:%M:%S')} batches {batches}: {what}", flush=True)

    def kill_during_a_batch(self, name: str, delay_seconds: float) -> None:
        """Kill a run some time after one of its pipelines has begun a batch."""
        begun = self._batch(name)
        with self.started(self.settings) as process:
            self._wait(process, lambda: self._batch(name) > begun)
            time.sleep(delay_seconds)  # the moment is what is tested
            assert process.poll() is None, self.log()
        self._tell(f"killed {delay_seconds:.2f} s after {name} had begun")

    def forget_last_commits(self) -> None:
        for name in self.settings.pipelines:
            forget_last_commit(Path(self.settings.checkpoints) / name)

    def wait_for_time_outs(self) -> None:
        """Until the broker has aborted all that is open."""
        with Cluster(self.settings.bootstrap) as cluster:
            deadline = time.monotonic() + RUN_SECONDS_MAX
            prefixes = [self.settings.transactional_id(it) for it in self.settings.pipelines]
            while any(open_transactions(cluster, prefix) for prefix in prefixes):
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def _batch(self, pipeline: str) -> int:
        return current_batch(self.settings.checkpoints, pipeline)

    def log(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-20_000:]

    # What must be true

    def check_nothing_is_doubled(self) -> None:
        """At any time."""
        begun = [it for it in self.settings.pipelines if self._batch(it) >= 0]  # have their tables
        for name in begun:
            for output in OUTPUTS[name]:
                ids = [row[0] for row in self._found(name, output)]
                assert len(ids) == len(set(ids)), f"{name}, {output}"

    def check(self) -> None:
        """In the end."""
        expected = json.loads(self.settings.batch_results.read_text())
        for name in self.settings.pipelines:
            for output, rows in expected[name].items():
                found = self._found(name, output)
                assert sorted(found) == sorted(rows), f"{name}, {output}"
            for output in OUTPUTS[name]:
                assert len(self._found(name, output)) == self.load.sent, f"{name}, {output}"
            offsets = committed_offsets(self.topics, name, self.load.topic, SOURCE_PARTITIONS)
            assert sum(offsets) == self.load.sent, name
        with Cluster(self.settings.bootstrap) as cluster:
            for name in self.settings.pipelines:
                assert open_transactions(cluster, self.settings.transactional_id(name)) == []

    def _found(self, name: str, output: str) -> list[list[Any]]:
        if output in ("rows", "sums"):
            return self._rows_of(name, f"{output}_of_{name}")
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
OUTPUTS = {  # those with a row for each record
    "topic": [""],
    "topics": ["copies", "more"],
    "sqlite": ["rows"],
    "postgres": ["rows"],
    "fan": ["copies", "rows"],
    "pgfan": ["copies", "rows"],
    "duckdb": ["rows"],
    "search": ["rows"],
    "redis": ["rows"],
    "delta": ["rows"],
    "lakefan": ["copies", "rows"],
}
WITH_POSTGRES = ("postgres", "pgfan")
# A whole run takes long: who looks for something chooses.
ROUNDS = int(os.environ.get("MILLSTREAM_ROUNDS", "3"))
KILLS = int(os.environ.get("MILLSTREAM_KILLS", "20"))
PIPELINES = os.environ.get("MILLSTREAM_PIPELINES", ",".join(POINTS)).split(",")


def rig_of(request: pytest.FixtureRequest, server: Server, path: Path, *pipelines: str) -> Rig:
    needed = any(it in WITH_POSTGRES for it in pipelines)
    postgres = request.getfixturevalue("postgres") if needed else None
    return Rig.make(server, path, pipelines, postgres)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_killed_at_every_point(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """All pipelines in one driver: each comes to its next point and stands there, then all of it is
    killed. In the end Spark also forgets that the last batches, which are decided, are done."""
    rig = rig_of(request, server, tmp_path, *PIPELINES)
    with rig.load.going_on():
        for life in range(max(len(POINTS[name]) for name in PIPELINES)):
            here = {name: POINTS[name][life % len(POINTS[name])] for name in PIPELINES}
            # The batch that is cut off is replayed with other tasks, fewer or more.
            rig.run_to(here, tasks=(None, 1, 5)[life % 3])
            rig.check_nothing_is_doubled()
    rig.run_to_the_end()
    rig.check()
    rig.forget_last_commits()
    rig.load.send(100)
    rig.run_to_the_end(tasks=3)
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_killed_at_random_moments(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """Twenty times, all of them at once."""
    moments = random.Random(int(os.environ.get("MILLSTREAM_SEED", "1")))
    rig = rig_of(request, server, tmp_path, *PIPELINES)
    with rig.load.going_on():
        for _ in range(KILLS):
            rig.kill_during_a_batch(moments.choice(PIPELINES), moments.uniform(0, 6))
            rig.check_nothing_is_doubled()
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_errors_are_raised_at_every_point(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """As when `commit()` raises: then Spark calls `abort()`, and the query fails and is started
    again. By the same driver: what it remembers must not be in the way."""
    rig = rig_of(request, server, tmp_path, *PIPELINES)
    with rig.load.going_on():
        rig.run_through({name: POINTS[name] for name in PIPELINES}, "raise")
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_transactions_time_out_and_their_heir_is_killed(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """Killed after the decision; the broker loses its patience; who writes the records again is
    killed when that is done and not written down."""
    decided = {"topic": "decided", "topics": "decided", "fan": "stored", "pgfan": "stored"}
    impatient: dict[str, Any] = {"timeout_ms": SHORT_TIMEOUT_MS, "master": "local[8,4]"}
    rig = rig_of(request, server, tmp_path, *decided)
    rig.run_to(decided, batches=2, **impatient)
    rig.wait_for_time_outs()
    rig.run_to(dict.fromkeys(decided, PUBLISHED_AGAIN), **impatient)
    rig.check_nothing_is_doubled()
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("locks", [True, False])
def test_pipelines_are_exact_when_two_drivers_run_them(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, locks: bool
) -> None:
    """Started at the same moment, on one checkpoint: with its lock, and, as on a file system
    without locks, with nothing but the brokers and the store to fence one of them."""
    rig = rig_of(request, server, tmp_path, "topic", "fan")
    with rig.load.going_on():
        for _ in range(ROUNDS):
            settings = replace(rig.settings, once=True, locks=locks)
            with rig.started(settings) as one, rig.started(settings) as two:
                codes = [it.wait(RUN_SECONDS_MAX) for it in (one, two)]
            rig._tell(f"two drivers ended with {codes}")
            rig.check_nothing_is_doubled()
    rig.run_to_the_end()
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_only_workers_are_killed(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    """A task's process is killed, and Spark runs the task again."""
    rig = rig_of(request, server, tmp_path, *TASK_POINTS)
    with rig.load.going_on():
        rig.run_through(TASK_POINTS, "worker", master="local[8,4]")
    rig.run_to_the_end()
    rig.check()


# Speculative attempts are made on another machine than the first, or never.
HOSTS = ("127.0.0.1", "127.0.0.2")
SPECULATION = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.1",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    running = start_spark_cluster(tmp_path / "spark", HOSTS, cores=3)
    yield running
    running.stop()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_are_exact_when_executors_are_killed_or_slow(
    request: pytest.FixtureRequest, server: Server, cluster: SparkCluster, tmp_path: Path
) -> None:
    """A task has written, and is not heard of again; another attempt takes its place. The slow one
    is slower than this test waits: the batch ends only if Spark speculates."""
    rig = rig_of(request, server, tmp_path, "topic", "fan")
    with rig.load.going_on():
        for how in ("executor", "stand"):
            points = {name: ["task written"] for name in rig.settings.pipelines}
            rig.run_through(points, how, master=cluster.url, spark=SPECULATION)
            rig.check_nothing_is_doubled()
    rig.run_to_the_end()
    rig.check()
