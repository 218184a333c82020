"""A bucket: the tables of some of the keys, a timer, and the index that lists their pages.

A batch reads the index first and writes it last, sealed like a page (see pages.py). Its body:

    {"identity": ..., "buckets": 16, "keys": {"events": ["user"]}, "next_page": 42,
     "timer_us": null, "watermark_us": ..., "frontiers": {"late": ...},
     "tables": {"events": {"columns": {"user": "string", ...}, "dropped": ["country"],
                           "keys": ["user"], "time": "time", "horizon_us": ...,
                           "pages": [[id, first_us, last_us, rows, bytes, crc,
                                      first_hash, last_hash, run], ...]}}}

State with another `identity`, number of buckets, keys (of inputs and of tables) or time is refused,
because it would be misread silently. So is one with another `settles`, which only some operators
have, and earlier versions did not write: rows would get no result, or two. Columns are found by
name, in any order. A column that the operator no longer has is dropped when its page is rewritten.
A new column is null in older rows if the operator only carries it through
(`StateTableSpec.carried`), and refused if it computes with it. See stored_columns.py for a column
that was removed and comes back.

Frontiers are times up to which the operator has decided something: which rows are late, which
results are final. They never go back, so results do not depend on a setting from before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from millstream.pipelines.state.keyed_tables import KeyedTable
from millstream.pipelines.state.pages import (
    INDEX_MAGIC,
    CorruptState,
    check_same,
    crc_of,
    decode_page,
    encode_page,
    seal,
    unseal,
)
from millstream.pipelines.state.stored_columns import NO_GENERATIONS, Generations, StoredColumns
from millstream.pipelines.state.tables import NO_HORIZON, PageInfo, StateTableSpec, Table

NO_WATERMARK = -(2**62)  # adding or subtracting a lateness stays within 64 bits
"""The watermark of a stream that has none yet, in microseconds."""
END_OF_TIME = 2**62
"""The watermark after the last row, in microseconds."""


class InputSpec(NamedTuple):
    """The columns of an input, and the key columns, whose hash determines the bucket."""

    schema: pa.Schema
    keys: tuple[str, ...]


class Frontier(NamedTuple):
    """A frontier before this call, and now."""

    before_us: int
    now_us: int


class StateSpec(Protocol):
    """The part of an operator that its state depends on."""

    identity: str  # the settings that the content of the state depends on
    earlier: tuple[str, ...]  # the identities that earlier versions gave the same settings
    settles: str  # when each row gets its result, if only the state tells which have theirs
    inputs: Mapping[str, InputSpec]
    tables: Mapping[str, StateTableSpec]


class BucketStore(Protocol):
    """The storage of a bucket's bytes: Spark's state store, or a dict."""

    def read_index(self) -> bytes | None: ...

    def read_page(self, page_id: int) -> bytes | None: ...

    def write_page(self, page_id: int, blob: bytes) -> None:
        """Write a page early because memory would not hold it until `write`, which lists it too."""

    def write(self, changes: Changes) -> None: ...


@dataclass(frozen=True)
class Changes:
    """The changes of a bucket by one batch; no index if nothing is left to keep."""

    index: bytes | None
    written: Mapping[int, bytes]
    removed: tuple[int, ...]
    timer_before_us: int | None
    timer_us: int | None


class BucketState:
    """A bucket during one call of an operator."""

    def __init__(
        self,
        spec: StateSpec,
        bucket_count: int,
        store: BucketStore,
        generations: Generations = NO_GENERATIONS,
    ) -> None:
        self._spec = spec
        self._bucket_count = bucket_count
        self._store = store
        self._index_before = store.read_index()
        index = self._read_index()
        self._next_page: int = index["next_page"]
        self._timer_before_us: int | None = index["timer_us"]
        self.timer_us = self._timer_before_us
        self.watermark_us: int = index["watermark_us"]  # that of the call before
        self._frontiers: dict[str, int] = index["frontiers"]
        self._removed = [
            PageInfo(*page).page_id
            for name, listed in index["tables"].items()
            if name not in spec.tables
            for page in listed["pages"]
        ]
        self._columns = {
            name: StoredColumns(name, table, generations.get(name, {}), index["tables"].get(name))
            for name, table in spec.tables.items()
        }
        self._tables = {
            name: self._open_table(name, table, index["tables"].get(name))
            for name, table in spec.tables.items()
        }

    def __getitem__(self, table: str) -> Table:
        return self._tables[table]

    def keyed(self, table: str) -> KeyedTable:
        """A table whose spec has `by_key`."""
        found = self._tables[table]
        assert isinstance(found, KeyedTable)
        return found

    def wake_at(self, time_us: int | None) -> None:
        """Call `on_timer` when the watermark gets there. The last call counts; None: never."""
        self.timer_us = time_us

    def advance(self, frontier: str, time_us: int) -> Frontier:
        """Move a frontier forward to this time; it stays where it is if that is behind it."""
        before_us = self._frontiers.get(frontier, NO_WATERMARK)
        now_us = self._frontiers[frontier] = max(before_us, time_us)
        return Frontier(before_us, now_us)

    def finish(self, watermark_us: int) -> None:
        """Write the changes. Raises `ValueError` for a timer that would never fire."""
        if self.timer_us is not None and self.timer_us <= watermark_us:
            raise ValueError(f"wake_at({self.timer_us}): the watermark {watermark_us} is past it")
        written: dict[int, bytes] = {}
        removed = list(self._removed)
        listed = {}
        for name, table in self._tables.items():
            table.compact()
            for info, rows in table.made():
                blob = written[info.page_id] = self._encode(name, rows)
                table.pages[info.page_id] = info._replace(crc=crc_of(blob))
            removed += table.removed
            listed[name] = {
                **self._columns[name].layout,
                "horizon_us": table.horizon_us,
                "pages": list(table.pages.values()),
            }
            table.close()
        has_rows = any(table["pages"] for table in listed.values())
        is_moved = any(time_us > NO_WATERMARK for time_us in self._frontiers.values())
        is_empty = self.timer_us is None and not has_rows and not is_moved
        self._store.write(
            Changes(
                index=None if is_empty else self._encode_index(listed, watermark_us),
                written=written,
                removed=tuple(removed),
                timer_before_us=self._timer_before_us,
                timer_us=self.timer_us,
            )
        )

    def _encode_index(self, tables: Mapping[str, Any], watermark_us: int) -> bytes:
        index = {
            "identity": self._spec.identity,
            "buckets": self._bucket_count,
            "keys": _input_keys(self._spec),
            "next_page": self._next_page,
            "timer_us": self.timer_us,
            "watermark_us": max(watermark_us, self.watermark_us),
            "frontiers": self._frontiers,
            "tables": tables,
        }
        if self._spec.settles:
            index["settles"] = self._spec.settles
        return seal(INDEX_MAGIC, json.dumps(index, separators=(",", ":")).encode())

    def _read_index(self) -> dict[str, Any]:
        blob = self._index_before
        if blob is None:
            return {
                "next_page": 0,
                "timer_us": None,
                "watermark_us": NO_WATERMARK,
                "frontiers": {},
                "tables": {},
            }
        index: dict[str, Any] = json.loads(bytes(unseal(INDEX_MAGIC, blob)))
        if index["identity"] not in self._spec.earlier:
            check_same("settings", index["identity"], self._spec.identity)
        if "settles" in index:
            check_same("time of results", index["settles"], self._spec.settles)
        check_same("number of buckets", index["buckets"], self._bucket_count)
        check_same("keys", index["keys"], _input_keys(self._spec))
        return index

    def _open_table(
        self, name: str, spec: StateTableSpec, listed: Mapping[str, Any] | None
    ) -> Table:
        pages = [PageInfo(*page) for page in listed["pages"]] if listed else []
        horizon_us = listed["horizon_us"] if listed else NO_HORIZON
        kind = KeyedTable if spec.by_key else Table
        fetch, put = partial(self._fetch, name), partial(self._put, name)
        return kind(spec, pages, horizon_us, fetch, put, self._new_id)

    def _fetch(self, table: str, page: PageInfo) -> pa.RecordBatch:
        blob = self._store.read_page(page.page_id)
        if blob is None:
            raise CorruptState(
                f"page {page.page_id} of state, with {page.row_count} rows, is missing. "
                "Restore the checkpoint from a backup, or use a new one"
            )
        rows = decode_page(blob)
        if crc_of(blob) != page.crc:
            raise CorruptState(
                f"page {page.page_id} of state is not the one that its index lists. "
                "Restore the checkpoint from a backup, or use a new one"
            )
        return self._columns[table].from_page(rows)

    def _put(self, table: str, page_id: int, rows: pa.RecordBatch) -> int:
        blob = self._encode(table, rows)
        self._store.write_page(page_id, blob)
        return crc_of(blob)

    def _encode(self, table: str, rows: pa.RecordBatch) -> bytes:
        return encode_page(self._columns[table].to_page(rows), compressed=True)

    def _new_id(self) -> int:
        self._next_page += 1
        return self._next_page - 1


def _input_keys(spec: StateSpec) -> dict[str, list[str]]:
    """The key columns of each input."""
    return {name: list(rows.keys) for name, rows in spec.inputs.items()}
