"""The columns of a topic's values: from the user, from the schema registry, or from a sample.

Only the columns that a query uses are decoded, by the decoders of pipelines. A record that does not
fit them fails the query, unless the query names the column `_error`: then it is a row whose columns
of the value are NULL. A search skips such records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.query.archived import ArchivedReader
from millstream.query.columns import ERROR, RECORD_COLUMNS
from millstream.query.ddl import parse_columns
from millstream.query.fetching import QueryFailed, RangeReader
from millstream.query.inferring import infer_columns
from millstream.query.ranges import ScanRange
from millstream.records.arrow import binary_array
from millstream.records.columns import Columns

if TYPE_CHECKING:
    from millstream.client.schema_registry import RegistrySettings

SAMPLE_RECORDS = 1000
REGISTRY_URL = "schema.registry.url"
_JSON, _AVRO = "json", "avro"


@dataclass(frozen=True)
class ValueColumns:
    """The columns of a topic's values, and how to decode them."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    format: str = _JSON
    avro_schema: str | None = None
    registry: RegistrySettings | None = None
    is_sampled: bool = False

    def decoder(self, *, skips_failures: bool) -> Callable[[frozenset[str]], ValueDecoder]:
        return lambda needed: ValueDecoder(self, needed, skips_failures=skips_failures)


class ValueDecoder:
    """Decodes those of the columns that are needed; used by one thread at a time."""

    def __init__(
        self, columns: ValueColumns, needed: frozenset[str], *, skips_failures: bool
    ) -> None:
        self._columns = columns
        self._shows_errors = ERROR in needed
        self._skips_failures = skips_failures
        names = [it.name for it in columns.schema if it.name in needed]
        if self._shows_errors and not names:
            names = columns.schema.names  # an error in any column counts
        self._schema = pa.schema([columns.schema.field(name) for name in names])
        self._decoder: Any = _make_decoder(columns, self._schema) if names else None

    def decode(
        self,
        topic: str,
        partition: int,
        columns: Columns,
        rows_wanted: Callable[[], set[int] | None],
    ) -> dict[str, pa.Array]:
        """The arrays by name, of all records. `rows_wanted`: those that may be in the result."""
        count = columns.row_count
        if self._decoder is None:
            return {ERROR: pa.nulls(count, pa.string())} if self._shows_errors else {}
        decoded = self._decoder.decode(columns)
        batch = decoded.batch
        if decoded.failures:
            if not (self._shows_errors or self._skips_failures):
                wanted = rows_wanted()
                for it in decoded.failures:
                    if wanted is None or it.row in wanted:
                        raise self._failed(topic, partition, columns, it)
            places = pc.index_in(pa.array(range(count), pa.int64()), decoded.rows)
            batch = batch.take(places)
        arrays = {name: batch.column(name) for name in self._schema.names}
        if self._shows_errors:
            texts: list[str | None] = [None] * count
            for it in decoded.failures:
                texts[it.row] = f"{it.reason}: {it.message}"
            arrays[ERROR] = pa.array(texts, pa.string())
        return arrays

    def _failed(self, topic: str, partition: int, columns: Columns, failure: Any) -> QueryFailed:
        offset = memoryview(columns.offsets).cast("q")[failure.row]
        origin = "the columns that a sample of it has" if self._columns.is_sampled else "the schema"
        return QueryFailed(
            f"the record at {topic}[{partition}]@{offset} does not fit {origin}: "
            f"{failure.reason}: {failure.message}. Describe the columns with --schema, read the "
            "field from _value (_value->>'$.field'), or name the column _error in the query: then "
            "such records have NULLs, and the reason in _error"
        )


def _make_decoder(columns: ValueColumns, schema: pa.Schema) -> Any:
    if columns.format == _AVRO:
        from millstream.pipelines.avro.options import AvroOptions
        from millstream.pipelines.reading.decoding.avro import AvroValuesDecoder

        given = AvroOptions(schema=columns.avro_schema, registry=columns.registry)
        return AvroValuesDecoder(given, schema)
    from millstream.pipelines.reading.decoding.rows import RowsDecoder
    from millstream.pipelines.reading.options import Position, ReadOptions, Selection

    options = ReadOptions("", Selection(), Position(), Position(), value_format=_JSON)
    return RowsDecoder(options, schema)


# Where the columns come from


def given_columns(text: str) -> ValueColumns:
    """The columns as the user describes them: as text, or a file with an Avro schema."""
    if text.endswith(".avsc"):
        return _avro_columns(text, "", None)
    schema = parse_columns(text)
    for it in schema:
        if it.name in RECORD_COLUMNS:
            raise ConfigError(f"column {it.name}: every topic has a column of that name")
    columns = ValueColumns(schema)
    _make_decoder(columns, schema)  # refuses types that JSON does not have
    return columns


def registry_columns(topic: str, settings: Mapping[str, str]) -> ValueColumns | None:
    """The columns of the subject `TOPIC-value`; None without a registry or such a subject."""
    if not settings.get(REGISTRY_URL):
        return None
    from millstream.client.schema_registry import UnknownSchema

    try:
        return _avro_columns(None, topic, _registry_settings(settings))
    except UnknownSchema:
        return None


def _registry_settings(settings: Mapping[str, str]) -> RegistrySettings:
    from millstream.pipelines.avro.options import REGISTRY_OPTIONS, parse_avro_options
    from millstream.pipelines.options import GivenOptions

    given = {name: value for name, value in settings.items() if name in REGISTRY_OPTIONS}
    registry = parse_avro_options(GivenOptions(given), _AVRO).registry
    assert registry is not None
    return registry


def _avro_columns(path: str | None, topic: str, registry: RegistrySettings | None) -> ValueColumns:
    from millstream.pipelines.avro.options import AvroOptions
    from millstream.pipelines.avro.types import columns_of

    text = None
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read the schema in {path}: {error.strerror}") from error
    options = AvroOptions(schema=text, registry=registry)
    schema = parse_columns(columns_of(options, topic))
    usable = [it for it in schema if it.name not in RECORD_COLUMNS]
    return ValueColumns(pa.schema(usable), _AVRO, text, registry)


def sampled_columns(
    reader: RangeReader | ArchivedReader, ranges: Sequence[ScanRange]
) -> ValueColumns:
    """The columns of the newest records, if they are JSON."""
    share = max(SAMPLE_RECORDS // max(len(ranges), 1), 10)
    values: list[bytes | None] = []
    for it in ranges:
        newest = ScanRange(it.partition, max(it.first, it.end - share), it.end)
        for step in reader.read(newest):
            if step.columns is not None:
                values += binary_array(step.columns.values, step.columns.row_count).to_pylist()
        if len(values) >= SAMPLE_RECORDS:
            break
    return ValueColumns(infer_columns(values), is_sampled=True)
