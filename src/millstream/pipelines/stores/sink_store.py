"""Targets of `millstream connect` as stores: DuckDB, FTS5, Redis, OpenSearch, Delta.

A sink compares and replaces positions in the log together with rows. Here the position of a table
is the progress of the query instead: the number of the batch, and everything else as text. A run
that claims the query replaces the text, so that an older run finds another position than the one
that it expects, and is refused.

If the target has transactions over several tables (DuckDB, FTS5, Redis), a batch changes all of its
tables at once. With OpenSearch and Delta each table has the batch or not; the query's progress is
that of the table that is furthest behind, and a batch that is repeated goes to those that lack it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millstream.connect.sinks.changes import DELETED, Change, Changes
from millstream.connect.sinks.opening import sink_for
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.connect.sinks.sink import (
    Part,
    RowsRefused,
    Run,
    Sink,
    SinkUnavailable,
    TablesReplaced,
    Target,
    Write,
)
from millstream.connect.tables.rows import Rows, plain
from millstream.connect.tables.schema import Layout, arrow_schema, is_text
from millstream.connect.tables.spec import POSITIONS_TABLE, TableSpec
from millstream.errors import ConfigError, StoreError
from millstream.pipelines.query_files import replace_file
from millstream.pipelines.stores.fencing import is_due
from millstream.pipelines.stores.spec import FORGOTTEN, BatchMark, Progress
from millstream.pipelines.stores.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Result = TypeVar("Result")

_VERSIONED = ("opensearch", "opensearchs", "elasticsearch", "elasticsearchs")
_DOCUMENTS = ("redis", "rediss", *_VERSIONED)
PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0


class SinkStore(Store):
    """Tables, or documents, of one target."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._scheme, _, rest = url.partition("://")
        self._texts = _Files(Path(rest[1:])) if self._scheme == "delta" else _Inline()
        self._schemas: dict[str, Target] = {}  # by table
        self._sinks: dict[str, Sink] = {}  # by query

    def progress(self, query: str) -> Progress | None:
        with self._lock:
            stored = self._run(query, self._stored)
        return min((it for _, it in stored.values()), key=_batch, default=None)

    def _find_writers(self, table: TableSpec) -> tuple[str | None, list[tuple[str, str]]]:
        return None, []  # positions are known by query only

    def forget(self, query: str) -> None:
        """With a new generation, if the target refuses rows of batches with smaller numbers."""
        has_versions = self._scheme in _VERSIONED
        with self._lock:
            newest = self._run(query, self._positions)
            forgotten = self._encoded(Progress(query, 0, FORGOTTEN))
            for place, position in newest.items():
                again = (place.partition + 1, None) if has_versions else (place.partition, position)
                self._step(query, {place.topic: again}, forgotten)

    def close(self) -> None:
        with self._lock, ExitStack() as stack:
            for sink in self._sinks.values():
                stack.callback(sink.close)
            self._sinks.clear()

    def _fit(self, layout: Layout) -> Layout:
        table = layout.table
        if table.mode != "upsert":
            raise ConfigError(
                f"table {table.name!r}: {self._scheme}:// keeps one row of each key, and cannot "
                f"apply mode {table.mode!r}; choose 'upsert', or SQLite or PostgreSQL"
            )
        return layout

    def prepare(self, schema: Any, table: TableSpec) -> None:
        super().prepare(schema, table)
        with self._lock:
            if table.name not in self._schemas:
                self._schemas[table.name] = self._target(schema, self._layouts[table])
                self.close()  # they are opened again, with the table
                with sink_for(self._url, "prepare", [self._schemas[table.name]]) as sink:
                    sink.open()

    def _target(self, schema: Any, layout: Layout) -> Target:
        given = schema if isinstance(schema, pa.Schema) else arrow_schema(schema)
        columns = pa.schema([given.field(name) for name in layout.names])
        table = layout.table
        if self._scheme in _DOCUMENTS:
            return Target(table.name, table.name, table.key)
        if self._scheme == "fts5":
            texts = [it.name for it in columns if is_text(it.type) and it.name not in table.key]
            others = [it for it in columns.names if it not in texts]
            fields, stored = tuple(texts), tuple(others)
            return Target(table.name, table.name, table.key, fields=fields, stored=stored)
        return Target(table.name, table.name, table.key, columns)

    def claim(self, query: str) -> int:
        with self._lock:
            others = [it for it in self._epochs if it != query]
            if others:
                raise ConfigError(
                    f"this store is that of query {others[0]!r}; open another one for {query!r}"
                )
            return super().claim(query)

    def _raise_epoch(self, query: str) -> int:
        while True:
            stored = self._run(query, self._stored)
            epoch = 1 + max((it.epoch for _, it in stored.values()), default=0)
            try:
                for place, (position, progress) in stored.items():
                    after = replace(progress, epoch=epoch)
                    there = {place.topic: (place.partition, position)}
                    self._step(query, there, self._encoded(after))
                for topic in self._schemas.keys() - {place.topic for place in stored}:
                    self._step(query, {topic: (0, None)}, self._encoded(Progress(query, epoch)))
                return epoch
            except PositionMoved:
                continue  # another run claims it at the same time: the later one wins

    def _is_due(self, mark: BatchMark) -> bool:
        stored = self.progress(mark.query) or Progress(mark.query, 0)
        return is_due(stored, self._epochs[mark.query], mark)

    def _write_frames(
        self, outputs: Sequence[tuple[DataFrame, TableSpec]], mark: BatchMark
    ) -> bool:
        return self._write_tables([(frame.toArrow(), table) for frame, table in outputs], mark)

    def _write_ready(self, outputs: Sequence[tuple[Rows, Layout]], mark: BatchMark) -> bool:
        with self._lock:
            return self._patiently(mark.query, lambda: self._write_once(outputs, mark))

    def _write_once(self, outputs: Sequence[tuple[Rows, Layout]], mark: BatchMark) -> bool:
        stored = self._stored(self._opened(mark.query))
        places = {place.topic: (place, *it) for place, it in stored.items()}
        epoch = self._epochs[mark.query]
        after = Progress(
            mark.query, epoch, mark.batch_id, mark.offsets, mark.decision, mark.checkpoint
        )
        steps, parts = [], {}
        for rows, layout in outputs:
            table = layout.table.name
            if table not in places:
                raise StoreError(
                    f"{table!r} was deleted since query {mark.query!r} has started; start it again"
                )
            place, before, progress = places[table]
            if not is_due(progress, epoch, mark):
                continue
            steps.append(Step(place, before, self._encoded(after)))
            if rows.count:
                parts[table] = self._part(rows, layout, place.partition, mark.batch_id)
        if not steps:
            return False
        try:
            self._opened(mark.query).apply(Write(tuple(steps), parts))
        except RowsRefused as refused:
            failure = next(it for found in refused.failures.values() for it in found)
            raise StoreError(f"{self._scheme} refuses a row: {failure.message}") from refused
        except PositionMoved as moved:
            self._is_due(mark)  # raises if a newer run has claimed the query
            raise SinkUnavailable(str(moved)) from moved
        self._texts.drop({it.before.topic_id for it in steps if it.before})
        return True

    def _part(self, rows: Rows, layout: Layout, generation: int, batch_id: int) -> Part:
        count, target = rows.count, self._schemas[layout.table.name]
        deleted = [False] * count if rows.deleted is None else rows.deleted.tolist()
        runs = [Run(generation, [batch_id + 1] * count)]
        if target.columns is not None:
            marks = pa.array(deleted, pa.bool_())
            return Part(
                Changes(), rows.table.cast(target.columns).append_column(DELETED, marks), runs
            )
        documents = [plain(it) for it in rows.table.to_pylist(maps_as_pydicts="strict")]
        changes = [
            Change(number, tuple(row[name] for name in target.key), None if gone else row)
            for number, (row, gone) in enumerate(zip(documents, deleted, strict=True))
        ]
        return Part(Changes(changes=changes), None, runs)

    # Positions

    def _encoded(self, progress: Progress) -> Position:
        text = json.dumps({name: it for name, it in vars(progress).items() if it is not None})
        batch_id = progress.batch_id
        return Position(self._texts.keep(text), 0 if batch_id is None else batch_id + 1)

    def _decoded(self, position: Position) -> Progress:
        return Progress(**json.loads(self._texts.find(position.topic_id)))

    def _positions(self, sink: Sink) -> dict[Place, Position]:
        try:
            return _newest(sink.positions())
        except TablesReplaced as error:
            raise StoreError(
                f"tables {list(error.tables)} were dropped and created again, or restored by "
                f"themselves, since query {sink.name!r} wrote them: they would lack what came "
                f"before. Restore them from a backup together with {POSITIONS_TABLE}, or give the "
                "query another name, with which it builds its tables from the beginning"
            ) from error

    def _stored(self, sink: Sink) -> dict[Place, tuple[Position, Progress]]:
        """The position of each table, and the progress that it stands for."""
        before: dict[Place, Position] | None = None
        while True:
            found = self._positions(sink)
            try:
                return {place: (it, self._decoded(it)) for place, it in found.items()}
            except FileNotFoundError as error:
                # Another run may have replaced it at this moment: then the position is another.
                if found == before:
                    tables = ", ".join(repr(it.topic) for it in found)
                    raise StoreError(
                        f"the position of {tables} is that of an older batch, whose progress is no "
                        f"longer stored ({error.filename}): a table was restored to an older "
                        "version, which the pipeline cannot continue. Restore it to the last "
                        "version that the pipeline has written, or delete the tables and the "
                        "checkpoint, and start with allow_new_checkpoint to write them again"
                    ) from error
                before = found

    def _step(
        self, query: str, places: Mapping[str, tuple[int, Position | None]], after: Position
    ) -> None:
        steps = tuple(
            Step(Place(topic, number), before, after) for topic, (number, before) in places.items()
        )
        if steps:
            self._run(query, lambda sink: sink.apply(Write(steps, {})))

    # The sink

    def _opened(self, query: str) -> Sink:
        sink = self._sinks.get(query)
        if sink is None:
            sink = sink_for(self._url, query, list(self._schemas.values()))
            sink.open()
            self._sinks[query] = sink
        return sink

    def _run(self, query: str, action: Callable[[Sink], Result]) -> Result:
        return self._patiently(query, lambda: action(self._opened(query)))

    def _patiently(self, query: str, action: Callable[[], Result]) -> Result:
        """Repeats what may pass, such as a file that another process has open."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, _PAUSE_SECONDS
        while True:
            try:
                result = action()
                self._opened(query).rest()
                return result
            except SinkUnavailable:
                sink = self._sinks.pop(query, None)
                if sink is not None:
                    sink.close()
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)


class _Inline:
    """Targets that keep a text of any length with the position."""

    def keep(self, text: str) -> str:
        return text

    def find(self, kept: str) -> str:
        return kept

    def drop(self, kept: set[str]) -> None:
        """They are no longer needed."""


class _Files:
    """Delta keeps numbers: a text is in a file of its own, and its name is the number."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "_millstream"

    def keep(self, text: str) -> str:
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, text))
        replace_file(self._directory / f"{name}.json", text)
        return name

    def find(self, kept: str) -> str:
        return (self._directory / f"{kept}.json").read_text()

    def drop(self, kept: set[str]) -> None:
        for name in kept:
            (self._directory / f"{name}.json").unlink(missing_ok=True)


def _batch(progress: Progress) -> int:
    return -2 if progress.batch_id is None else progress.batch_id


def _newest(positions: dict[Place, Position]) -> dict[Place, Position]:
    """Of the last generation of each table."""
    last: dict[str, int] = {}
    for place in positions:
        last[place.topic] = max(place.partition, last.get(place.topic, 0))
    return {place: it for place, it in positions.items() if last[place.topic] == place.partition}
