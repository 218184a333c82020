"""Columns of records as Arrow batches."""

from __future__ import annotations

from datetime import UTC, datetime

from millstream.pipelines.reading.arrow import raw_batch
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch


def test_raw_batch_has_the_connectors_columns() -> None:
    records = [
        Record(5, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("b", None))),
        Record(6, 1_700_000_000_124, None, None),
    ]
    columns = decode_columns(encode_batch(records), with_headers=True)
    rows = raw_batch("orders", 3, columns).to_pylist()
    assert rows[0] == {
        "key": b"k",
        "value": b"v",
        "topic": "orders",
        "partition": 3,
        "offset": 5,
        "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    }
    assert rows[1]["key"] is None
    assert rows[1]["headers"] == []
