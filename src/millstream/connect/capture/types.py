"""PostgreSQL's types, and the form in which the values of each are written.

`TypeCatalogue` has the types that a database defines: enums, composites, domains, ranges, arrays.
`resolve` turns a column's type into a `ValueType`, which the compiled encoder follows for each
value. A type that is not known is written as its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import psycopg

Decimals = Literal["string", "precise", "double"]
HStores = Literal["json", "map"]

# Composite types and arrays nest; PostgreSQL allows no cycles, this bounds the recursion.
NESTING_MAX = 15


class Kind(IntEnum):
    """The form of a value. `_encoder.pyx` has the same numbers."""

    TEXT = 0  # as PostgreSQL prints it
    INTEGER = 1
    FLOAT = 2
    BOOLEAN = 3
    BYTES = 4
    BITS = 5  # bit(n): little-endian bytes
    DATE = 6  # days since 1970
    TIME_MILLIS = 7
    TIME_MICROS = 8
    TIME_ZONED = 9  # ISO 8601, in its own zone
    TIMESTAMP_MILLIS = 10  # since 1970, of a timestamp without zone
    TIMESTAMP_MICROS = 11
    TIMESTAMP_ZONED = 12  # ISO 8601, UTC
    DECIMAL = 13  # unscaled two's complement bytes
    VARIABLE_DECIMAL = 14  # scale, and the same
    MONEY = 15  # a decimal as text
    POINT = 16
    HSTORE_JSON = 17  # an object, as JSON text
    HSTORE_MAP = 18
    ARRAY = 19
    COMPOSITE = 20


@dataclass(frozen=True)
class ValueType:
    """How the values of a type are written."""

    kind: Kind
    items: tuple[ValueType, ...] = ()  # the element of an array, the attributes of a composite
    names: tuple[str, ...] = ()  # of the attributes
    precision: int = 0  # of a decimal
    scale: int = 0  # of a decimal; of a timestamp, the digits of its seconds
    length: int = 0  # of bits
    is_wide: bool = True  # an integer of 64 bits, a float of 64 bits
    delimiter: str = ","  # between elements of an array
    name: str = ""  # of a composite; of text, what Debezium's schemas call it
    labels: tuple[str, ...] = ()  # of an enum
    is_short: bool = False  # an integer of 16 bits


@dataclass(frozen=True)
class PostgresType:
    """A row of pg_type, as far as it matters here."""

    oid: int
    schema: str
    name: str
    kind: str  # typtype: b(ase), c(omposite), d(omain), e(num), p(seudo), r(ange), m(ultirange)
    element_oid: int = 0  # of an array
    base_oid: int = 0  # of a domain
    base_modifier: int = -1
    delimiter: str = ","  # of the element, in an array
    attributes: tuple[tuple[str, int, int], ...] = ()  # of a composite: name, type, modifier
    labels: tuple[str, ...] = ()  # of an enum


# The built-in types whose values are not plain text, by their fixed oids.
_SCALARS = {
    16: ValueType(Kind.BOOLEAN),
    17: ValueType(Kind.BYTES),
    20: ValueType(Kind.INTEGER),
    21: ValueType(Kind.INTEGER, is_wide=False, is_short=True),
    23: ValueType(Kind.INTEGER, is_wide=False),
    26: ValueType(Kind.INTEGER),  # oid
    114: ValueType(Kind.TEXT, name="io.debezium.data.Json"),
    142: ValueType(Kind.TEXT, name="io.debezium.data.Xml"),
    600: ValueType(Kind.POINT),
    700: ValueType(Kind.FLOAT, is_wide=False),
    701: ValueType(Kind.FLOAT),
    790: ValueType(Kind.MONEY),
    1082: ValueType(Kind.DATE),
    1186: ValueType(Kind.TEXT, name="io.debezium.time.Interval"),
    1266: ValueType(Kind.TIME_ZONED),
    2950: ValueType(Kind.TEXT, name="io.debezium.data.Uuid"),
    3614: ValueType(Kind.TEXT, name="io.debezium.data.Tsvector"),
    3802: ValueType(Kind.TEXT, name="io.debezium.data.Json"),
}
_TIME, _TIMESTAMP, _TIMESTAMP_ZONED, _BIT, _NUMERIC, _BOX = 1083, 1114, 1184, 1560, 1700, 603
# The built-in array types: their elements.
_ARRAYS = {
    1000: 16, 1001: 17, 1002: 18, 1003: 19, 1005: 21, 1007: 23, 1009: 25, 1014: 1042, 1015: 1043,
    1016: 20, 1017: 600, 1018: 601, 1019: 602, 1020: 603, 1021: 700, 1022: 701, 1027: 604,
    1028: 26, 1040: 829, 1041: 869, 775: 774, 651: 650, 719: 718, 629: 628, 791: 790, 1115: 1114,
    1182: 1082, 1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700, 1270: 1266, 1561: 1560,
    1563: 1562, 2951: 2950, 199: 114, 3807: 3802, 143: 142, 3221: 3220, 3643: 3614, 3645: 3615,
    3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926,
}  # fmt: skip
_FIRST_USER_OID = 16384
_TEXT = ValueType(Kind.TEXT)
_MILLISECOND_DIGITS, _MICROSECOND_DIGITS = 3, 6
_MODIFIER_HEADER_BYTES = 4  # of numeric: the modifier is precision and scale plus this
_SCALE_BITS = 11  # signed

_QUERY = """
SELECT t.oid::int8, n.nspname::text, t.typname::text, t.typtype::text,
       CASE WHEN e.oid IS NULL THEN 0 ELSE e.oid::int8 END,
       t.typbasetype::int8, t.typtypmod, coalesce(e.typdelim, ',')::text,
       (SELECT coalesce(array_agg(l.enumlabel::text ORDER BY l.enumsortorder), '{}')
          FROM pg_enum l WHERE l.enumtypid = t.oid),
       (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}')
          FROM pg_attribute a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT coalesce(array_agg(a.atttypid::int8 ORDER BY a.attnum), '{}')
          FROM pg_attribute a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT coalesce(array_agg(a.atttypmod ORDER BY a.attnum), '{}')
          FROM pg_attribute a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
  FROM pg_type t
  JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_type e ON e.typarray = t.oid
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""


