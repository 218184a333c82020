"""Searching a topic in a child process, which streams hits, progress and a cursor.

    with Search("localhost:9092", None, SearchRequest("orders", ranges, text="alice")) as search:
        for event in search:
            ...             # Hit, Progress; the last one is Done

The child has a limited memory, a low priority, and a DuckDB without access to files, whose
configuration is locked. It gets the request and the credentials through a pipe, and exits when that
pipe is closed. This module imports neither DuckDB nor Arrow.

`Progress.rest` is the cursor: what is not scanned yet. All hits outside of it were reported before.
To continue, search `rest` with the same conditions.

Messages of the child, each one line of JSON:

    {"hits": [[partition, offset], ...]}    {"progress": {...}}
    {"done": "end"}                         {"failed": "message"}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from millstream.errors import MillstreamError
from millstream.models import dataclass
from millstream.query.ranges import ScanRange

CANCEL_SECONDS = 2.0  # then the child is killed
CHILD_MODULE = "millstream.query.search_child"
MEMORY_LIMIT_MB = 512
STDERR_LINES = 20


class SearchFailed(MillstreamError):
    """The search cannot be done; the message says why."""


@dataclass(frozen=True)
class SearchRequest:
    """What to search for. All conditions that are given must hold."""

    topic: str
    ranges: tuple[ScanRange, ...]
    where: str = ""  # a predicate in SQL, over the columns of `millstream query`
    text: str = ""  # in the key, the value, or a header's name or value; case-sensitive
    header: str = ""  # a header's name
    header_value: str | None = None  # its value; None: any
    limit: int = 100  # hits; then the search ends, with a cursor
    newest_first: bool = False
    committed: bool = False  # without open and aborted transactions
    schema: str = ""  # columns of the value, such as "amount double"; empty: from a sample
    memory_limit_mb: int = MEMORY_LIMIT_MB


@dataclass(frozen=True)
class Hit:
    """The position of a record that matches."""

    partition: int
    offset: int


@dataclass(frozen=True)
class Progress:
    """At least every 0.5 s, and once at the end."""

    scanned_records: int  # offsets passed
    total_records: int  # offsets of all ranges of the request
    scanned_bytes: int
    hits: int
    seconds: float
    rest: tuple[ScanRange, ...]

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.scanned_records / max(self.seconds, 1e-6)

    @property
    def remaining_seconds(self) -> float | None:
        """Until everything is scanned; None while nothing is known."""
        if not self.scanned_records:
            return None
        return max(self.total_records - self.scanned_records, 0) / self.rate


@dataclass(frozen=True)
class Done:
    """The last event."""

    reason: str  # "end", "limit" or "cancelled"


Event = Hit | Progress | Done


def is_available() -> bool:
    """Whether DuckDB and Arrow are installed: the extra `query`."""
    return find_spec("duckdb") is not None and find_spec("pyarrow") is not None


class Search:
    """See the module. Iterate in one thread; `cancel` and `close` may be called from any."""

    def __init__(
        self,
        bootstrap_servers: str,
        settings: Mapping[str, str] | None,
        request: SearchRequest,
    ) -> None:
        if not is_available():
            raise SearchFailed("searching needs DuckDB: pip install 'millstream[query]'")
        self._request = request
        self._is_cancelled = threading.Event()
        self._last = Progress(0, sum(it.size for it in request.ranges), 0, 0, 0.0, request.ranges)
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._stderr: deque[bytes] = deque(maxlen=STDERR_LINES)
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()
        given = {
            "bootstrap_servers": bootstrap_servers,
            "settings": dict(settings or {}),
            "request": asdict(request),
        }
        self._write(json.dumps(given).encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        """Events until `Done`; raises `SearchFailed`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            for event in self._events(json.loads(line)):
                yield event
                if isinstance(event, Done):
                    return
        if self._is_cancelled.is_set():
            yield self._last
            yield Done("cancelled")
            return
        raise SearchFailed(self._why_it_died())

    def cancel(self) -> None:
        """Have the search end with `Done("cancelled")`; its cursor is that of the last progress."""
        self._is_cancelled.set()
        self._write(b"cancel\n")
        killer = threading.Timer(CANCEL_SECONDS, self._process.kill)
        killer.daemon = True
        killer.start()

    def close(self) -> None:
        """Kill the child, unless it has exited."""
        self._process.kill()
        self._process.wait()
        self._drain.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass

    def _events(self, message: Any) -> Iterator[Event]:
        if "hits" in message:
            for partition, offset in message["hits"]:
                yield Hit(partition, offset)
        elif "progress" in message:
            fields = message["progress"]
            rest = tuple(ScanRange(*it) for it in fields.pop("rest"))
            self._last = Progress(**fields, rest=rest)
            yield self._last
        elif "failed" in message:
            raise SearchFailed(message["failed"])
        else:
            yield Done(message["done"])

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):
            pass  # the child has exited; the iterator reports it

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr.append(line)

    def _why_it_died(self) -> str:
        code = self._process.wait()
        self._drain.join()
        lines = b"".join(self._stderr).decode("utf-8", errors="replace").strip().splitlines()
        if code < 0 or any("MemoryError" in it or "malloc" in it for it in lines):
            return (
                f"the search used more than {self._request.memory_limit_mb} MB, or was killed; "
                "search a smaller range or with a simpler condition"
            )
        return f"the search ended with code {code}: {lines[-1] if lines else 'without a message'}"


def range_rows(ranges: Sequence[ScanRange]) -> list[list[int]]:
    """Ranges as JSON has them."""
    return [[it.partition, it.first, it.end] for it in ranges]
