"""A running pipeline makes itself known: its graph and status, to a topic of its cluster.

A thread of the driver's process reads the progress of its queries every two seconds, writes one
small batch to `__millstream_pipelines`, and looks for commands. There is one such thread for each
cluster, and it ends with the last query. The pipeline never waits for it: if the cluster cannot be
reached, or the user lacks a right, that is logged once, and tried again later. What is published is
in `millstream.admin.pipeline_records`; `publish_status = false` turns it off.

Commands are answered by what the status says next. Those of a query that `millstream run` started
go to its loop (`Control`), which can start it again; another query can only be stopped, after its
running batch.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import shlex
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millstream.admin.following import TopicFollower, write_records
from millstream.admin.pipeline_records import (
    ABOUT,
    COMMANDS_TOPIC,
    DIFF,
    STATUS,
    STATUS_TOPIC,
    VERSIONS,
    About,
    Action,
    Command,
    OperatorStatus,
    OutputStatus,
    Published,
    SourceStatus,
    decode,
    encode,
    shortened,
)
from millstream.admin.pipelines import create_status_topics
from millstream.client.cluster import Cluster
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.pipelines.running.failures import explain_failure, without_values
from millstream.pipelines.running.status import (
    Status,
    Watched,
    batch_number,
    is_between_batches,
)
from millstream.pipelines.spec import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.pipelines.running.settings import Settings

logger = logging.getLogger(__name__)

TICK_SECONDS = 2.0
IDLE_TICKS = 2  # a status that did not change is repeated every so many ticks
ABOUT_SECONDS = 3_600.0  # so that retention does not remove it
VERSIONS_SECONDS = 5.0
RETRY_SECONDS_MAX = 30.0  # it is tried again after a tick first, then after twice as long
NOT_ALLOWED_SECONDS = 300.0  # for which commands are not read without the right to do so
NOT_ALLOWED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
TIMEOUT_SECONDS = 10.0
LAST_WORDS_SECONDS = 5.0
FINISH_SECONDS_MAX = 60.0
_PASSWORD = re.compile(r"(://[^/:@]*):.*@")  # it may have a slash or an @ itself
ENDED = ("stopped", "done", "failed")


class Control(Protocol):
    """The process's part that started a query, and can stop and start it."""

    @property
    def is_open(self) -> bool:
        """Whether it can still start it again."""

    def ask(self, identity: str, action: Action) -> None:
        """From any thread; returns at once."""


@dataclass
class Entry:
    """A query that is published."""

    pipeline: PipelineSpec
    settings: Settings
    watched: Watched
    once: bool
    control: Control | None
    explain: Callable[[], Any] | None  # the graph, which takes some calls to the JVM
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    is_deployed: bool = False
    is_stopping: bool = False
    about: About | None = None
    about_at: float = 0.0
    versions_at: float = 0.0
    versions: bytes = b""
    last: Published | None = None
    ticks: int = 0

    @property
    def identity(self) -> str:
        return self.pipeline.identity

    @property
    def has_ended(self) -> bool:
        """Whether nobody will start it again."""
        if self.control is not None and self.control.is_open and not self.once:
            return False
        return self.watched.status.state in ENDED

    def does(self) -> tuple[Action, ...]:
        actions: list[Action] = ["stop"] if not self.once else []
        if self.control is not None and not self.once:
            actions.append("restart")
        if self.is_deployed:
            actions.append("diff")
        return tuple(actions)


def publish(
    pipeline: PipelineSpec,
    settings: Settings,
    query: StreamingQuery,
    *,
    once: bool,
    control: Control | None,
    explain: Callable[[], Any],
    is_deployed: bool = False,
) -> None:
    """Publish a query until it ends; returns at once, and never raises."""
    if not settings.publish_status:
        return
    entry = Entry(
        pipeline,
        settings,
        Watched(pipeline.identity, query, pipeline),
        once,
        control,
        explain,
        is_deployed=is_deployed,
    )
    key = (settings.required_broker(), tuple(sorted(settings.kafka.items())))
    with _guard:
        found = _publishers.get(key)
        if found is None or not found.add(entry):
            for ended in [it for it, known in _publishers.items() if not known.is_alive()]:
                del _publishers[ended]  # with its settings, which may have secrets
            found = _publishers[key] = Publisher(settings)
            found.add(entry)
            found.start()


