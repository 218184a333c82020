"""Common analytics of a site's visits: functions of a DataFrame that also run as streams.

Some visits are duplicates, one page is slow at noon, and there are no visits at night. The example
runs the functions on a table of all visits; pipelines run the same functions on a topic: see
docs/guides/analytics.md.
"""

import os
import random
import time
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from millstream.pipelines.analytics import (
    compare,
    count_distinct,
    deduplicate,
    flag_anomalies,
    heavy_hitters,
    percentiles,
    rolling,
    smooth,
    summarize_sessions,
    top_k,
)

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = "id long, user string, page string, at timestamp, millis double"
NOON = 12 * 3600


def make_visits() -> list[tuple[object, ...]]:
    """Two days; each user visits some pages about once an hour between 6 and 22."""
    rng = random.Random(8)
    visits: list[tuple[object, ...]] = []
    for day in range(2):
        for hour in range(6, 22):
            for user in range(12):
                second = day * 86_400 + hour * 3600 + rng.randrange(1800)
                for page in rng.choices(["/", "/tea", "/cup", "/pot"], [4, 3, 2, 1], k=4):
                    second += rng.randrange(1, 120)
                    is_slow = page == "/pot" and 0 <= second - NOON < 1800
                    millis = round(rng.gauss(900 if is_slow else 40, 4), 1)
                    at = BEGIN + timedelta(seconds=second)
                    visits.append((len(visits), f"user {user}", page, at, millis))
    return visits + rng.choices(visits, k=100)


def ask(visits: DataFrame) -> None:
    once = visits.transform(deduplicate, "1 day", key="id", time="at").cache()
    print(f"{visits.count()} visits, {once.count()} of them different")
    assert once.count() == once.select("id").distinct().count()

    journeys = once.transform(
        summarize_sessions,
        "15 minutes",
        key="user",
        time="at",
        entry="first(page)",
        exit="last(page)",
    )
    longest = journeys.orderBy("duration", ascending=False).first()
    print(f"longest session: {longest.user}, {longest.duration / 60:.0f} minutes, {longest.events}")
    assert journeys.agg({"events": "sum"}).first()[0] == once.count()

    hours = once.transform(
        compare, "1 hour", key="page", time="at", against={"yesterday": "24 hours"}, n="count(*)"
    )
    grown = hours.where("page = '/' and n_yesterday is not null").orderBy("window_end").first()
    print(f"6 to 7: {grown.n} visits of /, {grown.n_yesterday_change:+.0%} to the day before")

    users = once.transform(count_distinct, "1 day", key="page", time="at", of="user", how="hll")
    assert {row.distinct for row in users.collect()} == {12}

    slow = once.transform(percentiles, "1 hour", key="page", time="at", of="millis", at=(0.95,))
    worst = slow.orderBy("p95", ascending=False).first()
    print(f"slowest hour: {worst.page} at {worst.window_start:%H:%M}, p95 {worst.p95:.0f} ms")
    assert (worst.page, worst.window_start.hour) == ("/pot", 12)

    busy = once.transform(rolling, "30 minutes", key="page", time="at", per_minute="rate(*)")
    print(f"busiest: {busy.agg({'per_minute': 'max'}).first()[0] * 60:.1f} visits a minute")

    odd = once.transform(
        flag_anomalies, "millis", key="page", time="at", over="4 hours", threshold=20
    )
    first = odd.where("is_anomaly").orderBy("at").first()
    print(f"first anomaly: {first.page} at {first.at:%H:%M}, {first.z:.0f} deviations off")
    assert (first.page, first.at.hour) == ("/pot", 12)

    faded = once.transform(
        smooth, "millis", key="page", time="at", half_life="1 hour", threshold=20
    )
    assert faded.where("is_anomaly").orderBy("at").first().at == first.at

    top = once.transform(top_k, "1 day", key="page", time="at", k=1, how="approx").collect()
    assert [row.page for row in top] == ["/", "/"]
    slow = once.transform(heavy_hitters, "1 day", key="page", time="at", by="millis", k=1)
    assert all(row.at_least == row.at_most for row in slow.collect()), "all pages fit"


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    ask(spark.createDataFrame(make_visits(), COLUMNS))
    spark.stop()


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"  # in which Spark gives us times
    time.tzset()
    main()
