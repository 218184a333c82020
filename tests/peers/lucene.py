"""Lucene Monitor, from Maven, without a server: stored queries that are matched with events."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.peers.java_runtime import java_program

# A program that runs for a minute needs the optimising compiler.
_OPTIONS = ["-Xmx2g", "-XX:TieredStopAtLevel=4"]


class Monitor:
    """Matches the same events again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def match(self) -> float:
        """Match all events; returns the CPU time of the process in seconds."""
        return float(self._ask("match")["seconds"])

    def show(self) -> list[set[str]]:
        """The ids of the queries that match each event."""
        return [set(it) for it in self._ask("show")]

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def running_monitor(
    queries: Mapping[str, Sequence[Mapping[str, Any]]], events: Sequence[Mapping[str, Any]]
) -> Iterator[Monitor]:
    """A process with these queries, as lists of clauses (java/lucene/MonitorProgram.java), and
    events. Raises `PeerMissing` where Lucene cannot be had."""
    with subprocess.Popen(
        java_program("MonitorProgram", "lucene", _OPTIONS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            for query_id, clauses in queries.items():
                process.stdin.write(json.dumps({"id": query_id, "clauses": clauses}) + "\n")
            process.stdin.write("\n")
            for event in events:
                process.stdin.write(json.dumps(event) + "\n")
            process.stdin.write("\n")
            yield Monitor(process)
        finally:
            process.kill()
