"""Trino, from Maven, without a server: a judge of SQL's MATCH_RECOGNIZE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.peers.answering import AnsweringProcess, answering
from tests.peers.java_runtime import java_program

# The compiler for long runs would take longer than it saves; 1 GB is less than Trino asks for.
_OPTIONS = ["-Xmx1g"]


class TrinoError(Exception):
    """Trino refused a query, or it failed."""


class Trino:
    """Runs queries, one after another, in one JVM."""

    def __init__(self, process: AnsweringProcess) -> None:
        self._process = process

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows; timestamps and the like as text. Raises `TrinoError`."""
        answer = self._process.ask(sql)
        if "error" in answer:
            raise TrinoError(answer["error"])
        return [tuple(row) for row in answer["rows"]]


@contextmanager
def running_trino() -> Iterator[Trino]:
    """Raises `PeerMissing` where Trino cannot be had."""
    with answering(java_program("TrinoProgram", "trino", _OPTIONS)) as process:
        yield Trino(process)
