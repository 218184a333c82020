"""What Spark's tasks do with their rows: copy them into staging tables, or hand them to the driver.

A task's attempt creates and fills a table of its own in one transaction, so that the table is whole
or not there, whatever becomes of the task and of its speculative twin. The driver merges those
whose names it was given and drops the rest. Staging tables are not logged: cheap to fill, but a
server that crashes empties them, so the driver counts their rows before it believes them.

A task with few rows sends them to the driver: a connection would cost more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.connect.tables.postgres_connection import connect, patiently
from millstream.connect.tables.postgres_rows import copy_rows
from millstream.connect.tables.postgres_tables import staging_columns
from millstream.connect.tables.rows import Rows, make_ready, refuse_null_keys
from millstream.connect.tables.schema import Layout
from millstream.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGE_PREFIX = "millstream_stage_"
_SENT_ROWS_MAX = 10_000
_SENT_BYTES_MAX = 2 * 1024 * 1024
_REPORT = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("stage", pa.string()),
        pa.field("row_count", pa.int64()),
        pa.field("rows", pa.binary()),
        pa.field("error", pa.string()),
    ]
)
_REPORT_DDL = "partition int, stage string, row_count long, rows binary, error string"


@dataclass(frozen=True)
class StagedTable:
    """A staging table and how many rows its task put there."""

    name: str
    row_count: int


@dataclass(frozen=True)
class StagePlan:
    """What tasks must know to stage the rows of one output of one batch."""

    url: str
    layout: Layout
    prefix: str  # of the tables' names


def stage_prefix(query: str) -> str:
    """What the staging tables of a query begin with; the epoch, the batch and the task follow."""
    digest = hashlib.sha256(query.encode()).hexdigest()[:12]
    return f"{STAGE_PREFIX}{digest}_"


def epoch_of(stage: str, query: str) -> int:
    return int(stage.removeprefix(stage_prefix(query)).split("_")[0])


def stage_frame(frame: DataFrame, plan: StagePlan) -> list[StagedTable | Rows]:
    """Run the tasks; their rows in the order of Spark's partitions."""
    reports = frame.mapInArrow(partial(stage_partition, plan), _REPORT_DDL).toArrow().to_pylist()
    for report in reports:
        if report["error"] is not None:
            raise StoreError(report["error"])
    reports.sort(key=lambda report: report["partition"])
    sources: list[StagedTable | Rows] = []
    for sent, group in groupby(reports, key=lambda report: report["rows"] is not None):
        if sent:
            tables = [pa.ipc.open_stream(report["rows"]).read_all() for report in group]
            sources.append(make_ready(pa.concat_tables(tables), plan.layout))
        else:
            sources += [StagedTable(report["stage"], report["row_count"]) for report in group]
    return sources


def stage_partition(plan: StagePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: all rows of a partition, and one report of what became of them."""
    from pyspark import TaskContext

    parts = [batch for batch in batches if batch.num_rows]
    if not parts:
        return
    context = TaskContext.get()
    assert context is not None
    report: dict[str, Any] = {"partition": context.partitionId()}
    rows = pa.Table.from_batches(parts)
    try:
        if rows.num_rows <= _SENT_ROWS_MAX and rows.nbytes <= _SENT_BYTES_MAX:
            if plan.layout.table.mode != "append":
                refuse_null_keys(rows, plan.layout)
            report |= {"rows": _serialized(rows), "row_count": rows.num_rows}
        else:
            name = f"{plan.prefix}_{context.taskAttemptId()}"
            ready = make_ready(rows, plan.layout)
            fill_stage(plan.url, name, ready, plan.layout)
            report |= {"stage": name, "row_count": ready.count}
    except StoreError as error:  # raised in the driver, without Spark's wrapping and retries
        report["error"] = str(error)
    yield pa.RecordBatch.from_pylist([report], schema=_REPORT)


def fill_stage(url: str, name: str, rows: Rows, layout: Layout) -> None:
    def attempt() -> None:
        with connect(url) as connection, connection.transaction():
            connection.execute(f"DROP TABLE IF EXISTS {name}")  # of a commit without an answer
            connection.execute(f"CREATE UNLOGGED TABLE {name} ({staging_columns(layout)})")
            copy_rows(connection, name, rows, layout)

    patiently(attempt, f"stage rows for table {layout.table.name!r}")


def _serialized(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content
