"""Writers and sinks of pipelines, killed, paused and disturbed at every point and any moment.

Spark's part is played by `plain_driver.py`, which starts in milliseconds: here are the hundreds of
deaths that would take Spark hours. `test_exactly_once_crash.py` does the same with Spark itself.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from millstream.client.cluster import Cluster
from millstream.client.transactions import open_transactions
from tests.faults.kill_points import (
    FAN_OUT_POINTS,
    PUBLISHED_AGAIN,
    TOPIC_POINTS,
    TOPICS_POINTS,
    Kill,
    current_batch,
    processes_of_session,
    signal_session,
)
from tests.faults.plain_driver import Settings
from tests.peers.servers import Server, start_millstream
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import committed_offsets, read_committed

pytest.importorskip("pyspark")

REPOSITORY = Path(__file__).parents[2]
SECONDS_MAX = 120
RECORDS_PER_BATCH = 30
SHORT_TIMEOUT_MS = 2000
POINTS = {
    "topic": TOPIC_POINTS,
    "topics": TOPICS_POINTS,
    "fan": FAN_OUT_POINTS,
    "pgfan": FAN_OUT_POINTS,
}
DECIDED = {"topic": "decided", "topics": "decided", "fan": "stored", "pgfan": "stored"}
# `make test` has one of them, which goes through everything: topics, a store, the decision.
PIPELINES = [it if it == "fan" else pytest.param(it, marks=pytest.mark.slow) for it in POINTS]
# Points within tasks, of which Spark runs another attempt.
TASK_POINTS = ("task begins", "task begun", "task written")


@dataclass
class Rig:
    """A pipeline that is run again and again."""

    topics: Topics
    settings: Settings
    directory: Path
    drivers: subprocess.Popen[str] = field(init=False)
    pid: int = 0

    def start(self, kill: Kill | None = None) -> None:
        assert self.drivers.stdin is not None
        wanted = {"kill": asdict(kill) if kill else None, "batches": self.settings.batches}
        print(json.dumps(wanted), file=self.drivers.stdin, flush=True)
        self.pid = self._told("pid")

    def ended(self) -> int:
        return self._told("end")

    def _told(self, what: str) -> int:
        assert self.drivers.stdout is not None
        word, number = self.drivers.stdout.readline().split()
        assert word == what
        return int(number)

    def run_to(self, point: str, how: str = "all", **more: int) -> Kill:
        """A run in which something happens at a point of its next batch; it may go on after."""
        kill = self.kill_at(point, how, **more)
        self.start(kill)
        code = self.ended()
        expected = {"all": -signal.SIGKILL, "raise": 1}.get(how, 0)
        assert kill.report.exists(), f"{point!r} was not reached:\n{self.log()}"
        assert code == expected, f"{point!r}:\n{self.log()}"
        self.sweep()
        return kill

    def kill_at(self, point: str, how: str, *, batches_before: int = 0, **more: int) -> Kill:
        begun = current_batch(self.settings.checkpoints, self.settings.pipeline)
        name = self.settings.pipeline
        return Kill(name, point, self.settings.checkpoints, begun + batches_before, how, **more)

    def sweep(self) -> None:
        """Nothing is left of the last run: workers may be a little slower to die."""
        deadline = time.monotonic() + SECONDS_MAX
        while processes_of_session(self.pid):
            assert time.monotonic() < deadline
            signal_session(self.pid, signal.SIGKILL)
            time.sleep(0.005)

    def run_to_the_end(self) -> None:
        self.start()
        assert self.ended() == 0, self.log()

    def log(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-5000:]

    def wait_for_time_outs(self) -> None:
        """Until the broker has aborted what is open."""
        deadline = time.monotonic() + SECONDS_MAX
        with Cluster(self.settings.bootstrap) as cluster:
            while open_transactions(cluster, self._prefix()):
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def _prefix(self) -> str:
        if self.settings.pipeline != "topic":
            return self.settings.transactional_id
        metadata = Path(self.settings.location) / "metadata"
        return f"millstream-{json.loads(metadata.read_text())['id']}"

    def check(self) -> None:
        settings = self.settings
        count = settings.batches * settings.records_per_batch
        expected = sorted(str(number) for number in range(count))
        targets = [settings.target]
        if settings.pipeline == "topics":
            targets.append(f"{settings.target}-more")
        for topic in targets:
            messages = read_committed(settings.bootstrap, topic)
            assert_same(sorted(it.value().decode() for it in messages), expected)
        if settings.store is not None:
            assert_same(sorted(self._rows()), expected)
        assert committed_offsets(self.topics, settings.pipeline, settings.source, 1) == [count]
        with Cluster(settings.bootstrap) as cluster:
            assert open_transactions(cluster, self._prefix()) == []

    def _rows(self) -> list[str]:
        url = self.settings.store
        assert url is not None
        if url.startswith("sqlite:///"):
            connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        else:
            import psycopg

            connection = psycopg.connect(url)
        rows = connection.execute(f"SELECT value FROM {self.settings.pipeline}_rows").fetchall()
        connection.close()
        return [value for (value,) in rows]


def assert_same(found: list[str], expected: list[str]) -> None:
    doubled = sorted({it for it in found if found.count(it) > 1}) if found != expected else []
    assert doubled == [], "doubled"
    assert sorted(set(expected) - set(found)) == [], "lost"
    assert found == expected


@contextmanager
def rig(
    request: pytest.FixtureRequest,
    server: Server,
    directory: Path,
    pipeline: str,
    batches: int,
    **settings: Any,
) -> Iterator[Rig]:
    topics = Topics(server)
    source, target = topics.create(), topics.create(2)
    topics.create(1, name=f"{target}-more")
    topics.fill(source, [b"any"])
    (directory / "checkpoints").mkdir()
    store = None
    if pipeline == "fan":
        store = f"sqlite:///{directory / 'store'}"
    elif pipeline == "pgfan":
        store = request.getfixturevalue("postgres").new_database()
    chosen = Settings(
        topics.bootstrap,
        source,
        target,
        str(directory / "checkpoints"),
        pipeline,
        store,
        batches,
        RECORDS_PER_BATCH,
        **settings,
    )
    chosen.save(directory / "settings.json")
    with drivers_of(Rig(topics, chosen, directory)) as made:
        yield made


@contextmanager
def drivers_of(made: Rig) -> Iterator[Rig]:
    """With a process from which its drivers are forked."""
    directory = made.directory
    with (directory / "driver.log").open("ab") as log:
        made.drivers = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.plain_driver", str(directory / "settings.json")],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield made
    finally:
        if made.pid:
            signal_session(made.pid, signal.SIGKILL)
        made.drivers.kill()
        made.drivers.communicate()


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.timeout(600)
def test_pipeline_is_exact_when_killed_at_every_point(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, pipeline: str
) -> None:
    points = POINTS[pipeline]
    with rig(request, server, tmp_path, pipeline, len(points) + 2) as it:
        for point in points:
            it.run_to(point)
        it.run_to_the_end()
        it.check()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", POINTS)
@pytest.mark.parametrize("how", ["all", "raise"])
@pytest.mark.timeout(600)
def test_pipeline_is_exact_when_killed_in_the_batch_after_one_that_went_well(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, pipeline: str, how: str
) -> None:
    """The writer goes on from what it remembers then, and does not look back."""
    points = [it for it in POINTS[pipeline] if how == "all" or it not in TASK_POINTS]
    with rig(request, server, tmp_path, pipeline, 2 * len(points) + 2) as it:
        for point in points:
            it.run_to(point, how, batches_before=1)
        it.run_to_the_end()
        it.check()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", POINTS)
@pytest.mark.timeout(600)
def test_pipeline_is_exact_when_errors_are_raised_at_every_point(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, pipeline: str
) -> None:
    """As when `commit()` raises: then Spark calls `abort()`."""
    points = [it for it in POINTS[pipeline] if it not in TASK_POINTS]
    with rig(request, server, tmp_path, pipeline, len(points) + 2) as it:
        for point in points:
            it.run_to(point, "raise")
        it.run_to_the_end()
        it.check()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", POINTS)
def test_pipeline_is_exact_when_only_a_task_is_killed(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, pipeline: str
) -> None:
    points = [it for it in TASK_POINTS if it in POINTS[pipeline]]
    with rig(request, server, tmp_path, pipeline, 3) as it:
        for number, point in enumerate(points, start=1):
            it.settings = replace(it.settings, batches=3 * number)
            it.run_to(point, "worker")
        it.check()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", POINTS)
@pytest.mark.timeout(600)
def test_pipeline_is_exact_when_killed_at_random_moments(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, pipeline: str
) -> None:
    seed = int(os.environ.get("MILLSTREAM_SEED", "1"))
    moments = random.Random(seed)
    with rig(request, server, tmp_path, pipeline, 60) as it:
        for _ in range(40):
            it.start()
            time.sleep(moments.uniform(0, 0.4))  # the moment is what is tested
            signal_session(it.pid, signal.SIGKILL)
            it.ended()
            it.sweep()
        it.run_to_the_end()
        it.check()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_pipeline_is_exact_when_transactions_time_out_and_their_heir_is_killed(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, pipeline: str
) -> None:
    """The decision is made, the driver dies, the broker loses its patience. Who writes the records
    again dies when that is done, and not yet written down."""
    with rig(request, server, tmp_path, pipeline, 4, timeout_ms=SHORT_TIMEOUT_MS) as it:
        it.run_to(DECIDED[pipeline])
        it.wait_for_time_outs()
        it.run_to(PUBLISHED_AGAIN)
        it.run_to_the_end()
        it.check()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", POINTS)
@pytest.mark.parametrize("second", [None, "prepared", "tasks done", "half ended"])
@pytest.mark.timeout(900)
def test_pipeline_is_exact_when_a_driver_thought_dead_comes_back(
    request: pytest.FixtureRequest,
    server: Server,
    tmp_path: Path,
    pipeline: str,
    second: str | None,
) -> None:
    """One hangs, another takes over, and the first goes on where it was: when the other is done, or
    hangs in its turn. (Not within the store's transaction, which locks the other out.)"""
    with (
        rig(request, server, tmp_path, pipeline, 0) as one,
        drivers_of(Rig(one.topics, one.settings, one.directory)) as two,
    ):
        for point in (it for it in POINTS[pipeline] if it != "merging"):
            begun = current_batch(one.settings.checkpoints, pipeline)
            one.settings = two.settings = replace(one.settings, batches=begun + 4)
            first = one.kill_at(point, "pause")
            one.start(first)
            wait_for(first.report)
            if second is None:
                two.run_to_the_end()
            else:
                then = two.kill_at(second, "pause")
                two.start(then)
                wait_for(then.report)
            signal_session(one.pid, signal.SIGCONT)
            one.ended()
            if second is not None:
                signal_session(two.pid, signal.SIGCONT)
                two.ended()
            one.sweep()
            two.sweep()
            two.run_to_the_end()
        two.check()


def wait_for(report: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not report.exists():
        assert time.monotonic() < deadline, report.name
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", POINTS)
@pytest.mark.timeout(600)
def test_pipeline_is_exact_when_the_broker_is_killed_at_every_point(
    request: pytest.FixtureRequest, tmp_path: Path, pipeline: str
) -> None:
    """It comes back, and the driver, which was waiting, goes on."""
    server = start_millstream(tmp_path / "data")
    points = POINTS[pipeline]
    with rig(request, server, tmp_path, pipeline, 0) as it:
        for number, point in enumerate(points, start=1):
            it.settings = replace(it.settings, batches=2 * number)
            kill = it.kill_at(point, "broker", broker_pid=server.process.pid)
            it.start(kill)
            server.process.wait(SECONDS_MAX)
            server = start_millstream(tmp_path / "data", port=server.port)
            assert it.ended() == 0, it.log()
        it.check()
    server.stop()
