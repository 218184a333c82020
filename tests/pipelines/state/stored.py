"""A table that is closed and opened again, for the tests of this room."""

from __future__ import annotations

from itertools import count

import pyarrow as pa

from millstream.pipelines.state.keyed_tables import KeyedTable
from millstream.pipelines.state.page_columns import from_page, to_page
from millstream.pipelines.state.pages import decode_page, encode_page
from millstream.pipelines.state.tables import NO_HORIZON, PageInfo, StateTableSpec, Table
from tests.pipelines.state.rows import SPEC


class Stored:
    """A table that is closed and opened again, on bytes."""

    def __init__(self, spec: StateTableSpec = SPEC) -> None:
        self.spec = spec
        self.blobs: dict[int, bytes] = {}
        self.ids = count()
        self.read: list[int] = []
        self.put_at_once: list[int] = []
        self.table = self.open([], NO_HORIZON)

    def open(self, pages: list[PageInfo], horizon_us: int) -> Table:
        kind = KeyedTable if self.spec.by_key else Table
        return kind(self.spec, pages, horizon_us, self.fetch, self.put, lambda: next(self.ids))

    def fetch(self, page: PageInfo) -> pa.RecordBatch:
        self.read.append(page.page_id)
        return from_page(decode_page(self.blobs[page.page_id]), self.spec.schema, self.spec.keys)

    def put(self, page_id: int, rows: pa.RecordBatch) -> int:
        self.blobs[page_id] = self.encode(rows)
        self.put_at_once.append(page_id)
        return 0

    def encode(self, rows: pa.RecordBatch) -> bytes:
        return encode_page(to_page(rows, self.spec.keys))

    def reopen(self) -> list[int]:
        """Write what changed; the pages that were written."""
        self.table.compact()
        written = {info.page_id: self.encode(rows) for info, rows in self.table.made()}
        self.blobs |= written
        for page_id in self.table.removed:
            del self.blobs[page_id]
        assert set(self.blobs) == set(self.table.pages)
        self.table = self.open(list(self.table.pages.values()), self.table.horizon_us)
        self.read.clear()
        return list(written)
