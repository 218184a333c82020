"""The queries of Nexmark that Spark has no operators for: those about winning bids.

All three begin with the bid that won each auction, which is final when the auction is over: the
benchmark's "closed auctions". Over streams they want a watermark on both sides' `dateTime`. q9
appends, q4 answers in update mode, and q6 appends changes with `_weight` (1: a row that holds now,
-1: one that no longer does), since an auction that closes later may have been won earlier.
"""

from __future__ import annotations

import sys

from examples.nexmark.best_match import best_match
from examples.nexmark.last_rows import last_rows
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

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

LIBRARY = {"q4": q4, "q6": q6, "q9": q9}
