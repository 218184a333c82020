"""Rows with weights: a table, or a change of one. The weights of equal rows add up; 0 is no row.

A weight is an integer: 1 adds a row, -1 removes one. The sum does not depend on the order of the
changes, or on how they are cut into batches.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import HASH, Numbers, first_rows, key_codes, with_hash

WEIGHT = "_weight"
WEIGHT_FIELD = pa.field(WEIGHT, pa.int64())


def weighted(rows: pa.RecordBatch, weights: Numbers | int) -> pa.RecordBatch:
    """The rows with a weight for each, or one for all, as the last column."""
    column = pa.array(np.broadcast_to(np.int64(weights), rows.num_rows))
    return pa.RecordBatch.from_arrays(
        [*rows.columns, column], schema=pa.schema([*rows.schema, WEIGHT_FIELD])
    )


def weights_of(rows: pa.RecordBatch) -> Numbers:
    """The weights; null counts as 1, an added row."""
    weights: Numbers = rows.column(WEIGHT).fill_null(1).to_numpy()
    return weights


def consolidate(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Each row once, with the sum of its weights; removed rows come first."""
    names = [name for name in rows.schema.names if name not in (HASH, WEIGHT)]
    codes = key_codes(with_hash(rows.select(names), names), names)
    firsts = first_rows(codes)
    sums = np.zeros(len(firsts), np.int64)
    np.add.at(sums, codes, weights_of(rows))
    chosen = np.flatnonzero(sums)
    chosen = chosen[np.argsort(sums[chosen] > 0, kind="stable")]
    columns = rows.select([name for name in rows.schema.names if name != WEIGHT])
    summed = weighted(columns.take(pa.array(firsts[chosen])), sums[chosen])
    return summed.select(rows.schema.names)
