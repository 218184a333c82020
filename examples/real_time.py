"""Spark's real-time mode on a Millstream broker: latency in milliseconds instead of batches.

python examples/real_time.py path/to/*.jar    with the jars of Spark's Kafka connector

Real-time mode reads with Spark's own Kafka connector only, so it needs its jars (the connector, its
token provider, kafka-clients, commons-pool2); Python sources and sinks are not supported. Delivery
is at least once: for exactly once, use `format("millstream")`.
"""

import sys
import tempfile
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from millstream import Broker

PAYMENTS = 50


def suspicious(payments: DataFrame) -> DataFrame:
    """Large payments, as records of a topic; a plain function, as in any pipeline."""
    fields = payments.selectExpr("key", "from_json(cast(value as string), 'id long, cents long') p")
    return fields.where("p.cents > 100000").selectExpr("key", "to_json(p) as value")


def start(spark: SparkSession, bootstrap: str, checkpoint: str):
    payments = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        suspicious(payments)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "suspicious")
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(realTime="10 seconds")  # how often it checkpoints; records do not wait for it
        .start()
    )


def measure(bootstrap: str) -> list[float]:
    """Send payments and wait for the alarms; returns the seconds of each."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    group = {"group.id": "alarm", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **group})
    consumer.subscribe(["suspicious"])
    seconds = []
    for number in range(PAYMENTS):
        sent = time.perf_counter()
        producer.produce("payments", f'{{"id": {number}, "cents": 250000}}', key=str(number))
        producer.flush(60)
        alarm = consumer.poll(120)  # the first one waits until Spark has started
        assert alarm is not None, "no alarm in two minutes"
        assert alarm.error() is None, alarm.error()
        assert alarm.key() == str(number).encode()
        seconds.append(time.perf_counter() - sent)
    consumer.close()
    return seconds


def main(jars: list[str]) -> None:
    if not jars:
        sys.exit("name the jars of Spark's Kafka connector: see the top of this file")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", False)
        .getOrCreate()
    )
    with Broker.start() as broker, tempfile.TemporaryDirectory() as directory:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for created in admin.create_topics(
            [NewTopic("payments", 1), NewTopic("suspicious", 1)]
        ).values():
            created.result(30)
        query = start(spark, broker.bootstrap_servers, f"{directory}/checkpoint")
        seconds = sorted(measure(broker.bootstrap_servers))
        query.stop()
        print(f"payment to alarm: {1000 * seconds[len(seconds) // 2]:.1f} ms in the middle")
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
