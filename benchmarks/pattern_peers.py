"""What `bench_patterns` compares with: PyFlink's SQL and Flink CEP in Java.

Each is a process of its own that runs one job after another.

What a job of a few rows costs is taken off: only the rows count, as with our first batches.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from tests.peers.cache import PeerMissing
from tests.peers.engines import engine_python, flink_java_program

SQL, CEP = "flink sql", "flink cep"
PROGRAMS = Path(__file__).parent / "engines"
_FEW_ROWS = 1_000


class Found(NamedTuple):
    """The matches of a run: their number, and sums of their rows and of their times in ms."""

    matches: int
    rows: int
    began: int
    ended: int


@dataclass(frozen=True)
class Cost:
    """Of a run: rows that were measured, and what they took."""

    rows: int
    cpu_seconds: float
    wall_seconds: float
    found: Found


class Peer:
    """A process that runs a job for each line of its input and answers with what it found."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def measure(self, pattern: str, keys: int, rows: int, until_ms: int) -> Cost:
        idle_cpu, idle_wall, _ = self._run(pattern, keys, _FEW_ROWS, until_ms)
        cpu, wall, found = self._run(pattern, keys, rows, until_ms)
        return Cost(rows, cpu - idle_cpu, wall - idle_wall, found)

    def _run(self, pattern: str, keys: int, rows: int, until_ms: int) -> tuple[float, float, Found]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cpu, started = cpu_seconds_of(self.pid), time.perf_counter()
        self._process.stdin.write(f"{pattern} {keys} {rows} {until_ms}\n")
        self._process.stdin.flush()
        line = next((it for it in self._process.stdout if it.startswith("{")), None)
        if line is None:
            raise RuntimeError(f"{self._process.args!r} ended before its answer")
        wall = time.perf_counter() - started
        return cpu_seconds_of(self.pid) - cpu, wall, Found(**json.loads(line))


@contextmanager
def running_peers() -> Iterator[dict[str, Peer]]:
    """Those that can be had on this machine."""
    with ExitStack() as stack:
        peers = {}
        for name in (SQL, CEP):
            try:
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-flink-"))
                command = _command(name, directory)
            except PeerMissing as missing:
                print(f"without {name}: {missing}", file=sys.stderr)
                continue
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(_end, process)
            peers[name] = Peer(process)
        yield peers


def _command(name: str, directory: str) -> list[str]:
    if name == SQL:
        return [str(engine_python("flink")), str(PROGRAMS / "flink_patterns.py"), directory]
    return [*flink_java_program(PROGRAMS / "FlinkPatterns.java"), directory]


def _end(process: subprocess.Popen[str]) -> None:
    """End of input, which ends the JVM that PyFlink starts, too; a process that hangs is killed."""
    with process:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            for it in (*psutil.Process(process.pid).children(recursive=True), process):
                with suppress(psutil.Error):
                    it.kill()


def cpu_seconds_of(pid: int, without: Collection[int] = ()) -> float:
    """What a process and all that it started have used, without these."""
    total = 0.0
    with suppress(psutil.Error):  # it has just ended
        process = psutil.Process(pid)
        times = process.cpu_times()
        total += times.user + times.system
        for child in process.children():
            if child.pid not in without:
                total += cpu_seconds_of(child.pid)
    return total
