"""Samples a cluster for the history and for pages with numbers of everything in it.

One sampler per user of the console, in a thread of its own: it sees what that user may see. It
samples every few seconds, less often if a sample takes long, so that it needs at most a small part
of a processor and of the brokers. Settings of topics, and what retention threatens, change slowly
and are refreshed once a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

from starlette.requests import Request

from millstream.admin.cluster_state import ClusterState, cluster_state
from millstream.admin.groups import list_groups
from millstream.admin.lag import GroupLag, group_lags, timestamps_at
from millstream.admin.log_dirs import LogDirs, log_dirs
from millstream.admin.offsets import EARLIEST, LATEST, find_offsets
from millstream.admin.settings import settings_of_topics
from millstream.client.cluster import Cluster
from millstream.console.history import History, Key, thinned
from millstream.console.samples import (
    RISK_SHARE,
    SETTINGS,
    AtRisk,
    Sample,
    leader_sizes,
    rates,
    values,
)
from millstream.console.sessions import Session, session_of
from millstream.errors import ApiError, MillstreamError
from millstream.partitions import TopicPartition

INTERVAL_SECONDS = 5.0
SHARE_MAX = 0.05  # of the time that sampling may take
INTERVAL_SECONDS_MAX = 1800.0
SLOW_SECONDS = 60.0  # how often what changes slowly is refreshed
FRESH_SECONDS = 1.0
SMALL_MAX = 2_000  # partitions and groups: of a cluster of this size, pages take samples themselves
RISKS_MAX = 200
SAMPLERS_MAX = 20
TIMEOUT_SECONDS = 5.0
TREND_SECONDS = 900.0
TREND_SIZE = 48

_log = logging.getLogger(__name__)
Found = TypeVar("Found")


def take_sample(cluster: Cluster, before: Sample | None = None, *, refresh: bool = True) -> Sample:
    """A sample now. `refresh`: also what changes slowly, instead of taking it from `before`.

    Raises `OSError` or `ApiError` if no broker answers; what the user may not see is missing.
    """
    started, time_ms = time.monotonic(), round(time.time() * 1000)
    problems: list[str] = []
    state = cluster_state(cluster)
    places = list(state.leaders)
    starts = find_offsets(cluster, dict.fromkeys(places, EARLIEST), leaders=state.leaders).found
    ends = find_offsets(cluster, dict.fromkeys(places, LATEST), leaders=state.leaders).found
    on_disk = _or_problem(lambda: log_dirs(cluster), problems) or LogDirs([], [])
    problems += [it.problem for it in on_disk.directories if it.problem]
    lags = _or_problem(
        lambda: group_lags(cluster, list_groups(cluster), starts=starts, ends=ends), problems
    )
    sample = Sample(
        time_ms,
        state,
        starts,
        ends,
        tuple(on_disk.directories),
        leader_sizes(state, on_disk.replicas),
        sum(it.bytes for it in on_disk.replicas) if on_disk.replicas else None,
        tuple(lags or ()),
    )
    if not refresh:
        if before is not None:
            settings = _or_problem(lambda: _kept_settings(cluster, before, state), problems)
            sample = replace(sample, settings=settings or {}, at_risk=before.at_risk)
    else:
        names = list(state.topics)
        every = _or_problem(lambda: settings_of_topics(cluster, names, SETTINGS), problems)
        sample = replace(sample, settings=every or {})
        risks = _or_problem(lambda: at_risk(cluster, sample), problems)
        sample = replace(sample, at_risk=tuple(risks or ()))
    took = time.monotonic() - started
    return replace(sample, problems=tuple(dict.fromkeys(problems)), took_seconds=took)


def _kept_settings(
    cluster: Cluster, before: Sample, state: ClusterState
) -> Mapping[str, Mapping[str, str]]:
    """The settings of before, and those of topics that were created since."""
    known = before.state.topics
    created = [
        name for name, it in state.topics.items() if name not in known or known[name].id != it.id
    ]
    if not created:
        return before.settings
    kept = {name: it for name, it in before.settings.items() if name in state.topics}
    return kept | settings_of_topics(cluster, created, SETTINGS)


def _or_problem(ask: Callable[[], Found], problems: list[str]) -> Found | None:
    try:
        return ask()
    except ApiError as error:
        problems.append(str(error))
        return None


def at_risk(cluster: Cluster, sample: Sample) -> list[AtRisk]:
    """What groups have not read and retention deletes soon, the most urgent first.

    One request finds the partitions: the offset of the time when `RISK_SHARE` of the retention is
    left. Only of those behind it are the oldest unread records read.
    """
    limits: dict[TopicPartition, int] = {}
    for place in {(topic, index) for it in sample.groups for topic, index, _ in it.unread}:
        retention_ms = sample.retention_ms(place[0])
        if retention_ms is not None:
            limits[place] = max(0, sample.time_ms - round(retention_ms * (1 - RISK_SHARE)))
    safe = find_offsets(cluster, limits, leaders=sample.state.leaders).found
    found = []
    for group, topic, index, offset, timestamp_ms in _dated(
        cluster, _behind(sample.groups, safe)[:RISKS_MAX]
    ):
        expires = None
        if timestamp_ms is not None:
            expires = timestamp_ms + (sample.retention_ms(topic) or 0)
        unread = sample.ends.get((topic, index), offset) - offset
        found.append(AtRisk(group.group, topic, index, unread, expires))
    found.sort(key=lambda it: (it.expires_ms is None, it.expires_ms or 0))
    return found


def _behind(
    groups: Iterable[GroupLag], safe: Mapping[TopicPartition, int]
) -> list[tuple[GroupLag, str, int, int]]:
    """Groups with unread records before the offset; -1: all records of the partition are older."""
    return [
        (group, topic, index, offset)
        for group in groups
        for topic, index, offset in group.unread
        if (topic, index) in safe and (safe[topic, index] < 0 or offset < safe[topic, index])
    ]


def _dated(
    cluster: Cluster, behind: Sequence[tuple[GroupLag, str, int, int]]
) -> Iterator[tuple[GroupLag, str, int, int, int | None]]:
    """The same with the timestamps of the oldest unread records. Several groups may be at different
    offsets of one partition: these are asked for in turns."""
    rest = list(behind)
    while rest:
        turn = {(topic, index): offset for _, topic, index, offset in reversed(rest)}
        times = timestamps_at(cluster, turn)
        for it in rest:
            if turn[it[1], it[2]] == it[3]:
                yield (*it, times.get((it[1], it[2])))
        rest = [it for it in rest if turn[it[1], it[2]] != it[3]]


class Sampler:
    """See the module. `start` and `stop` once each; the rest from any thread."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.history = History()
        self._is_wanted = is_wanted
        self._connect = connect
        self._interval_seconds = interval_seconds
        self._latest: Sample | None = None
        self._before: Sample | None = None  # the last one of the thread
        self._rates: dict[Key, float] = {}
        self._has_failed = False  # unexpectedly, which is logged once
        self._taking = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="console-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._stopped.is_set()

    def join(self, seconds_max: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds_max)

    @property
    def rates(self) -> Mapping[Key, float]:
        """Rates between the last two samples of the thread; empty before there are two."""
        return self._rates

    def trend(self, kind: str, of: str, size: int = TREND_SIZE) -> list[float]:
        """Recent values for a sparkline, the oldest first; gaps are left out."""
        since = time.time() - TREND_SECONDS
        values = thinned(self.history.points((kind, of), since), size)
        return [it for it in values if it is not None]

    def current(self, cluster: Cluster) -> Sample:
        """A recent sample: of a small cluster from now, of a large one the last of the thread."""
        latest = self._latest
        if latest is not None and not self._is_stale(latest):
            return latest
        with self._taking:  # many browsers may ask at once
            latest = self._latest
            if latest is None or self._is_stale(latest):
                latest = take_sample(cluster, latest, refresh=self._before is None)
                self._latest = latest
            return latest

    def _is_stale(self, sample: Sample) -> bool:
        age = time.time() - sample.time_ms / 1000
        if sample.state.partition_count + len(sample.groups) <= SMALL_MAX:
            return not 0 <= age < FRESH_SECONDS
        # If the thread is in trouble, old numbers are no longer shown as if they were new.
        return age > 2 * (pause(sample.took_seconds, self._interval_seconds) + sample.took_seconds)

    def _run(self) -> None:
        cluster: Cluster | None = None
        refreshed_at: float | None = None
        wait = 0.0
        while not self._stopped.wait(wait) and self._is_wanted():
            is_first = self._latest is None
            # The first sample is a quick one: pages wait for it.
            refresh = not is_first and (
                refreshed_at is None or time.monotonic() - refreshed_at >= SLOW_SECONDS
            )
            try:
                cluster = cluster or self._connect()
                with self._taking if is_first else nullcontext():
                    self._add(take_sample(cluster, self._before, refresh=refresh))
            except Exception as error:  # noqa: BLE001 (any: the history goes on)
                self._note(error)
                if cluster is not None:
                    cluster.close()
                    cluster = None  # the next one may be of another session
                self._before, self._latest, self._rates = None, None, {}
                refreshed_at, wait = None, self._interval_seconds
                continue
            if refresh:
                refreshed_at = time.monotonic()
            wait = 0.0 if refreshed_at is None else self._pause()
        self._stopped.set()
        if cluster is not None:
            cluster.close()

    def _note(self, error: Exception) -> None:
        if isinstance(error, OSError | MillstreamError):
            _log.debug("no sample of the cluster: %s", error)
        elif not self._has_failed:
            self._has_failed = True
            _log.error("the cluster cannot be sampled, which is tried again", exc_info=error)

    def _add(self, sample: Sample) -> None:
        """A sample of the thread. The first one has no rates, so it is no point of charts."""
        before, self._before, self._latest = self._before, sample, sample
        if before is not None:
            self._rates = rates(before, sample)
            self.history.add(sample.time_ms / 1000, values(before, sample))

    def _pause(self) -> float:
        assert self._before is not None
        return pause(self._before.took_seconds, self._interval_seconds)


