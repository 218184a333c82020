"""The queries of Nexmark that need operators of the library.

q20 runs on plain Spark, too (native.py), which stores all bids forever. Spark has no operators for
the others, which are about winning bids. They begin with the bid that won each auction, which is
final when the auction is over: the benchmark's "closed auctions". Over streams they want a
watermark on both sides' `dateTime`. q9 and q20 append, q4 answers in update mode, and q6 appends
changes with `_weight` (1: a row that holds now, -1: one that no longer does), since an auction that
closes later may have been won earlier.
"""

from __future__ import annotations

import sys

from examples.nexmark.best_match import best_match
from examples.nexmark.last_rows import last_rows
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from millstream.pipelines import joins

AUCTION_AND_TEN_BEFORE = 11


def q4(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """What auctions of a category sell for, on average."""
    return (
        winning_bids(auction.select("id", "category", "dateTime", "expires"), bid)
        .groupBy("category")
        .agg(F.expr("sum(price) div count(*)").alias("final"))
    )


def q6(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """What the last auctions of a seller sold for, on average, seen from each of them."""
    sold = winning_bids(auction.select("id", "seller", "dateTime", "expires"), bid)
    return sold.transform(
        last_rows,
        key="seller",
        order_by="bid_dateTime, id",
        rows=AUCTION_AND_TEN_BEFORE,
        sold="count(*)",
        total="sum(price)",
    ).select("seller", F.expr("total div sold").alias("avg_price"), "_weight")


def q9(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """The bid that won each auction."""
    bids = bid.withColumnRenamed("extra", "bid_extra")
    won = winning_bids(auction.drop("arrival"), bids, "bidder", "bid_extra")
    return won.select(
        *auction.drop("arrival").columns,
        F.col("id").alias("auction"),
        "bidder",
        "price",
        "bid_dateTime",
        "bid_extra",
    )


def q20(bid: DataFrame, auction: DataFrame) -> DataFrame:
    """Bids of category 10 with their auction.

    Auctions are a table, by id. A bid that arrives before its auction waits for it. Of auctions in
    other categories only the id is stored, so their bids need not wait.
    """
    about = auction.drop("arrival").withColumnsRenamed(
        {"dateTime": "auction_dateTime", "extra": "auction_extra"}
    )
    bids = bid.drop("arrival").withColumnsRenamed(
        {"dateTime": "bid_dateTime", "extra": "bid_extra"}
    )
    return bids.transform(
        joins.enrich,
        about,
        {"auction": "id"},
        sequence=F.col("auction_dateTime").alias("opened"),
        where=F.col("category") == 10,
        how="inner",
        time="bid_dateTime",
        wait="1 minute",
    )


def winning_bids(auction: DataFrame, bid: DataFrame, *others: str) -> DataFrame:
    """Auctions with the highest bid while they were open, of equally high ones the earliest.

    With other columns of the bid, if they are wanted; they break ties, too.
    """
    bids = bid.select("auction", "price", F.col("dateTime").alias("bid_dateTime"), *others)
    return auction.transform(
        best_match,
        bids,
        {"id": "auction"},
        time="dateTime",
        until="expires",
        right_time="bid_dateTime",
        order_by=", ".join(["price desc", "bid_dateTime", *others]),
    )


# Spark's workers get the operators themselves: they need not have this directory.
for module in (best_match.__module__, last_rows.__module__):
    register_pickle_by_value(sys.modules[module])

LIBRARY = {"q4": q4, "q6": q6, "q9": q9, "q20": q20}
