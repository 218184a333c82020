"""A small run of pipelines, after which the JVM writes the classes that it loaded to an archive.

    python -m millstream.pipelines.running.class_training DIRECTORY

`class_archive` starts it, with the command of a JVM that does so. The more of Spark it uses, the
less later runs have to load themselves: windows with state, duplicates, a join with a static table,
a topic and tables as outputs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipelines.pipeline import pipeline
from millstream.pipelines.running.runner import run
from millstream.pipelines.running.session import JAVA_OPTIONS
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import table, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = 200
orders = topic(
    "orders",
    schema="id long, product string, amount long, at timestamp",
    watermark=("at", "10 seconds"),
    partitions=2,
)


@pipeline(reads=orders, writes={"priced": topic("priced"), "seen": table("seen", key="id")})
def enrich(orders: DataFrame) -> DataFrame:
    import pandas as pd
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    products = orders.sparkSession.createDataFrame(
        pd.DataFrame({"product": ["mug"], "price": [12]})
    )
    priced = orders.dropDuplicates(["id", "at"]).join(F.broadcast(products), "product")
    priced = priced.withColumn("total", F.col("amount") * F.col("price"))
    row = F.struct("id", "product", "total", "at")
    return priced.select(row.alias("priced"), row.alias("seen"))


@pipeline(reads=orders, writes=table("sales", key=("since", "product")))
def sales(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    sums = orders.groupBy(F.window("at", "10 seconds"), "product").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("amount")
    )
    return sums.selectExpr("window.start AS since", "product", "orders", "amount")


def send_orders(settings: Settings) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": settings.broker})
    now = time.time()
    for number in range(ORDERS):
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - number))
        order = {"id": number, "product": "mug", "amount": 1, "at": at}
        producer.produce("orders", json.dumps(order).encode())
    producer.flush()


def main(directory: str) -> None:
    # The options are in the command.
    settings = Settings(Path(directory), master="local[2]", spark={JAVA_OPTIONS: ""})
    run([enrich, sales], settings, once=True, announce=send_orders)
    end_jvm()


def end_jvm() -> None:
    """PySpark's JVM exits when its standard input ends; it writes the archive then."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
