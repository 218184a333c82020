"""Encrypted columns on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.pipelines.shredding import decrypt_column, encrypt_column
from millstream.shredding import DirectoryKeys, Shredder


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
