"""The same pipelines on one machine and on a cluster: only addresses change, the results do not.

On one side `millstream run` with nothing set up: a broker of its own, SQLite, `local[2]`. On the
other Apache Kafka and a Spark standalone cluster whose executors know nothing of the driver but
what it sends them, once by `millstream run --master`, once by `spark-submit` with `--py-files` and
an environment in an archive.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker
from tests.peers.cache import PeerMissing
from tests.peers.kafka import start_kafka
from tests.peers.servers import Server
from tests.peers.spark_cluster import (
    SparkCluster,
    spark_environment,
    spark_submit,
    start_spark_cluster,
)

ROOT = Path(__file__).resolve().parents[2]
MILLSTREAM = Path(sys.executable).with_name("millstream")
ORDERS = 600
RUN_SECONDS_MAX = 400

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Cluster:
    kafka: Server
    spark: SparkCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    try:
        kafka = start_kafka(directory / "kafka", {})
    except PeerMissing as missing:
        pytest.skip(str(missing))
    try:
        fill(kafka.bootstrap)
        spark = start_spark_cluster(directory / "spark")
        yield Cluster(kafka, spark)
        spark.stop()
    finally:
        kafka.stop()


@dataclass(frozen=True)
class Results:
    """What the shop's pipelines have made."""

    revenue: list[tuple[str, float, int]]
    alerts: list[tuple[int, int, str]]  # partition, id, user
    dead: list[str]  # which records; each pipeline writes its letter of it


def fill(bootstrap: str) -> None:
    """Orders of an hour, some of them large; one in a hundred is broken."""
    create_topics(bootstrap, {"orders": 2, "alerts": 2})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(ORDERS):
        at = f"2026-03-01T12:{number * 60 // ORDERS:02}:10Z"
        amount = 500.0 if number % 50 == 7 else 1.5
        order = {"id": number, "user": f"user {number % 9}", "amount": amount, "at": at}
        value = "broken" if number % 100 == 99 else json.dumps(order)
        producer.produce("orders", value, partition=number % 2)
    assert producer.flush(60) == 0


def create_topics(bootstrap: str, partitions: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(name, count, 1) for name, count in partitions.items()]
    for done in admin.create_topics(new, operation_timeout=30).values():
        done.result(60)


def results(store: Path, bootstrap: str) -> Results:
    with sqlite3.connect(store) as connection:
        revenue = connection.execute("select minute, total, orders from revenue order by minute")
        rows = revenue.fetchall()
    alerts = [
        (number, value["id"], value["user"])
        for number in range(2)
        for value in map(json.loads, values_of(bootstrap, "alerts", number))
    ]
    dead = {str(it.key()) for it in messages_of(bootstrap, "dlq.orders", 0)}
    return Results(rows, sorted(alerts), sorted(dead))


def values_of(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    return [it.value() or b"" for it in messages_of(bootstrap, topic, partition)]


def messages_of(bootstrap: str, topic: str, partition: int) -> list[Message]:
    """All committed records of a partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "look", "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Message] = []
        while True:
            message = consumer.poll(60)
            assert message is not None, f"{topic}-{partition} cannot be read"
            if message.error():  # its end
                return found
            found.append(message)
    finally:
        consumer.close()


def run(command: Sequence[str | Path], directory: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
        cwd=directory,
        env=spark_environment(**environment),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def shop_in(directory: Path) -> Path:
    directory.mkdir()
    return Path(shutil.copy(ROOT / "examples" / "shop.py", directory))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What comes out where nothing is set up."""
    directory = tmp_path_factory.mktemp("embedded") / "shop"
    shop = shop_in(directory)
    home = directory / ".millstream"
    with Broker.start(home / "broker") as broker:
        fill(broker.bootstrap_servers)
    run([MILLSTREAM, "run", shop.name, "--once", "--master", "local[2]"], directory)
    with Broker.start(home / "broker") as broker:
        return results(home / "store.db", broker.bootstrap_servers)


GREETER = """
from naming import greeting
from pyspark.sql.functions import udf

import shop
from millstream.pipelines import pipeline, topic


@pipeline(reads=shop.orders, writes=topic("greetings", key="user", partitions=1))
def greet(orders):
    return shop.alerts(orders).withColumn("greeting", udf(greeting, "string")("user"))
"""
NAMING = "def greeting(user):\n    return f'dear {user}'\n"
GREETINGS = [(number, f"dear user {number % 9}") for number in range(7, ORDERS, 50)]


def greetings(bootstrap: str, topic: str) -> list[tuple[int, str]]:
    values = map(json.loads, values_of(bootstrap, topic, 0))
    return sorted((it["id"], it["greeting"]) for it in values)


def test_cluster_gives_what_one_machine_gives(
    cluster: Cluster, embedded: Results, tmp_path: Path
) -> None:
    shop = shop_in(tmp_path / "shop")
    greeter = shop.with_name("greeter.py")
    greeter.write_text(GREETER)
    shop.with_name("naming.py").write_text(NAMING)
    settings = tmp_path / "shop" / "millstream.toml"
    settings.write_text(
        f"""
        broker = "{cluster.kafka.bootstrap}"
        store = "sqlite:///{tmp_path}/store.db"
        checkpoint = "file://{tmp_path}/checkpoints"
        master = "{cluster.spark.url}"

        [spark]
        "spark.executor.memory" = "512m"
        "spark.sql.shuffle.partitions" = "2"
        """
    )
    run([MILLSTREAM, "run", shop, greeter, "--once", "--create-topics"], tmp_path)
    assert len({it.parts[-4] for it in cluster.spark.executors()}) == 2, "both workers took part"
    assert results(tmp_path / "store.db", cluster.kafka.bootstrap) == embedded
    assert greetings(cluster.kafka.bootstrap, "greetings") == GREETINGS, "neighbours travel"
    assert (len(embedded.revenue), len(embedded.alerts), len(embedded.dead)) == (60, 12, 6)


JOB = """
import sys

from pyspark.sql import SparkSession

import greeter
from millstream.pipelines import topic

broker, checkpoint = sys.argv[1:]
submitted = greeter.greet.variant("submitted", writes=topic("submitted", key="user"))
spark = SparkSession.builder.getOrCreate()
submitted.start(spark, broker=broker, checkpoint=checkpoint, once=True).awaitTermination()
spark.stop()
"""


def environment_in(directory: Path) -> Path:
    """What venv-pack makes, in small: an archive with bin/python in it."""
    python = directory / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(python.parent, "bin")
    return archive


def test_program_is_submitted_with_its_files_and_its_environment(
    cluster: Cluster, tmp_path: Path
) -> None:
    """`./environment` is where driver and executors both find the archive's Python."""
    shop = shop_in(tmp_path / "files")
    greeter, naming = shop.with_name("greeter.py"), shop.with_name("naming.py")
    greeter.write_text(GREETER)
    naming.write_text(NAMING)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    archive = environment_in(tmp_path)
    bootstrap = cluster.kafka.bootstrap
    create_topics(bootstrap, {"submitted": 1})
    command = spark_submit(
        "--master", cluster.spark.url, "--conf", "spark.executor.memory=512m",
        "--archives", f"{archive}#environment", "--py-files", f"{shop},{greeter},{naming}",
        job, bootstrap, f"file://{tmp_path}/checkpoint",
    )  # fmt: skip
    run(command, tmp_path, PYSPARK_PYTHON="./environment/bin/python")
    assert greetings(bootstrap, "submitted") == GREETINGS
