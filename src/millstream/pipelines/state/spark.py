"""Runs an operator on Spark, as a stream or as a batch, on the same bytes.

    input --mapInArrow: hash, pack--> (bucket, input, block) --shuffle--> operator --> (block)
          --mapInArrow: unpack--> rows

Rows are packed: all rows that a task has of one bucket become one block, in the format of a page.
Spark passes pandas frames to its stateful functions and builds them row by row, which costs more
than the operators themselves; a block is one row. Inputs with different columns share one shuffle.

Streams run on `transformWithStateInPandas` with event-time timers, whose batches without rows come
only when the watermark moves (with processing time they never end). Spark drops rows that are late
by its own rule before the operator gets them, by the column that has the watermark. Our column for
that, `_open`, is in the far future, so that the operator decides which rows are late.

Batches run on `applyInArrow`: all rows of a bucket at once, then the end of time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_DELAY
from millstream.pipelines.plans import BY_ARRIVAL
from millstream.pipelines.state.bucket import END_OF_TIME, NO_WATERMARK, Changes, InputSpec
from millstream.pipelines.state.keys import bucket_labels, check_buckets, split_by_bucket, with_hash
from millstream.pipelines.state.operator import OPERATOR, Operator, run_bucket
from millstream.pipelines.state.page_columns import from_page, narrowed, to_page, widened
from millstream.pipelines.state.pages import decode_page, encode_page
from millstream.pipelines.state.seven_bits import from_seven_bits, to_seven_bits
from millstream.pipelines.state.stored_columns import (
    GENERATIONS_PROPERTY,
    NO_GENERATIONS,
    Generations,
)
from millstream.pipelines.state.tables import concat
from millstream.pipelines.state.trial import MemoryStore
from millstream.pipelines.workers import freeze_imports, keep_memory

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BUCKETS_DEFAULT = 16
PACK_BYTES = 64 << 20  # of rows that a task holds before it packs them
FAR_AWAY = "2262-01-01"  # the last year that nanoseconds reach, in which pandas counts
STORE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_numbers = count(1)  # of the operators of this process
_PACKED = "bucket int, input string, block binary"
_PACKED_SCHEMA = pa.schema([("bucket", pa.int32()), ("input", pa.string()), ("block", pa.binary())])
_BLOCK_SCHEMA = pa.schema([("block", pa.binary())])


def run_operator(
    operator: Operator, inputs: Mapping[str, DataFrame], buckets: int = BUCKETS_DEFAULT
) -> DataFrame:
    """The operator's rows. Frames have the columns that the operator's `inputs` name, and maybe
    more; either all of them are streams or none. A checkpoint keeps its number of buckets."""
    from pyspark.sql.pandas.types import from_arrow_schema

    check_buckets(buckets)
    packed = reduce(
        lambda left, right: left.unionAll(right),
        [_pack_frame(inputs[name], name, spec, buckets) for name, spec in operator.inputs.items()],
    )
    run = _run_stream if packed.isStreaming else _run_batch
    blocks = run(operator, packed, buckets)
    unpack: Callable[..., Any] = partial(_unpack, operator.schema_out)
    return blocks.mapInArrow(unpack, from_arrow_schema(operator.schema_out))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a frame as operators see them: timestamps in UTC; all may be null, and so may
    what is in them, since a struct that is null has fields that are."""
    from pyspark.sql.pandas.types import to_arrow_schema

    exact = to_arrow_schema(schema, timezone="UTC", prefers_large_types=False)
    return pa.schema([pa.field(it.name, _nullable(it.type)) for it in exact])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(it.name, _nullable(it.type)) for it in kind])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind


def _run_stream(operator: Operator, packed: DataFrame, bucket_count: int) -> DataFrame:
    from pyspark.sql.functions import col, lit, rand
    from pyspark.sql.types import BinaryType, StructField, StructType

    check_state_store(packed)
    number = next(_numbers)
    description = {OPERATOR: operator.describe(bucket_count, number)}
    if operator.by_arrival:
        description[BY_ARRIVAL] = operator.by_arrival
    schema_out = StructType([StructField("block", BinaryType(), metadata=description)])
    far = lit(FAR_AWAY).cast("timestamp").alias("_open", metadata={WATERMARK_DELAY: 0})
    # Spark seeds it differently wherever it is used, and so reuses no exchange of packed rows:
    # behind a reused one it finds no watermark, and the second operator's timers never fire.
    unique = rand().alias("_unique")
    return (
        packed.select("bucket", "input", "block", far, unique)
        .groupBy(col("bucket"))
        .transformWithStateInPandas(
            BucketProcessor(operator, bucket_count, number), schema_out, "append", "EventTime"
        )
    )


def check_state_store(frame: DataFrame) -> None:
    """Raises `ConfigError` if the session's state store is not fit for transformWithState."""
    provider = str(frame.sparkSession.conf.get(STORE_PROVIDER))
    if "RocksDB" not in provider:
        raise ConfigError(
            f"state of this kind needs RocksDB: spark.conf.set({STORE_PROVIDER!r}, {ROCKSDB!r}), "
            "or the same under [spark] in millstream.toml"
        )


def _run_batch(operator: Operator, packed: DataFrame, bucket_count: int) -> DataFrame:
    work = partial(_run_whole_bucket, operator, bucket_count)

    def run(table: pa.Table) -> pa.Table:
        return work(table)

    return packed.groupBy("bucket").applyInArrow(run, "block binary")


