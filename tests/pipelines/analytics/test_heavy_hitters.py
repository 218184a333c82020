"""Heavy hitters against sums of all items: exact while all fit, within bounds otherwise."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.analytics import heavy_hitters
from millstream.pipelines.analytics.heavy_hitters import HeavyHitters
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws
from tests.pipelines.analytics.events import EVENTS, Stage, start_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE_US = 20
SCHEMA = pa.schema(
    [("item", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("bytes", pa.int64())]
)
HITS = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "e", None]), st.integers(0, 60), st.integers(0, 5)
)
BATCHES = st.lists(st.tuples(st.lists(HITS, max_size=12), st.integers(0, 15)), max_size=6)


def columns(hits: Sequence[tuple[Any, ...]]) -> dict[str, pa.RecordBatch]:
    items, times, sizes = ([it[at] for it in hits] for at in range(3))
    stamps = pa.array(times, pa.int64()).cast(SCHEMA.field("time").type)
    arrays = [pa.array(items, pa.string()), stamps, pa.array(sizes, pa.int64())]
    return {"events": pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)}


def operator(k: int, capacity: int) -> HeavyHitters:
    return HeavyHitters(SCHEMA, ["item"], "time", "bytes", SIZE_US, k, capacity)


def results(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    rows = rows.filter(rows["_late_rows"].is_null())
    ends = rows["_ends"].cast(pa.int64()).to_pylist()
    lists = (
        rows["item"].to_pylist(),
        ends,
        rows["at_least"].to_pylist(),
        rows["at_most"].to_pylist(),
    )
    return list(zip(*lists, strict=True))


@settings(max_examples=draws(60))
@given(BATCHES, st.integers(1, 8))
def test_sums_are_true_while_all_items_fit_and_bounded_otherwise(
    batches: list[tuple[list[tuple[Any, ...]], int]], capacity: int
) -> None:
    trial = Trial(operator(capacity, capacity), buckets=1)
    true: Counter[tuple[Any, int]] = Counter()
    found, late_count, watermark_us = [], 0, 0
    for hits, step_us in batches:
        rows = trial.feed(columns(hits), watermark_us)
        found += results(rows)
        late_count += sum(it or 0 for it in rows["_late_rows"].to_pylist())
        for item, time_us, size in hits:
            end_us = time_us // SIZE_US * SIZE_US + SIZE_US
            if end_us > watermark_us:
                true[item, end_us] += size
            else:
                late_count -= 1
        watermark_us += step_us
    found += results(trial.finish())
    assert late_count == 0
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)
    for end_us in {it[1] for it in true}:
        counts = {item: count for (item, end), count in true.items() if end == end_us}
        own = {it[0]: it[2:] for it in found if it[1] == end_us}
        bound = sum(counts.values()) / capacity
        assert len(own) == min(len(counts), capacity)
        for item, (at_least, at_most) in own.items():
            assert at_least <= counts[item] <= at_most
            assert at_most - at_least <= bound
            if len(counts) <= capacity:
                assert at_least == at_most
        assert {item for item, count in counts.items() if count > bound} <= set(own)


def test_heavy_ones_are_found_among_a_hundred_thousand() -> None:
    rng = np.random.default_rng(5)
    trial = Trial(HeavyHitters(SCHEMA, ["item"], "time", "bytes", 10**9, 5, 200), buckets=4)
    everything: Counter[str] = Counter()
    for _ in range(5):
        numbers = [*rng.integers(0, 100_000, 20_000), *rng.zipf(1.5, 5_000)]
        items = [f"item-{it}" for it in numbers]
        everything.update(items)
        trial.feed(columns([(it, 1, 1) for it in items]), 0)
        assert sum(len(it) for store in trial.buckets for it in store.pages.values()) < 100_000
    found = sorted(results(trial.finish()), key=lambda it: -it[2])[:3]
    assert [it[0] for it in found] == [it[0] for it in everything.most_common(3)]
    for item, _, at_least, at_most in found:
        assert at_least <= everything[item] <= at_most


def test_negative_weight_is_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match="filter them out before"):
        Trial(operator(1, 1)).feed(columns([("a", 1, -1)]))


def test_first_of_all_buckets_are_ranked(stage: Stage) -> None:
    rows = stage.results(
        lambda it: it.transform(
            heavy_hitters, "2 minutes", key="user", time="time", k=3, by="amount"
        )
    )
    for start in {it.seconds // 120 * 120 for it in EVENTS}:
        sums: Counter[str | None] = Counter()
        for it in EVENTS:
            if start <= it.seconds < start + 120:
                sums[it.user] += it.amount or 0  # type: ignore[assignment]
        best = sorted(sums, key=lambda it: (-sums[it], it is not None, it or ""))[:3]
        found = sorted((it.rank, it.user, it.at_least) for it in rows if start_of(it) == start)
        assert found == [(at, it, sums[it]) for at, it in enumerate(best, 1)]
    assert all(it.at_least == it.at_most for it in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k=0: it must be an integer of at least 1"),
        ({"k": 20, "capacity": 10}, "choose at least k=20"),
        ({"by": "user"}, "by is the weight of a row, a number, and user is string"),
        ({"key": ()}, "name the items: heavy_hitters"),
        ({"time": "amount"}, "time must be a timestamp, and amount is double"),
        ({"stragglers": "correct"}, "each result is emitted once here"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    usual: dict[str, Any] = {"key": "user", "time": "time", "size": "1 minute"}
    with pytest.raises(ConfigError) as refused:
        heavy_hitters(frame, **usual | {"by": "amount"} | arguments)
    assert message in str(refused.value)


def test_order_of_rows_does_not_matter() -> None:
    rng = random.Random(2)
    hits = [(rng.choice("abcdefgh"), 1, 1) for _ in range(200)]
    first, second = Trial(operator(3, 3)), Trial(operator(3, 3))
    first.feed(columns(hits))
    second.feed(columns(rng.sample(hits, len(hits))))
    assert sorted(results(first.finish())) == sorted(results(second.finish()))
