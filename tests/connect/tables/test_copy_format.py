"""The binary stream of COPY, read back by PostgreSQL itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.connect.tables import copy_format
from millstream.connect.tables.postgres_tables import staging_columns
from millstream.connect.tables.rows import Rows, make_ready
from millstream.connect.tables.schema import layout_of
from millstream.connect.tables.spec import TableSpec
from millstream.pipelines.stores.staging import copy_rows
from tests.drawing import draws
from tests.peers.postgres import PostgresServer

SPEC = TableSpec("t", mode="append")
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
COLUMNS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
    (pa.large_string(), st.sampled_from(["", "\t", "\\N", "ä"])),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), MOMENTS.map(datetime.date)),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.timestamp("ms", "Asia/Tokyo"), st.just(datetime(2026, 1, 1, tzinfo=UTC))),
]
ROW = st.tuples(*(st.none() | values for _, values in COLUMNS))


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True, prepare_threshold=None) as opened:
        opened.execute("SET timezone = 'UTC'")
        yield opened


def through_postgres(connection: psycopg.Connection[Any], table: pa.Table) -> list[Any]:
    layout = layout_of(table.schema, SPEC)
    connection.execute("DROP TABLE IF EXISTS pg_temp.copied")
    connection.execute(f"CREATE TEMPORARY TABLE copied ({staging_columns(layout)})")
    copy_rows(connection, "copied", make_ready(table, layout), layout)
    return connection.execute("SELECT * FROM copied", binary=True).fetchall()


@settings(
    deadline=None,
    max_examples=draws(50),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.lists(ROW, max_size=8))
def test_server_reads_what_was_meant(
    connection: psycopg.Connection[Any], rows: list[tuple[Any, ...]]
) -> None:
    columns = {
        f"column {number}": pa.array([row[number] for row in rows], kind)
        for number, (kind, _) in enumerate(COLUMNS)
    }
    table = pa.table(columns)
    assert through_postgres(connection, table) == [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("rows_per_piece", [1, 3, 10])
def test_pieces_of_any_size_make_the_same_stream(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, rows_per_piece: int
) -> None:
    monkeypatch.setattr(copy_format, "_ROWS_PER_PIECE", rows_per_piece)
    numbers = pa.chunked_array([[1, None], [3, 4, None], [], [6, 7, 8, 9, 10]], pa.int64())
    names = pa.array([None if n % 3 else f"name {n}" for n in range(10)])
    found = through_postgres(connection, pa.table({"n": numbers, "s": names}))
    assert found == list(zip(numbers.to_pylist(), names.to_pylist(), strict=True))


def test_slices_of_arrays_are_read_from_where_they_begin(
    connection: psycopg.Connection[Any],
) -> None:
    table = pa.table({"n": [1, None, 3, None], "s": ["a", None, "c", "d"], "b": [True, None] * 2})
    found = through_postgres(connection, table.slice(1, 2))
    assert found == [(None, None, None), (3, "c", True)]


def test_decimals_and_nested_values_travel_as_text(connection: psycopg.Connection[Any]) -> None:
    table = pa.table(
        {"d": pa.array([Decimal("-0.10"), None], pa.decimal128(5, 2)), "j": [[1], None]}
    )
    assert through_postgres(connection, table) == [("-0.10", "[1]"), (None, None)]


def test_marks_of_deleted_rows_come_last() -> None:
    spec = TableSpec("t", ("id",), delete="gone")
    table = pa.table({"id": [1, 2], "gone": [True, None]})
    layout = layout_of(table.schema, spec)
    rows = make_ready(table, layout)
    assert isinstance(rows, Rows)
    stream = b"".join(bytes(piece) for piece in copy_format.copy_stream(rows, layout))
    field = (8).to_bytes(4, "big")
    expected = [
        b"\0\2" + field + number.to_bytes(8, "big") + b"\0\0\0\1" + mark
        for number, mark in ((1, b"\1"), (2, b"\0"))
    ]
    assert stream == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"".join(expected) + b"\xff\xff"


def test_day_before_the_epoch_of_postgresql_is_negative(
    connection: psycopg.Connection[Any],
) -> None:
    day = date(2000, 1, 1) - timedelta(days=1)
    assert through_postgres(connection, pa.table({"d": [day]})) == [(day,)]
