"""Columns as text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.query.ddl import parse_columns


def test_columns_have_their_types() -> None:
    found = parse_columns(
        "id bigint, `odd ``name` string, amount decimal(10, 2), at timestamp, "
        "lines array<struct<sku: string, count: int>>, tags map<string, double>, "
        "inner struct(a boolean, b date)"
    )
    assert found == pa.schema(
        [
            ("id", pa.int64()),
            ("odd `name", pa.string()),
            ("amount", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            (
                "lines",
                pa.list_(pa.struct([pa.field("sku", pa.string()), pa.field("count", pa.int32())])),
            ),
            ("tags", pa.map_(pa.string(), pa.float64())),
            ("inner", pa.struct([pa.field("a", pa.bool_()), pa.field("b", pa.date32())])),
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the end where the name of a column"),
        ("id", "the end where a type"),
        ("id nonsense", "'nonsense' where a type"),
        ("id bigint name string", "'name' where a comma"),
        ("id bigint,", "the end where the name"),
        ("id decimal(50)", "no decimal"),
        ("id array<int", "the end where '>'"),
        ("id map<int, int>", "keys of a map must be strings"),
        ("id int, ID int", "id occurs twice"),
        ("id int; drop", "unexpected '; drop'"),
        ("a " + "array<" * 50 + "int" + ">" * 50, "nested more than"),
    ],
)
def test_wrong_columns_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_columns(text)
