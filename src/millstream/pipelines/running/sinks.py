"""Where batches go: a topic by Spark's own writer, anything else by what Spark calls for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.client.security import Security
from millstream.pipelines.offsets import to_json
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.outputs import rows_of
from millstream.pipelines.running.progress import GroupProgress
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import ONLY, PipelineSpec, Table, Topic
from millstream.pipelines.writing.options import parse_write_options
from millstream.pipelines.writing.writer import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from millstream.pipelines.running.fan_out import FanOutSink
    from millstream.pipelines.stores import Store, TableSpec


def attach_sink(
    pipeline: PipelineSpec,
    result: DataFrame,
    writer: DataStreamWriter,
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    takes_over: bool = False,
) -> DataStreamWriter:
    """Tell the writer where to write; tables are created, or checked, before anything starts.

    `takes_over`: the checkpoint is of another writer, whose batches are not in the tables.
    """
    only = pipeline.writes.get(ONLY)
    if isinstance(only, Topic):
        options = write_options(pipeline, only, result.columns, settings)
        check_schema(parse_write_options(options, streaming=False), result.schema)
        return writer.format("millstream").options(**options)
    specs = table_specs(pipeline)
    store = open_checked(pipeline, result, specs, settings) if specs else None
    if store is not None and takes_over and store.last_batch(pipeline.name) is None:
        store.forget(pipeline.name)
    progress = GroupProgress(
        settings.required_broker(),
        pipeline.group_id,
        security=Security.from_settings(settings.kafka),
    )
    done = checkpoint.last_completed_batch()
    if done is not None:
        progress.report(checkpoint.batch_end(done))
    if len(specs) == len(pipeline.writes):
        assert store is not None
        return writer.foreachBatch(TableSink(pipeline.name, store, specs, checkpoint, progress))
    columns = {name: rows_of(result, name).columns for name in pipeline.writes}
    sink = fan_out_sink(pipeline, columns, specs, store, settings, checkpoint, progress)
    if done is not None:
        sink.recover()
    return writer.foreachBatch(sink)


def write_options(
    pipeline: PipelineSpec, output: Topic, columns: list[str], settings: Settings
) -> dict[str, str]:
    """The options of `format("millstream")` for rows of these columns that go to a topic."""
    options = {
        **settings.kafka_options(),
        "kafka.group.id": pipeline.group_id,
        "topic": output.name,
        "valueFormat": output.write_format(columns),
    }
    if output.key:
        options["keyColumns"] = ",".join(output.key)
    return options | dict(output.options)


def table_specs(pipeline: PipelineSpec) -> dict[str, TableSpec]:
    from millstream.pipelines.stores import TableSpec

    return {
        name: TableSpec(it.name, it.key, it.mode, it.delete)
        for name, it in pipeline.writes.items()
        if isinstance(it, Table)
    }


def open_checked(
    pipeline: PipelineSpec, result: DataFrame, specs: Mapping[str, TableSpec], settings: Settings
) -> Store:
    """The store, its tables fit for what will come, and no older run writing to them."""
    from millstream.pipelines.stores import open_store

    store = open_store(settings.store_url)
    for name, spec in specs.items():
        rows = result if name == ONLY else rows_of(result, name)
        store.prepare(rows.schema, spec)
    store.claim(pipeline.name)
    return store


def fan_out_sink(
    pipeline: PipelineSpec,
    columns: Mapping[str, list[str]],
    specs: Mapping[str, TableSpec],
    store: Store | None,
    settings: Settings,
    checkpoint: Checkpoint,
    progress: GroupProgress,
) -> FanOutSink:
    from millstream.pipelines.running.fan_out import FanOutSink

    topics = {
        name: parse_write_options(
            write_options(pipeline, it, columns[name], settings)
            | {"checkpointLocation": checkpoint.location},
            streaming=True,
        )
        for name, it in pipeline.writes.items()
        if isinstance(it, Topic)
    }
    return FanOutSink(pipeline.name, pipeline.group_id, topics, specs, store, checkpoint, progress)


@dataclass
class TableSink:
    """Rows and progress in one transaction of the store; then the group's offsets.

    A batch that Spark repeats is skipped by the store, and its offsets are reported again.
    """

    query: str
    store: Store
    tables: Mapping[str, TableSpec]
    checkpoint: Checkpoint
    progress: GroupProgress

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        end = self.checkpoint.durable_batch_end(batch_id)
        offsets = json.dumps(to_json(end))
        begins = json.dumps(to_json(self.checkpoint.batch_start(batch_id)))
        if list(self.tables) == [ONLY]:
            self.store.write(batch, batch_id, self.query, self.tables[ONLY], offsets, begins=begins)
        else:
            shared = batch.persist()
            try:
                outputs = [(rows_of(shared, name), spec) for name, spec in self.tables.items()]
                self.store.write_many(outputs, batch_id, self.query, offsets, begins=begins)
            finally:
                shared.unpersist()
        self.progress.report(end)
