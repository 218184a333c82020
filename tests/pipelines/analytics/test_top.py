"""The first k of each window, against sorting them all; and that no task has to."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import sum as sum_of

from millstream.errors import ConfigError
from millstream.pipelines.analytics import top_k
from tests.pipelines.analytics.events import EVENTS, Stage, start_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("smallest", [False, True])
def test_items_are_ranked_by_value_then_by_name(stage: Stage, smallest: bool) -> None:
    rows = stage.results(
        lambda it: it.transform(
            top_k, "1 minute", key="amount", time="time", k=3, by="count(user)", smallest=smallest
        )
    )
    for start in {it.seconds // 60 * 60 for it in EVENTS}:
        window = [it for it in EVENTS if start <= it.seconds < start + 60]
        counts = {
            amount: sum(it.amount == amount and it.user is not None for it in window)
            for amount in {it.amount for it in window}
        }
        sign = 1 if smallest else -1
        best = sorted(counts, key=lambda it: (sign * counts[it], it is not None, it or 0))[:3]
        found = sorted((it.rank, it.amount, it.value) for it in rows if start_of(it) == start)
        assert found == [(at, it, counts[it]) for at, it in enumerate(best, 1)]


def test_groups_have_their_own_first_ones_and_stocks_their_movers(stage: Stage) -> None:
    from pyspark.sql.functions import col

    kind = (col("amount") % 2).alias("kind")
    by = "max_by(amount, time) / min_by(amount, time) - 1"
    rows = stage.results(
        lambda it: it.transform(top_k, "5 minutes", key="user", time="time", k=1, group=kind, by=by)
    )
    assert rows
    for row in rows:
        start = start_of(row)
        window = sorted(
            (it for it in EVENTS if start <= it.seconds < start + 300 and it.amount is not None),
            key=lambda it: it.seconds,
        )
        moved = {}
        for user in {it.user for it in window if it.amount % 2 == row.kind}:
            own = [it.amount for it in window if it.user == user and it.amount % 2 == row.kind]
            moved[user] = own[-1] / own[0] - 1
        assert row.value == pytest.approx(max(moved.values()))
        assert row.rank == 1


@pytest.mark.parametrize("group", [(), "user"])
def test_sketch_ranks_items_by_their_counts(stage: Stage, group: Any) -> None:
    """Exactly: all items fit."""

    def ranked(how: Any) -> list[tuple[Any, ...]]:
        rows = stage.results(
            lambda it: it.where("amount is not null").transform(
                top_k, "2 minutes", key="amount", time="time", k=9, group=group, how=how
            )
        )
        return sorted((start_of(it), *map(str, it[2:]), it.rank, it.value) for it in rows)

    stage_rows = ranked("approx")
    assert stage_rows
    stage.restart()
    assert stage_rows == ranked("exact")


def test_sketch_finds_the_most_frequent_of_more_items_than_it_keeps(spark: SparkSession) -> None:
    rng = random.Random(7)
    items = [f"rare {rng.randrange(50_000)}" for _ in range(20_000)]
    items += ["often"] * 3_000 + ["oftener"] * 4_000
    rows = spark.createDataFrame([(it,) for it in items], "item string")
    frame = rows.selectExpr("item", "timestamp_seconds(0) at")
    found = frame.transform(top_k, "1 hour", key="item", time="at", k=2, how="approx", capacity=512)
    assert [it.item for it in found.orderBy("rank").collect()] == ["oftener", "often"]


def test_each_task_sends_no_more_than_its_own_first_k(spark: SparkSession) -> None:
    """A million items are not ranked by one task: their partial top is, before the exchange."""
    rng = random.Random(1)
    events = [(rng.randrange(1000), 0) for _ in range(5000)]
    frame = spark.createDataFrame(events, "item int, at int").selectExpr(
        "item", "timestamp_seconds(at) at"
    )
    plan = frame.transform(top_k, "1 minute", key="item", time="at", k=5)
    text = plan._jdf.queryExecution().executedPlan().toString()
    exchanges = text.count("Exchange hashpartitioning")
    assert exchanges == 2
    ranking, rest = text.split("Exchange hashpartitioning")[:2]
    assert "partial_min_by" in rest
    assert "partial_min_by" not in ranking


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k=0: it must be an integer of at least 1"),
        ({"k": 2.5}, "k=2.5: it must be an integer"),
        ({"k": 1_000_000}, "at most 100000 items are ranked"),
        ({"by": "max(user)"}, "by must be a number, to rank items by it, and it is string"),
        ({"key": ()}, "name the items: top_k"),
        ({"how": "sketch"}, "choose one of exact, approx"),
        ({"how": "approx", "by": "sum(amount)"}, "use heavy_hitters for the greatest sums"),
        ({"how": "approx", "capacity": 5}, "choose at least k=10"),
        ({"how": "approx", "key": ("user", "amount")}, "counts one column"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError) as refused:
        top_k(frame, **({"key": "user", "time": "time", "size": "1 minute"} | arguments))
    assert message in str(refused.value)


def test_sketch_of_a_column_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError, match="use heavy_hitters for the greatest sums"):
        top_k(frame, "1 minute", key="user", time="time", how="approx", by=sum_of("amount"))
