"""Bucketed state on Spark: late rows reach the operator, timers fire, a stream equals a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.state import (
    NO_WATERMARK,
    BucketState,
    InputSpec,
    Operator,
    StateTableSpec,
)
from millstream.pipelines.state.keys import HASH, bucket_labels
from millstream.pipelines.state.spark import (
    ROCKSDB,
    STORE_PROVIDER,
    BucketProcessor,
    _pack,
    _run_whole_bucket,
    _timer_ms,
    _unpack,
    _unpack_inputs,
    arrow_schema,
    run_operator,
)
from millstream.pipelines.state.tables import times_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = "key string, time timestamp"
PARIS = pa.timestamp("us", tz="Europe/Paris")
SCHEMA = pa.schema([("key", pa.string()), ("time", pa.timestamp("us", tz="UTC"))])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Hold(Operator):
    """Lets rows go when the watermark has reached them, late ones at once."""

    identity = "hold"

    def __init__(self, schema: pa.Schema) -> None:
        self.inputs = {"rows": InputSpec(schema, ("key",))}
        self.tables = {"held": StateTableSpec(schema, ("key",), "time")}
        self.schema_out = pa.schema([*schema, ("watermark", pa.timestamp("us", tz="UTC"))])

    def process(self, state: BucketState, rows: Any, watermark_us: int) -> pa.RecordBatch:
        state["held"].append(rows["rows"])
        return self.on_timer(state, watermark_us)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        held = state["held"]
        due = held.take(held.select(last_us=watermark_us))
        is_due = times_of(due, "time") <= watermark_us
        held.append(due.filter(pa.array(~is_due)))
        due = due.filter(pa.array(is_due))
        left_us = times_of(held.select(), "time")
        state.wake_at(int(left_us.min()) if len(left_us) else None)
        known = None if watermark_us == NO_WATERMARK else min(watermark_us, 2**55)
        watermark = pa.array([known] * due.num_rows, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        return pa.RecordBatch.from_arrays([*due.columns[1:], watermark], schema=self.schema_out)


def rows_at(*rows: tuple[str, int]) -> pa.RecordBatch:
    """Keys and seconds since 1970."""
    times = pa.array([seconds * 1_000_000 for _, seconds in rows], pa.int64())
    return pa.RecordBatch.from_arrays(
        [pa.array([key for key, _ in rows]), times.cast(SCHEMA.field("time").type)], schema=SCHEMA
    )


def keys_of(blocks: Iterable[Any]) -> list[str]:
    schema = Hold(SCHEMA).schema_out
    packed = [pa.RecordBatch.from_pydict({"block": [block]}) for block in blocks]
    return sorted(key for rows in _unpack(schema, iter(packed)) for key in rows["key"].to_pylist())


def test_rows_are_packed_once_per_bucket_and_unpacked_again() -> None:
    spec = InputSpec(SCHEMA, ("key",))
    batches = [rows_at(*((f"k{i}", i) for i in range(10))), rows_at(("k1", 50), ("k2", 60))]
    in_paris = [it.cast(SCHEMA.set(1, pa.field("time", PARIS))) for it in batches]
    (packed,) = _pack("rows", spec, 3, iter(in_paris))
    assert packed["bucket"].to_pylist() == list(bucket_labels(3))
    operator = Hold(SCHEMA)
    found = _unpack_inputs(
        operator, zip(packed["input"].to_pylist(), packed["block"].to_pylist(), strict=True)
    )
    assert found["rows"].schema.names == [HASH, "key", "time"]
    assert found["rows"].schema.field("time").type == SCHEMA.field("time").type
    assert found["rows"].num_rows == 12
    assert list(_pack("rows", spec, 3, iter([]))) == []
    assert _unpack_inputs(operator, [])["rows"].num_rows == 0


def test_processor_keeps_state_and_timers_as_spark_has_them() -> None:
    """In Spark's own imitation of its state store, which needs no JVM."""
    from pandas import DataFrame as Pandas
    from pyspark.sql.streaming.tws_tester import TwsTester

    tester = TwsTester(
        BucketProcessor(Hold(SCHEMA), 1), timeMode="EventTime", eventTimeExtractor=lambda _: 2**50
    )

    def feed(*rows: tuple[str, int]) -> list[str]:
        (packed,) = _pack("rows", InputSpec(SCHEMA, ("key",)), 1, iter([rows_at(*rows)]))
        block = packed.select(["input", "block"]).to_pandas()
        result = tester.testInPandas(0, block)
        return keys_of(result["block"]) if len(result) else []

    def advance(watermark_ms: int) -> list[str]:
        result = tester.setWatermark(watermark_ms)
        assert isinstance(result, Pandas)
        return keys_of(result["block"]) if len(result) else []

    assert feed(("a", 10), ("b", 20)) == []
    assert advance(9_999) == []
    assert advance(10_000) == ["a"]
    assert feed(("late", 3), ("c", 15)) == ["late"]
    assert advance(19_999) == ["c"]
    assert advance(30_000) == ["b"]
    assert tester.peekValueState("index", 0) is None
    assert tester.peekMapState("pages", 0) == {}


@pytest.mark.parametrize(
    ("time_us", "timer_ms"), [(1_000_000, 1000), (1_000_001, 1001), (999_999, 1000), (-5, 1)]
)
def test_timer_is_rounded_up_and_never_at_the_first_watermark(time_us: int, timer_ms: int) -> None:
    assert _timer_ms(time_us) == timer_ms


