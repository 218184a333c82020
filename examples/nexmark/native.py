"""The queries of Nexmark that plain Spark answers, over tables and over streams alike.

Each takes DataFrames with the columns of `generator`'s schemas, named as its parameters say, and
returns the columns of the oracle's answer. Over a stream each wants a watermark on `dateTime` (q12:
on `arrival`) where it says so; q15 to q19 answer in update mode, the others in append mode.
The joins of q3 and q20 have no bound: Spark keeps both sides for ever.
"""

from __future__ import annotations

import sys
from decimal import Decimal

from examples.nexmark.combining import count_panes, keep_highest, leaders
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

TEN_SECONDS = "10 seconds"


def q0(bid: DataFrame) -> DataFrame:
    """Bids as they are."""
    return bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(bid: DataFrame) -> DataFrame:
    """Bids in euros."""
    return q0(bid).withColumn("price", _euros())


def q2(bid: DataFrame) -> DataFrame:
    """Bids for every 123rd auction."""
    return bid.where("auction % 123 = 0").select("auction", "price")


def q3(auction: DataFrame, person: DataFrame) -> DataFrame:
    """Who sells in category 10 in three states."""
    sold = auction.where("category = 10").select("id", "seller")
    people = person.where("state in ('OR', 'ID', 'CA')").select(
        F.col("id").alias("seller"), "name", "city", "state"
    )
    return sold.join(people, "seller").select("name", "city", "state", "id")


def q5(bid: DataFrame) -> DataFrame:
    """Auctions with the most bids in ten seconds, every two; needs a watermark.

    Bids are counted by auction in panes of two seconds first, five of which make a window.
    """
    panes = bid.transform(count_panes, "auction", time="dateTime", size="2 seconds")
    hopping = F.window("dateTime", TEN_SECONDS, "2 seconds")
    counts = F.collect_list(F.struct("auction", "n")).alias("counts")
    found = panes.groupBy(hopping).agg(counts).transform(leaders, "counts")
    return found.withColumnRenamed("n", "num")


def q7(bid: DataFrame) -> DataFrame:
    """The highest bids of ten seconds; needs a watermark.

    Unlike the benchmark's join of the bids with their maximum, this reads the stream once. The
    state has the highest bids of each task and batch, not all bids.
    """
    bids = q0(bid).transform(keep_highest, "price", time="dateTime", size=TEN_SECONDS)
    highest = bids.groupBy(F.window("dateTime", TEN_SECONDS)).agg(
        F.collect_list(F.struct(*bids.columns)).alias("bids"), F.max("price").alias("most")
    )
    return (
        highest.select(F.explode("bids").alias("it"), "most")
        .where("it.price = most")
        .select("it.*")
    )


def q8(person: DataFrame, auction: DataFrame) -> DataFrame:
    """Who joined and sold within ten seconds; needs a watermark on both.

    This is one group of both streams, by person and window, and one state; a join would keep the
    rows of both.
    """
    joined = person.select("id", "name", "dateTime", F.lit(False).alias("sold"))
    nobody = F.lit(None).cast("string").alias("name")
    sold = auction.select(
        F.col("seller").alias("id"), nobody, "dateTime", F.lit(True).alias("sold")
    )
    period = F.window("dateTime", TEN_SECONDS).alias("period")
    met = (
        joined.unionAll(sold)
        .groupBy("id", period)
        .agg(F.collect_set("name").alias("names"), F.bool_or("sold").alias("sold"))
    )
    return met.where("sold").select(
        "id", F.explode("names").alias("name"), F.col("period.start").alias("starttime")
    )


def q10(bid: DataFrame) -> DataFrame:
    """Bids with day and minute, to be written as files: `.partitionBy("dt", "hm")`."""
    minute = F.date_format("dateTime", "HH:mm")
    return q0(bid).select("*", _day().alias("dt"), minute.alias("hm"))


def q11(bid: DataFrame) -> DataFrame:
    """Bids per session; needs a watermark."""
    return _counted(bid, F.session_window("dateTime", TEN_SECONDS))


def q12(bid: DataFrame) -> DataFrame:
    """Bids per ten seconds of the system's clock; needs a watermark on `arrival`."""
    return _counted(bid, F.window("arrival", TEN_SECONDS))


def q13(bid: DataFrame, side_input: DataFrame) -> DataFrame:
    """Bids with a table from outside."""
    keyed = bid.withColumn("key", F.expr("auction % 10000"))
    return keyed.join(F.broadcast(side_input), "key").select(
        "auction", "bidder", "price", "dateTime", "value"
    )