def pause(took_seconds: float, interval_seconds: float) -> float:
    """How long to wait after a sample that took so long."""
    wanted = took_seconds / SHARE_MAX - took_seconds
    return max(interval_seconds, min(wanted, INTERVAL_SECONDS_MAX))


class Samplers:
    """The samplers of a console, by user: all sessions of a user see the same."""

    def __init__(self, *, samplers_max: int = SAMPLERS_MAX) -> None:
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()  # the least recently used first
        self._sessions: dict[str, list[Session]] = {}
        self._samplers_max = samplers_max

    def of(self, session: Session) -> Sampler:
        """The sampler of the session's user; it starts now, and ends with the user's sessions."""
        user = session.user or ""
        known = [it for it in self._sessions.get(user, []) if not it.is_closed]
        self._sessions[user] = known if session in known else [*known, session]
        sampler = self._samplers.get(user)
        if sampler is None or not sampler.is_running:
            sampler = Sampler(lambda: self._connect(user), is_wanted=lambda: self._is_there(user))
            sampler.start()
            self._samplers[user] = sampler
        self._samplers.move_to_end(user)
        if len(self._samplers) > self._samplers_max:
            self._samplers.popitem(last=False)[1].stop()
        return sampler

    def _is_there(self, user: str) -> bool:
        return any(not it.is_closed for it in self._sessions.get(user, ()))

    def _connect(self, user: str) -> Cluster:
        """As the newest session: the password of older ones may not be the user's any more."""
        for session in reversed(self._sessions.get(user, ())):
            if not session.is_closed:
                return session.new_cluster(timeout_seconds=TIMEOUT_SECONDS)
        raise ConnectionError("the user has logged out")

    def tidy(self) -> None:
        """Forget sessions that have ended, and their passwords with them."""
        for user, sessions in list(self._sessions.items()):
            self._sessions[user] = [it for it in sessions if not it.is_closed]
            if not self._sessions[user]:
                del self._sessions[user]

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.stop()


def sampler_of(request: Request) -> Sampler:
    """The sampler of a request's user."""
    samplers: Samplers = request.app.state.samplers
    return samplers.of(session_of(request))
