"""When results are emitted, as users write it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.windows.emission import NOW, Emit, due_now, parse_emit


def test_emission_is_read() -> None:
    assert parse_emit("arrival") == Emit("arrival")
    assert parse_emit("every 10 seconds") == Emit("every", 10_000_000)


def test_emission_that_is_not_offered_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match='choose "final", "change" or "every 10 seconds"'):
        parse_emit("arrival", ("final", "change", "every"))
    with pytest.raises(ConfigError, match='choose "arrival" or "final"'):
        parse_emit("every 10 seconds", ("arrival", "final"))
    with pytest.raises(ConfigError, match="choose"):
        parse_emit("every")


SECOND_US = 1_000_000


def test_preliminary_results_are_due_at_most_every_so_often() -> None:
    rows = pa.RecordBatch.from_pydict({NOW: pa.array([20 * SECOND_US], pa.timestamp("us"))})
    shown = np.array([0, 15 * SECOND_US, 0])
    due = due_now(np.array([True, True, False]), shown, rows, 10 * SECOND_US)
    assert due.tolist() == [True, False, False]
    assert shown.tolist() == [20 * SECOND_US, 15 * SECOND_US, 0]


def test_no_preliminary_result_is_due_where_none_is_wanted() -> None:
    rows = pa.RecordBatch.from_pydict({NOW: pa.array([0], pa.timestamp("us"))})
    assert not due_now(np.array([True]), np.array([0]), rows, None).any()
