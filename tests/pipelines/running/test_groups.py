"""What is fixed for the groups of an aggregate, in plans of a stream that nobody starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream.pipelines.plans import analyzed, items
from millstream.pipelines.running.groups import Groups, find_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def counts(spark: SparkSession) -> DataFrame:
    stream = spark.readStream.format("rate").load()
    return stream.selectExpr("value % 5 as user", "value % 7 as day").groupBy("user", "day").count()


def fixed(frame: DataFrame) -> set[str]:
    """The columns that are fixed for a group, whichever aggregate it is of."""
    plan = analyzed(frame)
    found = [it.columns for it in find_groups(plan)]
    return {
        str(it.name())
        for it in items(plan.output())
        if all(columns[it.exprId().id()].is_fixed for columns in found)
    }


def only(frame: DataFrame) -> Groups:
    (found,) = find_groups(analyzed(frame))
    return found


def test_columns_are_fixed_if_all_that_they_are_made_of_is(counts: DataFrame) -> None:
    made = counts.selectExpr(
        "*",
        "user + day as sum",
        "user + count as changing",
        "rand() as random",
        "current_date() as today",
        "transform(array(user), it -> it + 1) as list",
        "case when user > 1 then day else user end as chosen",
        "case when count > 1 then day else user end as by_count",
    )
    assert fixed(made) == {"user", "day", "sum", "list", "chosen"}


def test_fields_of_a_struct_are_told_apart(counts: DataFrame) -> None:
    made = counts.selectExpr(
        "struct(user, count) as whole",
        "case when user > 1 then struct(user, count) else struct(day as user, count) end as either",
        "case when count > 1 then struct(user) end as sometimes",
    )
    fields = made.selectExpr(
        "whole.user as a", "whole.count as b", "either.user as c", "sometimes.user as d"
    )
    assert fixed(fields) == {"a", "c"}
    assert not only(made.where("whole is not null and either is not null")).removals
    assert only(made.where("sometimes is not null")).removals


def test_key_lacks_the_grouping_columns_that_it_does_not_determine(counts: DataFrame) -> None:
    groups = only(counts)
    user, day, count = groups.columns.values()
    assert groups.lacking([user]) == ["day"]
    assert groups.lacking([day, user]) == []
    assert groups.lacking([count]) == ["user", "day"]


def test_struct_of_a_group_is_determined_by_all_of_its_fields(counts: DataFrame) -> None:
    stream = counts.sparkSession.readStream.format("rate").load()
    by_struct = stream.selectExpr("struct(value, timestamp) as s").groupBy("s").count()
    groups = only(by_struct.select("s.value", "s.timestamp"))
    value, timestamp = groups.columns.values()
    assert (groups.lacking([value]), groups.lacking([value, timestamp])) == (["s"], [])


def test_aggregates_of_a_union_have_groups_of_their_own(counts: DataFrame) -> None:
    by_user = counts.selectExpr("user as key", "'user' as kind", "count")
    by_day = counts.selectExpr("count as key", "'day' as kind", "count")
    assert len(find_groups(analyzed(by_user.union(by_day)))) == 2
    assert fixed(by_user.union(by_day)) == {"kind"}


def test_join_of_two_streams_may_leave_out_rows(counts: DataFrame) -> None:
    other = counts.sparkSession.readStream.format("rate").load().selectExpr("value as user")
    assert only(counts.join(other, "user")).removals == (
        "has Join behind an aggregate, which may leave out rows",
    )


def test_rows_that_are_no_aggregate_have_no_groups(counts: DataFrame) -> None:
    stream = counts.sparkSession.readStream.format("rate").load()
    assert find_groups(analyzed(stream.where("value > 1"))) == []
