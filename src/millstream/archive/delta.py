"""A Delta table over the files of an archived topic, for readers of Delta: Spark, DuckDB, Polars,
Trino and others. The files are the same ones; only the table's log is added, in
`<topic>/<topic id>/_delta_log`.

The table has all records, control records and aborted ones too: `where not is_control and not
is_aborted` is what a read-committed consumer sees. It is partitioned by `partition`.

Imports pyarrow and deltalake.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from millstream.archive.manifest import ArchivedFile, ArchiveError
from millstream.archive.places import Place
from millstream.archive.reading import TopicArchive
from millstream.archive.rows import SCHEMA
from millstream.archive.typed import union_fields

_PARTITION_BY = ["partition"]


class Synchronized(NamedTuple):
    """What was done to a table."""

    uri: str
    version: int
    added: int
    removed: int


def table_schema(topic: TopicArchive) -> Schema:
    """Typed columns are those of all files: readers find null where a file has none."""
    partition = pa.field("partition", pa.int32(), nullable=False)
    files = [file for part in topic.partitions.values() for file in part.files]
    return Schema.from_arrow(pa.schema([*SCHEMA, partition, *union_fields(files)]))


def synchronize_table(place: Place, topic: TopicArchive) -> Synchronized:
    """Make the table list exactly the files of the manifests, in one commit. A second process that
    does the same at the same time loses: `ArchiveError`. Does nothing if nothing has changed."""
    uri = place.uri_of(f"{topic.topic}/{topic.topic_id}")
    options = place.delta_options()
    wanted = {
        f"partition={number}/{file.name}": (number, file)
        for number, part in topic.partitions.items()
        for file in part.files
    }
    schema = table_schema(topic)
    try:
        try:
            table = DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            adds = [_add(path, *each) for path, each in wanted.items()]
            create_table_with_add_actions(
                uri,
                schema,
                adds,
                mode="error",
                partition_by=_PARTITION_BY,
                name=topic.topic,
                storage_options=options,
            )
            return Synchronized(uri, 0, len(adds), 0)
        _extend(uri, table, schema)
        return _update(uri, table, wanted)
    except (DeltaError, OSError) as error:
        raise ArchiveError(f"cannot write the Delta table {uri}: {error}") from error


def _extend(uri: str, table: DeltaTable, schema: Schema) -> None:
    """Add the columns that files have got since, before the files."""
    known = {field.name: field for field in table.schema().fields}
    new = [field for field in schema.fields if field.name not in known]
    for field in schema.fields:
        before = known.get(field.name, field)
        if before.type != field.type:
            raise ArchiveError(
                f"column {field.name} of the Delta table {uri} is {before.type}, and newer files "
                f"have {field.type}: delete the table's _delta_log and make the table again"
            )
    if new:
        table.alter.add_columns(new)


def _update(
    uri: str, table: DeltaTable, wanted: Mapping[str, tuple[int, ArchivedFile]]
) -> Synchronized:
    listed = _listed(table)
    actions: list[AddAction | RemoveAction] = []
    added = [path for path in wanted if path not in listed]
    removed = [path for path in listed if path not in wanted]
    actions += [_add(path, *wanted[path]) for path in added]
    now_ms = int(time.time() * 1000)
    actions += [_remove(path, listed[path], now_ms) for path in removed]
    if actions:
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=_PARTITION_BY,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    return Synchronized(uri, table.version() + bool(actions), len(added), len(removed))


def _listed(table: DeltaTable) -> dict[str, dict[str, Any]]:
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {row["path"]: row for row in rows}


def _add(path: str, partition: int, file: ArchivedFile) -> AddAction:
    statistics = {
        "numRecords": file.records,
        "minValues": {"offset": file.base_offset},
        "maxValues": {"offset": file.end_offset - 1},
        "nullCount": {"offset": 0},
    }
    return AddAction(
        path=path,
        size=file.size_bytes,
        partition_values={"partition": str(partition)},
        modification_time=max(file.max_timestamp, 0),
        data_change=True,
        stats=json.dumps(statistics),
    )


def _remove(path: str, row: Mapping[str, Any], now_ms: int) -> RemoveAction:
    return RemoveAction(
        path=path,
        data_change=True,
        deletion_timestamp=now_ms,
        size=row["size_bytes"],
        partition_values={"partition": str(row["partition.partition"])},
    )
