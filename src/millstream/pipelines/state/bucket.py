"""A bucket: the tables of some of the keys, a timer, and the index that lists their pages.

The index is what a batch reads first and writes last, sealed like a page (see pages.py). Its body:

    {"identity": ..., "buckets": 16, "keys": {"events": ["user"]}, "next_page": 42,
     "timer_us": null, "watermark_us": ...,
     "tables": {"events": {"columns": [["user", "string"], ...], "keys": ["user"], "time": "time",
                           "horizon_us": ...,
                           "pages": [[id, first_us, last_us, rows, bytes, crc,
                                      first_hash, last_hash, run], ...]}}}

`identity`, `buckets`, `keys` (of inputs and of tables), `columns` and `time` are those that the
state was made with: state of others is refused, since it would be read wrongly without anyone
noticing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from millstream.pipelines.state.pages import (
    INDEX_MAGIC,
    CorruptState,
    StateMismatch,
    crc_of,
    decode_page,
    encode_page,
    seal,
    unseal,
)
from millstream.pipelines.state.runs import KeyedTable
from millstream.pipelines.state.tables import NO_HORIZON, PageInfo, Table, TableSpec

NO_WATERMARK = -(2**62)  # a lateness can be taken off or added without leaving 64 bits
END_OF_TIME = 2**62


class InputSpec(NamedTuple):
    """The columns of an input, and those of them that decide about its bucket."""

    schema: pa.Schema
    keys: tuple[str, ...]


class StateSpec(Protocol):
    """The part of an operator that its state depends on."""

    identity: str  # the settings that state depends on; state of another identity is refused
    inputs: Mapping[str, InputSpec]
    tables: Mapping[str, TableSpec]


class BucketStore(Protocol):
    """Where a bucket's bytes are: in Spark's state store, or in a dict."""

    def read_index(self) -> bytes | None: ...

    def read_page(self, page_id: int) -> bytes | None: ...

    def write_page(self, page_id: int, blob: bytes) -> None:
        """A page that is too many to be held until `write`, which lists it as any other."""

    def write(self, changes: Changes) -> None: ...


@dataclass(frozen=True)
class Changes:
    """What a batch did to a bucket; no index if nothing is left to keep."""

    index: bytes | None
    written: Mapping[int, bytes]
    removed: tuple[int, ...]
    timer_before_us: int | None
    timer_us: int | None


class BucketState:
    """What an operator sees of a bucket, for the length of one call."""

    def __init__(self, spec: StateSpec, bucket_count: int, store: BucketStore) -> None:
        self._spec = spec
        self._bucket_count = bucket_count
        self._store = store
        self._index_before = store.read_index()
        index = self._read_index()
        self._next_page: int = index["next_page"]
        self._timer_before_us: int | None = index["timer_us"]
        self.timer_us = self._timer_before_us
        self.watermark_us: int = index["watermark_us"]  # that of the call before
        self._tables = {
            name: self._open_table(table, index["tables"].get(name))
            for name, table in spec.tables.items()
        }

    def __getitem__(self, table: str) -> Table:
        return self._tables[table]

    def keyed(self, table: str) -> KeyedTable:
        """A table whose spec says `by_key`."""
        found = self._tables[table]
        assert isinstance(found, KeyedTable)
        return found

    def wake_at(self, time_us: int | None) -> None:
        """Call `on_timer` once the watermark is there. Only the last call counts; None: never."""
        self.timer_us = time_us

    def finish(self, watermark_us: int) -> None:
        """Write what changed. Raises `ValueError` for a timer that would never fire."""
        if self.timer_us is not None and self.timer_us <= watermark_us:
            raise ValueError(f"wake_at({self.timer_us}): the watermark {watermark_us} is past it")
        written: dict[int, bytes] = {}
        removed: list[int] = []
        listed = {}
        for name, table in self._tables.items():
            table.compact()
            for info, rows in table.made():
                blob = written[info.page_id] = encode_page(rows, compressed=True)
                table.pages[info.page_id] = info._replace(crc=crc_of(blob))
            removed += table.removed
            listed[name] = {
                **_layout(table.spec),
                "horizon_us": table.horizon_us,
                "pages": list(table.pages.values()),
            }
            table.close()
        is_empty = self.timer_us is None and not any(table["pages"] for table in listed.values())
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
            "tables": tables,
        }
        return seal(INDEX_MAGIC, json.dumps(index, separators=(",", ":")).encode())

    def _read_index(self) -> dict[str, Any]:
        blob = self._index_before
        if blob is None:
            return {"next_page": 0, "timer_us": None, "watermark_us": NO_WATERMARK, "tables": {}}
        index: dict[str, Any] = json.loads(bytes(unseal(INDEX_MAGIC, blob)))
        _check("settings", index["identity"], self._spec.identity)
        _check("number of buckets", index["buckets"], self._bucket_count)
        _check("keys", index["keys"], _input_keys(self._spec))
        for name, table in self._spec.tables.items():
            listed = index["tables"].get(name)
            for part, given in _layout(table).items() if listed else ():
                _check(f"{part} of {name}", listed[part], given)
        return index

    def _open_table(self, spec: TableSpec, listed: Mapping[str, Any] | None) -> Table:
        pages = [PageInfo(*page) for page in listed["pages"]] if listed else []
        horizon_us = listed["horizon_us"] if listed else NO_HORIZON
        kind = KeyedTable if spec.by_key else Table
        return kind(spec, pages, horizon_us, self._fetch, self._put, self._new_id)

    def _fetch(self, page: PageInfo) -> pa.RecordBatch:
        blob = self._store.read_page(page.page_id)
        if blob is None:
            raise CorruptState(
                f"page {page.page_id} of state, with {page.row_count} rows, is missing. "
                "Restore the checkpoint from a copy, or begin with a new one"
            )
        rows = decode_page(blob)
        if crc_of(blob) != page.crc:
            raise CorruptState(
                f"page {page.page_id} of state is not the one that its index lists. "
                "Restore the checkpoint from a copy, or begin with a new one"
            )
        return rows

    def _put(self, page_id: int, rows: pa.RecordBatch) -> int:
        blob = encode_page(rows, compressed=True)
        self._store.write_page(page_id, blob)
        return crc_of(blob)

    def _new_id(self) -> int:
        self._next_page += 1
        return self._next_page - 1


def _input_keys(spec: StateSpec) -> dict[str, list[str]]:
    """Of each input, the columns that decide about a row's bucket."""
    return {name: list(rows.keys) for name, rows in spec.inputs.items()}


def _layout(spec: TableSpec) -> dict[str, Any]:
    """What must be the same for a table's pages to be read as they were meant."""
    return {
        "columns": [[field.name, str(field.type)] for field in spec.schema],
        "keys": list(spec.keys),
        "time": spec.time,
    }


def _check(what: str, kept: object, given: object) -> None:
    if kept != given:
        raise StateMismatch(
            f"its state was kept with other {what}: {kept}, and now it is {given}. Bring them "
            "back as they were, or give it another checkpoint, which computes it anew"
        )
