"""PyFlink in an environment of its own: a judge of SQL's MATCH_RECOGNIZE in streams.

Other than Trino, it has WITHIN, watermarks and late rows. It refuses much of the standard, and its
greedy quantifiers do not give rows back: see `tests/pipelines/patterns/test_flink.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.peers.answering import AnsweringProcess, answering
from tests.peers.cache import PROGRAMS
from tests.peers.engines import engine_python
from tests.peers.java_runtime import java_command


class FlinkError(Exception):
    """Flink refused a clause, or a job failed."""


class Flink:
    """Runs jobs, one after another, in one JVM. A job takes seconds, however many clauses it has:
    ask for many at once."""

    def __init__(self, process: AnsweringProcess) -> None:
        self._process = process

    def match(
        self,
        clauses: Sequence[str],
        rows: Sequence[tuple[str, int, int, int]],
        columns: Sequence[str],
        delay_ms: int = 0,
    ) -> list[list[tuple[Any, ...]]]:
        """These columns of the matches of each clause. Rows are (part, id, value, milliseconds) in
        the order of arrival; the clauses call them `part`, `id`, `v` and, as a time, `moment`. The
        watermark is `delay_ms` behind the newest row. Raises `FlinkError`."""
        answer = self._process.ask(
            {"clauses": clauses, "rows": rows, "columns": columns, "delay_ms": delay_ms}
        )
        if "error" in answer:
            raise FlinkError(answer["error"])
        return [[tuple(row) for row in found] for found in answer["results"]]


@contextmanager
def running_flink() -> Iterator[Flink]:
    """Raises `PeerMissing` where PyFlink cannot be had."""
    java_command()
    program = PROGRAMS / "python" / "flink_program.py"
    with answering([str(engine_python("flink")), str(program)]) as process:
        yield Flink(process)
