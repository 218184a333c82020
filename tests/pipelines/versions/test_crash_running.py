"""kill -9 of operators while versions run and readers read: one version, and each row once."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions import halting
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics
from tests.pipelines.stores.conftest import Database
from tests.pipelines.versions.operating import tables_of
from tests.pipelines.versions.test_crash import READER, Operators, operators  # noqa: F401  fixture
from tests.pipelines.versions.test_versions_on_spark import running, settings  # noqa: F401  fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE_SECONDS = 5.0
PRODUCE_EVERY_SECONDS = 0.1
ATTEMPTS_MAX = 10
# `after:swap_views` is before the commit, `before:note_switch` after it.
STEPS = (
    "after:_claim",
    "after:_running",
    "before:complete_last_batch",
    "after:complete_last_batch",
    "after:output_ends",
    "after:swap_views",
    "before:note_switch",
    "after:note_switch",
    "after:release",
)


class Background:
    """A thread that repeats a step until it is told to end; its error is raised at the end."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._ended = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._step()
        except BaseException as error:  # noqa: BLE001  raised by the test
            self._problem = error

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        self.check()


class Orders:
    """Produces 0, 1, 2, ... to a topic with one partition."""

    def __init__(self, topics: Topics, name: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})
        self._topic = name
        self.count = 0

    def produce(self) -> None:
        self._producer.produce(self._topic, json.dumps({"id": self.count}))
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        self.count += 1
        time.sleep(PRODUCE_EVERY_SECONDS)


class TableReader:
    """Both tables in one statement: rows of one version, from 0 on, and never fewer than before."""

    def __init__(self, database: Database, pipeline: str) -> None:
        one, two = tables_of(pipeline)
        part = "SELECT version, count(*), max(id) FROM {} GROUP BY version"
        self._statement = f"{part.format(two)} UNION ALL {part.format(one)}"
        self._connection: Any = (
            sqlite3.connect(
                database.url.removeprefix("sqlite:///"),
                timeout=PATIENCE_SECONDS,
                check_same_thread=False,
            )
            if database.is_sqlite
            else psycopg.connect(database.url, autocommit=True, application_name=READER)
        )
        self.count = 0
        self.versions: list[str] = []  # each time that it changes

    def look(self) -> None:
        rows = self._connection.execute(self._statement).fetchall()
        assert len(rows) == 2, rows  # a row of each table: no mixture
        assert rows[0] == rows[1], rows
        version, count, last = rows[0]
        assert count == last + 1  # nothing is missing
        assert count >= self.count, f"{count} rows after {self.count}"
        self.count = count
        if [version] != self.versions[-1:]:
            self.versions.append(version)


class TopicReader:
    """A read-committed consumer: 0, 1, 2, ..., each once, in order, whichever version wrote it."""

    def __init__(self, topics: Topics, name: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": topics.bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        self.count = 0
        self.versions: list[str] = []

    def look(self) -> None:
        message = self._consumer.poll(0.2)
        if message is None:
            return
        assert message.error() is None, message.error()
        version, _, number = message.value().decode().partition(":")
        assert int(number) == self.count, f"{version}:{number} after {self.count} records"
        self.count += 1
        if [version] != self.versions[-1:]:
            self.versions.append(version)


def declare(orders: str, name: str) -> tuple[Pipeline, Pipeline]:
    """Two versions that write two tables and a topic, with their version in each row."""
    one_table, two_table = tables_of(name)
    declared: Any = pipeline(
        reads=topic(orders, schema="id long"),
        writes={
            "a": table(one_table, key="id"),
            "b": table(two_table, key="id"),
            "out": topic(name),
        },
        name=name,
    )

    def function(version: str) -> Callable[..., Any]:
        def apply(frame: Any) -> Any:
            rows = frame.selectExpr("id", f"'{version}' as version")
            return {
                "a": rows,
                "b": rows,
                "out": frame.selectExpr(f"concat('{version}:', id) as value"),
            }

        return apply

    one: Pipeline = declared(function("1"))
    return one, replace(one, version="2", function=function("2"))


@contextmanager
def checked(*threads: Background) -> Iterator[None]:
    try:
        yield
    finally:
        for it in threads:
            it.end()


def move(operators: Operators, name: str, step: str) -> str:  # noqa: F811
    """Kill an operation that moves readers at a step, and repeat it if they were not moved; returns
    the version that they read then."""
    document = operators.document(name)
    assert document is not None
    operation = "switch" if document.in_force == "1" else "rollback"
    number = document.number
    assert not operators.run(operation, name, step), f"{operation} was not killed {step}"
    for _ in range(ATTEMPTS_MAX):
        document = operators.document(name)
        assert document is not None
        if document.number > number:
            break
        operators.run(operation, name)
    assert document.number == number + 1
    return str(document.in_force)


@pytest.mark.timeout(3600)
def test_readers_and_versions_go_on_while_operators_are_killed(
    spark: SparkSession,
    topics: Topics,
    settings: Settings,  # noqa: F811
    database: Database,
    operators: Operators,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(halting, "LEASE_SECONDS", LEASE_SECONDS)
    operators.versions_run = True
    orders = topics.create()
    name = f"running_{orders.replace('-', '_')}-topic"
    topics.create(name=name)
    source = Orders(topics, orders)
    source.produce()
    with running(spark, settings, *declare(orders, name)):
        tables, records = TableReader(database, name), TopicReader(topics, name)
        threads = [Background(it) for it in (source.produce, tables.look, records.look)]
        expected = ["1"]
        with checked(*threads):
            for step in STEPS:
                expected.append(move(operators, name, step))
                for it in threads:
                    it.check()
            for kill_at in (5, 10, 15):
                operators.run("deploy_third", name, kill_at)
                assert operators.run("deploy_third", name)
                operators.run("remove_third", name, kill_at)
                operators.run("remove_third", name, "after:forget_decisions")
                assert operators.run("remove_third", name)
            threads[0].end()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while min(tables.count, records.count) < source.count:
                assert time.monotonic() < deadline, (tables.count, records.count, source.count)
                for it in threads:
                    it.check()
                time.sleep(0.1)
    assert tables.versions == expected
    assert set(records.versions) == {"1", "2"}
    assert tables.count == records.count == source.count
