"""Rows with weights add up."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.joins.weights import WEIGHT_FIELD, consolidate, weighted

SCHEMA = pa.schema([WEIGHT_FIELD, ("a", pa.string()), ("b", pa.float64())])
ROWS = st.tuples(
    st.none() | st.integers(-2, 2),
    st.sampled_from(["x", "y", None]),
    st.sampled_from([1.0, None]),
)


@given(st.lists(ROWS, max_size=12))
def test_each_row_comes_once_with_the_sum_of_its_weights(
    rows: list[tuple[int | None, str | None, float | None]],
) -> None:
    """A null counts as 1; what is taken away comes first."""
    sums: Counter[tuple[str | None, float | None]] = Counter()
    for weight, a, b in rows:
        sums[a, b] += 1 if weight is None else weight
    arrays = [pa.array([row[at] for row in rows], it.type) for at, it in enumerate(SCHEMA)]
    found = consolidate(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    assert found.schema.names == SCHEMA.names
    table = [tuple(it.values()) for it in found.to_pylist()]
    assert {(a, b): weight for weight, a, b in table} == {it: n for it, n in sums.items() if n}
    assert len(table) == len({(a, b) for _, a, b in table})
    signs = [weight > 0 for weight, _, _ in table]
    assert signs == sorted(signs)


def test_all_rows_get_one_weight() -> None:
    rows = weighted(pa.RecordBatch.from_pydict({"a": [1, 2]}), -1)
    assert rows.to_pydict() == {"a": [1, 2], "_weight": [-1, -1]}
