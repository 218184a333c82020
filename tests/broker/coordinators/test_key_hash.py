"""Kafka's rule for who coordinates a key."""

from __future__ import annotations

import pytest

from millstream.broker.coordinators.key_hash import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("hello", 99_162_322), ("polygenelubricants", 2**31)],
)
def test_java_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_java_hash_counts_surrogates() -> None:
    assert java_hash("😀") == (31 * 0xD83D + 0xDE00) % 2**32


@pytest.mark.parametrize(
    ("key", "partition"),  # Utils.abs(key.hashCode()) % 50, by Java
    [("group", 47), ("orders", 31), ("billing", 9), ("my-group", 12), ("polygenelubricants", 0)],
)
def test_partition_is_kafkas_for_negative_hashes_too(key: str, partition: int) -> None:
    assert partition_for(key, 50) == partition


def test_partition_is_never_negative() -> None:
    assert all(0 <= partition_for(f"group-{number}", 50) < 50 for number in range(500))
