"""Typed columns beside the bytes of archived records, where the topic has a schema.

A field `amount` of the values becomes the column `value_amount`. `is_decoded` says whether a value
fitted the schema: if not, its typed columns are null, and its bytes are there as always. It is null
where there is no value. Files of different schemas are read as one, by name: what a file does not
have is null.

Imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millstream.archive.manifest import ArchivedFile, ArchiveError
from millstream.config.columns import Column, ColumnType, parse_columns
from millstream.records.columns import BinaryBuffers, Columns

PREFIX = "value_"
IS_DECODED = "is_decoded"
_FLAG = pa.field(IS_DECODED, pa.bool_())

_ARROW = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_KINDS = {kind: name for name, kind in _ARROW.items()}


class Decoded(Protocol):
    """The values that fit, as rows, and which ones they are."""

    @property
    def batch(self) -> pa.RecordBatch: ...

    @property
    def rows(self) -> pa.Array | None:
        """None: all of them."""


class Decoder(Protocol):
    """Decodes values; used by one thread at a time."""

    @property
    def schema(self) -> pa.Schema: ...

    def decode(self, columns: Columns) -> Decoded: ...


class Extension(Protocol):
    """More columns for rows of a file."""

    @property
    def text(self) -> str:
        """The fields of the values, as `config/columns.py` has them."""

    def arrays(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Those of `extension_fields(text)`."""


class DecodedValues:
    """An `Extension` by a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.text = columns_text(decoder.schema)

    def arrays(self, rows: pa.RecordBatch) -> list[pa.Array]:
        count = rows.num_rows
        values = rows.column("value")
        if pc.any(rows.column("is_control")).as_py():  # markers are no values
            values = pc.if_else(rows.column("is_control"), pa.scalar(None, pa.binary()), values)
        decoded = self._decoder.decode(_values(values))
        batch, fits = decoded.batch, pa.repeat(True, count)
        if decoded.rows is not None:
            places = pc.index_in(pa.array(range(count), pa.int64()), decoded.rows)
            batch, fits = batch.take(places), pc.is_valid(places)
        flag = pc.if_else(pc.is_valid(values), fits, pa.scalar(None, pa.bool_()))
        return [*batch.columns, flag]


def _values(array: pa.Array) -> Columns:
    """What a decoder takes: it looks at the values only."""
    validity, offsets, data = array.buffers()
    assert array.offset == 0
    buffers = BinaryBuffers(
        array.null_count,
        validity if array.null_count else None,
        offsets,
        b"" if data is None else data,  # type: ignore[arg-type]
    )
    empty: Any = b""
    nothing = BinaryBuffers(0, None, empty, empty)
    return Columns(len(array), empty, empty, empty, nothing, buffers, None, 0)


# Columns of files


def extension_fields(text: str) -> list[pa.Field]:
    """The columns of a file with these fields of values."""
    if not text:
        return []
    fields = arrow_schema(parse_columns(text))
    return [*(pa.field(f"{PREFIX}{it.name}", it.type) for it in fields), _FLAG]


def union_fields(
    files: Iterable[ArchivedFile], names: Sequence[str] | None = None
) -> list[pa.Field]:
    """The columns of all these files, by name, or those of these names; numbers take the wider
    type. Raises `ArchiveError` if one has types that nothing has in common."""
    texts = dict.fromkeys(file.columns for file in files if file.columns)
    merged = pa.schema([])
    for text in texts:
        columns = extension_fields(text)[:-1]
        fields = pa.schema([it for it in columns if names is None or it.name in names])
        try:
            merged = pa.unify_schemas([merged, fields], promote_options="permissive")
        except pa.ArrowException as error:
            raise ArchiveError(
                f"archived files have columns of one name whose types do not go together: {error}; "
                "read the others by name"
            ) from None
    return [*merged, _FLAG] if texts else []


def fitted(rows: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """The rows with exactly these columns: null where a file has none."""
    arrays = []
    for field in fields:
        if field.name not in rows.schema.names:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        array = rows.column(field.name)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


# Columns as text


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    return pa.schema([pa.field(it.name, _arrow_type(it.type)) for it in columns])


def _arrow_type(kind: ColumnType) -> Any:
    match kind.kind:
        case "array":
            return pa.list_(_arrow_type(kind.fields[0].type))
        case "map":
            return pa.map_(pa.string(), _arrow_type(kind.fields[0].type))
        case "struct":
            return pa.struct([pa.field(it.name, _arrow_type(it.type)) for it in kind.fields])
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[kind.kind]


def columns_text(fields: Iterable[Any]) -> str:
    """The text of which `arrow_schema` makes these fields."""
    return ", ".join(f"{_quoted(it.name)} {_type_text(it.type)}" for it in fields)


def _type_text(kind: Any) -> str:
    if pa.types.is_list(kind):
        return f"array<{_type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {_type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        parts = (f"{_quoted(it.name)}: {_type_text(it.type)}" for it in kind)
        return f"struct<{', '.join(parts)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _KINDS[kind]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
