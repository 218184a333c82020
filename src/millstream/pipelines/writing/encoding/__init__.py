"""From columns of any type to values of records: the formats that a writer knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.writing.options import WriteOptions


class Encoder(Protocol):
    """Encodes rows; made once for each task, so it may keep what is costly to make."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """One value for each row, as a binary array."""


def make_encoder(options: WriteOptions, schema: pa.Schema) -> Encoder:
    """By `options.value_format`; raises `ConfigError` for a schema that the format cannot do."""
    match options.value_format:
        case "json":
            from millstream.pipelines.writing.encoding.json import JsonEncoder

            return JsonEncoder(schema)
        case "avro":
            from millstream.pipelines.writing.encoding.avro import AvroEncoder

            return AvroEncoder(options.avro, schema, options.topic)
        case other:
            raise ConfigError(f"valueFormat {other} has no encoder")
