"""Trino, from Maven, without a server: a judge of SQL's MATCH_RECOGNIZE."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS

# The compiler for long runs would take longer than it saves; 1 GB is less than Trino asks for.
_OPTIONS = ["-Xmx1g"]


class TrinoError(Exception):
    """Trino refused a query, or it failed."""


class Trino:
    """Runs queries, one after another, in one JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows; timestamps and the like as text. Raises `TrinoError`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(sql) + "\n")
        self._process.stdin.flush()
        try:
            answer = json.loads(self._lines.get(timeout=PATIENCE_SECONDS))
        except BaseException:
            self._process.kill()  # the next query would get this one's answer
            raise
        if "error" in answer:
            raise TrinoError(answer["error"])
        return [tuple(row) for row in answer["rows"]]

    def _pump(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def running_trino() -> Iterator[Trino]:
    """Raises `PeerMissing` where Trino cannot be had."""
    with subprocess.Popen(
        java_program("TrinoProgram", "trino", _OPTIONS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield Trino(process)
        finally:
            process.kill()
