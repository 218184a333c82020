"""The sink of a pipeline, with its outputs checked before the query starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.client.security import Security
from millstream.connect.tables.schema import WEIGHT
from millstream.errors import ConfigError
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.outputs import rows_of
from millstream.pipelines.running.progress import GroupProgress
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import ONLY, PipelineSpec, Table, Topic, View
from millstream.pipelines.writing.options import parse_write_options
from millstream.pipelines.writing.writer import check_schema
from millstream.views.generations import generation_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipelines.running.fan_out import FanOutSink
    from millstream.pipelines.stores import Store, TableSpec
    from millstream.pipelines.versions.roles import Roles


def make_sink(
    pipeline: PipelineSpec,
    result: DataFrame,
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    allow_new_checkpoint: bool = False,
    roles: Roles | None = None,
) -> FanOutSink:
    """The function that Spark calls with each batch.

    Before anything starts, tables are created or checked, and the transactions of an earlier run
    are completed or aborted. A deployed version has `roles`, and its store decides.
    """
    from millstream.pipelines.running.fan_out import FanOutSink
    from millstream.pipelines.stores import open_store

    only = list(pipeline.writes) == [ONLY]
    frames = {name: result if only else rows_of(result, name) for name in pipeline.writes}
    topics = {
        name: parse_write_options(
            write_options(pipeline, it, frames[name].columns, settings)
            | {"checkpointLocation": checkpoint.location},
            streaming=True,
        )
        for name, it in pipeline.writes.items()
        if isinstance(it, Topic)
    }
    for name, options in topics.items():
        check_schema(options, frames[name].schema)
    tables = table_specs(pipeline, {name: it.columns for name, it in frames.items()})
    store = open_checked(pipeline, result, tables, settings) if tables else None
    if store is None and roles is not None:
        store = open_store(settings.store_url)
    progress = GroupProgress(
        settings.required_broker(),
        pipeline.group_id,
        security=Security.from_settings(settings.kafka),
    )
    done = checkpoint.last_completed_batch()
    if done is not None:
        progress.report(checkpoint.batch_end(done) or {})
    sink = FanOutSink(pipeline.identity, topics, tables, store, checkpoint, progress, roles)
    sink.check_checkpoint(allow_new_checkpoint=allow_new_checkpoint)
    sink.recover(allow_new_checkpoint=allow_new_checkpoint)
    return sink


def write_options(
    pipeline: PipelineSpec, output: Topic, columns: list[str], settings: Settings
) -> dict[str, str]:
    """The options of `format("millstream")` for rows of these columns that go to a topic."""
    options = {
        **settings.kafka_options(),
        "kafka.group.id": pipeline.group_id,
        "kafka.transactional.id": f"millstream-{pipeline.identity}",
        "topic": output.name,
        "valueFormat": output.write_format(columns),
    }
    if output.key:
        options["keyColumns"] = ",".join(output.key)
    return options | dict(output.options)


def table_specs(
    pipeline: PipelineSpec, columns: Mapping[str, Sequence[str]]
) -> dict[str, TableSpec]:
    """The tables, by output; those of views remove rows by weight, if rows have one."""
    from millstream.pipelines.stores import TableSpec

    specs = {}
    for name, it in pipeline.writes.items():
        if isinstance(it, Table):
            has_weights = isinstance(it, View) and WEIGHT in columns[name]
            delete = WEIGHT if has_weights else it.delete
            table = generation_table(it.name, pipeline.generation)
            specs[name] = TableSpec(table, it.key, it.mode, delete)
    return specs


def open_checked(
    pipeline: PipelineSpec, result: DataFrame, specs: Mapping[str, TableSpec], settings: Settings
) -> Store:
    """The store, with tables that fit the rows that will come."""
    from millstream.pipelines.stores import open_store

    store = open_store(settings.store_url)
    if pipeline.views:
        store.refuse_replaced(pipeline.identity, [specs[it] for it in pipeline.views])
    for name, spec in specs.items():
        rows = result if name == ONLY else rows_of(result, name)
        store.prepare(rows.schema, spec)
        _check_own_table(pipeline, store, spec, is_view=name in pipeline.views)
    views = [(view_name(name, it), specs[name], it.keeps) for name, it in pipeline.views.items()]
    if views:
        store.list_views(pipeline.public_name, views, writer=pipeline.identity)
    return store


def view_name(output: str, view: View) -> str:
    """What readers call it."""
    return view.name if output == ONLY else output


def _check_own_table(
    pipeline: PipelineSpec, store: Store, table: TableSpec, *, is_view: bool
) -> None:
    """Another version starts from the beginning, and its rows would be mixed with the old ones. A
    view is written by one query alone: its stamps say what all of its rows stand for."""
    writer = None if is_view else store.view_writer(table)
    if writer is not None:
        raise ConfigError(
            f"table {table.name} is a view of {writer}, and {pipeline.identity} would write rows "
            "into it that are in none of its stamps. Write to another table"
        )
    for query in store.writers(table):
        is_other_version = query.partition("@")[0] == pipeline.name
        if query != pipeline.identity and (is_other_version or is_view):
            raise ConfigError(
                f"table {table.name} has the rows of {query}, and {pipeline.identity} would write "
                "its own, from the beginning, between them. Give it a table of its own; or drop "
                f"this one; or call forget({query!r}) on the store, if the rows may be mixed"
            )
