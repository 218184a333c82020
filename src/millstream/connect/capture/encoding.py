"""From rows of PostgreSQL to record batches: the encoder of a table, and the columns it fills.

    context, buffer, feed = StreamContext(), ChangeBuffer(), ChangeFeed()
    feed.register(table_encoder(table, settings, catalogue, context, buffer))
    context.begin(xid=..., commit_lsn=..., commit_time_us=..., now_us=...)
    position = feed.feed(messages)
    columns = take_columns(buffer)
    for rows in columns.rows_by_partition(partitions):
        encode_batches(columns.row_encoder(), rows, ...)

The loops over rows are compiled (`_encoder.pyx`).
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.client.schema_registry import Registry, registry_for
from millstream.connect.capture._encoder import (
    AvroEnvelope,
    ChangeBuffer,
    ChangeFeed,
    Envelope,
    JsonEnvelope,
    StreamContext,
    TableEncoder,
)
from millstream.connect.capture.avro import key_schema, value_schema
from millstream.connect.capture.envelope import (
    CONNECTOR,
    VERSION,
    EnvelopeSettings,
    TransactionSummary,
)
from millstream.connect.capture.tables import Table
from millstream.connect.capture.types import Kind, TypeCatalogue, ValueType, resolve
from millstream.records.columns import (
    BinaryColumn,
    HeaderColumn,
    RowEncoder,
    partitions_of,
    rows_by_partition,
)

if TYPE_CHECKING:
    from millstream.records._columns import Memory, TakenBinary, TakenHeaders

__all__ = [
    "ChangeBuffer",
    "ChangeColumns",
    "ChangeFeed",
    "StreamContext",
    "TableEncoder",
    "TransactionSummary",
    "commit",
    "table_encoder",
    "take_columns",
    "value_types",
]


_LEFT_OUT = -2  # a partition that is none


class ChangeColumns(NamedTuple):
    """Encoded records, as columns."""

    row_count: int
    timestamps: Memory  # int64, milliseconds: the time of the commit, or of the snapshot
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn | None

    def row_encoder(self) -> RowEncoder:
        return RowEncoder(self.timestamps, self.keys, self.values, self.headers)

    def key_list(self, start: int = 0, end: int | None = None) -> list[bytes | None]:
        """The keys of a range of rows."""
        return self.keys.to_list(start, end)

    def rows_by_partition(
        self, partitions: int, without: Collection[bytes | None] = ()
    ) -> list[Memory]:
        """For each partition the numbers of its rows (int64), in order. Records of one key go to
        one partition, by the hash of the Java client; records without a key go to the first.
        Records whose key is in `without` are left out."""
        numbers: Memory | array[int] = partitions_of(self.keys, partitions)
        if without:
            numbers = array("i", bytes(numbers))
            for row, key in enumerate(self.key_list()):
                if key in without:
                    numbers[row] = _LEFT_OUT
        return rows_by_partition(numbers, partitions)


def table_encoder(
    table: Table,
    settings: EnvelopeSettings,
    catalogue: TypeCatalogue,
    context: StreamContext,
    buffer: ChangeBuffer,
    topic: str | None = None,
) -> TableEncoder:
    """The encoder of one version of a table. For Avro, the schemas are registered: for the subjects
    of `topic`, which by default is that of Debezium."""
    types = value_types(table, settings, catalogue)
    if settings.registry is not None:
        name = topic or f"{settings.server_name}.{table.full_name}"
        envelope = _avro_envelope(table, settings, types, registry_for(settings.registry), name)
    else:
        unavailable = [_json(_unavailable(it, settings.unavailable_value)) for it in types]
        envelope = JsonEnvelope(table, settings, types, unavailable, VERSION, CONNECTOR)
    return TableEncoder(table, settings, envelope, context, buffer)


def _avro_envelope(
    table: Table,
    settings: EnvelopeSettings,
    types: list[ValueType],
    registry: Registry,
    topic: str,
) -> Envelope:
    def schema_id(is_key: bool, is_wide: bool) -> int:
        make, subject = (key_schema, "key") if is_key else (value_schema, "value")
        # Apart, so that rules of compatibility are those between Debezium's schemas.
        name = f"{topic}-{subject}-text" if is_wide else f"{topic}-{subject}"
        return registry.register(name, make(table, settings, types, is_wide))

    return AvroEnvelope(table, settings, types, VERSION, CONNECTOR, schema_id)


def value_types(
    table: Table, settings: EnvelopeSettings, catalogue: TypeCatalogue
) -> list[ValueType]:
    """How the values of each column are written."""
    return [
        resolve(it.type_oid, it.type_modifier, catalogue, settings.decimals, settings.hstores)
        for it in table.columns
    ]


def commit(context: StreamContext, end_lsn: int) -> TransactionSummary:
    """End the transaction of a context."""
    return TransactionSummary(*context.commit(end_lsn))


def take_columns(buffer: ChangeBuffer) -> ChangeColumns:
    """The records of a buffer, which is empty afterwards."""
    count, timestamps, keys, values, headers = buffer.take()
    return ChangeColumns(
        count,
        timestamps,
        _binary(count, keys),
        _binary(count, values),
        None if headers is None else _headers(count, headers),
    )


def _binary(count: int, taken: TakenBinary) -> BinaryColumn:
    _, validity, offsets, data = taken
    return BinaryColumn(count, 0, validity, offsets, data)


def _headers(count: int, taken: TakenHeaders) -> HeaderColumn:
    lists, names, values = taken
    total = len(names[2]) // 4 - 1
    return HeaderColumn(count, 0, lists, _binary(total, names), _binary(total, values))


def _unavailable(value_type: ValueType, placeholder: str) -> Any:
    """What stands for a TOAST value that was not sent, in the form that Debezium gives it."""
    match value_type.kind:
        case Kind.BYTES | Kind.DECIMAL:
            return base64.b64encode(placeholder.encode()).decode()
        case Kind.HSTORE_MAP:
            return {placeholder: placeholder}
        case Kind.HSTORE_JSON:
            return _json({placeholder: placeholder}).decode()
        case Kind.ARRAY if value_type.items[0].kind is Kind.INTEGER:
            return list(placeholder.encode())
        case Kind.ARRAY:
            return [placeholder]
        case _:
            return placeholder


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