def q14(bid: DataFrame) -> DataFrame:
    """Bids of a range of prices, with the time of day and how often their text has a c."""
    hour = F.hour("dateTime")
    kind = (
        F.when(hour.between(8, 18), "dayTime")
        .when((hour <= 6) | (hour >= 20), "nightTime")
        .otherwise("otherTime")
    )
    letters = F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))
    return (
        bid.where(_euros().between(Decimal("1000000.001"), Decimal("49999999.999")))
        .withColumns({"price": _euros(), "bidTimeType": kind, "c_counts": letters.cast("long")})
        .select("auction", "bidder", "price", "bidTimeType", "dateTime", "extra", "c_counts")
    )


def q15(bid: DataFrame) -> DataFrame:
    """Bids, bidders and auctions by day and level of price."""
    return bid.groupBy(_day().alias("day")).agg(*_counts("bid", "bidder", "auction"))


def q16(bid: DataFrame) -> DataFrame:
    """The same by channel."""
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    by_channel = bid.groupBy("channel", _day().alias("day"))
    return by_channel.agg(minute, *_counts("bid", "bidder", "auction"))


def q17(bid: DataFrame) -> DataFrame:
    """Bids and prices by auction and day."""
    return bid.groupBy("auction", _day().alias("day")).agg(
        *_counts("bid"),
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        F.expr("sum(price) div count(*)").alias("avg_price"),
        F.sum("price").alias("sum_price"),
    )


def q18(bid: DataFrame) -> DataFrame:
    """The last bid by bidder and auction."""
    last = F.max(F.struct("dateTime", "price", "channel", "url", "extra")).alias("last")
    found = bid.groupBy("bidder", "auction").agg(last).select("auction", "bidder", "last.*")
    return found.select("auction", "bidder", "price", "channel", "url", "dateTime", "extra")


def q19(bid: DataFrame) -> DataFrame:
    """The ten highest bids of an auction."""
    order = F.expr("struct(-price as below, dateTime, bidder, channel, url, extra)")
    best = bid.groupBy("auction").agg(F.min_by(order, order, 10).alias("best"))
    ranked = best.select("auction", F.posexplode("best").alias("place", "it"))
    return ranked.select(
        "auction",
        "it.bidder",
        (-F.col("it.below")).alias("price"),
        "it.channel",
        "it.url",
        "it.dateTime",
        "it.extra",
        (F.col("place") + 1).cast("long").alias("rank_number"),
    )


def q20(bid: DataFrame, auction: DataFrame) -> DataFrame:
    """Bids of category 10 with their auction."""
    about = auction.where("category = 10").drop("arrival")
    about = about.withColumnsRenamed({"dateTime": "auction_dateTime", "extra": "auction_extra"})
    bids = bid.drop("arrival").withColumnsRenamed(
        {"dateTime": "bid_dateTime", "extra": "bid_extra"}
    )
    return bids.join(about, bids["auction"] == about["id"]).drop("id")


def q21(bid: DataFrame) -> DataFrame:
    """The number of the channel."""
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    channel_id = F.nullif(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2), F.lit(""))
    for channel, number in known.items():
        channel_id = F.when(F.lower("channel") == channel, number).otherwise(channel_id)
    numbered = bid.select("auction", "bidder", "price", "channel", channel_id.alias("channel_id"))
    return numbered.where("channel_id is not null")


def q22(bid: DataFrame) -> DataFrame:
    """The folders of the URL."""
    folders = F.split("url", "/")
    levels = [F.get(folders, F.lit(level + 2)).alias(f"dir{level}") for level in (1, 2, 3)]
    return bid.select("auction", "bidder", "price", "channel", *levels)


def _euros() -> Column:
    return (F.lit(Decimal("0.908")) * F.col("price")).cast("decimal(23, 3)")


def _day() -> Column:
    return F.date_format("dateTime", "yyyy-MM-dd")


def _counts(*counted: str) -> list[Column]:
    """How many bids, or different values of a column, in all and by level of price.

    Spark refuses distinct counts over streams, but collects sets, if at the cost of writing a set
    anew with every batch that adds to it.
    """
    price = F.col("price")
    levels = {
        "total": F.lit(True),
        "rank1": price < 10_000,
        "rank2": (price >= 10_000) & (price < 1_000_000),
        "rank3": price >= 1_000_000,
    }
    return [
        (
            F.count_if(condition)
            if name == "bid"
            else F.size(F.collect_set(F.when(condition, F.col(name)))).cast("long")
        ).alias(f"{level}_{name}s")
        for name in counted
        for level, condition in levels.items()
    ]


def _counted(bid: DataFrame, period: Column) -> DataFrame:
    counts = bid.groupBy("bidder", period.alias("period")).agg(F.count("*").alias("bid_count"))
    return counts.select(
        "bidder",
        "bid_count",
        F.col("period.start").alias("starttime"),
        F.col("period.end").alias("endtime"),
    )


# Spark's workers get these functions themselves: they need not have this directory.
register_pickle_by_value(sys.modules[leaders.__module__])

NATIVE = {
    name: query for name, query in globals().items() if name.startswith("q") and name[1:].isdigit()
}
