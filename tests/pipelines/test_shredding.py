"""Encrypted columns on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.pipelines.shredding import decrypt_column, encrypt_column
from millstream.shredding import DirectoryKeys, Shredder
from millstream.testing.pytest_plugin import SharedBroker


def test_column_is_encrypted_decrypted_and_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    rows = [(b"one", "alice", 1), (b"two", "bob", 2), (b"public", None, 3), (None, "alice", 4)]
    table = spark.createDataFrame(rows, "value binary, customer string, n int")
    sent = encrypt_column(table, subject="customer", topic="orders", keys=keys).orderBy("n")
    stored = sent.collect()
    assert b"one" not in bytes(stored[0].value)
    assert bytes(stored[2].value) == b"public"
    shredder = Shredder(DirectoryKeys(keys))
    assert shredder.decrypt(bytes(stored[0].value), topic="orders") == b"one"
    DirectoryKeys(keys).forget("alice")
    again = spark.createDataFrame(stored, table.schema)
    read = decrypt_column(again, topic="orders", keys=f"file://{keys}").orderBy("n").collect()
    assert [None if it.value is None else bytes(it.value) for it in read] == [
        None,
        b"two",
        b"public",
        None,
    ]


def test_missing_column_is_named(spark: SparkSession) -> None:
    table = spark.createDataFrame([(b"x",)], "payload binary")
    with pytest.raises(ValueError, match=r"no column 'value'; there are payload"):
        decrypt_column(table, topic="t", keys="/nowhere")


def test_source_and_sink_encrypt_and_decrypt(
    spark: SparkSession, tmp_path: Path, millstream: SharedBroker
) -> None:
    """Typed rows, of which the chosen field or the whole value is encrypted in the topic."""
    rows = spark.createDataFrame([("alice", 1), ("bob", 2)], "customer string, n int")
    schema = "customer string, n int, _value binary, _offset long"
    for options, forgotten in (
        ({}, [(None, None), ("bob", 2)]),
        ({"shreddingFields": "customer"}, [(None, 1), ("bob", 2)]),
    ):
        topic = millstream.unique_topic("shredded")
        keys = str(tmp_path / topic)
        with Cluster(millstream.bootstrap_servers) as cluster:
            create_topics(cluster, [NewTopic(topic, 1)])
        there = {"kafka.bootstrap.servers": millstream.bootstrap_servers, "shreddingKeys": keys}
        writer = rows.coalesce(1).write.format("millstream").options(**there, **options)
        writer = writer.options(topic=topic, valueFormat="json", shreddingSubject="customer")
        writer.mode("append").save()
        typed = spark.read.format("millstream").schema(schema).option("valueFormat", "json")
        encrypted = (
            spark.read.format("millstream")
            .option("subscribe", topic)
            .options(**{"kafka.bootstrap.servers": millstream.bootstrap_servers})
        )
        assert not any(b"alice" in bytes(it.value) for it in encrypted.load().collect())
        read = typed.options(**there, subscribe=topic).load()
        found = [(it.customer, it.n) for it in read.orderBy("_offset").collect()]
        assert found == [("alice", 1), ("bob", 2)]
        DirectoryKeys(keys).forget("alice")
        fresh = f"file://{keys}"  # the same by another name: workers keep keys for a minute
        read = typed.options(
            **{**there, "shreddingKeys": fresh}, subscribe=topic, valueFormat="json"
        ).load()
        found = [(it.customer, it.n) for it in read.orderBy("_offset").collect()]
        assert found == forgotten
