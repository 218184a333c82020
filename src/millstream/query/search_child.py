"""The child process of a search: reads a request from stdin, writes messages to stdout.

It works through the ranges in windows, which start small, for a first hit soon, and grow. After
each window it reports the hits and the cursor; with a limit, what is left of a window stays in the
cursor. A line on stdin cancels the search, and its end stops the process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb

from millstream.client.cluster import Cluster
from millstream.client.security import security_settings
from millstream.errors import MillstreamError
from millstream.query.columns import table_schema
from millstream.query.conditions import search_condition
from millstream.query.fetching import RangeReader, Source
from millstream.query.ranges import (
    ScanRange,
    after_hit,
    joined,
    next_windows,
    total_size,
)
from millstream.query.sandbox import open_sandbox
from millstream.query.scanning import ClusterPool
from millstream.query.scanning import Progress as ScanProgress
from millstream.query.search import SearchRequest, range_rows
from millstream.query.syntax import identifiers
from millstream.query.table import TopicTable
from millstream.query.values import ValueColumns, given_columns, sampled_columns

CLIENT_ID = "millstream-search"
TABLE = "records"
NICE = 10
WINDOW_FIRST = 5_000
WINDOW_MAX = 1_000_000
WINDOW_SECONDS = 1.0  # windows do not grow once one takes this long
PROGRESS_SECONDS = 0.25
EXTRA_MEMORY_MB = 1024  # for Arrow, Python, and what libraries reserve

Message = dict[str, Any]
Emit = Callable[[Message], None]


class HitList:
    """The hits of a window, by partition in the order of the search."""

    def __init__(self, rows: Sequence[tuple[int, int, int]], *, newest_first: bool) -> None:
        self._newest_first = newest_first
        self._by_partition: dict[int, list[tuple[int, int]]] = {}
        for partition, offset, time_us in rows:
            self._by_partition.setdefault(partition, []).append((offset, time_us))

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next hits: of each partition in order, between partitions by time."""
        taken: list[tuple[int, int]] = []
        sign = -1 if self._newest_first else 1
        while len(taken) < count and self._by_partition:
            partition = min(
                self._by_partition, key=lambda it: (sign * self._by_partition[it][0][1], it)
            )
            offset, _ = self._by_partition[partition].pop(0)
            taken.append((partition, offset))
            if not self._by_partition[partition]:
                del self._by_partition[partition]
        return taken

    @property
    def partitions_left(self) -> set[int]:
        return set(self._by_partition)


def rest_of(
    windows: Sequence[ScanRange],
    taken: Sequence[tuple[int, int]],
    partitions_left: set[int],
    *,
    newest_first: bool,
) -> list[ScanRange]:
    """What of the windows has to be scanned again, since hits in it were not reported."""
    last = dict(taken)  # the last of each partition
    rest = []
    for window in windows:
        if window.partition not in partitions_left:
            continue
        offset = last.get(window.partition)
        rest.append(
            window if offset is None else after_hit(window, offset, newest_first=newest_first)
        )
    return rest


