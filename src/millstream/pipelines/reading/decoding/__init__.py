"""From the values of records to typed rows, in the formats that `valueFormat` names.

A decoder never fails for what a record holds: it returns the rows that are good, and of each other
one why it is bad. What happens to these is decided elsewhere (`typed.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.reading.options import ReadOptions
    from millstream.records.columns import Columns

MALFORMED = "malformed"  # not in the format at all
WRONG_TYPE = "wrong type"  # a value that its column cannot hold exactly
MISSING_FIELD = "missing field"  # absent or null where the schema says NOT NULL


class Failure(NamedTuple):
    """A record that does not decode."""

    row: int  # its number within the columns
    reason: str  # one of the above, or a format's own
    message: str  # for people


class Decoded(NamedTuple):
    """The good rows, and the others."""

    batch: pa.RecordBatch  # columns in the order and of the types of the schema
    rows: pa.Array | None  # the numbers (int64) of the rows in `batch`; None: all of them
    failures: list[Failure]  # rising by row


class Decoder(Protocol):
    """Decodes the values of records; used by one thread at a time."""

    def decode(self, columns: Columns) -> Decoded: ...


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
