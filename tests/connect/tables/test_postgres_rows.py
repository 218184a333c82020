"""Rows for tables of PostgreSQL, within one transaction."""

from __future__ import annotations

import pyarrow as pa

from millstream.connect.tables.postgres_connection import connect
from millstream.connect.tables.postgres_rows import fit, stage_rows
from millstream.connect.tables.postgres_tables import Merge
from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import layout_of
from millstream.connect.tables.spec import TableSpec
from tests.pipelines.stores.conftest import Database

ROWS = pa.table({"id": [2, 1, 2], "name": ["b", "a", "c"]})
LAYOUT = layout_of(ROWS.schema, TableSpec("items", ("id",)))


def test_staged_rows_are_merged(postgres_database: Database) -> None:
    with connect(postgres_database.url) as connection, connection.transaction():
        found = fit(connection, LAYOUT)
        stage = stage_rows(connection, "staged", make_ready(ROWS, LAYOUT), LAYOUT)
        for statement in Merge(LAYOUT, found).statements([stage]):
            connection.execute(statement)
    assert postgres_database.rows("SELECT * FROM items ORDER BY id") == [(1, "a"), (2, "c")]
