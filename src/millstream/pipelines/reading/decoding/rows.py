"""JSON, CSV and text: one compiled decoder (`_rows.pyx`) and the schema as it wants it.

What fits which type is written down in docs/decisions/0010-json-decoding.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.reading.decoding._rows import RowDecoder
from millstream.pipelines.reading.decoding.fields import decode_values, describe

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.reading.decoding._rows import Field
    from millstream.pipelines.reading.decoding.results import Decoded
    from millstream.pipelines.reading.options import ReadOptions
    from millstream.records.columns import Columns

_NESTED_TYPES = ("struct", "array", "map")


class RowsDecoder:
    """A `Decoder`; see the module."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._schema = schema
        unit_us = options.epoch_unit_us
        fields = [
            describe(field, field.name, "JSON, CSV or text", epoch_unit_us=unit_us)
            for field in schema
        ]
        _check_format(options.value_format, fields)
        csv = options.csv
        dialect = f"{csv.separator}{csv.quote}{csv.escape}".encode()
        self._decoder = RowDecoder(options.value_format, fields, dialect)

    def decode(self, columns: Columns) -> Decoded:
        return decode_values(self._decoder, self._schema, columns)


def _check_format(value_format: str, fields: list[Field]) -> None:
    if value_format == "text" and [kind for _, kind, *_ in fields] != ["string"]:
        raise ConfigError(
            "valueFormat text takes a schema with one column of type string for the value; "
            f"it has {', '.join(f'{name} {kind}' for name, kind, *_ in fields) or 'none'}"
        )
    if value_format == "csv":
        if not fields:
            raise ConfigError("valueFormat csv needs a column for each field of a line")
        for name, kind, *_ in fields:
            if kind in _NESTED_TYPES:
                raise ConfigError(f"column {name}: CSV has no {kind}; declare it string")
