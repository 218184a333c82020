"""Bridges of a cluster, from what they publish: the record, the board, and following it.

    topic __millstream_bridges     written by bridges, read by people
      status:<name>                `BridgeStatus`: what it is and how it is doing; every few seconds

As for pipelines (docs/decisions/0042-status-of-pipelines.md): a bridge that is killed cannot say
so, and is lost when nothing has come for several times the interval that its last status names. A
record that is not what it says is ignored: anybody who may write to the topic can write anything.
The board is pure, moved forward by records.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import NamedTuple

from millstream.admin.following import BoardFollower, write_records
from millstream.admin.pipeline_board import RUNS_MAX, is_lost
from millstream.admin.pipeline_records import STATUS, STATUS_SETTINGS, decode
from millstream.client.cluster import Cluster
from millstream.errors import ConfigError
from millstream.models import dataclass

TOPIC = "__millstream_bridges"
SETTINGS = STATUS_SETTINGS
BRIDGES_MAX = 1_000
SAMPLES_MAX = 1_000
COUNTS_MAX = 500
RUNNING, STOPPED = "running", "stopped"

IN, OUT, LOST, BAD, OTHER = "in", "out", "lost", "bad", "other"
KINDS: Mapping[str, str] = {
    "records_in": IN,
    "records_out": OUT,
    "mold_lost": LOST,
    "zeromq_lost": LOST,
    "statsd_kernel_drops": LOST,
    "records_refused": BAD,
    "hooks_refused": BAD,
    "statsd_bad_lines": BAD,
    "mold_bad_packets": BAD,
    "zeromq_bad_messages": BAD,
}


@dataclass(frozen=True)
class Count:
    """A counter of this run; `by` are its labels, such as the topic or the reason."""

    name: str
    value: int
    by: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return KINDS.get(self.name, OTHER)


@dataclass(frozen=True)
class BridgeStatus:
    """What a bridge is, and how it is doing."""

    name: str
    run: str
    state: str = RUNNING
    every_ms: int = 4_000  # the next one comes within that time
    host: str = ""
    process: int = 0
    command: str = ""
    started_ms: int = 0
    addresses: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    counts: tuple[Count, ...] = ()

    def total(self, kind: str) -> int:
        return sum(it.value for it in self.counts if it.kind == kind)


class Sample(NamedTuple):
    """What is plotted of a status."""

    at_ms: int
    in_per_second: float
    out_per_second: float
    lost: int  # since the sample before


@dataclass(frozen=True)
class ShownBridge:
    """A bridge at a moment."""

    status: BridgeStatus
    age_ms: int
    is_lost: bool
    twins: tuple[str, ...]  # other runs of its name that are alive
    history: tuple[Sample, ...]

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def state(self) -> str:
        if self.is_lost:
            return "lost"
        return "failing" if self.is_running and self.status.problems else self.status.state

    @property
    def is_running(self) -> bool:
        return not self.is_lost and self.status.state == RUNNING


class _Run(NamedTuple):
    status: BridgeStatus
    time_ms: int  # of the record
    at_ms: int  # when it came


@dataclass
class _Entry:
    runs: dict[str, _Run] = field(default_factory=dict)  # the newest last
    history: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))


class BridgeBoard:
    """See the module. Any thread may look at it while another takes records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}  # the one that changed last is the last
        self.ignored = 0  # records that are not ours

    def take(
        self, key: bytes | None, value: bytes | None, time_ms: int, came_ms: int | None = None
    ) -> None:
        """Apply a record of this time, which may be known to have come at another one."""
        prefix, colon, name = (key or b"").decode(errors="replace").partition(":")
        try:
            if prefix + colon != STATUS:
                raise ValueError(prefix)
            with self._lock:
                if value is None:
                    self._entries.pop(name, None)
                else:
                    status = decode(BridgeStatus, value)
                    self._take(name, status, time_ms, time_ms if came_ms is None else came_ms)
        except ValueError:
            self.ignored += 1

    def _take(self, name: str, status: BridgeStatus, time_ms: int, came_ms: int) -> None:
        if status.name != name:
            raise ValueError(name)
        entry = self._entries.pop(name, None) or _Entry()
        self._entries[name] = entry
        before = entry.runs.pop(status.run, None)
        run = entry.runs[status.run] = _Run(status, time_ms, came_ms)
        entry.history.append(_sample(before, run))
        while len(entry.runs) > RUNS_MAX:
            entry.runs.pop(next(iter(entry.runs)))
        while len(self._entries) > BRIDGES_MAX:
            self._entries.pop(next(iter(self._entries)))

    def bridges(self, now_ms: int) -> list[ShownBridge]:
        """By their names."""
        with self._lock:
            found = [_shown(it, now_ms) for it in self._entries.values() if it.runs]
        return sorted(found, key=lambda it: it.name)


def _sample(before: _Run | None, now: _Run) -> Sample:
    if before is None or now.time_ms <= before.time_ms:
        return Sample(now.time_ms, 0.0, 0.0, 0)
    seconds = (now.time_ms - before.time_ms) / 1000

    def more(kind: str) -> int:
        return max(0, now.status.total(kind) - before.status.total(kind))

    return Sample(now.time_ms, more(IN) / seconds, more(OUT) / seconds, more(LOST))


def _shown(entry: _Entry, now_ms: int) -> ShownBridge:
    *others, newest = entry.runs.values()
    age_ms = max(now_ms - newest.at_ms, 0)
    # One that was killed a moment ago may look alive: it has said nothing since the other began.
    twins = [
        it.status.run
        for it in others
        if it.status.state == RUNNING
        and it.time_ms > newest.status.started_ms
        and not is_lost(it.status, now_ms - it.at_ms)
    ]
    return ShownBridge(
        newest.status, age_ms, is_lost(newest.status, age_ms), tuple(twins), tuple(entry.history)
    )


class BridgeFollower(BoardFollower[BridgeBoard]):
    """The bridges of a cluster."""

    def __init__(self, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        super().__init__(TOPIC, BridgeBoard, clock_ms)


def read_bridges(cluster: Cluster, now_ms: int) -> list[ShownBridge]:
    """All bridges that are known, at this moment."""
    return BridgeFollower(lambda: now_ms).update(cluster).bridges(now_ms)


def find_bridge(bridges: list[ShownBridge], name: str) -> ShownBridge:
    """Raises `ConfigError` if nobody has heard of it."""
    for it in bridges:
        if it.name == name:
            return it
    known = ", ".join(it.name for it in bridges) or "none"
    raise ConfigError(f"there is no bridge {name} (known: {known})")


def forget_bridge(cluster: Cluster, shown: ShownBridge) -> None:
    """Remove one that has ended from what is shown; raises `ConfigError` if it runs."""
    if shown.is_running:
        raise ConfigError(f"{shown.name} is running: stop it first")
    write_records(cluster, TOPIC, [(f"{STATUS}{shown.name}", None)])
