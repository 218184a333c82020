"""Columns as text; `tests/query/test_ddl.py` has what is refused."""

from __future__ import annotations

from millstream.config.columns import Column, ColumnType, parse_columns


def test_columns_are_parsed() -> None:
    assert parse_columns('id LONG, "odd name" array<struct<a: time>>, n numeric(5, 1)') == (
        Column("id", ColumnType("bigint")),
        Column(
            "odd name",
            ColumnType(
                "array",
                fields=(
                    Column("", ColumnType("struct", fields=(Column("a", ColumnType("time")),))),
                ),
            ),
        ),
        Column("n", ColumnType("decimal", 5, 1)),
    )


def test_types_are_found_inside_others() -> None:
    (column,) = parse_columns("a map<string, array<time>>")
    assert column.type.uses("time")
    assert not column.type.uses("date")
