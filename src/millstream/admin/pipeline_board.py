"""The pipelines of a cluster, from what they have published: pure, moved forward by records.

A pipeline that is killed cannot say so. Its last status says how soon the next one was to come; if
none has come for several times as long, it is shown as lost. Times are those of the records, unless
the board was up to date when the record came: then the clocks of pipelines do not matter.

Each start of a query is a run. If a run of the same identity is alive beside the newest one, two
processes write under one name, which is shown. What is plotted goes on over restarts of one query,
and begins again with another one, which has another checkpoint.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import field
from typing import NamedTuple, Protocol, TypeVar

from millstream.admin import pipeline_records
from millstream.admin.pipeline_records import (
    DIFF,
    STATUS,
    VERSIONS,
    About,
    DiffShown,
    Published,
    VersionsShown,
    decode,
)
from millstream.models import dataclass

LOST_AFTER = 3  # times the interval of statuses
LOST_AFTER_MS_MIN = 9_000
SAMPLES_MAX = 1_000
PIPELINES_MAX = 1_000
RUNS_MAX = 4
T = TypeVar("T")
RUNNING = ("starting", "waiting", "working", "stopping")


class Sample(NamedTuple):
    """What is plotted of a status."""

    at_ms: int
    rows_per_second: float
    lag: int | None
    batch_ms: int | None
    watermark_delay_ms: int | None
    state_bytes: int


@dataclass
class _Run:
    status: Published
    at_ms: int


@dataclass
class _Entry:
    about: About | None = None
    runs: dict[str, _Run] = field(default_factory=dict)  # the newest last
    history: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    query_id: str = ""


@dataclass(frozen=True)
class Shown:
    """A pipeline at a moment."""

    about: About
    status: Published
    at_ms: int  # of the status
    age_ms: int
    is_lost: bool
    twins: tuple[str, ...]  # other runs that are alive
    history: tuple[Sample, ...]

    @property
    def identity(self) -> str:
        return self.status.identity

    @property
    def state(self) -> str:
        return "lost" if self.is_lost else self.status.state

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    def does(self, action: str) -> bool:
        """Whether its process would take this command now."""
        if self.is_lost or action not in self.about.does:
            return False
        if self.status.state in ("done", "failed"):
            return False
        return action != "stop" or self.status.state != "stopped"


class Board:
    """See the module. Any thread may look at it while another takes records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}  # the one that changed last is the last
        self._versions: dict[str, VersionsShown] = {}
        self._diffs: dict[str, DiffShown] = {}
        self.ignored = 0  # records that are not ours

    def take(
        self, key: bytes | None, value: bytes | None, time_ms: int, came_ms: int | None = None
    ) -> None:
        """Apply a record of this time, which may be known to have come at another one."""
        prefix, colon, name = (key or b"").decode(errors="replace").partition(":")
        prefix += colon
        came_ms = time_ms if came_ms is None else came_ms
        try:
            with self._lock:
                self._take(prefix, name, value, time_ms, came_ms)
        except ValueError:
            self.ignored += 1

    def _take(
        self, prefix: str, name: str, value: bytes | None, time_ms: int, came_ms: int
    ) -> None:
        if value is None:
            self._forget(prefix, name)
            return
        match prefix:
            case pipeline_records.STATUS:
                self._take_status(name, decode(Published, value), time_ms, came_ms)
            case pipeline_records.ABOUT:
                self._take_about(name, decode(About, value))
            case pipeline_records.VERSIONS:
                _keep(self._versions, name, decode(VersionsShown, value))
            case pipeline_records.DIFF:
                _keep(self._diffs, name, decode(DiffShown, value))
            case _:
                self.ignored += 1

    def pipelines(self, now_ms: int) -> list[Shown]:
        """By their names."""
        with self._lock:
            found = [self._shown(it, now_ms) for it in self._entries.values() if it.runs]
        return sorted(found, key=lambda it: (it.about.pipeline, it.about.started_ms, it.identity))

    def versions(self, pipeline: str) -> VersionsShown | None:
        return self._versions.get(pipeline)

    def diff(self, pipeline: str) -> DiffShown | None:
        return self._diffs.get(pipeline)

    def _entry(self, identity: str) -> _Entry:
        entry = self._entries.pop(identity, None) or _Entry()
        self._entries[identity] = entry
        while len(self._entries) > PIPELINES_MAX:
            self._entries.pop(next(iter(self._entries)))
        return entry

    def _take_about(self, identity: str, about: About) -> None:
        if about.identity != identity:
            raise ValueError(identity)
        entry = self._entry(identity)
        if about.query_id != entry.query_id:
            entry.query_id = about.query_id
            entry.history.clear()
        entry.about = about

    def _take_status(self, identity: str, status: Published, time_ms: int, came_ms: int) -> None:
        if status.identity != identity:
            raise ValueError(identity)
        entry = self._entry(identity)
        entry.runs.pop(status.run, None)
        entry.runs[status.run] = _Run(status, came_ms)
        while len(entry.runs) > RUNS_MAX:
            entry.runs.pop(next(iter(entry.runs)))
        mark = status.watermark_ms
        entry.history.append(
            Sample(
                time_ms,
                status.rows_per_second if status.state in RUNNING else 0.0,
                status.lag,
                status.batch_ms,
                None if mark is None else max(time_ms - mark, 0),
                status.state_bytes,
            )
        )

    def _forget(self, prefix: str, name: str) -> None:
        if prefix == STATUS:
            self._entries.pop(name, None)
        elif prefix == VERSIONS:
            self._versions.pop(name, None)
        elif prefix == DIFF:
            self._diffs.pop(name, None)

    def _shown(self, entry: _Entry, now_ms: int) -> Shown:
        *others, newest = entry.runs.values()
        status = newest.status
        about = entry.about
        if about is None:
            name, _, version = status.identity.partition("@")
            about = About(name, version or "1", status.identity, status.run)
        twins = [
            it.status.run
            for it in others
            if it.status.state in RUNNING and not is_lost(it.status, now_ms - it.at_ms)
        ]
        # One that was restarted a moment ago left a status that is fresh: it has said nothing
        # since the new run began.
        began_ms = about.started_ms if about.run == status.run else 0
        is_alive = any(
            it.status.run in twins and it.at_ms > began_ms + LOST_AFTER_MS_MIN for it in others
        )
        age_ms = max(now_ms - newest.at_ms, 0)
        return Shown(
            about,
            status,
            newest.at_ms,
            age_ms,
            is_lost(status, age_ms),
            tuple(twins) if is_alive else (),
            tuple(entry.history),
        )


def _keep(kept: dict[str, T], name: str, value: T) -> None:
    kept.pop(name, None)
    kept[name] = value
    while len(kept) > PIPELINES_MAX:
        kept.pop(next(iter(kept)))


class Timed(Protocol):
    """A status that says how soon the next one comes."""

    @property
    def state(self) -> str: ...

    @property
    def every_ms(self) -> int: ...


def is_lost(status: Timed, age_ms: int) -> bool:
    """Whether it should have said something since; one that has ended says no more. One that is
    stopped and can be restarted goes on to tell that it is there."""
    if status.state in ("done", "failed") or (status.state == "stopped" and not status.every_ms):
        return False
    every_ms = min(max(status.every_ms, 0), 60_000)
    return age_ms > max(LOST_AFTER * every_ms, LOST_AFTER_MS_MIN)
