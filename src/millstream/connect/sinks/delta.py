"""Tables of Delta Lake in a directory: rows and positions change in one commit of the table.

    lake/items/             a Delta table: Spark, DuckDB, Polars and others read it

Delta has a number for each writer, a "transaction" of an application, which a commit replaces. The
position is made of such numbers. Delta accepts an older number, so the sink compares first; if two
commits that begin at the same version replace the same number, the second one fails.

    millstream/SINK/TOPIC/partitions   how many partitions have a position
    millstream/SINK/TOPIC/0            the next offset of partition 0
    millstream/SINK/TOPIC/epoch/0      the leader epoch of the record before this offset
    millstream/SINK/TOPIC/timestamp/0  the timestamp of this record, in milliseconds
    millstream/SINK/TOPIC/id/0, id/1   the halves of the topic's id
    millstream/SINK/TOPIC/written_at   the time of the last commit, in milliseconds

RESTORE takes back rows, but not these numbers. So each commit of a sink has its name in the
metadata; if the table was restored since then, the numbers of the restored version count.

Tables are independent: a write to several topics is a commit for each of their tables.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.connect.sinks.changes import Key, Row, keyed
from millstream.connect.sinks.positions import (
    UNKNOWN,
    Place,
    Position,
    PositionMoved,
    Step,
    check_steps,
)
from millstream.connect.sinks.sink import REBUILD_SUFFIX, Part, Sink, SinkUnavailable, Target, Write
from millstream.connect.sinks.sqlite import layouts_of
from millstream.connect.tables.rows import make_ready
from millstream.errors import ConfigError, SchemaMismatch, StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_SWITCH_TRIES = 10
_MARK = "millstream deleted"
_HALF = 1 << 64
_WRITER = "millstreamSink"  # in the metadata of a commit


class DeltaSink(Sink):
    """Tables in one directory."""

    rows_max = 200_000
    pause_seconds = 10.0  # each write is a commit and at least one file

    def __init__(self, directory: Path, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        self._directory = directory
        self._layouts = layouts_of(targets)
        self._identities: dict[str, str] = {}  # by topic

    def open(self) -> None:
        with self._reporting():
            for target in self.targets:
                table = self._fit(target)
                self._identities[target.topic] = str(table.metadata().id)

    def positions(self) -> dict[Place, Position]:
        found: dict[Place, Position] = {}
        with self._reporting():
            for target in self.targets:
                found |= self._stored(self._load(target), target)
        return found

    def apply(self, write: Write) -> None:
        with self._reporting():
            for target in self.targets:
                steps = [it for it in write.steps if it.place.topic == target.topic]
                if steps:
                    self._apply(target, steps, write.parts.get(target.topic))

    def written_at(self, target: Target) -> float | None:
        with self._reporting():
            table = self._load(target)
            found = table.transaction_version(self._number(target, "written_at"))
        return None if found is None else found / 1000

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        from millstream.connect.sinks.columns import to_json, typed_keys

        wanted = typed_keys(keys, target.columns, target.key)
        first = list(dict.fromkeys(it[0] for it in wanted))
        with self._reporting():
            here = list(_with_values(self._load(target), target.key[0], first))
        found = {}
        for row in here:
            key = wanted.get(tuple(row[name] for name in target.key))
            if key is not None:
                found[key] = {name: to_json(it) for name, it in row.items()}
        return found

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        from millstream.connect.sinks.columns import to_json

        with self._reporting():
            for batch in self._load(target).to_pyarrow_dataset().to_batches():
                for row in batch.to_pylist():
                    yield keyed({name: to_json(it) for name, it in row.items()}, target.key)

    def purge(self) -> list[str]:
        """Earlier versions of a table go: their files, and commits, which have the least and the
        greatest values of columns."""
        with self._reporting():
            for target in self.targets:
                table = self._load(target)
                table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
                table = self._load(target)
                table.create_checkpoint()
                for file in (self._path(target) / "_delta_log").glob("*.*"):
                    number = file.name.partition(".")[0]
                    if number.isdecimal() and int(number) < table.version():
                        file.unlink(missing_ok=True)
        return []

    def close(self) -> None:
        """Nothing is open between writes."""

    def rebuilt(self) -> DeltaSink:
        from shutil import rmtree

        targets = [replace(it, table=it.table + REBUILD_SUFFIX) for it in self.targets]
        sink = DeltaSink(self._directory, self.name, targets)
        for target in targets:
            rmtree(sink._path(target), ignore_errors=True)
        return sink

    def switch(self, rebuilt: Sink) -> None:
        """Rows are copied, in one commit for each table."""
        from shutil import rmtree

        assert isinstance(rebuilt, DeltaSink)
        for target, other in zip(self.targets, rebuilt.targets, strict=True):
            with self._reporting():
                self._replace(target, rebuilt._load(other), other)
        for other in rebuilt.targets:
            rmtree(rebuilt._path(other), ignore_errors=True)

    def _replace(self, target: Target, filled: DeltaTable, other: Target) -> None:
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError

        positions = self._stored(filled, other)
        for left in reversed(range(_SWITCH_TRIES)):
            rows = filled.to_pyarrow_dataset().scanner().to_reader()
            table = self._load(target)
            properties = self._properties(target, positions)
            try:
                write_deltalake(table, rows, mode="overwrite", commit_properties=properties)
                return
            except CommitFailedError:  # a running sink was faster
                if not left:
                    raise

    def _fit(self, target: Target) -> DeltaTable:
        from deltalake import DeltaTable

        assert target.columns is not None
        path = self._path(target)
        if not DeltaTable.is_deltatable(str(path)):
            path.mkdir(parents=True, exist_ok=True)
            return DeltaTable.create(str(path), target.columns.remove_metadata(), mode="ignore")
        table = DeltaTable(str(path))
        found = pa.schema(table.schema().to_arrow())
        for column in target.columns:
            kind = found.field(column.name).type if column.name in found.names else None
            if kind != column.type:
                raise SchemaMismatch(
                    f"table {target.table!r}: column {column.name!r} is {kind or 'missing'} "
                    f"there, and the rows need {column.type}; alter the table, or delete its "
                    "directory"
                )
        return table

    def _apply(self, target: Target, steps: Sequence[Step], part: Part | None) -> None:
        table = self._load(target)
        if str(table.metadata().id) != self._identities[target.topic]:
            raise PositionMoved(f"table {target.table} was created again")
        stored = self._stored(table, target)
        check_steps(steps, stored)
        after = stored | {it.place: it.after for it in steps}
        properties = self._properties(target, after)
        if part is not None and part.changes.clear:
            self._overwrite(table, target, part, properties)
        elif part is not None and part.rows is not None and part.rows.num_rows:
            self._merge(table, target, part.rows, properties)
        if part is None or self._stored(self._load(target), target) != after:
            # Rows that change nothing, such as deletes of unknown keys, are not committed.
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=properties
            )

    def _merge(self, table: DeltaTable, target: Target, given: pa.Table, properties: Any) -> None:
        layout = self._layouts[target.topic]
        rows = make_ready(given, layout)
        source = rows.table.append_column(_MARK, pa.array(rows.deleted))
        columns = {f"`{name}`": f"s.`{name}`" for name in layout.names}
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in target.key)
        (
            table.merge(
                source, same, source_alias="s", target_alias="t", commit_properties=properties
            )
            .when_matched_delete(f"s.`{_MARK}`")
            .when_matched_update(updates=columns)
            .when_not_matched_insert(updates=columns, predicate=f"NOT s.`{_MARK}`")
            .execute()
        )

    def _overwrite(self, table: DeltaTable, target: Target, part: Part, properties: Any) -> None:
        """After a truncation: the rows since then are all that remain."""
        from deltalake import write_deltalake

        assert target.columns is not None
        rows = target.columns.remove_metadata().empty_table()
        if part.rows is not None and part.rows.num_rows:
            rows = make_ready(part.rows, self._layouts[target.topic]).kept()
        write_deltalake(table, rows, mode="overwrite", commit_properties=properties)

    # Positions

    def _number(self, target: Target, what: object) -> str:
        return f"millstream/{self.name}/{target.topic}/{what}"

    def _stored(self, table: DeltaTable, target: Target) -> dict[Place, Position]:
        table = self._origin(table, target)

        def number(what: object) -> int | None:
            return table.transaction_version(self._number(target, what))

        count, high, low = number("partitions"), number("id/0"), number("id/1")
        if count is None or high is None or low is None:
            return {}
        topic_id = str(uuid.UUID(int=(high % _HALF) * _HALF + low % _HALF))
        found = {}
        for partition in range(count):
            offset = number(partition)
            if offset is not None and offset >= 0:
                before = [number(f"{it}/{partition}") for it in ("epoch", "timestamp")]
                numbers = [UNKNOWN if it is None else it for it in before]
                found[Place(target.topic, partition)] = Position(topic_id, offset, *numbers)
        return found

    def _origin(self, table: DeltaTable, target: Target) -> DeltaTable:
        """The version that the rows come from: an older one if the table was restored."""
        for commit in _commits(self._path(target), table.version()):
            if commit.get(_WRITER) == self._number(target, ""):
                break
            if commit.get("operation") == "RESTORE":
                return self._origin(self._restored(target, commit["operationParameters"]), target)
        return table

    def _restored(self, target: Target, parameters: Mapping[str, str]) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        path = str(self._path(target))
        when = parameters.get("datetime") or parameters.get("timestamp")
        try:
            if when is None:
                return DeltaTable(path, version=int(parameters["version"]))
            if when.isdecimal():  # milliseconds, as delta-rs writes them
                when = datetime.fromtimestamp(int(when) / 1000, UTC).isoformat()
            table = DeltaTable(path)
            table.load_as_version(when)
            return table
        except (DeltaError, KeyError, ValueError) as error:
            raise StoreError(
                f"table {target.table!r} was restored ({dict(parameters)}), and the position of "
                f"that version cannot be read: {error}; run with --rebuild"
            ) from error

    def _properties(self, target: Target, positions: Mapping[Place, Position]) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={_WRITER: self._number(target, "")},
            app_transactions=[
                Transaction(self._number(target, what), version)
                for what, version in _numbers(positions)
            ],
        )

    # Files

    def _path(self, target: Target) -> Path:
        return self._directory / target.table

    def _load(self, target: Target) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(str(self._path(target)))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
        except ImportError as error:
            raise ConfigError("Delta needs: pip install 'millstream[delta]'") from error
        try:
            yield
        except CommitFailedError as error:
            raise PositionMoved(f"{self._directory}: another commit was faster: {error}") from error
        except TableNotFoundError as error:  # deleted: open() creates it
            raise SinkUnavailable(f"{self._directory}: {error}") from error
        except (DeltaError, OSError) as error:
            raise StoreError(
                f"{self._directory}: {error}; nothing of the batch was kept"
            ) from error


def _with_values(table: DeltaTable, column: str, values: Sequence[Any]) -> Iterator[Row]:
    """The rows that have one of these in the column."""
    rows = table.to_pyarrow_dataset()
    if not pa.types.is_string(rows.schema.field(column).type):
        yield from rows.to_table(filter=pc.field(column).isin(values)).to_pylist()
        return
    # Arrow cannot compare text with the least and greatest of a file, which are `string_view`.
    wanted = pa.array(values, pa.string())
    for batch in rows.to_batches():
        yield from batch.filter(pc.is_in(batch.column(column), wanted)).to_pylist()


def _commits(path: Path, last: int) -> Iterator[dict[str, Any]]:
    """What the log says about the commits up to a version, the newest first. (`history` of a table
    counts from its own version, but begins at the newest commit.)"""
    for version in range(last, -1, -1):
        try:
            lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        except FileNotFoundError:
            return  # older ones are deleted after a checkpoint
        for line in lines:
            if line.startswith('{"commitInfo"'):
                yield json.loads(line)["commitInfo"]


def _numbers(positions: Mapping[Place, Position]) -> Iterable[tuple[object, int]]:
    (topic_id,) = {it.topic_id for it in positions.values()}
    for number, half in enumerate(divmod(uuid.UUID(topic_id).int, _HALF)):
        yield f"id/{number}", half - _HALF if half >= _HALF // 2 else half
    yield "partitions", 1 + max(place.partition for place in positions)
    yield "written_at", time.time_ns() // 1_000_000
    for place, position in positions.items():
        yield place.partition, position.offset
        yield f"epoch/{place.partition}", position.epoch
        yield f"timestamp/{place.partition}", position.timestamp
