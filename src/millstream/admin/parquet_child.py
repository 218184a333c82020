"""The child process that writes Parquet: lines of JSON on its input, the file on its output.

A line is an array: topic, partition, offset, timestamp in ms, state, key and value in base64, and
headers as pairs. Rows are written in groups of limited size.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

NICE = 10
ROWS_PER_GROUP = 20_000
BYTES_PER_GROUP = 32 * 1024 * 1024


def write(lines: Iterable[bytes], output: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("state", pa.string()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    )
    with pq.ParquetWriter(output, schema, compression="zstd") as writer:
        rows: list[list[Any]] = []
        size = 0
        for line in lines:
            rows.append(_row(line))
            size += len(line)
            if len(rows) >= ROWS_PER_GROUP or size >= BYTES_PER_GROUP:
                writer.write_table(_table(pa, schema, rows))
                rows, size = [], 0
        if rows:
            writer.write_table(_table(pa, schema, rows))


def _row(line: bytes) -> list[Any]:
    *front, key, value, headers = json.loads(line)
    pairs = [{"key": name, "value": _bytes(it)} for name, it in headers]
    return [*front, _bytes(key), _bytes(value), pairs]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _table(pa: Any, schema: Any, rows: list[list[Any]]) -> Any:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(it, field.type) for it, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


if __name__ == "__main__":
    os.nice(NICE)
    write(sys.stdin.buffer, sys.stdout.buffer)
