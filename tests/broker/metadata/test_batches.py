"""Commits as record batches."""

from __future__ import annotations

from millstream.broker.metadata.batches import (
    REPLAYED_RECORDS_MIN,
    decode_commit,
    encode_commit,
    needs_snapshot,
)
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_records import ConfigRecord, FeatureLevelRecord
from millstream.records.batch import parse_header


def test_commit_is_read_back_from_its_batch() -> None:
    records = [FeatureLevelRecord("f", 1), ConfigRecord(ResourceType.GROUP, "g", "a", "1")]
    batch = encode_commit(records, base_offset=7, epoch=3, now_ms=5)
    header = parse_header(batch)
    assert decode_commit(batch) == records
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (7, 8, 3)


def test_log_of_few_records_needs_no_snapshot() -> None:
    assert not needs_snapshot(ClusterImage(), REPLAYED_RECORDS_MIN)
    assert needs_snapshot(ClusterImage(), REPLAYED_RECORDS_MIN + 1)
