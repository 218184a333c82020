"""Pipelines: a plain function of DataFrames, and beside it what it reads and writes.

    @pipeline(reads=topic("orders", schema="id long, amount double, at timestamp"),
              writes=table("revenue", key="minute"))
    def revenue(orders):
        ...

The declaration (`spec.py`) reads nothing. `Pipeline.start` runs it as a stream, `Pipeline.batch`
over history; calling it, as before it was decorated, just applies it to DataFrames. Spark is
imported when one of them is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.spec import (
    Output,
    PipelineSpec,
    Topic,
    by_name,
    check_start_at,
    name_of,
)
from millstream.views.positions import Position
from millstream.views.reading import TIMEOUT_SECONDS, Snapshot, read_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Pipeline(PipelineSpec):
    """A declared function that can be run. Make it with `pipeline`."""

    def start(
        self,
        spark: SparkSession,
        *,
        broker: str | None = None,
        store: str | None = None,
        checkpoint: str | None = None,
        trigger: str | None = None,
        once: bool = False,
        allow_new_checkpoint: bool = False,
        remove_views: bool = False,
    ) -> StreamingQuery:
        """Run it as a stream in the caller's session, which is neither changed nor stopped.

        What is not given comes from the environment, or from `millstream.toml` beside the file that
        defines the pipeline. `checkpoint` is a directory; the pipeline's own, by its name, is below
        it. `once`: take what is there now, in as many batches as it needs, and end. Returns when
        the readers run; a machine that is too busy to start them gets several chances.

        A pipeline that has written its outputs from another checkpoint is refused: it would write
        everything again. `allow_new_checkpoint` lets it do so, from the beginning.

        Views that it no longer declares are taken from readers only with `remove_views`.
        """
        from millstream.pipelines.running.launching import launch
        from millstream.pipelines.running.settings import load_settings
        from millstream.pipelines.running.starting import start_query

        given = {"broker": broker, "store": store, "checkpoint": checkpoint, "trigger": trigger}
        settings = load_settings(self.home, overrides=given)
        return start_query(
            lambda: launch(
                self,
                spark,
                settings,
                once=once,
                allow_new_checkpoint=allow_new_checkpoint,
                remove_views=remove_views,
            )
        )

    def batch(
        self,
        spark: SparkSession,
        *,
        broker: str | None = None,
        start_at: str | datetime | Mapping[int, int] | None = None,
    ) -> Any:
        """Its result over all that its topics hold; written nowhere.

        A DataFrame, or whatever the function returns. `start_at` says where to begin; by default
        where a new stream would, or at the beginning if that is "latest". Bad records are dropped.
        """
        from millstream.pipelines.running.launching import read_history
        from millstream.pipelines.running.outputs import without_watermark
        from millstream.pipelines.running.settings import load_settings

        if start_at is not None:
            check_start_at(f"pipeline {self.name}", start_at)
        settings = load_settings(self.home, overrides={"broker": broker})
        made = self(**read_history(self, spark, settings, start_at))
        if isinstance(made, Mapping):
            return {name: without_watermark(it) for name, it in made.items()}
        return without_watermark(made) if hasattr(made, "isStreaming") else made

    def read(
        self,
        at_least: Position = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        store: str | None = None,
        topic_ids: Mapping[str, object] | None = None,
    ) -> AbstractContextManager[Snapshot]:
        """All of its views at one stamp, in a `with` block; needs no Spark.

        `at_least` is a position in the log that the views must have seen, such as a producer's
        delivery report; waits for at most `timeout` seconds. See `millstream.views`.
        """
        from millstream.pipelines.running.settings import load_settings

        if not self.views:
            raise ConfigError(
                f'pipeline {self.name} has no views to read: writes={{"name": view(key="...")}}'
            )
        settings = load_settings(self.home, overrides={"store": store})
        return read_once(
            settings.store_url, [self.public_name], at_least, timeout=timeout, topic_ids=topic_ids
        )

    def run(
        self,
        *,
        once: bool = False,
        allow_new_checkpoint: bool = False,
        remove_views: bool = False,
        **settings: str,
    ) -> None:
        """Run it in a session of its own until Ctrl-C, as `millstream run` does."""
        from millstream.pipelines.running.runner import run
        from millstream.pipelines.running.settings import load_settings

        run(
            [self],
            load_settings(self.home, overrides=settings),
            once=once,
            allow_new_checkpoint=allow_new_checkpoint,
            remove_views=remove_views,
        )


def pipeline(
    *,
    reads: Topic | Mapping[str, Topic],
    writes: Output | Mapping[str, Output],
    name: str | None = None,
    version: str | int = "1",
    group: str | None = None,
    output_mode: str | None = None,
    in_step_with: str | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Make a pipeline of the function that follows.

    `reads`: a topic, or `{"parameter": topic}` where the function has several parameters.
    `writes`: a topic, a table or a view, or `{"name": output}`; the function then returns a
    DataFrame for each name, or one DataFrame with a struct column for each (null: no row for that
    output).
    Unless given, `name` is the function's own, `group` the name, and `output_mode`, which is
    Spark's, the one that fits.

    `in_step_with` names another pipeline with views in the same store. Batches of this one end
    where those of the other one end, so that the views of both can be read at a common cut.
    """

    def decorate(function: Callable[..., Any]) -> Pipeline:
        return Pipeline(
            function=function,
            name=name or name_of(function),
            reads=by_name(reads, function, "reads"),
            writes=by_name(writes, function, "writes"),
            version=str(version),
            group=group or "",
            output_mode=output_mode,
            in_step_with=in_step_with or "",
        )

    return decorate
