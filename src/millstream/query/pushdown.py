"""From the filter that DuckDB pushes down to the columns and offsets that have to be read.

The filter is an Arrow expression, which cannot be taken apart. But Arrow can decide whether it can
hold under a guarantee, such as `_partition = 3 and _offset >= 0 and _offset < 1000`: that is how it
skips files of a partitioned dataset. So the ranges of offsets are cut into blocks, each a file that
is never opened. Of the blocks that may match, those at the ends of a run are cut again, down to
single offsets. The same finds the lowest and highest timestamp.

A block is only ever skipped if no record in it can match; the scan applies the filter to what is
left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from millstream.query.columns import TIMESTAMP
from millstream.query.ranges import ScanRange, joined

FAN_OUT = 32
BLOCKS_MAX = 4096  # of a round; with more, all of them are read
TIME_US_MIN, TIME_US_MAX = -(2**63), 2**63 - 1


class TimeBounds(NamedTuple):
    """Timestamps outside of these, in milliseconds, cannot match; None: no bound."""

    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def are_empty(self) -> bool:
        return None not in self and self.first_ms > self.last_ms  # type: ignore[operator]


def columns_in(condition: Any, schema: pa.Schema) -> frozenset[str]:
    """The columns of which the condition speaks: those without which it has no meaning."""
    if condition is None:
        return frozenset()
    text = str(condition)  # has the names of columns, and constants that may look like them
    return frozenset(
        it.name
        for it in schema
        if it.name in text and not _has_meaning(condition, [o for o in schema if o != it])
    )


def _has_meaning(condition: Any, fields: Sequence[pa.Field]) -> bool:
    try:
        pa.schema(fields).empty_table().filter(condition)
    except pa.ArrowInvalid:
        return False
    return True


def matching_ranges(
    condition: Any, ranges: Sequence[ScanRange], schema: pa.Schema
) -> tuple[ScanRange, ...]:
    """The parts of the ranges in which records may match."""
    if condition is None:
        return joined(ranges)
    certain: list[ScanRange] = []
    blocks = _surviving(condition, list(ranges), schema)
    while blocks:
        inner, edges = _split_runs(blocks)
        certain += inner
        certain += [it for it in edges if it.size == 1]
        pieces = [piece for it in edges if it.size > 1 for piece in _pieces(it)]
        if len(pieces) > BLOCKS_MAX:
            return joined([*certain, *pieces])
        blocks = _surviving(condition, pieces, schema)
    return joined(certain)


def _split_runs(blocks: Sequence[ScanRange]) -> tuple[list[ScanRange], list[ScanRange]]:
    """Blocks between two neighbours, which are read as they are, and those at the ends of runs."""
    present = {(it.partition, it.first) for it in blocks}
    ends = {(it.partition, it.end) for it in blocks}
    inner: list[ScanRange] = []
    edges: list[ScanRange] = []
    for it in blocks:
        is_inner = (it.partition, it.end) in present and (it.partition, it.first) in ends
        (inner if is_inner else edges).append(it)
    return inner, edges


def time_bounds(condition: Any, schema: pa.Schema) -> TimeBounds:
    """The lowest and the highest timestamp that may match, rounded outwards."""
    if "_timestamp" not in columns_in(condition, schema):
        return TimeBounds()
    first = _edge_us(condition, schema, lowest=True)
    last = _edge_us(condition, schema, lowest=False)
    if first is None or last is None:
        return TimeBounds(TIME_US_MAX // 1000, TIME_US_MIN // 1000)  # none can match
    return TimeBounds(
        None if first == TIME_US_MIN else first // 1000,
        None if last == TIME_US_MAX else -(-last // 1000),
    )


def _pieces(block: ScanRange) -> list[ScanRange]:
    count = min(FAN_OUT, block.size)
    bounds = [block.first + block.size * it // count for it in range(count + 1)]
    return [ScanRange(block.partition, bounds[it], bounds[it + 1]) for it in range(count)]


def _surviving(condition: Any, blocks: list[ScanRange], schema: pa.Schema) -> list[ScanRange]:
    guarantees = [
        (pc.field("_partition") == pa.scalar(it.partition, pa.int32()))
        & (pc.field("_offset") >= pa.scalar(it.first, pa.int64()))
        & (pc.field("_offset") < pa.scalar(it.end, pa.int64()))
        for it in blocks
    ]
    return [blocks[it] for it in _possible(condition, guarantees, schema)]


def _edge_us(condition: Any, schema: pa.Schema, *, lowest: bool) -> int | None:
    """The lowest or highest microsecond that may match; None if none can."""
    first, last = TIME_US_MIN, TIME_US_MAX
    while first < last:
        step = max((last - first) // FAN_OUT, 1)
        starts = list(range(first, last + 1, step))
        spans = [(start, min(start + step - 1, last)) for start in starts]
        guarantees = [
            (pc.field("_timestamp") >= pa.scalar(start, TIMESTAMP))
            & (pc.field("_timestamp") <= pa.scalar(end, TIMESTAMP))
            for start, end in spans
        ]
        possible = _possible(condition, guarantees, schema)
        if not possible:
            return None
        found = spans[possible[0] if lowest else possible[-1]]
        if found == (first, last):
            break
        first, last = found
    return first if lowest else last


def _possible(condition: Any, guarantees: Sequence[Any], schema: pa.Schema) -> list[int]:
    """The numbers of the guarantees under which the condition may hold."""
    kind, files = ds.ParquetFileFormat(), LocalFileSystem()
    fragments = [
        kind.make_fragment(str(number), files, partition_expression=guarantee)
        for number, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, kind, files)
    return sorted(int(it.path) for it in dataset.get_fragments(condition))
