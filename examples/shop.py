"""Pipelines of a shop: revenue per minute into a table, large orders into a topic.

millstream run examples/shop.py          until Ctrl-C, with a broker of its own and SQLite
python examples/shop.py                  some orders through all of it, and checked
"""

import json
import sqlite3
import tempfile
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from millstream.pipelines import pipeline, table, topic

orders = topic(
    "orders",
    schema="id long, user string, amount double, at timestamp",
    watermark=("at", "10 minutes"),
    partitions=2,
)


@pipeline(reads=orders, writes=table("revenue", key="minute"))
def revenue(orders):
    """Revenue per minute."""
    by_minute = orders.groupBy(F.window("at", "1 minute")).agg(
        F.sum("amount").alias("total"), F.count("*").alias("orders")
    )
    return by_minute.selectExpr("window.start AS minute", "total", "orders")


@pipeline(reads=orders, writes=topic("alerts", key="user"))
def alerts(orders):
    """Large orders."""
    return orders.where("amount > 100").select("user", "id", "amount")


def order(number: int) -> str:
    amount = 250.0 if number == 7 else 1.5
    at = f"2026-03-01T12:{number % 3:02}:10Z"
    return json.dumps({"id": number, "user": f"user {number % 5}", "amount": amount, "at": at})


def main() -> None:
    from confluent_kafka import Producer
    from pyspark.sql import SparkSession

    from millstream import Broker

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    with Broker.start() as broker, tempfile.TemporaryDirectory() as directory:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(30):
            producer.produce("orders", order(number))
        producer.produce("orders", "this is no order")
        assert producer.flush(30) == 0

        store = Path(directory) / "shop.db"
        query = revenue.start(
            spark,
            broker=broker.bootstrap_servers,
            store=f"sqlite:///{store}",
            checkpoint=f"{directory}/checkpoints",
            once=True,
        )
        query.awaitTermination()

        streamed = sqlite3.connect(store).execute("select sum(total) from revenue").fetchone()
        history = revenue.batch(spark, broker=broker.bootstrap_servers)
        (computed,) = history.agg(F.sum("total")).collect()
        print("revenue, streamed and over history:", streamed[0], computed[0])
        assert streamed[0] == computed[0] == 293.5

        test_orders = spark.createDataFrame(
            [("ada", 1, 99.0), ("bob", 2, 101.0)], "user string, id long, amount double"
        )
        assert [row.user for row in alerts(test_orders).collect()] == ["bob"]
    spark.stop()


if __name__ == "__main__":
    main()
