"""Files of Parquet: every change of a topic, in files that are added and never changed.

    lake/items                                           a symbolic link to the directory in use
    lake/items.000001/__partition=0/00000000000000000000.parquet
    lake/items.000001/__partition=0/00000000000000005000.parquet

A file has the changes from the offset in its name on, and where it ends in its metadata: the
position of a partition is the end of its last file; without a file it is offset 0. A file appears
under its name at once, complete and durable, and only if there is none of this name. So each offset
is in one file, also if several processes write.

Besides the declared columns, each row has

    __offset     the offset of the record
    __op         "u": the row is set; "d": the row of the key is deleted; "t": all rows are deleted
    __unchanged  the columns whose value was not sent because it did not change; null otherwise

The rows of the table are the last ones of each key: see docs/guides/derived.md for the query.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.connect.sinks.changes import DELETED, Row, keyed
from millstream.connect.sinks.positions import (
    UNKNOWN,
    Place,
    Position,
    PositionMoved,
    Step,
    check_steps,
)
from millstream.connect.sinks.sink import REBUILD_SUFFIX, Part, Sink, SinkUnavailable, Target, Write
from millstream.errors import ConfigError, SchemaMismatch, StoreError

OFFSET, OPERATION, UNCHANGED = "__offset", "__op", "__unchanged"
SET, DELETE, TRUNCATE = "u", "d", "t"
_METADATA = b"millstream"
_PARTITION = "__partition="
_TEMPORARY = ".writing-"
_TEMPORARY_SECONDS_MAX = 3_600.0
_PAGE = 10_000  # rows


class ParquetSink(Sink):
    """Directories of files in one directory."""

    keeps_history = True
    rows_max = 200_000
    pause_seconds = 10.0  # each write is a file for each partition

    def __init__(self, directory: Path, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        self._directory = directory
        self._homes: dict[str, Path] = {}  # the directories in use, by topic

    def open(self) -> None:
        with self._reporting():
            self._directory.mkdir(parents=True, exist_ok=True)
            for target in self.targets:
                self._homes[target.topic] = self._fit(target)

    def positions(self) -> dict[Place, Position]:
        found: dict[Place, Position] = {}
        with self._reporting():
            for target in self.targets:
                found |= self._stored(target)
        return found

    def apply(self, write: Write) -> None:
        with self._reporting():
            for target in self.targets:
                steps = [it for it in write.steps if it.place.topic == target.topic]
                if not steps:
                    continue
                if self._link(target) != self._homes[target.topic]:
                    raise PositionMoved(f"{target.table} was replaced after a rebuild")
                # Of a partition without records nothing is stored.
                first = {it.place: it.before for it in steps if it.before and not it.before.offset}
                check_steps(steps, first | self._stored(target))
                rows = self._rows(target, write.parts.get(target.topic))
                for step in steps:
                    self._add(target, step, rows.get(step.place.partition))

    def written_at(self, target: Target) -> float | None:
        with self._reporting():
            files = [it for _, it in _last_files(self._homes[target.topic])]
            return max((it.stat().st_mtime for it in files), default=None)

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        """With the partition of each change as `__partition`."""
        from millstream.connect.sinks.columns import to_json

        with self._reporting():
            for path in sorted(self._homes[target.topic].glob(f"{_PARTITION}*/*.parquet")):
                name, _, partition = path.parent.name.partition("=")
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(_PAGE):
                        for row in batch.to_pylist():
                            found = {column: to_json(it) for column, it in row.items()}
                            yield keyed(found | {name: int(partition)}, target.key)

    def purge(self) -> list[str]:
        return []  # the directory that was replaced is deleted

    def close(self) -> None:
        """Nothing is open between writes."""

    def rebuilt(self) -> ParquetSink:
        targets = [replace(it, table=it.table + REBUILD_SUFFIX) for it in self.targets]
        sink = ParquetSink(self._directory, self.name, targets)
        for target in targets:
            sink._remove(target)
        return sink

    def switch(self, rebuilt: Sink) -> None:
        assert isinstance(rebuilt, ParquetSink)
        with self._reporting():
            for target, other in zip(self.targets, rebuilt.targets, strict=True):
                old, new = self._homes[target.topic], rebuilt._homes[target.topic]
                _, _, number = old.name.rpartition(".")
                home = self._directory / f"{target.table}.{int(number) + 1:06d}"
                shutil.rmtree(home, ignore_errors=True)
                new.rename(home)
                self._point(target, home)
                rebuilt._path(other).unlink()
                shutil.rmtree(old)
                self._homes[target.topic] = home

    # Directories

    def _path(self, target: Target) -> Path:
        return self._directory / target.table

    def _link(self, target: Target) -> Path | None:
        path = self._path(target)
        return self._directory / path.readlink() if path.is_symlink() else None

    def _fit(self, target: Target) -> Path:
        path, home = self._path(target), self._link(target)
        if home is None and path.exists():
            raise ConfigError(f"{path} exists and is not a sink's; choose another `table`")
        if home is None:
            home = self._directory / f"{target.table}.000001"
            self._point(target, home)
        home.mkdir(exist_ok=True)
        for left in home.glob(f"{_PARTITION}*/{_TEMPORARY}*"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _TEMPORARY_SECONDS_MAX:
                    left.unlink()
        self._check_columns(target, home)
        return home

    def _check_columns(self, target: Target, home: Path) -> None:
        last = next((it for _, it in _last_files(home)), None)
        if last is None:
            return
        found, wanted = pq.read_schema(last).remove_metadata(), _schema(target)
        if found != wanted:
            raise SchemaMismatch(
                f"{self._path(target)} has files with the columns {_shown(found)}, and the sink "
                f"declares {_shown(wanted)}; run with --rebuild after moving the directory away"
            )

    def _point(self, target: Target, home: Path) -> None:
        temporary = self._directory / f".{target.table}-{uuid.uuid4().hex}"
        temporary.symlink_to(home.name)
        temporary.rename(self._path(target))
        sync(self._directory)

    def _remove(self, target: Target) -> None:
        self._path(target).unlink(missing_ok=True)
        for home in self._directory.glob(f"{target.table}.*"):
            shutil.rmtree(home)

    # Files

    def _stored(self, target: Target) -> dict[Place, Position]:
        found = {}
        for partition, path in _last_files(self._homes[target.topic]):
            about = json.loads(pq.read_schema(path).metadata[_METADATA])
            if about["sink"] != self.name or about["topic"] != target.topic:
                raise ConfigError(
                    f"{self._path(target)} has files of topic {about['topic']} by sink "
                    f"{about['sink']}; choose another `table`"
                )
            found[Place(target.topic, partition)] = Position(
                about["topic_id"],
                about["next_offset"],
                about.get("epoch", UNKNOWN),  # not in files of earlier versions
                about.get("timestamp", UNKNOWN),
            )
        return found

    def _rows(self, target: Target, part: Part | None) -> dict[int, pa.Table]:
        """By partition, in the order of the offsets."""
        if part is None:
            return {}
        assert part.rows is not None
        rows = part.rows
        marks = rows.column(DELETED).to_pylist()
        origins = [part.origin(it.record) for it in part.changes.changes]
        operations = [DELETE if it else SET for it in marks]
        unchanged = [list(it.unchanged) or None for it in part.changes.changes]
        rows = rows.drop_columns([DELETED])
        if part.changes.cleared_by is not None:
            first = pa.table([pa.nulls(1, it.type) for it in rows.schema], schema=rows.schema)
            rows = pa.concat_tables([first, rows])
            origins.insert(0, part.origin(part.changes.cleared_by))
            operations.insert(0, TRUNCATE)
            unchanged.insert(0, None)
        rows = rows.append_column(OFFSET, pa.array([it for _, it in origins], pa.int64()))
        rows = rows.append_column(OPERATION, pa.array(operations, pa.string()))
        rows = rows.append_column(UNCHANGED, pa.array(unchanged, pa.list_(pa.string())))
        partitions = pa.array([it for it, _ in origins], pa.int32())
        found = {}
        for partition in partitions.unique().to_pylist():
            here = pc.equal(partitions, partition)
            found[partition] = rows.filter(here).cast(_schema(target))
        return found

    def _add(self, target: Target, step: Step, rows: pa.Table | None) -> None:
        folder = self._homes[target.topic] / f"{_PARTITION}{step.place.partition}"
        begin = 0 if step.before is None else step.before.offset
        if step.after.offset == begin:
            for last in sorted(folder.glob("*.parquet"))[-1:]:
                os.utime(last)
            return
        topic_id, next_offset, epoch, timestamp = step.after
        about = {
            "sink": self.name,
            "topic": target.topic,
            "topic_id": topic_id,
            "next_offset": next_offset,
            "epoch": epoch,
            "timestamp": timestamp,
        }
        schema = _schema(target)
        table = schema.empty_table() if rows is None else rows
        table = table.replace_schema_metadata({_METADATA: json.dumps(about).encode()})
        folder.mkdir(exist_ok=True)
        temporary = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            pq.write_table(table, temporary)
            sync(temporary)
            try:
                os.link(temporary, folder / f"{begin:020d}.parquet")
            except FileExistsError:
                raise PositionMoved(
                    f"{step.place}: another process has written the file of offset {begin}"
                ) from None
        finally:
            temporary.unlink(missing_ok=True)
        sync(folder)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:  # deleted: open() creates it
            raise SinkUnavailable(f"{self._directory}: {error}") from error
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{self._directory}: {error}") from error


def _schema(target: Target) -> pa.Schema:
    assert target.columns is not None
    fields = [pa.field(it.name, it.type) for it in target.columns]
    return pa.schema(
        [
            *fields,
            pa.field(OFFSET, pa.int64()),
            pa.field(OPERATION, pa.string()),
            pa.field(UNCHANGED, pa.list_(pa.string())),
        ]
    )


def _last_files(home: Path) -> Iterator[tuple[int, Path]]:
    """The last file of each partition."""
    for folder in home.glob(f"{_PARTITION}*"):
        files = sorted(folder.glob("*.parquet"))
        if files:
            yield int(folder.name.removeprefix(_PARTITION)), files[-1]


def _shown(schema: Any) -> str:
    return ", ".join(f"{it.name} {it.type}" for it in schema)


def sync(path: Path) -> None:
    """Write a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
