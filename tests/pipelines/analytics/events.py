"""Events for the tests of this room, and whether a function of frames says the same of a stream of
them as of a batch."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from tests.pipelines.windows.streams import END, Files, Run, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

DELAY = "20 seconds"
BATCHES = 3


class Event(NamedTuple):
    user: str | None
    seconds: float
    amount: float | None


def make_events(count: int = 150) -> list[Event]:
    """Ten minutes of them, less out of order than the watermark's delay."""
    rng = random.Random(11)
    events = [
        Event(
            rng.choice(["ann", "bob", "cleo", None]),
            round(rng.uniform(0, 600), 3),
            rng.choice([None, *range(1, 8), 2.5]),
        )
        for _ in range(count)
    ]
    return sorted(events, key=lambda it: it.seconds + rng.uniform(0, 15))


EVENTS = make_events()


def events_of(user: str | None, begin: float, end: float) -> list[Event]:
    """With `begin <= seconds < end`."""
    return [it for it in EVENTS if it.user == user and begin <= it.seconds < end]


class Stage:
    """The events as files, one a batch, and after them one event that ends all windows."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.files = Files(spark, place)
        step = -(-len(EVENTS) // BATCHES)
        self.batches = [EVENTS[at : at + step] for at in range(0, len(EVENTS), step)]
        self.files.write([*self.batches, [END]])

    def results(self, function: Callable[[DataFrame], DataFrame]) -> list[Row]:
        """Of the stream; asserts that those of a batch are the same, and that none was late."""
        run = self.files.run(self.files.stream(DELAY).transform(function))
        batch = self.files.history().where("user is null or user != 'end'").transform(function)
        assert counted(self._own(run)) == counted(batch.collect())
        assert run.dropped_by_spark == 0
        return self._own(run)

    def restart(self) -> None:
        """Forget what the last query read."""
        shutil.rmtree(self.files.place / "checkpoint")

    def _own(self, run: Run) -> list[Row]:
        return [it for it in run.rows if "end" not in it]


def counted(rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(_rounded, row)) for row in rows)


def _rounded(value: Any) -> Any:
    return round(value, 9) if isinstance(value, float) else value


def start_of(row: Row) -> float:
    return seconds_of(row.window_start)


def by_window(rows: Iterable[Row]) -> Mapping[tuple[Any, float], Row]:
    """By user and start of the window; each comes once."""
    found = {(it.user, start_of(it)): it for it in rows}
    assert len(found) == len(list(rows))
    return found


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """What state in buckets is kept in."""
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield
    spark.conf.set(STORE_PROVIDER, str(before))


@pytest.fixture
def stage(spark: SparkSession, rocksdb: None, tmp_path: Path) -> Stage:
    return Stage(spark, tmp_path)
