"""Rows with weights: a table, or a change of one. Weights of equal rows add up, and 0 is no row.

A weight is an integer: 1 adds a row, -1 takes one away. Addition knows no order, so changes can
come in any, and be cut into batches anywhere: in the end the sum is the same.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import HASH, Numbers, key_codes, with_hash

WEIGHT = "_weight"
WEIGHT_FIELD = pa.field(WEIGHT, pa.int64())


def weighted(rows: pa.RecordBatch, weights: Numbers | int) -> pa.RecordBatch:
    """The rows, each with its weight (or all with one), as last column."""
    column = pa.array(np.broadcast_to(np.int64(weights), rows.num_rows))
    return pa.RecordBatch.from_arrays(
        [*rows.columns, column], schema=pa.schema([*rows.schema, WEIGHT_FIELD])
    )


def weights_of(rows: pa.RecordBatch) -> Numbers:
    """A weight that is null is 1: a row that was added."""
    weights: Numbers = rows.column(WEIGHT).fill_null(1).to_numpy()
    return weights


def consolidate(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Each row once, with the sum of its weights; what is taken away comes first."""
    names = [name for name in rows.schema.names if name not in (HASH, WEIGHT)]
    codes = key_codes(with_hash(rows.select(names), names), names)
    _, firsts, places = np.unique(codes, return_index=True, return_inverse=True)
    sums = np.zeros(len(firsts), np.int64)
    np.add.at(sums, places, weights_of(rows))
    chosen = np.flatnonzero(sums)
    chosen = chosen[np.argsort(sums[chosen] > 0, kind="stable")]
    columns = rows.select([name for name in rows.schema.names if name != WEIGHT])
    summed = weighted(columns.take(pa.array(firsts[chosen])), sums[chosen])
    return summed.select(rows.schema.names)
