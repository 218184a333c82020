"""Groups of rows in Parquet."""

from __future__ import annotations

import base64
import io
import json

import pytest

from millstream.admin import parquet_child

pq = pytest.importorskip("pyarrow.parquet")


def test_rows_are_written_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_child, "ROWS_PER_GROUP", 4)
    value = base64.b64encode(b"v").decode()
    lines = [
        json.dumps(["t", 0, n, 1000 + n, "committed", None, value, [["h", None]]]).encode()
        for n in range(10)
    ]
    output = io.BytesIO()
    parquet_child.write(lines, output)
    file = pq.ParquetFile(io.BytesIO(output.getvalue()))
    assert file.metadata.num_row_groups == 3
    rows = file.read().to_pylist()
    assert [it["offset"] for it in rows] == list(range(10))
    assert rows[0]["value"] == b"v"
    assert rows[0]["headers"] == [{"key": "h", "value": None}]


def test_no_rows_are_an_empty_file() -> None:
    output = io.BytesIO()
    parquet_child.write([], output)
    assert pq.read_table(io.BytesIO(output.getvalue())).num_rows == 0
