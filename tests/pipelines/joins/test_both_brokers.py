"""A pipeline with state of many kinds, on Millstream and on Apache Kafka: the same rows result."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.joins import as_of_join, enrich
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.windows import sliding
from tests.peers.kafka import start_kafka
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.running.test_launching import stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAYMENTS = 400
LAST = 10_000  # a second that makes all before it final


def judged(payments: DataFrame, rates: DataFrame, users: DataFrame) -> dict[str, DataFrame]:
    recent = sliding(
        "20 seconds",
        key="user",
        time="paid_at",
        emit="final",
        allowed_lateness="30 seconds",
        buckets=4,
        n="count(*)",
        spent="sum(cents)",
    )
    spent = payments.transform(recent)
    rated = payments.transform(
        as_of_join, rates, "currency", time="paid_at", valid_from="since", buckets=4
    )
    named = payments.transform(enrich, users, buckets=4)
    return {
        "spent": spent.select("id", "n", "spent"),
        "rated": rated.select("id", "rate"),
        "named": named.select("id", "name"),
    }


def declare(names: dict[str, str]) -> Pipeline:
    reads = {
        "payments": topic(
            names["payments"],
            schema="id long, user string, currency string, cents long, paid_at timestamp",
            watermark=("paid_at", "30 seconds"),
            options={"maxOffsetsPerTrigger": PAYMENTS // 2 + 10},
        ),
        "rates": topic(names["rates"], schema="currency string, since timestamp, rate int"),
        "users": topic(names["users"], schema="name string", table_key="user"),
    }
    writes = {name: table(name, key="id") for name in ("spent", "rated", "named")}
    return pipeline(reads=reads, writes=writes, name="judged")(judged)


def fill(topics: Topics) -> dict[str, str]:
    """The same records everywhere: payments in disorder by some seconds, rates, users."""
    from confluent_kafka import Producer

    rng = random.Random(8)
    names = {name: topics.create(partitions=2) for name in ("payments", "rates", "users")}
    producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})

    def send(name: str, key: str, value: dict[str, Any] | None) -> None:
        producer.produce(names[name], None if value is None else json.dumps(value), key=key)

    for number in range(40):
        send("users", f"u{number}", {"name": f"n{number}"})
    for number in range(0, 40, 7):
        send("users", f"u{number}", None)
    for number in range(30):
        since = rng.randrange(0, 200)
        send("rates", "eur", {"currency": "eur", "since": moment(since), "rate": number})
    for number in range(PAYMENTS):
        second = min(number / 2 + rng.random() * 20, 220)
        payment = {"id": number, "user": f"u{rng.randrange(45)}", "currency": "eur"}
        payment |= {"cents": rng.randrange(1000), "paid_at": moment(second)}
        send("payments", str(number), payment)
    producer.flush(60)
    for partition in (0, 1):
        last = {"id": -1 - partition, "user": "end", "currency": "eur", "cents": 0}
        value = json.dumps(last | {"paid_at": moment(LAST)})
        producer.produce(names["payments"], value, partition=partition)
    assert producer.flush(60) == 0
    return names


def moment(second: float) -> str:
    whole, milliseconds = divmod(round(second * 1000), 1000)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"2026-03-01T{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}Z"


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield spark
    spark.conf.set(STORE_PROVIDER, str(before))


def results(spark: SparkSession, topics: Topics, place: Path) -> dict[str, list[Any]]:
    """What the stream wrote; the rows that only move time are left out."""
    place.mkdir()
    where: dict[str, Any] = {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{place}/store.db",
        "checkpoint": str(place / "checkpoints"),
    }
    declared = declare(fill(topics))
    run_to_end(lambda: declared.start(spark, once=True, **where))
    return {
        name: stored(place, f"select * from {name} where id >= 0 order by id")
        for name in declared.writes
    }


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(420)
def test_state_gives_the_same_results_on_both_brokers(
    rocksdb: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    ours = results(rocksdb, topics, tmp_path / "ours")
    server = start_kafka(tmp_path / "kafka", {})
    try:
        theirs = results(rocksdb, Topics(server), tmp_path / "theirs")
    finally:
        server.stop()
    assert {name: len(rows) for name, rows in ours.items()} == dict.fromkeys(ours, PAYMENTS)
    assert ours == theirs
    names = [name for _, name in ours["named"]]
    assert None in names, "some users are unknown, or were deleted"
    assert len(set(names)) > 30
