"""Avro: values of one writer's schema, or of many, each with the id of its own before it.

Without a schema registry all values are of the schema that the options give. With one they are in
Confluent's wire format: a zero, the schema's id in four bytes, the value; schemas are fetched when
they are first met. Either way they become rows of the reader's schema (`avro_resolution.py`) by
compiled code (`_avro.pyx`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.client.avro_schema import AvroType, BadSchema, parse_schema
from millstream.client.schema_registry import UnknownSchema, registry_for
from millstream.errors import ConfigError
from millstream.pipelines.reading.decoding._avro import AvroDecoder, Program
from millstream.pipelines.reading.decoding.avro_resolution import Unresolvable, resolve, targets_of
from millstream.pipelines.reading.decoding.fields import decode_values, describe

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.avro.options import AvroOptions
    from millstream.pipelines.reading.decoding.results import Decoded
    from millstream.records.columns import Columns

UNKNOWN_SCHEMA = "unknown schema"  # a reason for failures: the registry has none of this id


class AvroValuesDecoder:
    """A `Decoder`; see the module."""

    def __init__(self, options: AvroOptions, schema: pa.Schema) -> None:
        self._schema = schema
        fields = [describe(it, it.name, "Avro", with_times=True) for it in schema]
        self._row = targets_of(fields)
        self._reader = None if options.schema is None else parse_schema(options.schema)
        self._registry = None if options.registry is None else registry_for(options.registry)
        if self._registry is not None:
            self._decoder = AvroDecoder(fields, self._find)
            return
        self._decoder = AvroDecoder(fields)
        text = options.writer_schema or options.schema
        if text is None:
            raise ConfigError(
                "valueFormat avro needs the schema of the values: avroSchema (JSON, or a file), or "
                "schema.registry.url if they carry the id of one"
            )
        try:
            self._decoder.use(self._program(parse_schema(text)))
        except Unresolvable as error:
            raise ConfigError(f"the Avro schema does not fit the columns: {error}") from None

    def decode(self, columns: Columns) -> Decoded:
        return decode_values(self._decoder, self._schema, columns)

    def _program(self, writer: AvroType) -> Program:
        return Program(self._decoder, resolve(writer, self._reader, self._row))

    def _find(self, schema_id: int) -> Program | tuple[str, str]:
        """The program for a schema of the registry, or why its values are failures."""
        assert self._registry is not None
        try:
            found = self._registry.schema(schema_id)
            return self._program(parse_schema(found.text, found.references))
        except UnknownSchema as error:
            return UNKNOWN_SCHEMA, str(error)
        except BadSchema as error:
            return UNKNOWN_SCHEMA, f"schema {schema_id} of the registry: {error}"
        except Unresolvable as error:
            return error.reason, f"by schema {schema_id} of the registry, {error}"
