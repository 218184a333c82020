"""PyFlink: the benchmark's own SQL over Kafka topics, into a blackhole, two slots.

A job reads the topics to their end. What a job costs that has nothing to do, some seconds on a busy
machine, is measured by itself and taken off: the others are measured when they are warm, too.
"""

from __future__ import annotations

import json
import sys
import time

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

COLUMNS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, "
    "state STRING, `dateTime` TIMESTAMP_LTZ(3), extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, "
    "reserve BIGINT, `dateTime` TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, "
    "category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "`dateTime` TIMESTAMP_LTZ(3), extra STRING",
}
SHARES = {"person": 1, "auction": 3, "bid": 46}
HOPPING = "TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
TUMBLING = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))"
# The sink's columns, the query, and the tables that it reads.
QUERIES = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, d TIMESTAMP_LTZ(3), extra STRING",
        "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
        ["bid"],
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), d TIMESTAMP_LTZ(3), extra STRING",
        "SELECT auction, bidder, 0.908 * price, `dateTime`, extra FROM bid",
        ["bid"],
    ),
    "q2": (
        "auction BIGINT, price BIGINT",
        "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
        ["bid"],
    ),
    "q5": (
        "auction BIGINT, num BIGINT",
        f"""SELECT a.auction, a.num
            FROM (SELECT auction, count(*) AS num, window_start AS s, window_end AS e
                  FROM {HOPPING} GROUP BY auction, window_start, window_end) AS a
            JOIN (SELECT max(num) AS maxn, s, e
                  FROM (SELECT count(*) AS num, window_start AS s, window_end AS e
                        FROM {HOPPING} GROUP BY auction, window_start, window_end)
                  GROUP BY s, e) AS m
            ON a.s = m.s AND a.e = m.e AND a.num >= m.maxn""",
        ["bid"],
    ),
    "q7": (
        "auction BIGINT, price BIGINT, bidder BIGINT, d TIMESTAMP_LTZ(3), extra STRING",
        f"""SELECT b.auction, b.price, b.bidder, b.`dateTime`, b.extra
            FROM bid b
            JOIN (SELECT max(price) AS maxprice, window_end AS e
                  FROM {TUMBLING.format("bid")} GROUP BY window_start, window_end) AS m
            ON b.price = m.maxprice
            WHERE CAST(b.`dateTime` AS TIMESTAMP(3)) BETWEEN m.e - INTERVAL '10' SECOND AND m.e""",
        ["bid"],
    ),
    "q8": (
        "id BIGINT, name STRING, s TIMESTAMP(3)",
        f"""SELECT p.id, p.name, p.s
            FROM (SELECT id, name, window_start AS s, window_end AS e
                  FROM {TUMBLING.format("person")}
                  GROUP BY id, name, window_start, window_end) AS p
            JOIN (SELECT seller, window_start AS s, window_end AS e
                  FROM {TUMBLING.format("auction")}
                  GROUP BY seller, window_start, window_end) AS a
            ON p.id = a.seller AND p.s = a.s AND p.e = a.e""",
        ["person", "auction"],
    ),
    "q20": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
        "bid_time TIMESTAMP_LTZ(3), bid_extra STRING, itemName STRING, description STRING, "
        "initialBid BIGINT, reserve BIGINT, auction_time TIMESTAMP_LTZ(3), "
        "expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, auction_extra STRING",
        """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.`dateTime`, b.extra,
                   a.itemName, a.description, a.initialBid, a.reserve, a.`dateTime`, a.expires,
                   a.seller, a.category, a.extra
            FROM bid AS b JOIN auction AS a ON b.auction = a.id
            WHERE a.category = 10""",
        ["bid", "auction"],
    ),
}


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def environment(jar: str) -> TableEnvironment:
    settings = Configuration()
    settings.set_string("pipeline.jars", f"file://{jar}")
    settings.set_string("parallelism.default", "2")
    settings.set_string("taskmanager.numberOfTaskSlots", "4")
    settings.set_string("table.local-time-zone", "UTC")
    mode = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings)
    return TableEnvironment.create(mode.build())


def declare(tables: TableEnvironment, kind: str, bootstrap: str, *, is_empty: bool) -> None:
    """A topic from its beginning, or from its end, to where it ends now."""
    tables.execute_sql(f"DROP TABLE IF EXISTS {kind}")
    tables.execute_sql(
        f"""CREATE TABLE {kind} ({COLUMNS[kind]},
                WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '5' SECOND)
            WITH ('connector' = 'kafka', 'topic' = '{kind}',
                'properties.bootstrap.servers' = '{bootstrap}',
                'scan.startup.mode' = '{"latest" if is_empty else "earliest"}-offset',
                'scan.bounded.mode' = 'latest-offset',
                'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601')"""
    )


def seconds(tables: TableEnvironment, name: str, bootstrap: str, *, is_empty: bool) -> float:
    columns, query, kinds = QUERIES[name]
    for kind in kinds:
        declare(tables, kind, bootstrap, is_empty=is_empty)
    tables.execute_sql("DROP TABLE IF EXISTS sink")
    tables.execute_sql(f"CREATE TABLE sink ({columns}) WITH ('connector' = 'blackhole')")
    started = time.perf_counter()
    tables.execute_sql(f"INSERT INTO sink {query}").wait()
    return time.perf_counter() - started


def main() -> None:
    bootstrap, count, jar, *queries = sys.argv[1:]
    tables = environment(jar)
    declare(tables, "bid", bootstrap, is_empty=True)
    say(ready=True)
    for name in queries:
        if name in QUERIES:
            rows = sum(int(count) * SHARES[kind] // 50 for kind in QUERIES[name][2])
            for _ in range(2):  # the first is for the compiler
                idle = seconds(tables, name, bootstrap, is_empty=True)
                took = seconds(tables, name, bootstrap, is_empty=False) - idle
            say(query=name, rows=rows, seconds=took, idle=idle)


if __name__ == "__main__":
    main()
