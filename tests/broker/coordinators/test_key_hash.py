"""Kafka's rule for who coordinates a key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.coordinators.key_hash import InternalTopic, java_hash, partition_for
from millstream.broker.metadata.topics import NewTopic
from millstream.errors import ApiError, ErrorCode
from tests.broker.metadata.homes import home


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


def test_keys_of_an_internal_topic_wait_for_it(tmp_path: Path) -> None:
    missing = (ErrorCode.NOT_COORDINATOR, "not yet")
    with home(tmp_path) as it:
        topic = InternalTopic("__internal", it.metadata, if_missing=missing)
        assert topic.partition_count == 0
        with pytest.raises(ApiError, match="NOT_COORDINATOR: not yet"):
            topic.index_of("group")
        asyncio.run(it.topics.create([NewTopic("__internal", 50)]))
        assert topic.check_exists() == topic.partition_count == 50
        assert topic.index_of("group") == partition_for("group", 50)
