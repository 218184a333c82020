"""From Spark's rows to record batches on their way: what a writing task does with Arrow.

Rows gather until they are worth a request, are dealt out to topics and partitions, and are encoded
by compiled code (`millstream.records.columns`), never as Python objects.

With valueFormat raw the columns are those of Spark's Kafka connector: `value` and, where wanted,
`key`, `topic`, `partition`, `timestamp`, `headers`. With json all columns make the value,
except the reader's names for the same things with an underscore: `_key`, `_topic`, ...

A row goes to the partition that its column says, else to that of its key (by the hash of the Java
client), else to any: whole batches in turn.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.producing import RawProducer
from millstream.connect.tables.decimals import decimal_texts
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.pipelines.writing.encoding import Encoder, make_encoder
from millstream.records.columns import (
    BinaryColumn,
    HeaderColumn,
    RowEncoder,
    encode_batches,
    partitions_of,
)

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster
    from millstream.pipelines.writing.options import WriteOptions

GATHERED_BYTES = 8 * 1024 * 1024
# A topic may get partitions, and all who write into it should soon hash by the same count: this is
# Kafka's metadata.max.age.ms.
TOPIC_SECONDS_OLD_MAX = 300.0

METADATA = ("key", "topic", "partition", "timestamp", "headers")
# What the reader's rows have beside, and a record cannot be given.
READ_ONLY = ("offset", "timestampType")


class Layout:
    """Which columns mean what; raises `ConfigError` where they do not make records."""

    def __init__(self, options: WriteOptions, schema: pa.Schema) -> None:
        self._raw = options.value_format == "raw"
        prefix = "" if self._raw else "_"
        names = schema.names
        self.columns = {it: f"{prefix}{it}" for it in METADATA if f"{prefix}{it}" in names}
        taken = {*self.columns.values(), *(f"{prefix}{it}" for it in READ_ONLY)}
        self.value_columns = [name for name in names if name not in taken]
        self._check_types(schema)
        if self._raw:
            self._check_raw(schema)
        self.key_columns = options.key_columns
        for name in self.key_columns:
            if name not in names:
                raise ConfigError(f"keyColumns names {name}, which is not among {', '.join(names)}")
        if options.shredding is not None and options.shredding.subject not in names:
            raise ConfigError(
                f"shreddingSubject names {options.shredding.subject}, which is not among "
                + ", ".join(names)
            )
        if options.topic is None and "topic" not in self.columns:
            raise ConfigError(f"say where to write: the option topic, or a column {prefix}topic")

    def _check_raw(self, schema: pa.Schema) -> None:
        if "value" not in self.value_columns:
            raise ConfigError("there is no column value; name one so, or set valueFormat to json")
        _want(schema, "value", "string or binary", _is_bytes)
        others = [name for name in self.value_columns if name != "value"]
        if others:
            raise ConfigError(
                f"column {', '.join(others)} would not be written: with valueFormat raw there are "
                f"value, {', '.join(METADATA)}; drop it, or set valueFormat to json"
            )

    def _check_types(self, schema: pa.Schema) -> None:
        for name, column in self.columns.items():
            match name:
                case "key":
                    _want(schema, column, "string or binary", _is_bytes)
                case "topic":
                    _want(schema, column, "string", _is_text)
                case "partition":
                    _want(schema, column, "int", pa.types.is_integer)
                case "timestamp":
                    _want(schema, column, "timestamp", pa.types.is_timestamp)
                case "headers":
                    wanted = "array<struct<key: string, value: binary>>"
                    _want(schema, column, wanted, _is_headers)


def _want(schema: pa.Schema, column: str, wanted: str, fits: Any) -> None:
    kind = schema.field(column).type
    if not fits(kind):
        raise ConfigError(f"column {column} is {kind}; it must be {wanted}")


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_headers(kind: Any) -> bool:
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
        return False
    fields = list(kind.value_type)
    return (
        [field.name for field in fields] == ["key", "value"]
        and _is_text(fields[0].type)
        and _is_bytes(fields[1].type)
    )


class Batcher:
    """Turns a task's rows into batches and hands them to the producer."""

    def __init__(self, options: WriteOptions, cluster: Cluster, producer: RawProducer) -> None:
        self._options = options
        self._cluster = cluster
        self._producer = producer
        self._layout: Layout | None = None
        self._encoder: Encoder | None = None
        self._key_encoder: Encoder | None = None
        self._next_partition = random.randrange(2**16)  # where rows without a key go on
        self._found: set[str] = set()  # topics that have been there

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """All rows, handed over but not yet answered; how many there were."""
        gathered: list[pa.RecordBatch] = []
        size = count = 0
        for batch in batches:
            if batch.num_rows:
                gathered.append(batch)
                size += batch.nbytes
                count += batch.num_rows
            if size >= GATHERED_BYTES:
                self._write_rows(gathered)
                gathered, size = [], 0
        if gathered:
            self._write_rows(gathered)
        return count

    def _write_rows(self, gathered: Sequence[pa.RecordBatch]) -> None:
        rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        if self._layout is None:
            self._prepare(rows.schema)
        keys = self._keys(rows)
        key_column = None if keys is None else binary_column(keys)
        places, slots = self._deal(rows, key_column)
        values = binary_column(self._encrypted(rows, self._values(rows)))
        encoder = RowEncoder(self._timestamps(rows), key_column, values, self._headers(rows))
        order, bounds = _by_slot(slots, len(places))
        used = [number for number in range(len(places)) if bounds[number] < bounds[number + 1]]
        self._producer.join(places[number] for number in used)
        for number in used:
            topic, partition = places[number]
            for batch, count in encode_batches(
                encoder,
                order[bounds[number] : bounds[number + 1]],
                batch_bytes_max=self._options.batch_bytes_max,
                compression=self._options.compression,
                producer=self._producer.identity(topic, partition),
            ):
                self._producer.send(topic, partition, batch, count)

    def _prepare(self, schema: pa.Schema) -> None:
        layout = self._layout = Layout(self._options, schema)
        if self._options.value_format != "raw":
            chosen = pa.schema([schema.field(name) for name in layout.value_columns])
            self._encoder = make_encoder(self._options, chosen)
        if len(layout.key_columns) > 1:
            from millstream.pipelines.writing.encoding.json import JsonEncoder

            self._key_encoder = JsonEncoder(
                pa.schema([schema.field(name) for name in layout.key_columns])
            )

    # The parts of records

    def _column(self, rows: pa.RecordBatch, name: str) -> Any:
        assert self._layout is not None
        column = self._layout.columns.get(name)
        return None if column is None else rows.column(column)

    def _values(self, rows: pa.RecordBatch) -> Any:
        if self._encoder is None:
            return rows.column("value")
        assert self._layout is not None
        return self._encoder.encode(rows.select(self._layout.value_columns))

    def _encrypted(self, rows: pa.RecordBatch, values: Any) -> Any:
        """The values with subjects' keys, if that is wanted."""
        wanted = self._options.shredding
        if wanted is None:
            return values
        from millstream.pipelines.writing.shredding import encrypted

        assert self._options.topic is not None
        return encrypted(values, rows.column(wanted.subject), wanted, self._options.topic)

    def _keys(self, rows: pa.RecordBatch) -> Any:
        """One column as it is, numbers as their digits; several as a JSON object."""
        assert self._layout is not None
        names = self._layout.key_columns
        if not names:
            return self._column(rows, "key")
        if self._key_encoder is not None:
            return self._key_encoder.encode(rows.select(names))
        key = rows.column(names[0])
        if _is_bytes(key.type):
            return key
        return decimal_texts(key) if pa.types.is_decimal(key.type) else key.cast(pa.string())

    def _timestamps(self, rows: pa.RecordBatch) -> Any:
        now_ms = time.time_ns() // 1_000_000
        column = self._column(rows, "timestamp")
        if column is None:
            return np.full(rows.num_rows, now_ms, np.int64)
        zone = column.type.tz
        moments = column.cast(pa.timestamp("ms", tz=zone), safe=False).cast(pa.int64())
        return pc.fill_null(moments, now_ms).to_numpy()

    def _headers(self, rows: pa.RecordBatch) -> HeaderColumn | None:
        column = self._column(rows, "headers")
        if column is None:
            return None
        if column.null_count:
            column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
        pairs = column.values
        return HeaderColumn(
            len(column),
            column.offset,
            column.buffers()[1],
            binary_column(pairs.field(0)),
            binary_column(pairs.field(1)),
        )

    # Where records go

    def _deal(
        self, rows: pa.RecordBatch, keys: BinaryColumn | None
    ) -> tuple[list[tuple[str, int]], Any]:
        """Places, and for each row the number of its own."""
        if self._options.topic is not None:
            return self._deal_topic(self._options.topic, rows, keys, slice(None))
        topics = self._column(rows, "topic")
        if topics.null_count:
            raise ConfigError("a row has no topic; set the option topic, or fill the column")
        dictionary = topics.dictionary_encode()
        codes = dictionary.indices.to_numpy()
        places: list[tuple[str, int]] = []
        slots = np.empty(rows.num_rows, np.int32)
        for code, topic in enumerate(dictionary.dictionary.to_pylist()):
            of_topic = codes == code
            its, within = self._deal_topic(topic, rows, keys, of_topic)
            slots[of_topic] = within + len(places)
            places += its
        return places, slots

    def _deal_topic(
        self, topic: str, rows: pa.RecordBatch, keys: BinaryColumn | None, of_topic: Any
    ) -> tuple[list[tuple[str, int]], Any]:
        """The topic's places, and the number of its own for each of the rows `of_topic`."""
        count = len(self._find_topic(topic).partitions)
        chosen = (
            np.full(rows.num_rows, -1, np.int32)
            if keys is None
            else np.frombuffer(memoryview(partitions_of(keys, count)), np.int32).copy()
        )
        column = self._column(rows, "partition")
        if column is not None:
            chosen = pc.coalesce(column.cast(pa.int32()), pa.array(chosen)).to_numpy().copy()
        chosen = chosen[of_topic]
        if chosen.min() < -1 or chosen.max() >= count:
            raise ConfigError(
                f"the column partition says {_first_outside(chosen, count)}, but {topic} has "
                f"{count} partitions, from 0 on"
            )
        free = np.flatnonzero(chosen < 0)
        chosen[free] = self._take_turns(len(free), rows, count)
        return [(topic, number) for number in range(count)], chosen

    def _find_topic(self, topic: str) -> Any:
        def find() -> Any:
            try:
                return self._cluster.topic(topic, seconds_old_max=TOPIC_SECONDS_OLD_MAX)
            except ApiError as error:
                is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_unknown and topic not in self._found:  # else a broker may be starting
                    raise ConfigError(f"there is no topic {topic}; create it first") from None
                raise

        found = self._cluster.retrying(find)
        self._found.add(topic)
        return found

    def _take_turns(self, free: int, rows: pa.RecordBatch, count: int) -> Any:
        """Partitions for rows that may go anywhere: runs of about a batch each."""
        row_bytes = max(rows.nbytes // rows.num_rows, 1)
        run = max(self._options.batch_bytes_max // row_bytes, 1)
        turns = np.arange(free, dtype=np.int64) // run
        first, self._next_partition = self._next_partition, self._next_partition + free // run + 1
        return ((first + turns) % count).astype(np.int32)


def _first_outside(chosen: Any, count: int) -> int:
    return int(chosen[(chosen < -1) | (chosen >= count)][0])


def _by_slot(slots: Any, count: int) -> tuple[Any, Any]:
    """Numbers of rows, those of a slot together and in order, and where each slot begins."""
    counts = np.bincount(slots, minlength=count)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    if counts.max(initial=0) == len(slots):  # all in one place
        return np.arange(len(slots), dtype=np.int64), bounds
    narrow = slots.astype(np.int16) if count < 2**15 else slots  # sorted by radix
    return np.argsort(narrow, kind="stable").astype(np.int64), bounds


def binary_column(array: Any) -> BinaryColumn:
    """The array's buffers for the encoder."""
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.binary())
    validity, ends, data = array.buffers()
    if ends is None:  # no rows at all
        ends = pa.py_buffer(bytes(4))
    return BinaryColumn(
        len(array), array.offset, validity if array.null_count else None, ends, data
    )