class Searching:
    """One search, from the first window to the last."""

    def __init__(
        self,
        request: SearchRequest,
        make_cluster: Callable[[], Cluster],
        emit: Emit,
    ) -> None:
        self._request, self._emit, self._stop = request, emit, threading.Event()
        self._pool = ClusterPool(make_cluster)
        self._scan = ScanProgress()
        self._rest = joined(request.ranges)
        self._total = total_size(self._rest)
        self._hits = 0
        self._started = time.monotonic()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._open()

    def run(self) -> str:
        """Why the search ended: "end", "limit" or "cancelled"."""
        reporter = threading.Thread(target=self._report_regularly, daemon=True)
        reporter.start()
        try:
            return self._search()
        finally:
            self._over.set()
            reporter.join()
            self.report()
            self._connection.close()
            self._pool.close()

    def _open(self) -> None:
        request = self._request
        with self._pool.lend() as cluster:
            topic = cluster.retrying(lambda: cluster.topic(request.topic))
        source = Source(request.topic, topic.id, request.committed)
        try:
            self._open_table(source, self._given_columns())
        except duckdb.BinderException:
            if request.schema or not request.where:
                raise
            with self._pool.lend() as cluster:  # the condition may name fields of the value
                columns = sampled_columns(RangeReader(cluster, source), self._rest)
            self._open_table(source, columns)

    def _given_columns(self) -> ValueColumns:
        if not self._request.schema:
            return ValueColumns()
        return given_columns(self._request.schema)

    def _open_table(self, source: Source, columns: ValueColumns) -> None:
        """Register the topic, and check the condition."""
        request = self._request
        condition, self._parameters = search_condition(request)
        self._table = TopicTable(
            self._pool,
            source,
            (),
            table_schema(columns.schema, identifiers(request.where)),
            progress=self._scan,
            make_decoder=columns.decoder(skips_failures=True),
            stop=self._stop,
        )
        self._connection = open_sandbox(
            {TABLE: self._table},
            memory_limit_mb=request.memory_limit_mb,
            threads=min(os.cpu_count() or 1, 2),
        )
        order = "desc" if request.newest_first else "asc"
        self._sql = (
            f"select _partition, _offset, epoch_us(_timestamp) from {TABLE} where {condition} "
            f"qualify row_number() over (partition by _partition order by _offset {order}) "
            f"<= ? order by _partition, _offset {order}"
        )
        self._connection.execute(f"explain {self._sql}", [*self._parameters, 1])

    def _search(self) -> str:
        size = WINDOW_FIRST
        while self._rest:
            if self._stop.is_set():
                return "cancelled"
            newest_first = self._request.newest_first
            windows, rest = next_windows(self._rest, size, newest_first=newest_first)
            began = time.monotonic()
            try:
                found = HitList(self._scan_windows(windows), newest_first=newest_first)
            except duckdb.InterruptException:
                return "cancelled"
            if self._stop.is_set():
                return "cancelled"
            taken = found.take(self._request.limit - self._hits)
            left = found.partitions_left
            again = rest_of(windows, taken, left, newest_first=newest_first)
            if taken:
                self._emit({"hits": taken})
            with self._lock:
                self._hits += len(taken)
                self._rest = joined([*again, *rest])
            if left or self._hits >= self._request.limit:
                return "limit" if self._rest else "end"
            if time.monotonic() - began < WINDOW_SECONDS:
                size = min(4 * size, WINDOW_MAX)
        return "end"

    def _scan_windows(self, windows: Sequence[ScanRange]) -> list[tuple[int, int, int]]:
        self._table.ranges = tuple(windows)
        # One more than can be reported shows whether the window has more.
        count = self._request.limit - self._hits + 1
        return self._connection.execute(self._sql, [*self._parameters, count]).fetchall()

    def cancel(self) -> None:
        self._stop.set()
        self._connection.interrupt()

    def _report_regularly(self) -> None:
        while not self._over.wait(PROGRESS_SECONDS):
            self.report()

    def report(self) -> None:
        with self._lock:
            scanned = self._total - total_size(self._rest)
            if not self._over.is_set():  # the window that is being scanned counts, too
                scanned = min(max(self._scan.scanned, scanned), self._total)
            self._emit(
                {
                    "progress": {
                        "scanned_records": scanned,
                        "total_records": self._total,
                        "scanned_bytes": self._scan.size_bytes,
                        "hits": self._hits,
                        "seconds": time.monotonic() - self._started,
                        "rest": range_rows(self._rest),
                    }
                }
            )


def parse_request(given: Mapping[str, Any]) -> SearchRequest:
    fields = dict(given["request"])
    fields["ranges"] = tuple(ScanRange(**it) for it in fields["ranges"])
    return SearchRequest(**fields)


def limit_memory(limit_mb: int) -> None:
    """A second limit, for what DuckDB's own does not count."""
    size = (limit_mb + EXTRA_MEMORY_MB) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def watch_stdin(cancel: Callable[[], None]) -> None:
    """Cancel with the next line; exit at the end: the parent process is gone or not interested."""
    if sys.stdin.buffer.readline():
        cancel()
        sys.stdin.buffer.readline()
    os._exit(1)


def explain(error: Exception) -> str:
    """The message for the user; DuckDB's own has a second line that shows where."""
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return "the search needs more memory than it may use; use a simpler condition"
    return str(error).strip()


def main() -> None:
    os.nice(NICE)
    given = json.loads(sys.stdin.buffer.readline())
    request = parse_request(given)
    limit_memory(request.memory_limit_mb)
    write_lock = threading.Lock()

    def emit(message: Message) -> None:
        line = json.dumps(message).encode() + b"\n"
        with write_lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def make_cluster() -> Cluster:
        return Cluster(
            given["bootstrap_servers"],
            client_id=CLIENT_ID,
            security=security_settings(given["settings"]),
            missing_topic_seconds=2.0,
        )

    try:
        searching = Searching(request, make_cluster, emit)
        threading.Thread(target=watch_stdin, args=[searching.cancel], daemon=True).start()
        emit({"done": searching.run()})
    except (MillstreamError, OSError, duckdb.Error, MemoryError) as error:
        emit({"failed": explain(error)})
    os._exit(0)  # the threads of an unfinished scan need not be waited for


if __name__ == "__main__":
    main()
