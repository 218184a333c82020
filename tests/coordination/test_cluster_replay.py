"""Stored records become an image; metadata transactions count as a whole or not at all."""

from __future__ import annotations

import pytest

from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
)
from millstream.coordination.cluster_replay import ClusterReplay
from millstream.coordination.record_codec import CorruptRecord


def setting(name: str) -> ConfigRecord:
    return ConfigRecord(ResourceType.GROUP, "g", name, "1")


def replayed(*batches: list[MetadataRecord]) -> tuple[set[str], bool]:
    """The settings after these batches, and whether a transaction is open."""
    replay = ClusterReplay(ClusterImage())
    offset = -1
    for records in batches:
        offset += len(records)
        replay.add(records, offset)
    image = replay.finish()
    assert image.version == offset
    return set(image.config(ResourceType.GROUP, "g")), replay.is_in_transaction


def test_records_outside_of_transactions_count() -> None:
    assert replayed([setting("a")], [setting("b")]) == ({"a", "b"}, False)


def test_ended_transaction_counts_also_over_batches() -> None:
    ended = [EndTransactionRecord(), setting("c")]
    batches = [[BeginTransactionRecord("n"), setting("a")], [setting("b")], ended]
    assert replayed(*batches) == ({"a", "b", "c"}, False)


def test_aborted_transaction_does_not_count() -> None:
    aborted = [AbortTransactionRecord("why"), setting("c")]
    assert replayed([BeginTransactionRecord(), setting("a")], aborted) == ({"c"}, False)


def test_open_transaction_does_not_count_and_is_reported() -> None:
    assert replayed([setting("a"), BeginTransactionRecord(), setting("b")]) == ({"a"}, True)


def test_end_of_no_transaction_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="has not begun"):
        replayed([EndTransactionRecord()])


def test_image_without_further_records_is_the_same() -> None:
    image = ClusterImage(version=5)
    assert ClusterReplay(image).finish() is image