def finish(seconds: float = LAST_WORDS_SECONDS, *, is_exiting: bool = False) -> None:
    """Publish now, and wait for it for so long at most: queries may just have ended."""
    deadline = time.monotonic() + seconds
    with _guard:
        publishers = [it for it in _publishers.values() if it.is_alive()]
    for it in publishers:
        it.finish(deadline, is_exiting=is_exiting)


_publishers: dict[Any, Publisher] = {}
_guard = threading.Lock()
atexit.register(lambda: finish(2.0, is_exiting=True))


class Publisher(threading.Thread):
    """Publishes the queries of this process that use one cluster."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(name="millstream-pipeline-status", daemon=True)
        self._cluster = Cluster(
            settings.required_broker(),
            client_id="millstream-pipeline-status",
            security=settings.kafka,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        self._entries: list[Entry] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._commands = TopicFollower(COMMANDS_TOPIC, from_end=True)
        self._takes_commands = True
        self._not_allowed_until = 0.0
        self._are_topics_there = False
        self._is_exiting = False
        self._has_ended = False
        self._asked = self._answered = 0  # how often somebody has waited for it
        self._answer = threading.Condition(self._lock)
        self._warned = ""

    def add(self, entry: Entry) -> bool:
        """Whether it is published here; not if the thread has just ended."""
        with self._lock:
            if self._has_ended:
                return False
            # Started again under the same name: the one before has said what it had to say.
            self._entries = [it for it in self._entries if it.identity != entry.identity]
            self._entries.append(entry)
        self._wake.set()
        return True

    def finish(self, deadline: float, *, is_exiting: bool) -> None:
        """Publish once more, now; with `is_exiting`, the queries end with their process."""
        with self._answer:
            self._is_exiting = is_exiting
            self._asked += 1
            asked = self._asked
            self._wake.set()
            self._answer.wait_for(
                lambda: self._answered >= asked or self._has_ended,
                max(deadline - time.monotonic(), 0.0),
            )

    def run(self) -> None:
        wait_seconds = 0.0
        while not self._is_done():
            self._wake.wait(wait_seconds)
            self._wake.clear()
            asked = self._asked
            try:
                self._tick()
                wait_seconds = TICK_SECONDS
                self._warned = ""
            except Exception as error:  # noqa: BLE001  # the pipeline must not suffer from it
                self._warn(error)
                wait_seconds = min(max(2 * wait_seconds, TICK_SECONDS), RETRY_SECONDS_MAX)
                for entry in list(self._entries):
                    look(entry, self._is_exiting)  # the thread ends with them
            with self._answer:
                self._answered = asked
                self._answer.notify_all()
        self._cluster.close()

    def _is_done(self) -> bool:
        with self._answer:
            # Also those whose last status could not be written: nobody waits for it.
            self._entries = [it for it in self._entries if not it.has_ended]
            self._has_ended = not self._entries
            if self._has_ended:
                self._answer.notify_all()
            return self._has_ended

    def _warn(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        level = logging.DEBUG if text == self._warned else logging.WARNING
        self._warned = text
        logger.log(
            level,
            "the status of pipelines is not published to %s: %s (publish_status = false turns "
            "this off)",
            STATUS_TOPIC,
            text,
        )

    def _tick(self) -> None:
        if not self._are_topics_there:
            create_status_topics(self._cluster)
            self._are_topics_there = True
        with self._lock:
            entries = list(self._entries)
        self._obey(entries)
        records: list[tuple[str, bytes | None]] = []
        for entry in entries:
            records += self._news(entry)
        if records:
            write_records(self._cluster, STATUS_TOPIC, records)

    # What is published

    def _news(self, entry: Entry) -> list[tuple[str, bytes | None]]:
        status = look(entry, self._is_exiting)
        now = time.monotonic()
        news: list[tuple[str, bytes | None]] = []
        if entry.about is None or now - entry.about_at > ABOUT_SECONDS:
            entry.about = entry.about or describe(entry, self._takes_commands)
            entry.about_at = now
            news.append((f"{ABOUT}{entry.identity}", encode(entry.about)))
        entry.ticks += 1
        if status != entry.last or entry.ticks >= IDLE_TICKS:
            entry.last, entry.ticks = status, 0
            news.append((f"{STATUS}{entry.identity}", encode(status)))
        if entry.is_deployed and now - entry.versions_at > VERSIONS_SECONDS:
            entry.versions_at = now
            news += self._versions(entry)
        return news

    def _versions(self, entry: Entry) -> list[tuple[str, bytes | None]]:
        from millstream.pipelines.running.publishing_versions import versions_shown

        try:
            content = encode(versions_shown(entry.settings, entry.pipeline.name))
        except (MillstreamError, OSError) as error:
            logger.debug("the versions of %s cannot be read: %s", entry.pipeline.name, error)
            return []
        if content == entry.versions:
            return []
        entry.versions = content
        return [(f"{VERSIONS}{entry.pipeline.name}", content)]

    # What is asked

    def _obey(self, entries: list[Entry]) -> None:
        if time.monotonic() < self._not_allowed_until:
            return
        try:
            asked = list(self._commands.read(self._cluster))
        except MillstreamError as error:
            if not isinstance(error, ApiError) or error.code not in NOT_ALLOWED:
                logger.debug("commands cannot be read at the moment: %s", error)
                return
            if self._takes_commands:
                logger.warning("pipelines cannot be stopped from elsewhere: %s", error)
            self._not_allowed_until = time.monotonic() + NOT_ALLOWED_SECONDS
            self._take_commands(entries, False)
            return
        self._take_commands(entries, True)
        for record in asked:
            try:
                command = decode(Command, record.value or b"")
            except ValueError as error:
                logger.debug("a record of %s is ignored: %s", COMMANDS_TOPIC, error)
                continue
            for entry in entries:
                if entry.identity == command.identity and entry.run == command.run:
                    self._do(entry, command)

    def _take_commands(self, entries: list[Entry], takes_them: bool) -> None:
        """What is published says what can be asked for."""
        if takes_them == self._takes_commands:
            return
        self._takes_commands = takes_them
        for entry in entries:
            if entry.about is not None:
                entry.about = replace(entry.about, does=entry.does() if takes_them else ())
                entry.about_at = -math.inf

    def _do(self, entry: Entry, command: Command) -> None:
        if command.action not in entry.does():
            return
        logger.info("%s: %s, asked for by %s", entry.identity, command.action, command.by or "-")
        if command.action == "diff":
            target = lambda: self._compare(entry, command)  # noqa: E731
        elif entry.control is not None:
            entry.is_stopping = True
            entry.control.ask(entry.identity, command.action)
            return
        else:
            entry.is_stopping = True
            target = lambda: stop_after_batch(entry.watched)  # noqa: E731
        threading.Thread(target=target, name=f"{command.action}-{entry.identity}").start()

    def _compare(self, entry: Entry, command: Command) -> None:
        from millstream.pipelines.running.publishing_versions import diff_shown, running_diff

        key = f"{DIFF}{entry.pipeline.name}"
        with Cluster(
            entry.settings.required_broker(),
            client_id="millstream-pipeline-diff",
            security=entry.settings.kafka,
            timeout_seconds=TIMEOUT_SECONDS,
        ) as cluster:
            running = running_diff(entry.pipeline.name, command)
            write_records(cluster, STATUS_TOPIC, [(key, encode(running))])
            found = diff_shown(entry.settings, entry.pipeline.name, command)
            write_records(cluster, STATUS_TOPIC, [(key, encode(found))])


def look(entry: Entry, is_exiting: bool = False) -> Published:
    """The status of a query; one whose session is gone has stopped."""
    error = ""
    try:
        status = entry.watched.status if is_exiting else entry.watched.update()
        if status.state == "failed":
            cause = entry.watched.query.exception()
            if cause:
                # Whoever reads the status may lack the right to read the records.
                error = without_values(str(explain_failure(entry.identity, cause)), _known(entry))
    except Exception:  # noqa: BLE001  # Py4J's own: the session was stopped, or the JVM has ended
        status = entry.watched.status
        status.state = "stopped"
    if is_exiting and status.state not in ENDED:
        status.state = "stopped"
    if status.state == "done" and not entry.once:
        status.state = "stopped"
    shown = status.state
    if entry.is_stopping and shown in ENDED:
        entry.is_stopping = False
    elif entry.is_stopping:
        shown = "stopping"
    every_seconds = 0.0 if entry.has_ended else IDLE_TICKS * TICK_SECONDS
    return published(entry, status, shown, error, every_seconds)


def _known(entry: Entry) -> str:
    """Names that are published anyway: of the pipeline, its topics and columns."""
    pipeline, nodes = entry.pipeline, entry.about.nodes if entry.about is not None else ()
    topics = (it.name for them in (pipeline.reads, pipeline.writes) for it in them.values())
    texts = (it for node in nodes for it in (node.title, *chain.from_iterable(node.details)))
    return " ".join((entry.identity, *topics, *texts))


def published(
    entry: Entry, status: Status, state: str, error: str, every_seconds: float
) -> Published:
    return Published(
        entry.identity,
        entry.run,
        state,
        round(every_seconds * 1000),
        shortened(error),
        status.batch,
        status.batches,
        status.batch_ms,
        status.phases_ms,
        status.rows,
        round(status.rows_per_second, 1),
        status.lag,
        status.failed,
        dict(status.late),
        status.watermark_ms,
        status.newest_ms,
        status.kept_rows,
        status.kept_bytes,
        status.restarts,
        {
            name: SourceStatus(it.rows, round(it.rows_per_second, 1), it.lag, it.bad)
            for name, it in status.sources.items()
        },
        tuple(OperatorStatus(it.name, it.rows, it.bytes, it.dropped) for it in status.operators),
        {
            name: OutputStatus(it.rows, round(it.rows_per_second, 1), it.late, it.corrections)
            for name, it in status.outputs.items()
        },
    )


def describe(entry: Entry, takes_commands: bool) -> About:
    """What the pipeline is; without a graph if that cannot be read."""
    from millstream.pipelines.running.graphs import GraphMaker, pattern_names

    pipeline, settings = entry.pipeline, entry.settings
    about = About(
        pipeline.name,
        pipeline.version,
        entry.identity,
        entry.run,
        description=shortened(" ".join((getattr(pipeline, "__doc__", None) or "").split())),
        reads=tuple(dict.fromkeys(it.name for it in pipeline.reads.values())),
        writes=tuple(it.name for it in pipeline.writes.values()),
        queries=tuple(dict.fromkeys(it.queries for it in pipeline.reads.values() if it.queries)),
        group=pipeline.group_id,
        checkpoint=f"{without_password(settings.checkpoint or '').rstrip('/')}/{entry.identity}",
        store=without_password(settings.store_url),
        trigger=settings.trigger or "",
        host=socket.gethostname(),
        process=os.getpid(),
        command=shortened(command_line(sys.argv), 300),
        started_ms=entry.started_ms,
        does=entry.does() if takes_commands else (),
        once=entry.once,
    )
    try:
        about = replace(about, query_id=str(entry.watched.query.id))
        explanation = entry.explain() if entry.explain is not None else None
    except Exception:  # the query has ended, with its session
        logger.debug("the graph of %s cannot be read", entry.identity, exc_info=True)
        return about
    entry.explain = None
    if explanation is None:
        return about
    return replace(
        about,
        output_mode=explanation.output_mode,
        nodes=GraphMaker(explanation).nodes(),
        patterns=pattern_names(explanation),
    )


def explained(
    pipeline: PipelineSpec, spark: SparkSession, made: Any, result: DataFrame, mode: str
) -> Callable[[], Any]:
    """Reads the graph when it is called."""

    def explain() -> Any:
        from millstream.pipelines.running.plan_steps import explain_frames

        return explain_frames(pipeline, spark, made, result, mode)

    return explain


def command_line(arguments: list[str]) -> str:
    """What started the process, if it is `millstream`: other programs may be given secrets."""
    name = Path(arguments[0]).name if arguments else ""
    if name not in ("millstream", "entry.py") or len(arguments) < 2:
        return ""
    return "millstream " + shlex.join(_without_secrets(arguments[1:]))


def _without_secrets(arguments: list[str]) -> list[str]:
    return [without_password(it) if "://" in it else it for it in arguments]


def without_password(url: str) -> str:
    """A URL that can be shown. What follows a question mark may be a secret, too; a password may
    have one itself."""
    return _PASSWORD.sub(r"\1@", url).partition("?")[0]


def stop_after_batch(watched: Watched) -> None:
    """Stop a query when it is between two batches, or after a minute."""
    try:
        batch = batch_number(watched)
        deadline = time.monotonic() + FINISH_SECONDS_MAX
        while not is_between_batches(watched, batch) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS / 40)
        watched.query.stop()
    except Exception:  # it has ended with its session
        logger.debug("%s has ended before", watched.name, exc_info=True)
