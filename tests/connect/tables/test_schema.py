"""Spark's and Arrow's types as columns of stores; what cannot be one is refused by name."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from millstream.connect.tables.schema import layout_of, quote
from millstream.connect.tables.spec import TableSpec
from millstream.errors import SchemaMismatch

TABLE = TableSpec("t", ("id",))
WITH_DELETES = TableSpec("t", ("id",), delete="gone")
LONG = types.LongType()


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (types.BooleanType(), "boolean"),
        (types.ByteType(), "byte"),
        (types.ShortType(), "short"),
        (types.IntegerType(), "int"),
        (types.LongType(), "long"),
        (types.FloatType(), "float"),
        (types.DoubleType(), "double"),
        (types.DecimalType(12, 3), "decimal(12,3)"),
        (types.StringType(), "string"),
        (types.BinaryType(), "binary"),
        (types.DateType(), "date"),
        (types.TimestampType(), "timestamp"),
        (types.TimestampNTZType(), "timestamp_ntz"),
        (types.ArrayType(LONG), "array, struct or map"),
        (types.MapType(LONG, LONG), "array, struct or map"),
        (struct(x=LONG), "array, struct or map"),
    ],
    ids=str,
)
def test_types_of_spark_become_kinds(kind: DataType, expected: str) -> None:
    assert str(layout_of(struct(id=LONG, x=kind), TABLE).columns[1]) == expected


def test_layout_has_keys_and_values_without_the_delete_column() -> None:
    spec = TableSpec("t", ("b", "a"), delete="gone")
    schema = pa.schema({"a": pa.int64(), "v": pa.string(), "gone": pa.bool_(), "b": pa.string()})
    layout = layout_of(schema, spec)
    assert layout.names == ("a", "v", "b")
    assert [column.name for column in layout.key] == ["b", "a"]
    assert [column.name for column in layout.values] == ["v"]


@pytest.mark.parametrize(
    ("schema", "spec", "complaint"),
    [
        (struct(id=LONG, x=types.DayTimeIntervalType()), TABLE, "'x'.*duration.*cast it"),
        (struct(id=LONG, x=types.CalendarIntervalType()), TABLE, "'x'.*interval.*cast it"),
        (struct(id=LONG, x=types.NullType()), TABLE, "'x'.*void"),
        (
            struct(id=LONG, x=types.ArrayType(types.DayTimeIntervalType())),
            TABLE,
            "'x.element'.*duration.*cast it",
        ),
        (struct(id=LONG, x=struct(at=types.TimeType())), TABLE, "'x.at'.*time64.*cast it"),
        (
            struct(id=LONG, x=types.MapType(types.TimeType(), LONG)),
            TABLE,
            "'x.key'.*time64.*cast it",
        ),
        (struct(x=LONG), TABLE, r"key names \['id'\].*they have \['x'\]"),
        (struct(id=types.DoubleType()), TABLE, "key column 'id' is of type double.*cast it"),
        (struct(id=types.ArrayType(LONG)), TABLE, "key column 'id'"),
        (struct(id=LONG, a=LONG, A=LONG), TABLE, "two columns"),
        (struct(id=LONG), WITH_DELETES, "'gone' is not in the rows"),
        (struct(id=LONG, gone=types.DoubleType()), WITH_DELETES, "make it a boolean"),
    ],
)
def test_schema_that_does_not_do_is_refused(
    schema: StructType, spec: TableSpec, complaint: str
) -> None:
    with pytest.raises(SchemaMismatch, match=f"table 't'.*{complaint}"):
        layout_of(schema, spec)


def test_array_that_is_always_empty_is_stored() -> None:
    layout = layout_of(struct(id=LONG, x=types.ArrayType(types.NullType())), TABLE)
    assert [column.kind for column in layout.columns] == ["long", "json"]


def test_names_are_quoted_whatever_is_in_them() -> None:
    assert quote('a"b') == '"a""b"'


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (TableSpec("t", ("id",)), 'delete="_weight"'),
        (TableSpec("t", ("id",), delete="_op"), 'delete="_weight"'),
        (TableSpec("t", ("id",), "replace", delete="_weight"), "choose 'upsert'"),
    ],
)
def test_changes_with_weights_are_refused_unless_they_are_applied(
    spec: TableSpec, told: str
) -> None:
    schema = pa.schema({"id": pa.int64(), "_weight": pa.int64(), "_op": pa.string()})
    with pytest.raises(SchemaMismatch, match=told):
        layout_of(schema, spec)
