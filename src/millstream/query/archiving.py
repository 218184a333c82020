"""Decodes values for typed columns of the archive; its process imports this module by name.

The decoders are those of pipelines. Columns are declared by the topic's `millstream.archive.schema`
or, for Avro, are those of the newest schema of the subject `TOPIC-value` when a file is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.archive.typed import arrow_schema
from millstream.client.schema_registry import RegistrySettings, UnknownSchema
from millstream.config.archive import AVRO, JSON, parse_archive_schema
from millstream.config.columns import parse_columns
from millstream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.archive.typed import Decoded
    from millstream.records.columns import Columns

REGISTRY_PATIENCE_MS = 10_000  # then the file is written later


class ValueDecoder:
    """A decoder and the columns that it makes."""

    def __init__(self, schema: pa.Schema, decoder: Any) -> None:
        self.schema = schema
        self._decoder = decoder

    def decode(self, columns: Columns) -> Decoded:
        decoded: Decoded = self._decoder.decode(columns)
        return decoded


def value_decoder(topic: str, setting: str, registry: Mapping[str, str]) -> ValueDecoder | None:
    """None if there is no schema yet. Raises `MillstreamError` if the registry does not answer."""
    given = parse_archive_schema(setting)
    if given.format == AVRO:
        settings = RegistrySettings.named(registry.get, patience_ms=REGISTRY_PATIENCE_MS)
        if settings is None:
            raise ConfigError("millstream.archive.schema.registry.url is not set")
        return _avro_decoder(topic, settings)
    from millstream.pipelines.reading.decoding.rows import RowsDecoder
    from millstream.pipelines.reading.options import Position, ReadOptions, Selection

    schema = arrow_schema(given.columns)
    options = ReadOptions("", Selection(), Position(), Position(), value_format=JSON)
    return ValueDecoder(schema, RowsDecoder(options, schema))


def _avro_decoder(topic: str, settings: RegistrySettings) -> ValueDecoder | None:
    from millstream.pipelines.avro.options import AvroOptions
    from millstream.pipelines.avro.types import columns_of
    from millstream.pipelines.reading.decoding.avro import AvroValuesDecoder

    options = AvroOptions(registry=settings)
    try:
        text = columns_of(options, topic)
    except UnknownSchema:
        return None
    schema = arrow_schema(parse_columns(text))
    return ValueDecoder(schema, AvroValuesDecoder(options, schema))
