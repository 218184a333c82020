"""From the values of records to typed rows, in the formats that `valueFormat` names.

A decoder never fails for what a record holds: it returns the rows that are good, and of each other
one why it is bad. What happens to these is decided elsewhere (`typed.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.reading.decoding.results import Decoder
    from millstream.pipelines.reading.options import ReadOptions


def make_decoder(options: ReadOptions, schema: pa.Schema) -> Decoder:
    """The decoder for `valueFormat`. Raises `ConfigError` for a schema that it cannot produce."""
    match options.value_format:
        case "json" | "csv" | "text":
            from millstream.pipelines.reading.decoding.rows import RowsDecoder

            return RowsDecoder(options, schema)
        case "avro":
            from millstream.pipelines.reading.decoding.avro import AvroValuesDecoder

            return AvroValuesDecoder(options.avro, schema)
        case other:
            raise ConfigError(
                f"valueFormat {other} has no columns of its own; leave out the schema"
            )
