"""Some of Nexmark by four engines: Millstream on Spark, plain Spark, PyFlink, Quix Streams.

Each is a process of its own (benchmarks/engines), one after the other, over the same topics of one
broker. It is measured how long a process takes until it can begin, how many rows a second it
answers when it is warm, and how much memory its processes have at most, all together.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.peers.cache import PeerMissing
from tests.peers.engines import engine_python, flink_connector

from benchmarks.measurement import Measurement
from benchmarks.nexmark import EVENTS, keep, load
from benchmarks.spark import CONNECTOR, OURS
from benchmarks.targets import Scale, Target

QUERIES = ("q0", "q1", "q2", "q5", "q7", "q8", "q12", "q20")
ENGINES = (OURS, CONNECTOR, "flink", "quix")
PROGRAMS = Path(__file__).parent / "engines"
LOOK_SECONDS = 0.2
RUN_SECONDS_MAX = 600.0


@dataclass
class Run:
    """What an engine did."""

    ready_seconds: float = 0.0
    peak_mb: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    queries = scale.queries or QUERIES[: 1 if scale.is_quick else None]
    for target in targets:
        load(target.bootstrap, scale.of(EVENTS))
        runs = {}
        for engine in (OURS,) if scale.is_quick else ENGINES:
            try:
                runs[engine] = measure(engine, target.bootstrap, scale.of(EVENTS), queries)
                if not scale.is_quick:
                    keep("engines", {engine: vars(runs[engine])})
            except PeerMissing as missing:
                print(f"without {engine}: {missing}", file=sys.stderr)
        yield from figures(runs, queries, target)


def figures(runs: dict[str, Run], queries: Sequence[str], target: Target) -> Iterator[Measurement]:
    for query in queries:
        figure = Measurement(f"engines, Nexmark {query} from {target.name}", "rows/s", peer="flink")
        for engine, it in runs.items():
            if query in it.rates:
                figure.add(engine, it.rates[query])
        yield figure
    start = Measurement("engines, until ready", "s", direction="lower is better", peer="flink")
    memory = Measurement("engines, peak memory", "MB", direction="lower is better", peer="flink")
    for engine, it in runs.items():
        start.add(engine, it.ready_seconds)
        memory.add(engine, it.peak_mb)
    yield from (start, memory)


def measure(engine: str, bootstrap: str, events: int, queries: Sequence[str]) -> Run:
    command = [*command_of(engine, bootstrap, events), *queries]
    found = Run()
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch = threading.Thread(target=watch_memory, args=(process.pid, found), daemon=True)
        watch.start()
        guard = threading.Timer(RUN_SECONDS_MAX, process.kill)
        guard.start()
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            print(f"{engine}: {line.strip()}", file=sys.stderr, flush=True)
            if "ready" in said:
                found.ready_seconds = time.perf_counter() - started
            else:
                found.rates[said["query"]] = said["rows"] / said["seconds"]
        guard.cancel()
    watch.join()
    return found


def command_of(engine: str, bootstrap: str, events: int) -> list[str]:
    if engine in (OURS, CONNECTOR):
        program = [sys.executable, "-m", "benchmarks.engines.spark", engine]
        return [*program, bootstrap, str(events)]
    program = [str(engine_python(engine)), str(PROGRAMS / f"{engine}.py"), bootstrap, str(events)]
    return [*program, str(flink_connector())] if engine == "flink" else program


def watch_memory(pid: int, found: Run) -> None:
    """The most that the process and all that it starts hold at once; ends with it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            held = 0.0
            for member in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    held += member.memory_info().rss / 1e6
            found.peak_mb = max(found.peak_mb, held)
            time.sleep(LOOK_SECONDS)
