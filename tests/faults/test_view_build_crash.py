"""kill -9 of `millstream run` while it builds a view beside one that readers read.

The new view is killed before its first batch, in the middle, in the transaction with which it
appears, and right after that transaction. A reader reads all the time: each of its reads is the
recomputation of the records up to its stamp.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.views import Views, open_views
from tests.faults.kill_points import Kill, current_batch, environment_of
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.pipelines.conftest import Topics, topics
from tests.pipelines.drivers import REPOSITORY, driver, log_of
from tests.pipelines.stores.conftest import Database, database

__all__ = ["database", "topics"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # Spark starts six times

RUN_SECONDS_MAX = 3 * PATIENCE_SECONDS  # Spark has to start
READER_PAUSE_SECONDS = 0.1
BATCH = 20
BEFORE, BESIDE, AFTER = 40, 20, 7  # records
LAST_BATCH = (BEFORE + BESIDE) // BATCH - 1  # with it, the new view has caught up
NEW = "shop+2"
USERS = ["ada", "bob", "carl", "dora"]
SHOP = """
from millstream.pipelines import pipeline, topic, view, views

@pipeline(
    reads=topic(
        {topic!r}, schema="id int, user string, amount long", table_key="id",
        options={{"maxOffsetsPerTrigger": {batch}}},
    ),
    writes={{it: view(key="user") for it in {names!r}}},
    name="shop",
)
def shop(orders):
    totals = orders.transform(views.aggregate, key="user", spent="sum(amount)", buckets=2)
    made = {{"by_user": totals, "big_spenders": totals.where("spent >= 150")}}
    return {{it: made[it] for it in {names!r}}}
"""

Change = tuple[int, tuple[str, int] | None]


def recomputed(changes: Sequence[Change]) -> dict[str, list[dict[str, Any]]]:
    placed = [it for it in dict(changes).values() if it is not None]
    totals = [
        {"user": user, "spent": sum(amount for it, amount in placed if it == user)}
        for user in sorted({it for it, _ in placed})
    ]
    return {"by_user": totals, "big_spenders": [it for it in totals if it["spent"] >= 150]}


class Orders:
    """Orders that are placed, changed and cancelled, in a topic with one partition."""

    def __init__(self, topics: Topics) -> None:
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})
        self._rng = random.Random(1)
        self.topic = topics.create()
        self.changes: list[Change] = []

    def change(self, count: int) -> None:
        for _ in range(count):
            key = self._rng.randrange(25)
            order = (self._rng.choice(USERS), self._rng.randrange(1, 60))
            is_cancelled = self._rng.random() < 0.2
            self.changes.append((key, None if is_cancelled else order))
            value = None if is_cancelled else json.dumps({"user": order[0], "amount": order[1]})
            self._producer.produce(self.topic, value, key=str(key))
        assert self._producer.flush(PATIENCE_SECONDS) == 0


class Reader:
    """Reads all views again and again, from a thread; `check` raises its first error."""

    def __init__(self, url: str, orders: Orders) -> None:
        self._url, self._orders = url, orders
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem: BaseException | None = None
        self.names: set[str] = set()
        self.offset = 0
        self.reads = 0

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        self.check()
        assert self.reads

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def has_seen(self, offset: int, *names: str) -> bool:
        self.check()
        return self.offset >= offset and self.names >= set(names)

    def reads_more(self) -> None:
        """What is there now."""
        wanted = self.reads + 2  # one may have begun before
        wait_until(lambda: self.check() or self.reads >= wanted)  # type: ignore[func-returns-value]

    def _run(self) -> None:
        try:
            with open_views(self._url, "shop") as views:
                while not self._ended.wait(READER_PAUSE_SECONDS):
                    self._look(views)
        except BaseException as error:  # noqa: BLE001  raised by the test
            self._problem = error

    def _look(self, views: Views) -> None:
        with views.read() as v:
            offset = v.stamp.offsets[self._orders.topic, 0]
            found = {name: v[name].range() for name in v}
        expected = recomputed(self._orders.changes[:offset])
        assert found == {name: expected[name] for name in found}, offset
        assert offset >= self.offset
        assert found.keys() >= self.names  # a view does not disappear again
        self.offset, self.names = offset, set(found)
        self.reads += 1


class Scene:
    """A shop, whose file declares some views, and drivers that run it."""

    def __init__(self, topics: Topics, database: Database, directory: Path) -> None:
        self.orders = Orders(topics)
        self._bootstrap, self._store, self._directory = topics.bootstrap, database.url, directory
        self.checkpoints = str(directory / "checkpoints")

    def declare(self, *names: str) -> None:
        text = SHOP.format(topic=self.orders.topic, names=names, batch=BATCH)
        (self._directory / "shop.py").write_text(text)

    def running(
        self, *more: str, kills: Sequence[Kill] = ()
    ) -> AbstractContextManager[Popen[bytes]]:
        environment: Mapping[str, str] = {
            "PYTHONPATH": f"{REPOSITORY / 'tests/faults/kill_hooks'}:{REPOSITORY}",
            **environment_of(kills),
        }
        arguments = ["run", str(self._directory / "shop.py"), "--bootstrap-server", self._bootstrap]
        arguments += ["--store", self._store, "--checkpoint", self.checkpoints]
        arguments += ["--master", "local[2]", "--no-publish-status", *more]
        return driver("millstream.cli.entry", arguments, self._directory, environment)

    def run_once(self) -> None:
        with self.running("--once") as process:
            assert process.wait(RUN_SECONDS_MAX) == 0, self.log()

    def run_to(self, point: str, batch: int) -> None:
        """Until everything is killed, at a point of a batch of the new view."""
        kill = Kill(NEW, point, self.checkpoints, after=batch - 1)
        with self.running(kills=[kill]) as process:
            assert process.wait(RUN_SECONDS_MAX) == -signal.SIGKILL, self.log()
        assert kill.report.exists()
        assert current_batch(self.checkpoints, NEW) == batch

    def log(self) -> str:
        return log_of(self._directory)


def test_view_is_built_by_processes_that_are_killed(
    topics: Topics, database: Database, tmp_path: Path
) -> None:
    scene = Scene(topics, database, tmp_path)
    scene.declare("by_user")
    scene.orders.change(BEFORE)
    scene.run_once()
    scene.orders.change(BESIDE)
    scene.declare("by_user", "big_spenders")
    with Reader(database.url, scene.orders) as reader:
        scene.run_to("called", 0)
        # In the middle: the earlier view goes on, although the new one does not.
        stands = Kill(NEW, "called", scene.checkpoints, after=0, how="stand")
        with scene.running(kills=[stands]) as process:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or (stands.report.exists() and reader.has_seen(BEFORE + BESIDE))
                ),
                seconds_max=RUN_SECONDS_MAX,
            )
            assert process.poll() is None, scene.log()
        assert current_batch(scene.checkpoints, NEW) == 1
        scene.run_to("merging", LAST_BATCH)  # in the transaction with which it appears
        reader.reads_more()
        assert reader.names == {"by_user"}
        scene.run_to("stored", LAST_BATCH)  # Spark does not know that it is written
        reader.reads_more()
        assert reader.names == {"by_user", "big_spenders"}
        scene.orders.change(AFTER)
        scene.run_once()
        reader.reads_more()
        assert reader.offset == len(scene.orders.changes)
    listed = database.rows("SELECT DISTINCT query FROM millstream_views")
    assert listed == [("shop",)]  # nothing is left of the build, and of what it has replaced
