"""The ten stocks that moved most in each minute: an aggregate of aggregates.

millstream run examples/movers.py        until Ctrl-C, with a broker of its own and SQLite
python examples/movers.py                ten minutes of trades through all of it, and checked

Two versions. `movers` is one query: Spark aggregates per stock, each task ranks its own stocks, and
sends only its top ten to the task that ranks the minute. `moves` and `leaders` are two queries with
a topic in between: others can read the moves of single stocks, each stage runs, scales and restarts
independently, and the topic's partitions replace a shuffle.
"""

import json
import random
import sqlite3
import tempfile
from collections import defaultdict
from pathlib import Path

from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.analytics import top_k
from millstream.pipelines.windows import tumbling

MOVE = "max_by(price, at) / min_by(price, at) - 1"
MINUTES = 10
STOCKS = 300

trades = topic(
    "trades",
    schema="stock string, at timestamp, price double",
    watermark=("at", "5 seconds"),
    partitions=2,
)
moved = topic(
    "moves",
    schema="stock string, until timestamp, move double",
    key="stock",
    watermark=("until", "1 minute"),
    partitions=2,
)


@pipeline(reads=trades, writes=table("movers", key=("window_end", "rank")))
def movers(trades):
    """Both stages in one query."""
    return trades.transform(top_k, "1 minute", key="stock", time="at", k=10, by=MOVE)


@pipeline(reads=trades, writes=moved)
def moves(trades):
    """The first stage alone: how much each stock moved."""
    minute = tumbling("1 minute", key="stock", time="at", move=MOVE)
    return trades.transform(minute).selectExpr("stock", "window_end as until", "move")


@pipeline(reads=moved, writes=table("leaders", key=("window_end", "rank")))
def leaders(moves):
    """The second stage, after the topic. The time of a minute's moves is its end, which is the
    start of the next minute."""
    found = moves.transform(top_k, "1 minute", key="stock", time="until", k=10, by="max(move)")
    return found.selectExpr("window_start as window_end", "rank", "stock", "value")


def make_trades() -> list[dict[str, object]]:
    """Trades in order; the last one, much later, closes all minutes."""
    rng = random.Random(4)
    made: list[dict[str, object]] = []
    for second in range(0, MINUTES * 60, 2):
        for stock in rng.sample(range(STOCKS), 40):
            at = f"2026-03-01T12:{second // 60:02}:{second % 60:02}Z"
            made.append({"stock": f"S{stock:03}", "at": at, "price": rng.randint(900, 1100) / 10})
    return [*made, {"stock": "END", "at": "2026-03-01T14:00:00Z", "price": 1.0}]


def by_hand(trades: list[dict[str, object]]) -> list[tuple[str, int, str, float]]:
    """The ten of each minute, recomputed from all trades."""
    prices: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trade in trades[:-1]:
        prices[str(trade["at"])[:16]][str(trade["stock"])].append(float(str(trade["price"])))
    found = []
    for minute, stocks in sorted(prices.items()):
        moves = {stock: seen[-1] / seen[0] - 1 for stock, seen in stocks.items()}
        best = sorted(moves, key=lambda stock: (-moves[stock], stock))[:10]
        end = f"2026-03-01 12:{int(minute[-2:]) + 1:02}:00.000000"
        found += [(end, rank, stock, moves[stock]) for rank, stock in enumerate(best, 1)]
    return found


def main() -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic
    from pyspark.sql import SparkSession

    from millstream import Broker

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    with Broker.start() as broker, tempfile.TemporaryDirectory() as directory:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for created in admin.create_topics([NewTopic("trades", 2), NewTopic("moves", 2)]).values():
            created.result(30)
        made = make_trades()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for trade in made:
            producer.produce("trades", json.dumps(trade), key=str(trade["stock"]))
        assert producer.flush(30) == 0
        store = Path(directory) / "stocks.db"
        settings = {
            "broker": broker.bootstrap_servers,
            "store": f"sqlite:///{store}",
            "checkpoint": f"{directory}/checkpoints",
        }
        movers.start(spark, **settings, once=True).awaitTermination()
        moves.start(spark, **settings, once=True).awaitTermination()
        end = {"stock": "END", "until": "2026-03-01T15:00:00Z", "move": 0}
        producer.produce("moves", json.dumps(end), key="END")
        assert producer.flush(30) == 0
        leaders.start(spark, **settings, once=True).awaitTermination()

        expected = by_hand(made)
        rows = "select window_end, rank, stock, value from {} order by window_end, rank"
        connection = sqlite3.connect(store)
        at_once = connection.execute(rows.format("movers")).fetchall()
        by_topic = connection.execute(rows.format("leaders")).fetchall()
        for end_of_minute, rank, stock, move in at_once[:3]:
            print(f"{end_of_minute[11:16]}  {rank}  {stock}  {move:+.1%}")
        assert at_once == expected
        assert by_topic == expected
    spark.stop()


if __name__ == "__main__":
    main()
