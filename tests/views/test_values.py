"""Cells and keys of views."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from millstream.connect.tables.schema import Column
from millstream.errors import ViewError
from millstream.views.values import from_sqlite, from_text, key_values, to_sqlite

MOMENT = datetime(2026, 1, 31, 12, 0, 1, 5, tzinfo=UTC)
CASES: list[tuple[Column, Any, Any, str]] = [
    (Column("it", "boolean"), True, 1, "true"),
    (Column("it", "long"), 7, 7, "7"),
    (Column("it", "decimal", 10, 2), Decimal("1.50"), "1.50", "1.5"),
    (Column("it", "date"), date(2026, 1, 31), "2026-01-31", "2026-01-31"),
    (Column("it", "timestamp"), MOMENT, "2026-01-31 12:00:01.000005", MOMENT.isoformat()),
    (Column("it", "string"), "a", "a", "a"),
    (Column("it", "binary"), b"\x01", b"\x01", "01"),
]


@pytest.mark.parametrize(("column", "value", "stored", "text"), CASES)
def test_values_are_read_as_they_were_written(
    column: Column, value: Any, stored: Any, text: str
) -> None:
    assert to_sqlite(column, value) == stored
    assert from_sqlite(column, stored) == value
    assert from_text(column, text) == value
    assert key_values([column], [value], whole=True) == [value]


def test_values_of_other_types_are_refused() -> None:
    for column, value, *_ in CASES:
        with pytest.raises(ViewError, match="it is"):
            key_values([column], [object()], whole=True)
        if column.kind not in ("string", "boolean"):
            with pytest.raises(ViewError, match="it is"):
                from_text(column, "?")
        assert from_sqlite(column, None) is None
        del value


def test_key_has_all_its_columns() -> None:
    columns = [Column("a", "long"), Column("b", "long")]
    assert key_values(columns, [1], whole=False) == [1]
    for given, whole in (([1], True), ([1, 2, 3], False), ([], False)):
        with pytest.raises(ViewError, match="2 values"):
            key_values(columns, given, whole=whole)