def test_bucket_of_a_batch_runs_to_the_end_of_time() -> None:
    (packed,) = _pack("rows", InputSpec(SCHEMA, ("key",)), 1, iter([rows_at(("a", 1), ("b", 2))]))
    result = _run_whole_bucket(Hold(SCHEMA), 1, pa.Table.from_batches([packed]))
    assert keys_of(result["block"].to_pylist()) == ["a", "b"]


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield spark
    spark.conf.set(STORE_PROVIDER, str(before))


class Stream:
    """Files that come one after another, and a query that is restarted for each."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory

    def read(self) -> DataFrame:
        stream = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return stream.parquet(str(self.directory / "in")).withWatermark("time", "5 seconds")

    def add(self, *rows: tuple[str, float]) -> None:
        pairs = [(key, BEGIN + timedelta(seconds=seconds)) for key, seconds in rows]
        frame = self.spark.createDataFrame(pairs, COLUMNS)
        frame.coalesce(1).write.mode("append").parquet(str(self.directory / "in"))

    def run(self, result: DataFrame) -> tuple[list[tuple[str, float, float | None]], list[Any]]:
        """What came out, and the progress of each batch."""
        found: list[Row] = []

        def keep(rows: DataFrame, batch_id: int) -> None:
            found.extend(rows.collect())

        writer = result.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.directory / "checkpoint")).start()
        query.awaitTermination()
        return [simple(row) for row in found], list(query.recentProgress)


def simple(row: Row) -> tuple[str, float, float | None]:
    begin = BEGIN.astimezone().replace(tzinfo=None)
    watermark = row.watermark and (row.watermark - begin).total_seconds()
    return row.key, (row.time - begin).total_seconds(), watermark


def test_stream_goes_by_the_watermark_and_survives_restarts(
    rocksdb: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(rocksdb, tmp_path)
    stream.add(("a", 1), ("b", 2), ("c", 3))
    rows = stream.read()
    result = run_operator(Hold(arrow_schema(rows.schema)), {"rows": rows}, 4)
    assert stream.run(result)[0] == []
    stream.add(("a", 20), ("b", 21))
    found, _ = stream.run(result)
    assert sorted(found) == [("a", 1, 16), ("b", 2, 16), ("c", 3, 16)], "in a batch without rows"
    stream.add(("late", 1), ("d", 40))
    found, progress = stream.run(result)
    assert sorted(found) == [("a", 20, 35), ("b", 21, 35), ("late", 1, 16)]
    dropped = [it.stateOperators[0].numRowsDroppedByWatermark for it in progress]
    assert set(dropped) == {0}, "lateness is the operator's to decide"


def test_batch_runs_to_the_end_of_time(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", BEGIN), ("b", BEGIN), ("a", BEGIN)], COLUMNS)
    result = run_operator(Hold(arrow_schema(rows.schema)), {"rows": rows}, 4)
    assert Counter(row.key for row in result.collect()) == Counter("aba")


def test_every_type_of_column_goes_through(spark: SparkSession) -> None:
    rows = spark.sql(
        """
        select concat('k', id) as key, timestamp_seconds(id) as time, id % 2 = 0 as flag,
            cast(id as byte) as tiny, cast(id as float) / 3 as float, id / 3 as double,
            cast(id as decimal(20, 3)) as decimal, date_add(date'2026-01-01', 1) as day,
            cast(concat('b', id) as binary) as bytes, array(id, null) as list,
            named_struct('x', id, 'y', array('z')) as nested, map('m', id) as map,
            cast(null as string) as nothing, timestamp_ntz'2026-01-01 00:00:00' as local,
            make_dt_interval(0, 0, 0, id) as duration
        from range(50)
        """
    )
    operator = Hold(arrow_schema(rows.schema))
    result = run_operator(operator, {"rows": rows}, 3).drop("watermark")
    kinds = [(it.name, it.dataType.simpleString()) for it in rows.schema]  # all may be null after
    assert [(it.name, it.dataType.simpleString()) for it in result.schema] == kinds
    assert sorted(result.collect(), key=lambda it: it.time) == rows.collect()


def test_wrong_settings_are_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    rows = Stream(spark, tmp_path).read()
    operator = Hold(arrow_schema(rows.schema))
    before = str(spark.conf.get(STORE_PROVIDER))
    spark.conf.set(STORE_PROVIDER, ROCKSDB.replace("RocksDB", "HDFSBacked"))
    try:
        with pytest.raises(ConfigError, match=r"needs RocksDB: spark\.conf\.set\('spark.sql"):
            run_operator(operator, {"rows": rows})
    finally:
        spark.conf.set(STORE_PROVIDER, before)
    with pytest.raises(ConfigError, match="buckets=0: it must be an integer between 1 and 65536"):
        run_operator(operator, {"rows": rows}, 0)


def test_fields_of_structs_may_be_null_as_their_structs_may() -> None:
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    inner = StructType([StructField("kind", StringType(), nullable=False)])
    schema = StructType(
        [StructField("late", inner), StructField("all", ArrayType(inner, containsNull=False))]
    )
    found = arrow_schema(schema)
    kind = pa.struct([pa.field("kind", pa.string())])
    assert found == pa.schema([("late", kind), ("all", pa.list_(kind))])
    nullable = pa.RecordBatch.from_pylist([{"late": None, "all": [{"kind": "x"}]}], schema=found)
    assert nullable.cast(found).equals(nullable)
