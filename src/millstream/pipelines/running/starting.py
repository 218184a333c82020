"""Starting a query on a busy machine.

Spark allows a Python process 10 seconds to start. On a busy machine that may not be enough, and the
query fails before it has run anything. It is then started again, a few times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from millstream.pipelines.running.failures import passes

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STARTS_MAX = 5
POLL_SECONDS = 0.05
# What Spark says of a query that has not begun its first batch: its readers may not run yet.
NOT_STARTED = ("Initializing", "Getting offsets")

T = TypeVar("T")


def retry_busy(start: Callable[[], T]) -> T:
    """The result of `start`, which is called again if the machine was too busy."""
    for _ in range(STARTS_MAX - 1):
        try:
            return start()
        except Exception as error:
            if not passes(error):
                raise
    return start()


def start_query(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that `start` has started, and whose readers run; or one that has failed for another
    reason than a busy machine."""
    query = retry_busy(start)
    for _ in range(STARTS_MAX - 1):
        error = _early_error(query)
        if error is None or not passes(error):
            break
        query = retry_busy(start)
    return query


def _early_error(query: StreamingQuery) -> BaseException | None:
    """Wait until the query begins its first batch, or ends; how it failed, if it did."""
    while query.isActive and _is_starting(query):
        with contextlib.suppress(Exception):  # what a query ends with is asked for below
            query.awaitTermination(POLL_SECONDS)  # type: ignore[arg-type]  # it takes fractions
    return None if query.isActive else query.exception()


def _is_starting(query: StreamingQuery) -> bool:
    message = str(query.status["message"])
    return query.lastProgress is None and message.startswith(NOT_STARTED)
