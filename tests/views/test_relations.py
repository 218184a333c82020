"""A reader's SQL with the views that it may name. What it finds: test_reading.py."""

from __future__ import annotations

import pytest

from millstream.connect.tables.schema import Column
from millstream.errors import ViewError
from millstream.views.relations import relation, with_views
from millstream.views.spec import ViewEntry

ENTRY = ViewEntry("v", "main.t", "main.h", ("id",), (Column("id", "long"),), 10, 3, "q")
VIEWS = {"v": "SELECT 1"}
CTE = '"v" AS NOT MATERIALIZED (SELECT 1)'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 2;", f"WITH {CTE} SELECT 2"),
        (" -- why\n/* what */ values (1)", f"WITH {CTE} values (1)"),
        ("with x as (select 1) select 2", f"WITH {CTE}, x as (select 1) select 2"),
        ("WITH RECURSIVE x AS (...) SELECT 2", f"WITH RECURSIVE {CTE}, x AS (...) SELECT 2"),
    ],
)
def test_views_are_put_before_the_query(text: str, expected: str) -> None:
    assert with_views(text, VIEWS) == expected


@pytest.mark.parametrize("text", ["", "DELETE FROM v", "selection", "EXPLAIN SELECT 1", "-- only"])
def test_other_statements_are_refused(text: str) -> None:
    with pytest.raises(ViewError, match="begins with SELECT"):
        with_views(text, VIEWS)


def test_stamps_that_are_not_kept_are_refused() -> None:
    assert relation(ENTRY, 5, 5) == 'SELECT "id" FROM main.t'
    assert "main.h" in relation(ENTRY, 3, 5)
    for number, newest in ((2, 5), (4, 15)):
        with pytest.raises(ViewError, match="kept for 10 stamps"):
            relation(ENTRY, number, newest)
