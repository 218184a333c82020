"""Joins through the harness: any cuts, any faults, both sides in disorder."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from examples.nexmark.best_match import best_match
from hypothesis import strategies as st

from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.joins import (
    as_of_join,
    changes,
    enrich,
    interval_join,
    table_join,
)
from millstream.testing.streams import Disorder, Outcome, Source, check_stream, moments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SEED = 1
TIMES = moments("3 minutes", "5 seconds")
WORDS = st.sampled_from(["x", "y", None])


def rows(**columns: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(columns)


def check(
    function: Any, spark: SparkSession, inputs: dict[str, Source], **rest: Any
) -> list[Outcome]:
    arguments = {"seed": SEED, "rows": 16, "examples": 1} | rest
    outcomes = check_stream(function, inputs, spark=spark, **arguments)
    assert all(it.rows() for it in outcomes)
    assert [it.dropped_by_spark for it in outcomes] == [0] * len(outcomes)
    return outcomes


SEARCHES = Source(
    rows(query=WORDS, searched=TIMES),
    schema="query string, searched timestamp, _offset long",
    watermark=("searched", "10 seconds"),
)
CLICKS = Source(
    rows(query=WORDS, clicked=TIMES, page=st.integers(1, 9)),
    schema="query string, clicked timestamp, page int",
    watermark=("clicked", "20 seconds"),
)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_interval_join_of_streams_is_that_of_tables(spark: SparkSession, how: Any) -> None:
    """What is late is late for certain: on the edge, its partner may have gone."""

    def join(searches: DataFrame, clicks: DataFrame) -> DataFrame:
        return searches.transform(
            interval_join,
            clicks,
            "query",
            time="searched",
            right_time="clicked",
            band=("5 seconds", "20 seconds"),
            how=how,
        )

    check(
        join,
        spark,
        {"searches": SEARCHES, "clicks": CLICKS},
        disorder=Disorder(late=0.15, late_by="20 seconds"),
    )


@pytest.mark.parametrize("how", ["inner", "left"])
def test_as_of_join_gets_the_version_of_its_time(spark: SparkSession, how: Any) -> None:
    sales = Source(
        rows(country=WORDS, sold=st.one_of(TIMES, TIMES, TIMES, st.none())),
        schema="country string, sold timestamp, _offset long",
        watermark=("sold", "20 seconds"),
    )
    rates = Source(
        rows(country=WORDS, since=TIMES, rate=st.integers(1, 99), gone=st.booleans()),
        schema="country string, since timestamp, rate int, gone boolean",
        time="since",
    )

    def join(sales: DataFrame, rates: DataFrame) -> DataFrame:
        return sales.transform(
            as_of_join,
            rates,
            "country",
            time="sold",
            valid_from="since",
            delete="gone",
            how=how,
            buckets=4,
        )

    check(
        join,
        spark,
        {"sales": sales, "rates": rates},
        disorder=Disorder(late=0.3),
        late_when="0 seconds",
    )


def auction(number: int, opens: datetime, seconds: int) -> dict[str, Any]:
    return {"id": number, "opens": opens, "closes": opens + timedelta(seconds=seconds)}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_best_match_is_the_best_of_all_that_came_in_time(spark: SparkSession, how: Any) -> None:
    auctions = Source(
        st.builds(auction, st.integers(1, 3), TIMES, st.integers(0, 12).map(lambda it: it * 5)),
        schema="id int, opens timestamp, closes timestamp, _offset long",
        watermark=("opens", "20 seconds"),
    )
    bids = Source(
        rows(auction=st.integers(1, 3), bid_at=TIMES, price=st.integers(1, 5)),
        schema="auction int, bid_at timestamp, price int",
        watermark=("bid_at", "20 seconds"),
    )

    def winners(auctions: DataFrame, bids: DataFrame) -> DataFrame:
        return auctions.transform(
            best_match,
            bids,
            {"id": "auction"},
            time="opens",
            until="closes",
            right_time="bid_at",
            order_by="price desc, bid_at",
            how=how,
            buckets=4,
        )

    check(
        winners,
        spark,
        {"auctions": auctions, "bids": bids},
        disorder=Disorder(late=0.3),
        late_when="0 seconds",
    )


@pipeline(
    reads={
        "clicks": topic("clicks", schema="user string, _offset long"),
        "users": topic("users", schema="name string, _offset long", table_key="user"),
    },
    writes=table("named", key="_offset"),
)
def named_clicks(clicks: DataFrame, users: DataFrame) -> DataFrame:
    return enrich(clicks, users.drop("_offset"), buckets=4)


def test_enriched_rows_get_the_rows_of_the_table_in_their_batch(spark: SparkSession) -> None:
    """The table's keys move to another partition again and again."""
    clicks = rows(user=WORDS)
    users = rows(user=WORDS, name=st.sampled_from("abc"), _deleted=st.booleans())

    def reference(clicks: DataFrame, users: DataFrame) -> DataFrame:
        return clicks.sparkSession.sql(
            """
            with newest as (
                select c._offset, max_by(struct(u.name, u._deleted), u._offset) as it
                from {clicks} c join {users} u on c.user = u.user and u._batch <= c._batch
                group by c._offset)
            select c.user, c._offset, case when not it._deleted then it.name end as name
            from {clicks} c left join newest using (_offset)
            """,
            clicks=clicks,
            users=users,
        )

    check(named_clicks, spark, {"clicks": clicks, "users": users}, reference=reference)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_joined_tables_add_up_to_the_join_of_what_is_left(spark: SparkSession, how: Any) -> None:
    posts = Source(
        rows(post=st.integers(1, 4), author=WORDS, text=st.sampled_from("tuv"), gone=st.booleans()),
        schema="post int, author string, text string, gone boolean, _offset long",
    )
    follows = Source(
        rows(follower=st.sampled_from("pq"), author=WORDS, unfollowed=st.booleans()),
        schema="follower string, author string, unfollowed boolean, _offset long",
    )

    def timeline(posts: DataFrame, follows: DataFrame) -> DataFrame:
        left = posts.withColumnRenamed("_offset", "at").transform(
            changes, key="post", sequence="at", delete="gone", buckets=4
        )
        right = follows.withColumnRenamed("_offset", "since").transform(
            changes, key=["follower", "author"], sequence="since", delete="unfollowed", buckets=4
        )
        columns = ["post", "author", "text", "follower", "_weight"]
        return left.transform(table_join, right, "author", how=how, buckets=4).select(*columns)

    def reference(posts: DataFrame, follows: DataFrame) -> DataFrame:
        return posts.sparkSession.sql(
            """
            with p as (select post, max_by(struct(author, text, gone), _offset) as it
                       from {posts} group by post),
            f as (select follower, author, max_by(unfollowed, _offset) as gone
                  from {follows} group by follower, author),
            p2 as (select post, it.author as author, it.text as text from p where not it.gone),
            f2 as (select follower, author from f where not gone)
            select post, coalesce(p2.author, f2.author) as author, text, follower, 1L as _weight
            from p2 {how} join f2 on p2.author = f2.author
            """.replace("{how}", how),
            posts=posts,
            follows=follows,
        )

    check(timeline, spark, {"posts": posts, "follows": follows}, reference=reference)