@dataclass(frozen=True)
class TypeCatalogue:
    """The types that are not built in, by oid."""

    types: dict[int, PostgresType] = field(default_factory=dict)

    @classmethod
    def load(cls, connection: psycopg.Connection[Any]) -> TypeCatalogue:
        """The types of a database."""
        return cls.of(_from_row(*row) for row in connection.execute(_QUERY))

    @classmethod
    def of(cls, types: Iterable[PostgresType]) -> TypeCatalogue:
        return cls({it.oid: it for it in types})

    def knows(self, oid: int) -> bool:
        """Whether the type is built in or was there when the catalogue was loaded."""
        return oid < _FIRST_USER_OID or oid in self.types


def _from_row(
    oid: int,
    schema: str,
    name: str,
    kind: str,
    element_oid: int,
    base_oid: int,
    base_modifier: int,
    delimiter: str,
    labels: list[str],
    *attributes: list[Any],
) -> PostgresType:
    return PostgresType(
        oid,
        schema,
        name,
        kind,
        element_oid,
        base_oid,
        base_modifier,
        delimiter,
        tuple(zip(*attributes, strict=True)),
        tuple(labels),
    )


def resolve(
    oid: int,
    modifier: int,
    catalogue: TypeCatalogue,
    decimals: Decimals = "string",
    hstores: HStores = "json",
) -> ValueType:
    """How values of a type are written."""
    return _Resolution(catalogue, decimals, hstores).value_type(oid, modifier, 0)


@dataclass(frozen=True)
class _Resolution:
    catalogue: TypeCatalogue
    decimals: Decimals
    hstores: HStores

    def value_type(self, oid: int, modifier: int, depth: int) -> ValueType:
        if oid in _SCALARS:
            return _SCALARS[oid]
        if oid in _ARRAYS:
            element = self.value_type(_ARRAYS[oid], modifier, depth + 1)
            delimiter = ";" if _ARRAYS[oid] == _BOX else ","
            return ValueType(Kind.ARRAY, (element,), delimiter=delimiter)
        if oid in (_TIME, _TIMESTAMP, _TIMESTAMP_ZONED):
            return _of_precision(oid, modifier)
        if oid == _BIT:
            return _bits(modifier)
        if oid == _NUMERIC:
            return self._numeric(modifier)
        known = self.catalogue.types.get(oid)
        return (
            _TEXT if known is None or depth > NESTING_MAX else self._defined(known, modifier, depth)
        )

    def _defined(self, known: PostgresType, modifier: int, depth: int) -> ValueType:
        if known.element_oid:
            element = self.value_type(known.element_oid, modifier, depth + 1)
            return ValueType(Kind.ARRAY, (element,), delimiter=known.delimiter)
        if known.kind == "d":
            return self.value_type(known.base_oid, known.base_modifier, depth + 1)
        if known.kind == "c":
            attributes = [
                (name, self.value_type(oid, its_modifier, depth + 1))
                for name, oid, its_modifier in known.attributes
            ]
            return ValueType(
                Kind.COMPOSITE,
                tuple(it for _, it in attributes),
                tuple(name for name, _ in attributes),
                name=f"{known.schema}.{known.name}",
            )
        if known.name == "hstore":
            return ValueType(Kind.HSTORE_MAP if self.hstores == "map" else Kind.HSTORE_JSON)
        if known.kind == "e":
            return ValueType(Kind.TEXT, name="io.debezium.data.Enum", labels=known.labels)
        if known.name == "ltree":
            return ValueType(Kind.TEXT, name="io.debezium.data.Ltree")
        return _TEXT

    def _numeric(self, modifier: int) -> ValueType:
        if self.decimals == "string":
            return _TEXT
        if self.decimals == "double":
            return ValueType(Kind.FLOAT)
        if modifier < _MODIFIER_HEADER_BYTES:
            return ValueType(Kind.VARIABLE_DECIMAL)
        packed = modifier - _MODIFIER_HEADER_BYTES
        precision, scale = packed >> 16, packed & ((1 << _SCALE_BITS) - 1)
        if scale >= 1 << (_SCALE_BITS - 1) or scale > precision:
            return ValueType(Kind.VARIABLE_DECIMAL)  # a scale that Avro's decimals cannot have
        return ValueType(Kind.DECIMAL, precision=precision, scale=scale)


def _of_precision(oid: int, modifier: int) -> ValueType:
    digits = modifier if modifier >= 0 else _MICROSECOND_DIGITS
    if oid == _TIMESTAMP_ZONED:
        return ValueType(Kind.TIMESTAMP_ZONED, scale=digits)
    if digits <= _MILLISECOND_DIGITS:
        kind = Kind.TIME_MILLIS if oid == _TIME else Kind.TIMESTAMP_MILLIS
    else:
        kind = Kind.TIME_MICROS if oid == _TIME else Kind.TIMESTAMP_MICROS
    return ValueType(kind, scale=digits)


def _bits(length: int) -> ValueType:
    """bit(1) is a boolean, as in Debezium; the length of bit(n) is part of its type."""
    return ValueType(Kind.BOOLEAN) if length == 1 else ValueType(Kind.BITS, length=length)
