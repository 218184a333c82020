"""Runs pipelines as a program: in its own session, and with its own broker if none is named.

`millstream run` is a thin shell around it. Ctrl-C and SIGTERM let the running batches complete and
then stop; a second Ctrl-C stops at once. If one pipeline fails, all stop, and the error is raised.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.admin.pipeline_records import Action
from millstream.errors import MillstreamError
from millstream.pipelines.running import publishing
from millstream.pipelines.running.failures import explain_failure, passes
from millstream.pipelines.running.launching import launch
from millstream.pipelines.running.prerequisites import check_spark
from millstream.pipelines.running.session import create_session
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.starting import retry_busy
from millstream.pipelines.running.status import (
    Status,
    Watched,
    batch_number,
    is_between_batches,
)
from millstream.pipelines.running.topics import check_topics
from millstream.pipelines.spec import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.broker.embedded import Broker

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
FINISH_SECONDS_MAX = 60.0
RESTARTS_MAX = 5
LOG_NAME = "spark.log"
PREFERRED_PORT = 9092  # where the other commands look for a broker

Show = Callable[[list[Status]], None]


def run(
    pipelines: Sequence[PipelineSpec],
    settings: Settings,
    *,
    once: bool = False,
    allow_new_checkpoint: bool = False,
    remove_views: bool = False,
    rebuild_views: bool = False,
    show: Show = lambda statuses: None,
    announce: Callable[[Settings], None] = lambda settings: None,
) -> list[Status]:
    """Run until all pipelines have ended, or until a signal; raises `PipelineFailed`.

    `announce` is called with the effective settings, before Spark starts; `show` with the status of
    all pipelines, four times a second.
    """
    check_spark()
    with embedded_broker(with_defaults(settings)) as settings:
        announce(settings)
        check_topics(settings, pipelines)
        names = ", ".join(it.name for it in pipelines)
        spark = create_session(
            settings.master,
            settings.spark,
            f"millstream run: {names}",
            settings.home / LOG_NAME,
            shortcuts=settings.spark_shortcuts,
        )
        running = Run(
            pipelines,
            spark,
            settings,
            once=once,
            allow_new_checkpoint=allow_new_checkpoint,
            remove_views=remove_views,
            rebuild_views=rebuild_views,
        )
        try:
            with serving_metrics(settings, running.statuses):
                return running.until_end(show)
        finally:
            spark.stop()


@contextlib.contextmanager
def serving_metrics(settings: Settings, statuses: Callable[[], list[Status]]) -> Iterator[None]:
    """Serve the metrics of pipelines meanwhile, if there is an address for them."""
    if settings.metrics is None:
        yield
        return
    from millstream.metrics.threaded import MetricsThread
    from millstream.pipelines.running.metrics import all_families, problems

    served = MetricsThread(
        settings.metrics,
        lambda: all_families(statuses(), time.time()),
        lambda: problems(statuses()),
        token=settings.metrics_token,
    )
    logger.info("metrics on %s", served.url)
    try:
        yield
    finally:
        served.stop()


@contextlib.contextmanager
def embedded_broker(settings: Settings) -> Iterator[Settings]:
    """The settings with the address of a broker: the one named, or one that runs until we end."""
    if not settings.is_embedded:
        yield settings
        return
    settings.broker_data.mkdir(parents=True, exist_ok=True)
    with start_broker(settings.broker_data) as broker:
        created = True if settings.create_topics is None else settings.create_topics
        # Settings of another cluster's clients are not for this one.
        yield replace(settings, broker=broker.bootstrap_servers, create_topics=created, kafka={})


def start_broker(data: Path) -> Broker:
    """On the preferred port, or on another one if that is in use."""
    from millstream.broker.embedded import Broker

    if is_free(PREFERRED_PORT):
        # Another process may take it while ours starts. Any other problem occurs again below.
        with contextlib.suppress(MillstreamError):
            return Broker.start(data, port=PREFERRED_PORT, in_process=False)
    return Broker.start(data, in_process=False)


def with_defaults(settings: Settings) -> Settings:
    """Checkpoints go to our own directory unless another is named."""
    if settings.checkpoint is not None:
        return settings
    return replace(settings, checkpoint=str(settings.home / "checkpoints"))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class _Order:
    """A pipeline that is to be stopped after its running batch, and then perhaps started."""

    watched: Watched
    is_restart: bool
    batch: int  # the last one then
    deadline: float

    @property
    def is_due(self) -> bool:
        is_late = time.monotonic() > self.deadline
        return is_late or is_between_batches(self.watched, self.batch)


class Run:
    """Pipelines running in one session. One that was stopped from elsewhere waits to be started
    again (`ask`), and the run goes on with it."""

    def __init__(
        self,
        pipelines: Sequence[PipelineSpec],
        spark: SparkSession,
        settings: Settings,
        *,
        once: bool,
        allow_new_checkpoint: bool = False,
        remove_views: bool = False,
        rebuild_views: bool = False,
    ) -> None:
        self._pipelines = pipelines
        self._spark = spark
        self._settings = settings
        self._once = once
        self._allowed = {
            "allow_new_checkpoint": allow_new_checkpoint,
            "remove_views": remove_views,
            "rebuild_views": rebuild_views,
        }
        self._stopping = threading.Event()
        self._watched: list[Watched] = []
        self._asked: queue.SimpleQueue[tuple[str, Action]] = queue.SimpleQueue()
        self._orders: list[_Order] = []
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether it takes orders (`ask`)."""
        return not self._is_over

    def ask(self, identity: str, action: Action) -> None:
        """Stop or restart a query; from any thread."""
        self._asked.put((identity, action))

    def statuses(self) -> list[Status]:
        """As they were last seen; from any thread."""
        return [it.status for it in list(self._watched)]

    def until_end(self, show: Show) -> list[Status]:
        with self._signals():
            try:
                self._start()
                while self._any_runs():
                    self._obey()
                    show(self._look())
                    if self._stopping.wait(TICK_SECONDS):
                        self._finish_batches(show)
                        break
                self._raise_failure()
            finally:
                self._stop_all()
                self._is_over = True
                publishing.finish()
        statuses = self._look()
        show(statuses)
        return statuses

    def _start(self) -> None:
        from pyspark.errors import PySparkException

        for pipeline in self._pipelines:
            try:
                query = self._launch(pipeline)
            except PySparkException as error:
                raise explain_failure(pipeline.name, error) from error
            self._watched.append(Watched(pipeline.name, query, pipeline))

    def _launch(self, pipeline: PipelineSpec) -> StreamingQuery:
        options = {"once": self._once, **self._allowed}
        return retry_busy(
            lambda: launch(pipeline, self._spark, self._settings, **options, control=self)
        )

    def _obey(self) -> None:
        """Do what was asked, at the end of the running batch."""
        while not self._asked.empty():
            identity, action = self._asked.get()
            for it in self._watched:
                if it.query.name == identity:
                    deadline = time.monotonic() + FINISH_SECONDS_MAX
                    order = _Order(it, action == "restart", batch_number(it), deadline)
                    self._orders = [kept for kept in self._orders if kept.watched is not it]
                    self._orders.append(order)
        for order in [it for it in self._orders if it.is_due]:
            self._orders.remove(order)
            self._carry_out(order)

    def _carry_out(self, order: _Order) -> None:
        it = order.watched
        if it.query.isActive:
            it.query.stop()
        self._raise_failure()
        it.status.state = "stopped"
        it.is_paused = not order.is_restart
        if order.is_restart and it.pipeline is not None:
            it.query = self._launch(it.pipeline)

    def _any_runs(self) -> bool:
        """Restart queries that failed because the machine is busy; raise other errors."""
        for it in self._watched:
            error = None if it.query.isActive else it.query.exception()
            if it.pipeline is None or error is None or not passes(error):
                continue
            if it.restarts < RESTARTS_MAX:
                it.restarts += 1
                it.query = self._launch(it.pipeline)
        self._raise_failure()
        return any(it.query.isActive or it.is_paused for it in self._watched)

    def _look(self) -> list[Status]:
        return [it.update() for it in self._watched]

    def _raise_failure(self) -> None:
        for it in self._watched:
            error = None if it.query.isActive else it.query.exception()
            if error is not None:
                it.status.state = "failed"
                raise explain_failure(it.name, error)

    def _finish_batches(self, show: Show) -> None:
        """Wait until every query is between two batches, or has begun another one since."""
        waiting = {it.name: batch_number(it) for it in self._watched}
        deadline = time.monotonic() + FINISH_SECONDS_MAX
        while waiting and time.monotonic() < deadline:
            for it in self._watched:
                name = it.name
                if name in waiting and is_between_batches(it, waiting[name]):
                    del waiting[name]
                    it.query.stop()
                    it.status.state = "stopped"
            show(self._look())
            # Spark announces the end of a batch only to listeners, and ours are turned off
            # (spark.sql.streaming.metricsEnabled); a query that is idle announces nothing.
            time.sleep(TICK_SECONDS / 5)

    def _stop_all(self) -> None:
        for it in self._watched:
            if it.query.isActive:
                it.query.stop()
                it.status.state = "stopped"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM stops after the running batches, the next one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self._stopping.is_set():
                raise KeyboardInterrupt
            self._stopping.set()

        earlier = {it: signal.signal(it, ask) for it in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
