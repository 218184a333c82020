"""`python large_table.py BATCHES`: a stream enriched from a table, in one bucket with its pages on
disk; prints the most memory that the process had, in kilobytes. A batch is 2.5 MB of changes."""

from __future__ import annotations

import resource
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from millstream.pipelines.joins.stream_table import ChangeLog, Enrich
from millstream.pipelines.state import InputSpec
from millstream.pipelines.state.trial import MemoryStore, Trial

ROWS = 25_000
TABLE = pa.schema([("id", pa.int64()), ("text", pa.string()), ("offset", pa.int64())])
STREAM = pa.schema([("place", pa.int64()), ("key", pa.int64())])


@dataclass
class Directory:
    """Pages as files, as far as `MemoryStore` has them in a dict."""

    path: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))

    def get(self, page_id: int) -> bytes:
        return (self.path / str(page_id)).read_bytes()

    def __setitem__(self, page_id: int, blob: bytes) -> None:
        (self.path / str(page_id)).write_bytes(blob)

    def __ior__(self, written: dict[int, bytes]) -> Directory:
        for page_id, blob in written.items():
            self[page_id] = blob
        return self

    def __delitem__(self, page_id: int) -> None:
        (self.path / str(page_id)).unlink()


def changes(number: int) -> pa.RecordBatch:
    """Each key comes once: the table grows. Text of random letters, which does not compress."""
    rng = np.random.default_rng(number)
    offsets = np.arange(number * ROWS, (number + 1) * ROWS)
    letters = rng.integers(97, 123, ROWS * 80, dtype=np.uint8).tobytes()
    bounds = pa.array(np.arange(ROWS + 1, dtype=np.int32) * 80).buffers()[1]
    text = pa.StringArray.from_buffers(ROWS, bounds, pa.py_buffer(letters))
    return pa.RecordBatch.from_arrays([pa.array(offsets), text, pa.array(offsets)], schema=TABLE)


def main(batch_count: int) -> None:
    table = ChangeLog(TABLE, ("id",), ("text",), "offset")
    trial = Trial(Enrich(InputSpec(STREAM, ("key",)), table, "inner"), buckets=1)
    trial.buckets = [MemoryStore(pages=Directory())]  # type: ignore[arg-type]
    for number in range(batch_count):
        is_asked = number % 8 == 3
        keys = np.arange(0, (number + 1) * ROWS, 1 + number)[: ROWS * is_asked]
        stream = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys)], schema=STREAM)
        found = trial.feed({"table": changes(number), "stream": stream})
        assert found.num_rows == len(keys), "every key is in the table"
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


main(int(sys.argv[1]))
