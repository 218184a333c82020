"""Which rows of two sides have the same key, and which of several versions counts.

Versions of a key are ordered by columns: times, numbers, or positions in topics (row_positions.py).
Where these are equal, the content of the rows decides. So the last version does not depend on the
order of arrival, and a replay yields the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.row_positions import (
    Positions,
    decode_positions,
    encode_positions,
    group_times,
    is_position,
)
from millstream.pipelines.state.keys import (
    HASH,
    HASH_FIELD,
    Numbers,
    key_codes,
    key_hashes,
    sorted_order,
)
from millstream.pipelines.state.tables import concat, expand

Mask: TypeAlias = npt.NDArray[np.bool_]
_BEFORE_ALL = np.iinfo(np.int64).min


def common_codes(
    left: pa.RecordBatch,
    left_keys: Sequence[str],
    right: pa.RecordBatch,
    right_keys: Sequence[str],
) -> tuple[Numbers, Numbers]:
    """Numbers for the keys of both sides: the same number for the same key, and for no other."""
    names = [str(place) for place in range(len(left_keys))]
    both = concat([_only_keys(left, left_keys, names), _only_keys(right, right_keys, names)])
    codes = key_codes(both, names)
    return codes[: left.num_rows], codes[left.num_rows :]


def has_null_key(rows: pa.RecordBatch, keys: Sequence[str]) -> Mask:
    """Which rows have a null in their key; as in SQL, they match nothing."""
    found = np.zeros(rows.num_rows, np.bool_)
    for name in keys:
        found |= rows.column(name).is_null().to_numpy(zero_copy_only=False)
    return found


def sort_versions(rows: pa.RecordBatch, codes: Numbers, by: Sequence[str]) -> Numbers:
    """The order by key, then by these columns (null first), then by content."""
    ranks: list[Numbers] = []
    for name in by:
        ranks += _ranks(rows.column(name), [codes, *ranks])
    order = sorted_order(codes, *ranks)
    is_tied = np.ones(max(rows.num_rows - 1, 0), np.bool_)
    for values in (codes, *ranks):
        ordered = values[order]
        is_tied &= ordered[1:] == ordered[:-1]
    if is_tied.any():
        compared = [it.name for it in rows.schema if it.name != HASH and not _has_map(it.type)]
        content = key_hashes([rows.column(name) for name in compared], rows.num_rows)
        order = np.lexsort((content, *reversed(ranks), codes))
    return order


def _ranks(column: pa.Array, groups: Sequence[Numbers]) -> list[Numbers]:
    """Numbers that order a column within groups of rows, the most important first."""
    if not is_position(column.type):
        return [numbers_of(column)]
    positions = decode_positions(column)
    times_ms = group_times(positions, _group_codes(groups))
    return [times_ms, positions.logs, positions.offsets]


def _group_codes(groups: Sequence[Numbers]) -> Numbers:
    """One number for each combination of several."""
    if len(groups) == 1:
        return groups[0]
    order = np.lexsort(tuple(groups))
    is_new = np.zeros(len(order), np.bool_)
    for values in groups:
        ordered = values[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    codes = np.empty(len(order), np.int64)
    codes[order] = np.cumsum(is_new)
    return codes


def newest(
    rows: pa.RecordBatch, keys: Sequence[str], sequence: str, *, is_whole: bool = True
) -> pa.RecordBatch:
    """Of each key, the newest row.

    If not `is_whole`, these may not be all rows of their keys. Then of each key the newest row of
    each log is returned, because which log counts depends on all rows.
    """
    codes = key_codes(rows, keys)
    if is_position(rows.schema.field(sequence).type):
        return _newest_by_position(rows, codes, sequence, is_whole)
    order = sort_versions(rows, codes, (sequence,))
    return rows.take(pa.array(order[is_last(codes[order])]))


def _newest_by_position(
    rows: pa.RecordBatch, codes: Numbers, sequence: str, is_whole: bool
) -> pa.RecordBatch:
    """The newest rows, with positions that have the greatest timestamp of their key and log."""
    if not rows.num_rows:
        return rows
    positions = decode_positions(rows.column(sequence))
    order = _by_log(codes, positions)
    is_last_of_key = is_last(codes[order])
    last = np.flatnonzero(is_last_of_key | is_last(positions.logs[order]))
    starts = np.concatenate([[0], last[:-1] + 1])
    times_ms = np.maximum.reduceat(positions.times_ms[order], starts)
    chosen = order[last]
    if is_whole and len(last) > np.count_nonzero(is_last_of_key):
        newest_logs = np.lexsort((positions.logs[chosen], times_ms, codes[chosen]))
        newest_logs = newest_logs[is_last(codes[chosen][newest_logs])]
        chosen, times_ms = chosen[newest_logs], times_ms[newest_logs]
    found = rows.take(pa.array(chosen))
    if np.array_equal(times_ms, positions.times_ms[chosen]):
        return found
    moved = Positions(times_ms, positions.logs[chosen], positions.offsets[chosen])
    place = found.schema.get_field_index(sequence)
    return found.set_column(place, found.schema.field(place), encode_positions(moved))


def _by_log(codes: Numbers, positions: Positions) -> Numbers:
    """The order by key, log and offset. Nearly always a key has one log, and two columns do."""
    order = np.lexsort((positions.offsets, codes))
    is_same_key = codes[order][1:] == codes[order][:-1]
    is_same_log = positions.logs[order][1:] == positions.logs[order][:-1]
    if (is_same_key & ~is_same_log).any():
        order = np.lexsort((positions.offsets, positions.logs, codes))
    return order


def is_last(codes: Numbers) -> Mask:
    """For sorted codes, where each one occurs for the last time."""
    last = np.ones(len(codes), np.bool_)
    last[:-1] = codes[1:] != codes[:-1]
    return last


def numbers_of(column: pa.Array) -> Numbers:
    """A column of integers, times or dates as numbers in the same order; null is before all."""
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    numbers: Numbers = column.cast(pa.int64()).fill_null(_BEFORE_ALL).to_numpy()
    return numbers


def is_true(rows: pa.RecordBatch, flag: str | None) -> Mask:
    """The values of a boolean column, null as false; without a column, all are false."""
    if flag is None:
        return np.zeros(rows.num_rows, np.bool_)
    found: Mask = pc.fill_null(rows.column(flag), False).to_numpy(zero_copy_only=False)
    return found


def pairs(left_codes: Numbers, right_codes: Numbers) -> tuple[Numbers, Numbers]:
    """All pairs of rows with the same code: indexes on the left and on the right."""
    order = np.argsort(right_codes, kind="stable")
    ordered = right_codes[order]
    starts = np.searchsorted(ordered, left_codes)
    lengths = np.searchsorted(ordered, left_codes, side="right") - starts
    return np.repeat(np.arange(len(left_codes)), lengths), order[expand(starts, lengths)]


def take_or_null(column: pa.Array, places: Numbers) -> pa.Array:
    """Values at these indexes; null where the index is negative."""
    if not len(column):
        return pa.nulls(len(places), column.type)
    return column.take(pa.array(np.maximum(places, 0), mask=places < 0))


def _has_map(kind: pa.DataType) -> bool:
    """Whether the type contains a map, which Spark cannot compare or hash."""
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_map(kind) or any(map(_has_map, inner))


def _only_keys(rows: pa.RecordBatch, keys: Sequence[str], names: Sequence[str]) -> pa.RecordBatch:
    columns = [rows.column(name) for name in keys]
    fields = [pa.field(name, it.type) for name, it in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(
        [rows.column(HASH), *columns], schema=pa.schema([HASH_FIELD, *fields])
    )
