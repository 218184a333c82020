"""Queries that a busy machine keeps from starting: started again, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running.starting import STARTS_MAX, retry_busy, start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUSY = "Python worker failed to connect back"


class Starts:
    """Starts that fail, as often as there are errors, before one succeeds."""

    def __init__(self, errors: list[str], result: Any = "query") -> None:
        self.errors = errors
        self.result = result
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        return self.result


class Query:
    """A query of Spark that ends with an error, or runs."""

    def __init__(self, error: str | None, messages: list[str]) -> None:
        self._error = None if error is None else RuntimeError(error)
        self._messages = messages
        self.lastProgress = None

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._error is None or bool(self._messages)

    @property
    def status(self) -> dict[str, str]:
        return {"message": self._messages[0]}

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802
        del self._messages[0]
        if not self._messages and self._error is not None:
            raise self._error

    def exception(self) -> BaseException | None:
        return self._error


def test_busy_machine_is_given_another_chance() -> None:
    starts = Starts([BUSY, f"Job aborted: {BUSY}: timed out"])
    assert (retry_busy(starts), starts.count) == ("query", 3)


def test_other_errors_are_raised_at_once_and_busy_ones_in_the_end() -> None:
    starts = Starts(["no such topic"])
    with pytest.raises(RuntimeError, match="no such topic"):
        retry_busy(starts)
    assert starts.count == 1
    starts = Starts([BUSY] * 99)
    with pytest.raises(RuntimeError, match=BUSY):
        retry_busy(starts)
    assert starts.count == STARTS_MAX


def test_query_that_ends_before_its_first_batch_is_started_again() -> None:
    starting = ["Initializing sources", "Getting offsets from Topic"]
    good = Query(None, [*starting, "Waiting for data to arrive"])
    queries = [Query(BUSY, [*starting]), Query(BUSY, [*starting]), good]
    made: Any = lambda: queries.pop(0)  # noqa: E731
    assert start_query(made) is good


def test_query_that_fails_for_another_reason_is_the_callers() -> None:
    failed = Query("no such column", ["Initializing sources"])
    made: Any = lambda: failed  # noqa: E731
    assert start_query(made) is failed


def test_query_of_spark_is_waited_for_until_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = start_query(writer.start)
    assert query.isActive
    query.stop()
