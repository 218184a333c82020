"""A pipeline whose batches end where those of another one end: `@pipeline(in_step_with="shop")`.

Views of two queries are read at a common cut, which needs stamps with the same offsets. Queries
that cut their batches by themselves meet only when both have read everything. A query that is in
step reads up to a stamp of the other one, its leader, and stays there until it has a stamp of its
own at the same offsets. Only then is it given the next cut: so all sources of the query stop at
every cut that it is given, in one batch or in several.

The planners of a query see the cut in a file (`reading/cuts.py`). A thread of the driver writes it.
Which stamp of the leader is next is decided by `millstream.views.cuts.next_cut`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.reading.cuts import Cut, write_cut
from millstream.pipelines.spec import PipelineSpec
from millstream.views.cuts import next_cut, of_topics
from millstream.views.databases import open_database
from millstream.views.generations import has_reached
from millstream.views.reading import leading_stamps, newest_stamp
from millstream.views.spec import Stamp

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.pipelines.running.settings import Settings

logger = logging.getLogger(__name__)

CUTS_DIRECTORY = "cuts"
POLL_SECONDS = 1.0  # a leader that writes is noticed at once


def with_cuts(pipeline: PipelineSpec, settings: Settings) -> PipelineSpec:
    """The pipeline with inputs that read up to the cut in its file."""
    if not pipeline.views:
        raise ConfigError(
            f"pipeline {pipeline.name} has no views: in_step_with is for views that are read at a "
            "common cut with those of another pipeline"
        )
    file = str(cut_file(pipeline, settings))
    reads = {
        parameter: replace(it, options={**it.options, "haltFile": file})
        for parameter, it in pipeline.reads.items()
    }
    return replace(pipeline, reads=reads)


def cut_file(pipeline: PipelineSpec, settings: Settings) -> Path:
    return settings.home / CUTS_DIRECTORY / f"{pipeline.identity}.json"


class InStep:
    """Gives a query its cuts until it ends."""

    def __init__(self, pipeline: PipelineSpec, settings: Settings) -> None:
        self._leader = pipeline.in_step_with
        self._writer = pipeline.identity
        self._topics = {it.name for it in pipeline.reads.values()}
        self._file = cut_file(pipeline, settings)
        self._database = open_database(settings.store_url)
        self._cut: Stamp | None = None  # the last one

    def begin(self) -> None:
        """Before the query starts: nothing is read until there is a cut."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_cut(self._file, Cut(None))
        self.step()

    def during(self, query: StreamingQuery) -> None:
        def is_active() -> bool:
            try:
                return bool(query.isActive)
            except Exception:  # noqa: BLE001  # the session was stopped
                return False

        threading.Thread(
            target=self._run, args=(is_active,), name=f"cuts-{self._writer}", daemon=True
        ).start()

    def _run(self, is_active: Callable[[], bool]) -> None:
        reported = ""
        with self._database.watch() as watch:
            while is_active():
                try:
                    watch.wait(POLL_SECONDS)
                    self.step()
                    reported = ""
                except (MillstreamError, OSError) as error:
                    if str(error) != reported:
                        logger.warning("%s gets no cuts: %s", self._writer, error)
                    reported = str(error)
                    time.sleep(POLL_SECONDS)
        with suppress(MillstreamError, OSError):
            self._database.close()
            self._file.unlink(missing_ok=True)

    def step(self) -> None:
        """Write the next cut, if there is one and the query has reached the last."""
        with self._database.session() as session:
            leader = leading_stamps(session, self._leader)
            reached = newest_stamp(session, self._writer)
        if self._cut is not None and not has_reached(reached, self._cut):
            return
        missing = self._topics - {topic for it in leader for topic, _ in it.offsets}
        if leader and missing:
            raise ConfigError(
                f"{self._writer} is in step with {self._leader}, which does not read "
                f"{', '.join(sorted(missing))}: it can only read topics of that pipeline"
            )
        found = next_cut(leader, reached, self._topics)
        if found is None:
            return
        self._cut = of_topics(found, self._topics)
        write_cut(self._file, Cut(dict(self._cut.offsets)))
