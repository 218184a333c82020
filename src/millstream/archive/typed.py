"""Typed columns beside the bytes of archived records, where the topic has a schema.

A field `amount` of the values becomes the column `value_amount`. `is_decoded` says whether a value
fitted the schema: if not, its typed columns are null, and its bytes are there as always. It is null
where there is no value. Fields of keys become `key_...`, with `is_key_decoded`, in the same way.
Files of different schemas are read as one, by name: what a file does not have is null.

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

PREFIX, KEY_PREFIX = "value_", "key_"
IS_DECODED, IS_KEY_DECODED = "is_decoded", "is_key_decoded"
_FLAGS = {it: pa.field(it, pa.bool_()) for it in (IS_DECODED, IS_KEY_DECODED)}

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

    @property
    def key_text(self) -> str:
        """Those of the keys."""

    def arrays(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Those of `extension_fields(text, key_text)`."""


class DecodedColumns:
    """An `Extension` by decoders of values and of keys; None: no columns."""

    def __init__(self, of_values: Decoder | None, of_keys: Decoder | None = None) -> None:
        self._of_values, self._of_keys = of_values, of_keys
        self.text = "" if of_values is None else columns_text(of_values.schema)
        self.key_text = "" if of_keys is None else columns_text(of_keys.schema)

    def arrays(self, rows: pa.RecordBatch) -> list[pa.Array]:
        found = []
        for decoder, name in ((self._of_values, "value"), (self._of_keys, "key")):
            if decoder is not None:
                found += _decoded(decoder, rows, name)
        return found


def _decoded(decoder: Decoder, rows: pa.RecordBatch, name: str) -> list[pa.Array]:
    """The columns of the schema, and the flag."""
    count = rows.num_rows
    contents = rows.column(name)
    if pc.any(rows.column("is_control")).as_py():  # markers are no values
        contents = pc.if_else(rows.column("is_control"), pa.scalar(None, pa.binary()), contents)
    decoded = decoder.decode(_values(contents))
    batch, fits = decoded.batch, pa.repeat(True, count)
    if decoded.rows is not None:
        places = pc.index_in(pa.array(range(count), pa.int64()), decoded.rows)
        batch, fits = batch.take(places), pc.is_valid(places)
    flag = pc.if_else(pc.is_valid(contents), fits, pa.scalar(None, pa.bool_()))
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


def extension_fields(text: str, key_text: str = "") -> list[pa.Field]:
    """The columns of a file with these fields of values and keys."""
    found = []
    for given, prefix, flag in ((text, PREFIX, IS_DECODED), (key_text, KEY_PREFIX, IS_KEY_DECODED)):
        if given:
            fields = arrow_schema(parse_columns(given))
            found += [*(pa.field(f"{prefix}{it.name}", it.type) for it in fields), _FLAGS[flag]]
    return found


def union_fields(
    files: Iterable[ArchivedFile], names: Sequence[str] | None = None
) -> list[pa.Field]:
    """The columns of all these files, by name, or those of these names; numbers take the wider
    type. Raises `ArchiveError` if one has types that nothing has in common."""
    merged = pa.schema([])
    flags: set[str] = set()
    for texts in dict.fromkeys((file.columns, file.key_columns) for file in files):
        columns = extension_fields(*texts)
        flags.update(it.name for it in columns if it.name in _FLAGS)
        fields = pa.schema(
            it for it in columns if it.name not in _FLAGS and (names is None or it.name in names)
        )
        try:
            merged = pa.unify_schemas([merged, fields], promote_options="permissive")
        except pa.ArrowException as error:
            raise ArchiveError(
                f"archived files have columns of one name whose types do not go together: {error}; "
                "read the others by name"
            ) from None
    return [*merged, *(field for name, field in _FLAGS.items() if name in flags)]


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
