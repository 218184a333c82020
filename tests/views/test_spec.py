"""Stamps and listings, as text in the store."""

from __future__ import annotations

import pytest

from millstream.connect.tables.schema import Column
from millstream.errors import ViewError
from millstream.views.spec import Stamp, ViewEntry

ENTRY = ViewEntry("v", "main.t", "main.h", ("id",), (Column("id", "long"),), 10, 3, "q")


def test_listing_survives_its_text() -> None:
    assert ViewEntry.decode(ENTRY.encode()) == ENTRY


def test_listing_of_another_format_is_refused() -> None:
    with pytest.raises(ViewError, match="another version"):
        ViewEntry.decode(ENTRY.encode().replace('"format": 2', '"format": 1'))


def test_stamp_has_offsets_ids_and_its_number() -> None:
    stamp = Stamp.parse("shop", 4, '{"orders": {"0": 7, "1": 2}}', '{"orders": "id"}')
    assert stamp.offsets == {("orders", 0): 7, ("orders", 1): 2}
    assert stamp.as_json() == {
        "offsets": {"orders": {"0": 7, "1": 2}},
        "topic_ids": {"orders": "id"},
        "numbers": {"shop": 4},
    }
