"""Following what pipelines publish, and asking them to stop or restart; see `pipeline_records`."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from millstream.admin.pipeline_board import Board, Shown
from millstream.admin.pipeline_records import (
    ABOUT,
    COMMAND_SETTINGS,
    COMMANDS_TOPIC,
    PARTITION,
    STATUS,
    STATUS_SETTINGS,
    STATUS_TOPIC,
    Action,
    Command,
    encode,
)
from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches, log_end_offset, log_start_offset
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch, encode_batch

POLL_SECONDS = 0.5


class TopicRecord(NamedTuple):
    """A record of one of the topics."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class TopicFollower:
    """Reads one of the topics, from its beginning or its end on."""

    def __init__(self, topic: str, *, from_end: bool = False) -> None:
        self._topic = topic
        self._from_end = from_end
        self._id: uuid.UUID | None = None
        self._position: int | None = None
        self.starts = 0  # how often it has begun at the beginning
        self.exists = False

    def read(self, cluster: Cluster, *, seconds_max: float = inf) -> Iterator[TopicRecord]:
        """What has come since; begins again if the topic is another one than before. What takes
        longer than `seconds_max` is left for the next time. Raises `ApiError` without the right to
        read it."""
        found = cluster.retrying(lambda: cluster.refresh([self._topic])).get(self._topic)
        self.exists = found is not None
        if found is None:
            self._position = None
            return
        end = log_end_offset(cluster, self._topic, PARTITION)
        if self._position is None or found.id != self._id or self._position > end:
            is_first = self._id is None
            self._id = found.id
            start = log_start_offset(cluster, self._topic, PARTITION)
            self._position = end if self._from_end and is_first else start
            self.starts += 1
        yield from self._read_to(cluster, end, time.monotonic() + seconds_max)

    def _read_to(self, cluster: Cluster, end: int, deadline: float) -> Iterator[TopicRecord]:
        assert self._position is not None
        while self._position < end and time.monotonic() < deadline:
            try:
                fetched = fetch_batches(cluster, self._topic, PARTITION, self._position)
            except ApiError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                self._position = log_start_offset(cluster, self._topic, PARTITION)
                continue
            before = self._position
            for at, header in iterate_headers(fetched.records):
                if header.next_offset <= self._position:
                    continue
                self._position = header.next_offset
                if not header.is_control:
                    for it in decode_batch(fetched.records, at):
                        yield TopicRecord(it.timestamp, it.key, it.value)
            if self._position == before:
                self._position = end  # compaction has left nothing of the rest


class PipelineFollower:
    """The board of a cluster, kept up to date when it is asked. Any thread."""

    def __init__(self, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._follower = TopicFollower(STATUS_TOPIC)
        self._starts = 0
        self._is_live = False
        self._read_at = 0.0
        self.board = Board()

    @property
    def exists(self) -> bool:
        """Whether a pipeline has ever published anything."""
        return self._follower.exists

    def update(self, cluster: Cluster, *, seconds_old_max: float = 0.0) -> Board:
        """Read on, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._read_at < seconds_old_max:
                return self.board
            for record in self._follower.read(cluster):
                if self._follower.starts != self._starts:
                    self._start_over()
                now_ms = self._clock_ms()
                time_ms = min(record.timestamp_ms, now_ms)
                came_ms = now_ms if self._is_live else time_ms
                self.board.take(record.key, record.value, time_ms, came_ms)
            if self._follower.starts != self._starts or not self._follower.exists:
                self._start_over()
            self._is_live = True
            self._read_at = time.monotonic()
            return self.board

    def _start_over(self) -> None:
        self._starts = self._follower.starts
        self._is_live = False
        self.board = Board()


def create_status_topics(cluster: Cluster) -> None:
    """Create the topics that are missing; raises `ApiError` without the right to do so."""
    known = cluster.retrying(lambda: cluster.refresh([STATUS_TOPIC, COMMANDS_TOPIC]))
    wanted = [
        NewTopic(STATUS_TOPIC, 1, STATUS_SETTINGS),
        NewTopic(COMMANDS_TOPIC, 1, COMMAND_SETTINGS),
    ]
    create_topics(cluster, [it for it in wanted if it.name not in known])


def write_records(cluster: Cluster, topic: str, records: list[tuple[str, bytes | None]]) -> None:
    """Keys and values, in one batch; raises `ApiError` or `OSError`."""
    now_ms = time.time_ns() // 1_000_000
    batch = encode_batch(
        [Record(number, now_ms, key.encode(), it) for number, (key, it) in enumerate(records)]
    )
    producer = RawProducer(cluster)
    producer.send(topic, PARTITION, batch, len(records))
    producer.flush()


def read_pipelines(cluster: Cluster, now_ms: int) -> list[Shown]:
    """All pipelines that are known, at this moment."""
    return PipelineFollower(lambda: now_ms).update(cluster).pipelines(now_ms)


def find_pipeline(pipelines: list[Shown], identity: str) -> Shown:
    """Raises `ConfigError` if nobody has heard of it."""
    for it in pipelines:
        if it.identity == identity:
            return it
    known = ", ".join(it.identity for it in pipelines) or "none"
    raise ConfigError(f"there is no pipeline {identity} (known: {known})")


def send_command(
    cluster: Cluster,
    shown: Shown,
    action: Action,
    *,
    by: str = "",
    versions: tuple[str, str] | None = None,
    time_column: str | None = None,
) -> Command:
    """Ask the run to do something; raises `ConfigError` if it would not."""
    if not shown.does(action):
        raise ConfigError(why_not(shown, action))
    command = Command(
        uuid.uuid4().hex,
        shown.identity,
        shown.status.run,
        action,
        by,
        versions or (),
        time_column,
    )
    write_records(cluster, COMMANDS_TOPIC, [(shown.identity, encode(command))])
    return command


def why_not(shown: Shown, action: Action) -> str:
    """Why the pipeline cannot be asked to do this."""
    name, status = shown.identity, shown.status
    if shown.is_lost:
        return (
            f"{name} has given no sign of life for {shown.age_ms / 1000:.0f} s: its process was "
            "killed, or cannot reach the cluster. Start it again where it runs"
        )
    if status.state in ("done", "failed"):
        return f"{name} is {status.state}, and its process has ended: start it again"
    if action == "stop" and status.state == "stopped":
        return f"{name} is stopped already"
    if not shown.about.does:
        return (
            f"{name} takes no commands: its user lacks Read on the topic {COMMANDS_TOPIC}, or its "
            "process has ended"
        )
    return (
        f"{name} was started by a program, not by `millstream run`: "
        f"{', '.join(shown.about.does)} is all that it can be asked for"
    )


def forget_pipeline(cluster: Cluster, shown: Shown) -> None:
    """Remove one that has ended from what is shown; raises `ConfigError` if it runs."""
    if shown.is_running:
        raise ConfigError(f"{shown.identity} is running: stop it first")
    write_records(
        cluster,
        STATUS_TOPIC,
        [(f"{ABOUT}{shown.identity}", None), (f"{STATUS}{shown.identity}", None)],
    )


def wait_for(
    cluster: Cluster, identity: str, is_so: Callable[[Shown], bool], seconds: float
) -> Shown | None:
    """The pipeline when it is so; None if that takes too long."""
    follower = PipelineFollower()
    deadline = time.monotonic() + seconds
    while True:
        now_ms = time.time_ns() // 1_000_000
        found = find_pipeline(follower.update(cluster).pipelines(now_ms), identity)
        if is_so(found):
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)
