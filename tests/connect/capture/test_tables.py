"""Descriptions of tables: what they refuse."""

from __future__ import annotations

import pytest

from millstream.connect.capture.tables import CaptureError, Column, Table

COLUMNS = (Column("id", 23), Column("name", 25))


def test_table_has_a_full_name() -> None:
    assert Table(1, "public", "orders", COLUMNS).full_name == "public.orders"


def test_table_refuses_a_key_of_unknown_columns() -> None:
    with pytest.raises(CaptureError, match=r"public\.orders has no column nme"):
        Table(1, "public", "orders", COLUMNS, key=("nme",))


def test_table_refuses_a_key_that_deletes_do_not_contain() -> None:
    with pytest.raises(CaptureError, match="name cannot be part of the key"):
        Table(1, "public", "orders", COLUMNS, ("name",), "d", ("id",))


def test_table_with_full_identity_takes_any_key() -> None:
    assert Table(1, "public", "orders", COLUMNS, ("name",), "f", ("id", "name")).key == ("name",)
