"""Decodes values and keys for typed columns of the archive; its process imports this module by
name.

The decoders are those of pipelines. Columns are declared by the topic's `millstream.archive.schema`
and `millstream.archive.key.schema` or, for Avro, are those of the newest schema of the subjects
`TOPIC-value` and `TOPIC-key` when a file is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.archive.typed import arrow_schema
from millstream.client.schema_registry import RegistrySettings, UnknownSchema
from millstream.config.archive import (
    AVRO,
    JSON,
    KEY_SETTING,
    STRING,
    ArchiveSchema,
    parse_archive_schema,
)
from millstream.config.columns import parse_columns
from millstream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.archive.typed import Decoded, Decoder
    from millstream.records.columns import Columns

REGISTRY_PATIENCE_MS = 10_000  # then the file is written later
TEXT_COLUMN = "value"  # as that of an Avro schema that is no record


class ValueDecoder:
    """A decoder and the columns that it makes."""

    def __init__(self, schema: pa.Schema, decoder: Any) -> None:
        self.schema = schema
        self._decoder = decoder

    def decode(self, columns: Columns) -> Decoded:
        decoded: Decoded = self._decoder.decode(columns)
        return decoded


class TextDecoder:
    """Keys that are text, as one column."""

    def __init__(self) -> None:
        import pyarrow as pa

        self.schema = pa.schema([pa.field(TEXT_COLUMN, pa.string())])

    def decode(self, columns: Columns) -> Decoded:
        import pyarrow as pa

        from millstream.pipelines.reading.decoding.results import Decoded
        from millstream.records.arrow import binary_array

        texts = [_text(it) for it in binary_array(columns.values, columns.row_count).to_pylist()]
        rows = pa.array([number for number, it in enumerate(texts) if it is not None], pa.int64())
        batch = pa.record_batch([pa.array(texts, pa.string()).take(rows)], schema=self.schema)
        return Decoded(batch, rows, [])


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def value_decoder(topic: str, setting: str, registry: Mapping[str, str]) -> Decoder | None:
    """None if there is no schema yet. Raises `MillstreamError` if the registry does not answer."""
    return _decoder(topic, parse_archive_schema(setting), "value", registry)


def key_decoder(topic: str, setting: str, registry: Mapping[str, str]) -> Decoder | None:
    """The same for keys, which a decoder takes in the place of values."""
    given = parse_archive_schema(setting, KEY_SETTING)
    return TextDecoder() if given.format == STRING else _decoder(topic, given, "key", registry)


def _decoder(
    topic: str, given: ArchiveSchema, part: str, registry: Mapping[str, str]
) -> ValueDecoder | None:
    if given.format == AVRO:
        settings = RegistrySettings.named(registry.get, patience_ms=REGISTRY_PATIENCE_MS)
        if settings is None:
            raise ConfigError("millstream.archive.schema.registry.url is not set")
        return _avro_decoder(topic, part, settings)
    from millstream.pipelines.reading.decoding.rows import RowsDecoder
    from millstream.pipelines.reading.options import Position, ReadOptions, Selection

    schema = arrow_schema(given.columns)
    options = ReadOptions("", Selection(), Position(), Position(), value_format=JSON)
    return ValueDecoder(schema, RowsDecoder(options, schema))


def _avro_decoder(topic: str, part: str, settings: RegistrySettings) -> ValueDecoder | None:
    from millstream.pipelines.avro.options import AvroOptions
    from millstream.pipelines.avro.types import columns_of
    from millstream.pipelines.reading.decoding.avro import AvroValuesDecoder

    options = AvroOptions(registry=settings)
    try:
        text = columns_of(options, topic, part)
    except UnknownSchema:
        return None
    schema = arrow_schema(parse_columns(text))
    return ValueDecoder(schema, AvroValuesDecoder(options, schema))
