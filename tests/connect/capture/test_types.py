"""Resolution of PostgreSQL's types, and the catalogue of a real database."""

from __future__ import annotations

import pytest

from millstream.connect.capture.types import (
    NESTING_MAX,
    Kind,
    PostgresType,
    TypeCatalogue,
    ValueType,
    resolve,
)
from tests.connect.capture.source import Source

INT4, NUMERIC, TIMESTAMP, TIMESTAMPTZ, TIME, BIT, INT4_ARRAY = (
    23,
    1700,
    1114,
    1184,
    1083,
    1560,
    1007,
)
NOTHING = TypeCatalogue()


@pytest.mark.parametrize(
    ("oid", "modifier", "kind"),
    [
        (TIMESTAMP, -1, Kind.TIMESTAMP_MICROS),
        (TIMESTAMP, 3, Kind.TIMESTAMP_MILLIS),
        (TIMESTAMP, 4, Kind.TIMESTAMP_MICROS),
        (TIME, 0, Kind.TIME_MILLIS),
        (TIMESTAMPTZ, 0, Kind.TIMESTAMP_ZONED),
        (BIT, 1, Kind.BOOLEAN),
        (BIT, 2, Kind.BITS),
        (99999, -1, Kind.TEXT),
    ],
)
def test_kind_depends_on_type_and_modifier(oid: int, modifier: int, kind: Kind) -> None:
    assert resolve(oid, modifier, NOTHING).kind is kind


@pytest.mark.parametrize(
    ("modifier", "expected"),
    [
        (-1, ValueType(Kind.VARIABLE_DECIMAL)),
        (((10 << 16) | 2) + 4, ValueType(Kind.DECIMAL, precision=10, scale=2)),
        (((3 << 16) | 5) + 4, ValueType(Kind.VARIABLE_DECIMAL)),  # numeric(3,5)
        (((3 << 16) | (-2 & 0x7FF)) + 4, ValueType(Kind.VARIABLE_DECIMAL)),  # numeric(3,-2)
    ],
)
def test_precise_decimals_have_the_scale_of_the_column(modifier: int, expected: ValueType) -> None:
    assert resolve(NUMERIC, modifier, NOTHING, "precise") == expected


def test_decimals_are_text_unless_asked_for() -> None:
    assert resolve(NUMERIC, -1, NOTHING).kind is Kind.TEXT
    assert resolve(NUMERIC, -1, NOTHING, "double").kind is Kind.FLOAT


def test_nesting_is_bounded() -> None:
    """PostgreSQL allows no such cycle; a wrong catalogue must not end in a recursion."""
    catalogue = TypeCatalogue.of(
        [PostgresType(1 << 20, "s", "t", "c", attributes=(("a", 1 << 20, -1),))]
    )
    depth, it = 0, resolve(1 << 20, -1, catalogue)
    while it.kind is Kind.COMPOSITE:
        depth, it = depth + 1, it.items[0]
    assert it.kind is Kind.TEXT
    assert depth == NESTING_MAX + 1


def test_catalogue_has_the_types_of_the_database(source: Source) -> None:
    source.execute("CREATE EXTENSION hstore")
    source.execute("CREATE DOMAIN price AS numeric(8,3)")
    source.execute("CREATE TYPE item AS (name text, price price, sizes int[])")
    source.execute("CREATE TYPE mood AS ENUM ('ok')")
    catalogue = TypeCatalogue.load(source.connection)
    oids = dict(source.connection.execute("SELECT typname, oid FROM pg_type").fetchall())
    assert catalogue.knows(oids["item"])
    assert catalogue.knows(INT4)
    assert not catalogue.knows(1 << 30)
    item = resolve(oids["item"], -1, catalogue, "precise")
    assert item.names == ("name", "price", "sizes")
    assert item.items[1] == ValueType(Kind.DECIMAL, precision=8, scale=3)
    assert item.items[2] == resolve(INT4_ARRAY, -1, NOTHING)
    assert resolve(oids["_item"], -1, catalogue, "precise") == ValueType(Kind.ARRAY, (item,))
    assert resolve(oids["mood"], -1, catalogue).kind is Kind.TEXT
    assert resolve(oids["hstore"], -1, catalogue).kind is Kind.HSTORE_JSON
    assert resolve(oids["hstore"], -1, catalogue, hstores="map").kind is Kind.HSTORE_MAP