def _run_whole_bucket(operator: Operator, bucket_count: int, table: pa.Table) -> pa.Table:
    blocks = zip(table["input"].to_pylist(), table["block"].to_pylist(), strict=True)
    store = MemoryStore()
    rows = _unpack_inputs(operator, blocks)
    results = [run_bucket(operator, bucket_count, store, rows, NO_WATERMARK)]
    if store.timer_us is not None:
        results.append(run_bucket(operator, bucket_count, store, None, END_OF_TIME))
    found = [encode_page(narrowed(result)) for result in results if result.num_rows]
    return pa.table({"block": pa.array(found, pa.binary())}, schema=_BLOCK_SCHEMA)


class BucketProcessor(StatefulProcessor):
    """Spark's stateful function: one bucket, one call."""

    def __init__(self, operator: Operator, bucket_count: int, number: int = 0) -> None:
        self._operator = operator
        self._bucket_count = bucket_count
        self._number = number

    def init(self, handle: Any) -> None:
        keep_memory()
        self._handle = handle
        self._index = handle.getValueState("index", "blob binary")
        self._pages = handle.getMapState("pages", "page long", "blob binary")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        blocks = (
            block for frame in rows for block in zip(frame["input"], frame["block"], strict=True)
        )
        yield from self._run(_unpack_inputs(self._operator, blocks), timerValues)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        yield from self._run(None, timerValues)

    def close(self) -> None:
        freeze_imports("state")

    def _run(
        self, rows: Mapping[str, pa.RecordBatch] | None, timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

        watermark_ms = timer_values.getCurrentWatermarkInMs()
        watermark_us = watermark_ms * 1000 if watermark_ms > 0 else NO_WATERMARK
        store = SparkStore(self._handle, self._index, self._pages, has_fired=rows is None)
        generations = _generations(self._number)
        result = run_bucket(
            self._operator, self._bucket_count, store, rows, watermark_us, generations
        )
        if result.num_rows:
            yield pd.DataFrame({"block": [encode_page(narrowed(result))]})


class SparkStore:
    """A bucket's bytes, in Spark's state store, where they are all below 128."""

    def __init__(self, handle: Any, index: Any, pages: Any, *, has_fired: bool) -> None:
        self._handle = handle
        self._index = index
        self._pages = pages
        self._has_fired = has_fired

    def read_index(self) -> bytes | None:
        found = self._index.get()
        return None if found is None else from_seven_bits(found[0])

    def read_page(self, page_id: int) -> bytes | None:
        found = self._pages.getValue((page_id,))
        return None if found is None else from_seven_bits(found[0])

    def write_page(self, page_id: int, blob: bytes) -> None:
        self._pages.updateValue((page_id,), (to_seven_bits(blob),))

    def write(self, changes: Changes) -> None:
        for page_id, blob in changes.written.items():
            self.write_page(page_id, blob)
        for page_id in changes.removed:
            self._pages.removeKey((page_id,))
        if changes.index is None:
            self._index.clear()
        else:
            self._index.update((to_seven_bits(changes.index),))
        self._move_timer(changes.timer_before_us, changes.timer_us)

    def _move_timer(self, before_us: int | None, time_us: int | None) -> None:
        """Spark itself deletes a timer that has fired, after the call."""
        if before_us == time_us:
            return
        if before_us is not None and not self._has_fired:
            self._handle.deleteTimer(_timer_ms(before_us))
        if time_us is not None:
            self._handle.registerTimer(_timer_ms(time_us))


def _generations(number: int) -> Generations:
    """In a task: the generations of the columns of an operator, by its number."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(GENERATIONS_PROPERTY)
    return json.loads(text).get(str(number), NO_GENERATIONS) if text else NO_GENERATIONS


def _timer_ms(time_us: int) -> int:
    """Rounded up: Spark fires a timer when the watermark, in milliseconds, is there. It begins with
    0, and a timer at or before the watermark would never fire."""
    return max(-(-time_us // 1000), 1)


def _pack_frame(frame: DataFrame, name: str, spec: InputSpec, bucket_count: int) -> DataFrame:
    from pyspark.sql.functions import col

    columns = [col(f"`{field.name}`") for field in spec.schema]
    pack: Callable[..., Any] = partial(_pack, name, spec, bucket_count)
    return frame.select(*columns).mapInArrow(pack, _PACKED)


def _pack(
    name: str, spec: InputSpec, bucket_count: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    keep_memory()
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= PACK_BYTES:
            yield _pack_rows(name, spec, bucket_count, concat(held))
            held, held_bytes = [], 0
    if held:
        yield _pack_rows(name, spec, bucket_count, concat(held))
    freeze_imports("state")


def _pack_rows(
    name: str, spec: InputSpec, bucket_count: int, rows: pa.RecordBatch
) -> pa.RecordBatch:
    hashed = with_hash(rows.cast(spec.schema), spec.keys)
    parts = list(split_by_bucket(hashed, bucket_count))
    labels = bucket_labels(bucket_count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([labels[bucket] for bucket, _ in parts], pa.int32()),
            pa.repeat(pa.scalar(name), len(parts)),
            pa.array([encode_page(to_page(part, spec.keys)) for _, part in parts], pa.binary()),
        ],
        schema=_PACKED_SCHEMA,
    )


def _unpack_inputs(operator: Operator, blocks: Any) -> dict[str, pa.RecordBatch]:
    found: dict[str, list[pa.RecordBatch]] = {}
    for name, block in blocks:
        spec = operator.inputs[name]
        rows = from_page(decode_page(bytes(block)), spec.schema, spec.keys)
        found.setdefault(name, []).append(rows)
    return operator.no_rows() | {name: concat(batches) for name, batches in found.items()}


def _unpack(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for block in batch.column(0):
            yield widened(decode_page(block.as_py()), schema)
    freeze_imports("state")
